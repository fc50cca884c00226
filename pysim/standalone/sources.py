# SPDX-License-Identifier: Apache-2.0
"""The native sources that a plan of a CPU needs: the library's own files, with tables cut to the rows of the plan.

Files are found by the names that they define and use, from the entry points of the ABI (native/abi/run.c), the plan's algorithm and its
kernel on. A template (native/templates/) defines the rows of a table, so it becomes as short as its table.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pysim.algorithms.cpu.direct_nchwc import rows_of_panels
from pysim.errors import PlanError
from pysim.problem.conv import Conv
from pysim.record.plan import Plan, on_cpu
from pysim.registry.cpu import Kernel, cpu_kernel, cpu_kernels, direct_kernels, kernels, loop_nest, nchwc_kernels
from pysim.registry.native_files import native_file

# Flags of ISA code, as in meson.build
FLAGS = {
    "avx2": "-mavx2 -mfma -mf16c",
    "avx512": "-mavx512f -mavx512vl -mavx512bw -mavx512dq -mfma -mprefer-vector-width=512",
    "mma": "-mcpu=power10",
    "portable": "",
}
# Instances of native/x86/groups/kernels.c, as there: (target, dtype) -> flags
GROUPS = {
    ("avx512vnni", "s8"): f"{FLAGS['avx512']} -mavx512vnni -DWIDTH=512 -DPRODUCTS",
    ("avx512bf16", "bf16"): f"{FLAGS['avx512']} -mavx512bf16 -DWIDTH=512 -DPRODUCTS -DHALVES",
    ("avxvnni", "s8"): f"{FLAGS['avx2']} -mavxvnni -DWIDTH=256 -DPRODUCTS",
    ("avx2", "s8"): f"{FLAGS['avx2']} -DWIDTH=256",
    ("avx2", "bf16"): f"{FLAGS['avx2']} -DWIDTH=256 -DHALVES",
}
_FOLDERS = {"avx2": "x86", "avx512": "x86", "mma": "power10", "portable": "portable"}
# where functions of other files are looked for
_ROOMS = ("abi", "algorithms", "algorithms/grouped", "algorithms/integers", "algorithms/strassen", "threads", "portable")
_APART = {"abi/probe.c", "abi/worker.c"}
LOOPS = "templates/loops.c"
NEST_FORMS = ("win", "fil", "outer", "groups", "pairs", "bounded", "unpacked", "fused")  # of rows of kernels.inc
_DEFINED = re.compile(r"^(?!static|extern|typedef|return|else)[a-z][\w *]*?\b(\w+)(?:\(| = )", re.MULTILINE)
_BY_MACRO = re.compile(r"^DEFINE_\w+\((?:\w+, )?(\w+__\w+)", re.MULTILINE)
_PASTED = re.compile(r"#define \w+\(([^)]*)\)((?:.*\\\n)*.*)")
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ROW = re.compile(r"^PYSIM_(?:KERNEL|DIRECT|SKINNY|PHASES|NCHWC)\(target.*\n", re.MULTILINE)
_COLUMN = re.compile(r"(\w+)\((\w+)\)")


class Unit(NamedTuple):
    """A C file to compile: its path below native/, its flags besides the common ones, and the header with the vectors of a template."""

    path: str
    flags: str = ""
    vectors: str = ""


class Sources(NamedTuple):
    """`files`: texts by path below native/, of the C files `units` and what they include. `kernel`: the file with the plan's micro-kernel.
    `row`: its number among the rows that are left."""

    files: dict[str, str]
    units: list[Unit]
    kernel: str
    row: int


def sources_of(plan: Plan, with_epilogue: bool) -> Sources:
    """The sources of a CPU's plan. `with_epilogue`: also those that apply PLAN_VECTOR_EPILOGUE (native/standalone/epilogue.c)."""
    row, algorithm = cpu_kernel(plan.kernel), algorithm_of(plan)
    assert row
    if row.target not in FLAGS and (row.target, row.dtype) not in GROUPS:
        raise PlanError(f"kernels of target {row.target} are not exported; plan for a machine without that unit, or with --micro-kernel")
    if plan.workload.dtype == "bf16" and plan.layout != "nchw":
        raise PlanError(
            f"plans of bf16 in {plan.layout} are not exported: their loads and stores convert; export the plan of f32 or of nchw"
        )
    own, target = _isa_file(row, row.name), _vectors_of(row.target)
    plain = _closure([f"pysim_algorithm_{algorithm}", "pysim_run_job"])
    templates = _templates(row, own, plain)
    apart = list(_with_includes([own])) if own and (row.target, row.dtype) in GROUPS else list[str]()  # it calls plain C, too
    plain = sorted(path for path in _closure([*plain, *templates, *apart]) if path not in (*templates, *apart))
    rows = _rows(plan, row, plain)
    units = dict.fromkeys(Unit(path) for path in plain)
    for one in rows:
        packs = one.form in (*NEST_FORMS, "phases")
        names = [one.name, *[f"pack_{one.dtype}__{one.target}{end}" for end in ("", "_segment")] * packs]
        paths = (_isa_file(one, name) for name in names)
        units |= dict.fromkeys(Unit(path, _flags(one)) for path in paths if path and path not in plain)
    vectors = f"x86/vectors/vec_{target}_{_result(row.dtype)}.h" if _FOLDERS[target] == "x86" else f"portable/vec_{_result(row.dtype)}.h"
    if with_epilogue and LOOPS in templates:
        raise PlanError(f"algorithm {algorithm} is exported without an epilogue; leave that out, or choose another with --algorithm")
    templates += ["standalone/epilogue.c"] * with_epilogue
    units |= dict.fromkeys(Unit(path, FLAGS[target], vectors) for path in templates)
    texts = _with_includes([*(unit.path for unit in units), *[vectors] * bool(templates)])
    loops = (target if vectors.startswith("x86") else "portable", _result(row.dtype))
    cut = _Cut(rows, algorithm, loops, str(plan.tile.get("outputs")))
    return Sources({path: cut(path, text) for path, text in texts.items()}, list(units), own or templates[0], rows.index(row))


