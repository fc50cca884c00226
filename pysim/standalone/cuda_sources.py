# SPDX-License-Identifier: Apache-2.0
"""The CUDA sources that a plan of a GPU needs: the library's own files, with the tables of families and kernels cut to the plan's.

Beside a family's files go those without kernels of a family (native/cuda/meson.build): the entry points, layout conversions and references.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from pysim.errors import PlanError
from pysim.record.plan import Plan
from pysim.registry.cuda import ConvKernel, GemmKernel, conv_kernel, gemm_kernel
from pysim.registry.native_files import native_file
from pysim.standalone.expression import Code

Row = ConvKernel | GemmKernel
_FAMILY = re.compile(r"^PYSIM_CUDA_(CONV|GEMM)\((\w+), (\w+), (.*)\)\n", re.MULTILINE)
_ROW = re.compile(r"^PYSIM_CUDA_ROW\(.*\n", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_PLAIN = ("abi", "gemm", "conv")  # folders of files that every plan needs; abi/network/ is for networks


class CudaUnit(NamedTuple):
    """A file to compile, its path below native/cuda/, and what PYSIM_UNIT is."""

    path: str
    unit: str = ""


class CudaSources(NamedTuple):
    """`files`: texts by path below native/, of the `units` and what they include. `kernel`: the file that defines the plan's kernel.
    `hopper`: it has instructions of 9.0a alone."""

    files: dict[str, str]
    units: list[CudaUnit]
    kernel: str
    hopper: bool


class _Family(NamedTuple):
    problem: Literal["conv", "gemm"]
    name: str
    gpus: str
    units: tuple[str, ...]

    @property
    def folder(self) -> str:
        return f"{self.problem}/{self.name}"

    def source(self, unit: str) -> str:
        own = f"{self.folder}/{unit}.cu"
        return own if native_file(f"cuda/{own}").exists() else f"{self.folder}/{self.name}.cu"


def cuda_sources_of(plan: Plan, code: Code | None) -> CudaSources:
    """The sources of a GPU's plan; `code`: of its epilogue."""
    launch, wanted = plan.launch, list[tuple[_Family, int, Row]]()
    for kind, row in (("conv", conv_kernel(launch.kernel)), ("gemm", gemm_kernel(launch.kernel)), ("gemm", gemm_kernel(launch.gemm or ""))):
        if row:
            wanted.append((*_place(kind, row.index), row))
    if not wanted:
        raise PlanError(f"the registry has no CUDA kernel {launch.kernel!r}; `pysim kernels --cuda` lists them")
    units = [CudaUnit(family.source(unit), unit) for family, _, row in wanted for unit in _units(family, row)]
    texts = _with_includes([unit.path for unit in units])
    plain = [CudaUnit(path) for folder in _PLAIN for path in _plain(folder)]
    while more := [one for one in plain if one.path not in texts and _needed(one.path, texts)]:
        texts |= _with_includes([one.path for one in more])
        units += more
    lines = {f"{family.folder}/rows.inc": at for family, at, _ in wanted}
    kept = {family.name: _units(family, row) for family, _, row in wanted}
    cut = {path: _cut(path, text, lines, kept) for path, text in texts.items()}
    if code:
        cut |= _with_epilogue(cut, code)
    files = {path if path in ("pysim.h", "pysim_cuda.h", "abi/operators.h") else f"cuda/{path}": text for path, text in cut.items()}
    return CudaSources(files, units, f"cuda/{units[0].path}", any(family.gpus == "hopper" for family, _, _ in wanted))


@cache
def _families() -> tuple[_Family, ...]:
    found = _FAMILY.findall(_read("families.inc"))
    return tuple(_Family("conv" if kind == "CONV" else "gemm", name, gpus, tuple(units.split(", "))) for kind, name, gpus, units in found)


def _place(problem: str, index: int) -> tuple[_Family, int]:
    """The family of a row of the registry, and the row's line in its table."""
    for family in _families():
        if family.problem == problem:
            count = len(_ROW.findall(_read(f"{family.folder}/rows.inc")))
            if index < count:
                return family, index
            index -= count
    raise AssertionError(index)