def algorithm_of(plan: Plan) -> str:
    """The native library's name of the plan's algorithm."""
    schedule, _ = on_cpu(plan)
    return schedule.algorithm or loop_nest(plan.workload)


def _rows(plan: Plan, row: Kernel, plain: Sequence[str]) -> list[Kernel]:
    """The plan's row, that of a last panel of fewer filters (`rows_of_panels`), and that of the routine that transposes where the algorithm
    asks for one (`pysim_transposer_for`)."""
    needed = {row}
    if row in nchwc_kernels() and isinstance(plan.workload, Conv):
        needed |= {one for one, _ in rows_of_panels(plan.workload, row)}
    if any("pysim_transposer_for" in _COMMENT.sub("", _read(path)) for path in plain if path != "abi/registry.c"):
        targets = {unit.target for unit in on_cpu(plan)[1].core.units} | {"portable"}
        needed.add(next(one for one in kernels() if one.dtype == row.dtype and one.target in targets))
    return sorted(needed, key=lambda one: one.index)


def _templates(row: Kernel, own: str | None, plain: Sequence[str]) -> list[str]:
    """The templates that define the plan's row and, for an algorithm that reads these tables, Winograd's transforms and loops over rows."""
    tables = [*[_table_of(row)] * (own is None), *["winograd.inc"] * any("winograd.inc" in _INCLUDE.findall(_read(path)) for path in plain)]
    reads_loops = any(re.search(r"\bpysim_loops \*", _read(path)) for path in plain if path.startswith("algorithms/"))
    return [LOOPS] * reads_loops + [path for path in _c_files("templates") if {*tables} & {*_INCLUDE.findall(_read(path))}]


def _result(dtype: str) -> str:
    return "f64" if dtype == "f64" else "f32"


@cache
def _read(path: str) -> str:
    return native_file(path).read_text()


def _root() -> Path:
    return native_file("pysim.h").parent