def _units(family: _Family, row: Row) -> tuple[str, ...]:
    """The units of a family that may define a row: all of them, unless one is named by the row's type or transform."""
    outputs, staged = getattr(row, "outputs", 1), getattr(row, "staged", False)
    for name in ("all", row.dtype, f"{row.dtype}_1", f"{'un' * staged}fused{outputs}"):
        if name in family.units:
            return (name,)
    return family.units


def _read(path: str) -> str:
    file = native_file(f"cuda/{path}")
    return (file if file.exists() else native_file(path)).read_text()


def _plain(folder: str) -> list[str]:
    """The CUDA files of a folder, and of those below it, that define no rows."""
    root, owned = native_file("pysim.h").parent / "cuda", {family.source(unit) for family in _families() for unit in family.units}
    paths = (str(path.relative_to(root)) for path in sorted((root / folder).rglob("*.cu")))
    return [path for path in paths if path not in owned]


def _needed(path: str, texts: dict[str, str]) -> bool:
    """Whether a file without rows is needed: those of a family's folder are where its headers are."""
    parts = path.split("/")
    return len(parts) == 2 or any(other.startswith(f"{parts[0]}/{parts[1]}/") and other.endswith((".h", ".cuh")) for other in texts)


def _with_includes(paths: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    todo = [*paths]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        text = found[path] = _read(path)
        for name in _INCLUDE.findall(text):
            beside = f"{Path(path).parent}/{name}"
            todo.append(beside if native_file(f"cuda/{beside}").exists() else name)
    return found


def _cut(path: str, text: str, lines: dict[str, int], units: dict[str, tuple[str, ...]]) -> str:
    """A table of families without those that the plan does not use, and a table of rows with the plan's alone."""
    if path == "families.inc":

        def line(of: re.Match[str]) -> str:
            used = f"{of[1].lower()}/{of[2]}/rows.inc" in lines
            return f"PYSIM_CUDA_{of[1]}({of[2]}, {of[3]}, {', '.join(units[of[2]])})\n" if used else ""

        return _FAMILY.sub(line, text)
    if path in lines:
        rows = iter(range(len(_ROW.findall(text))))
        return _ROW.sub(lambda line: line[0] * (next(rows) == lines[path]), text)
    return text


def _with_epilogue(texts: dict[str, str], code: Code) -> dict[str, str]:
    """The files of the epilogue with one function more, `planned`."""
    changes = {
        "core/function.h": {", ramp };": ", ramp, planned };"},
        "core/narrow.cuh": {
            "namespace pysim::narrow {": (
                "namespace pysim {\ntemplate <class T> __device__ inline T planned_of(T x);\n}\n\nnamespace pysim::narrow {"
            ),
            "    if constexpr (FUNCTION == logistic) {": (
                "    if constexpr (FUNCTION == planned) {\n        return planned_of(x);\n    } else if constexpr (FUNCTION == logistic) {"
            ),
        },
        "core/epilogue.cuh": {
            "/* Applies times function(of)": (
                "/* The plan's own. */\ntemplate <class T> __device__ inline T plan_logistic(T x) { return logistic_of(x); }\n"
                f"template <class T> __device__ inline T planned_of(T x) {{ return {code.number}; }}\n\n/* Applies times function(of)"
            ),
            "    case normal: each(": "    case planned: each([](T, T x) { return planned_of(x); }); break;\n    case normal: each(",
        },
    }
    changed = {}
    for path, anchors in changes.items():
        changed[path] = texts[path]
        for anchor, replaced in anchors.items():
            assert changed[path].count(anchor) == 1, anchor
            changed[path] = changed[path].replace(anchor, replaced)
    number = len(re.findall(r"^PYSIM_EPILOGUE\(", texts["epilogues.inc"], re.MULTILINE))
    return changed | {"epilogues.inc": texts["epilogues.inc"] + f"PYSIM_EPILOGUE({number}, plan, 0, 1, planned, x)\n"}