@cache
def _c_files(folder: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{path.name}" for path in sorted((_root() / folder).glob("*.c")))


@cache
def _plain_files() -> tuple[str, ...]:
    return tuple(path for room in _ROOMS for path in _c_files(room) if path not in _APART)


@cache
def _definitions() -> dict[str, str]:
    """Names that the plain C files define -> their file."""
    return {
        name: path
        for path in _plain_files()
        for pattern in (_DEFINED, _BY_MACRO)
        for name in pattern.findall(_COMMENT.sub("", _read(path)))
    }


def _closure(start: Iterable[str]) -> list[str]:
    """These files, and the plain C files that define what they use. A name stands for the file that defines it."""
    defined, found, todo = _definitions(), list[str](), [*start]
    while todo:
        path = todo.pop(0)
        path = defined.get(path, path)
        if path not in found:
            found.append(path)
            todo += [defined[name] for name in re.findall(r"\w+", _COMMENT.sub("", _read(path))) if name in defined]
    return found


def _flags(row: Kernel) -> str:
    """The flags of the file that defines a row's kernel."""
    groups = GROUPS.get((row.target, row.dtype))
    form = " -DBOUNDED" if row.lists else " -DPAIRS" if row.form == "pairs" else ""
    return f"{groups}{form} -DTARGET={row.target}" if groups else FLAGS[row.target]


def _vectors_of(target: str) -> str:
    """The target of the vectors that go with a target."""
    return "avx512" if target.startswith("avx512") else "avx2" if target.startswith("avx") else target


def _isa_file(row: Kernel, name: str) -> str | None:
    """The ISA's C file that defines a row's kernel or packing routine, by its name or by a macro that pastes it."""
    if (row.target, row.dtype) in GROUPS:
        return "x86/groups/depthwise.c" if row in direct_kernels() else "x86/groups/kernels.c"
    for path in _c_files(_FOLDERS[row.target]):
        text = _read(path)
        if name in _BY_MACRO.findall(text) or any(re.fullmatch(pattern, name) for pattern in _pasted(text)):
            return path
    return None


def _pasted(text: str) -> set[str]:
    """Patterns of the names that macros of a file paste: `pack_##dtype##__mma_segment` is pack_\\w+__mma_segment."""
    found = set()
    for parameters, body in _PASTED.findall(text):
        given = {one.strip() for one in parameters.split(",")}
        for name in re.findall(r"\bvoid (\w+(?:##\w+)+)\(", body):
            found.add("".join(r"\w+" if part in given else part for part in name.split("##")))
    return found


def _table_of(row: Kernel) -> str:
    """The table in which a row stands."""
    tables = ("kernels.inc", "depthwise.inc", "skinny.inc", "polyphase.inc", "direct_nchwc.inc")
    return next(name for name in tables if any(_name_of(line) == row.name for line in _ROW.findall(_read(name))))


def _name_of(line: str) -> str:
    of = dict(_COLUMN.findall(line))
    return f"{of['dtype']}_{of['form']}_{of['windows']}x{of['filters']}__{of['target']}"


def _with_includes(paths: Iterable[str]) -> dict[str, str]:
    """The texts of files and of all that they include, by path below native/."""
    found: dict[str, str] = {}
    todo = [*paths]
    while todo:
        path = todo.pop()
        if path in found or path.startswith("test/"):
            continue
        text = found[path] = _read(path)
        beside = Path(path).parent
        todo += [str(beside / name) if (_root() / beside / name).exists() else name for name in _INCLUDE.findall(text)]
    return found


def _keep(pattern: str, wanted: Collection[Sequence[str]], text: str) -> str:
    """Without the lines of this pattern whose groups are not wanted."""
    return re.sub(pattern, lambda line: line[0] * (line.groups() in wanted), text, flags=re.MULTILINE)


class _Cut(NamedTuple):
    """What of the tables a plan keeps: its rows, its algorithm, the (target, dtype) of loops that apply its epilogue, and m of Winograd's
    F(m x m, r x r)."""

    rows: list[Kernel]
    algorithm: str
    loops: tuple[str, str]
    outputs: str

    def __call__(self, path: str, text: str) -> str:
        """A file without the rows of tables, and the definitions of kernels, that the plan does not use."""
        kept, units = {one.name for one in self.rows}, {(one.target, one.dtype) for one in self.rows}
        if path.endswith(".inc"):
            text = _ROW.sub(lambda line: line[0] * (_name_of(line[0]) in kept), text)
            for columns, wanted in (
                (r"(?:PACKER|WINOGRAD)\((\w+), +(\w+)\)", units),
                (r"LOOPS\((\w+), +(\w+)\)", {self.loops}),
                (r"ALGORITHM\((\w+), \w+\)", {(self.algorithm,)}),
                (r"WINOGRAD_FORM\((\d+), \d+\)", {(self.outputs,)}),
            ):
                text = _keep(rf"^PYSIM_{columns}\n", wanted, text)
        elif path.endswith(".c") and path.startswith(("x86/", "power10/")):
            others = {one.name for one in cpu_kernels()} - kept
            text = re.sub(r"^DEFINE_\w+\((\w+).*\n", lambda line: line[0] * (line[1] not in others), text, flags=re.MULTILINE)
            if wide := next((one for one in self.rows if f"DEFINE_WIN({one.name}," in text), None):  # tiles of up to vectors x broadcasts
                text = re.sub(r"(#define SIZES\(M\)).*", rf"\1 V{wide.windows // wide.lane_windows}(M, TO{wide.filters})", text)
            elif "DEFINE_WIN_SIZES" in text:
                text = re.sub(r"^(?:#define SIZES|DEFINE_WIN_SIZES).*\n", "", text, flags=re.MULTILINE)
        return text
