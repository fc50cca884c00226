# SPDX-License-Identifier: Apache-2.0
"""The CPU's kernel registry as Python sees it: the lines of `native/kernels.inc` and of the other tables beside it, read, never copied.

The native library expands the same lines, so row i here is row i there (a test compares them).
"""

import itertools
import operator
import re
from collections.abc import Iterable
from functools import cache

import msgspec

from pysim.caches import lazy
from pysim.errors import PysimError, choose, quoted
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.text import Workload
from pysim.registry.native_files import epilogue_numbers, native_file

# Tables in the order of registry.c, with the forms of their kernels
_TABLES = {
    "kernels.inc": {
        "win": "vector lanes hold windows; each filter value is broadcast",
        "fil": "vector lanes hold filters; each window value is broadcast",
        "groups": "vector lanes hold windows, each a group of neighbouring k of 4 bytes; each filter's group is broadcast",
        "pairs": "as groups: pairs of neighbouring k of s8, widened to 16 bits in panels",
        "bounded": "as groups of s8, products of two groups added in 16 bits; weights that do not fit are listed behind the panel",
        "pixels": "lanes hold bounded weights, packed beforehand; groups of pixels or of rows of A are broadcast from where they lie",
        "unpacked": "as groups, panels of windows packed beforehand; groups of pixels or of rows of A are broadcast from where they lie",
        "tiles": "tiles of 16x16 results on a matrix unit; of f32 six products of operands split in three bf16",
        "fused": "win in plain C, multiply-adds round once; for accuracy reproducible alone",
        "chain": "outer on a matrix unit, each result one chain along k; for accuracy reproducible alone",
        "outer": "one register holds a 4x4 outer product (SConv)",
    },
    "depthwise.inc": {
        "rows": "vector lanes hold columns of an output row; operands are read in place",
        "planes": "vector lanes hold groups of one channel; input planes are transposed",
        "blocks": "vector lanes hold groups of one channel; the layout is NCHWc",
        "taps": "groups of one channel of bytes: vector lanes hold outputs, 4 neighbouring taps of a kernel row each",
        "grouped": "several channels a group: vector lanes hold filters of a group or two; the layout is NCHWc",
        "last": "groups of one channel of bytes, channels last: vector lanes hold groups, 4 kernel rows of a column each",
    },
    "skinny.inc": {
        "axpy": "product with few rows or columns: vector lanes hold neighbouring results; the large matrix is read in place",
        "dot": "product with few rows or columns: vector lanes hold neighbouring k; the large matrix is read in place",
    },
    "polyphase.inc": {"phases": "vector lanes hold columns of an output row; the input is split by the phases of the stride"},
    "direct_nchwc.inc": {"nchwc": "vector lanes hold filters; the layout is NCHWc"},
}
_TILE_DEPTH = {"f32": 32, "bf16": 32, "s8": 64}  # k of a block of form tiles (native/x86/amx)
FORMS = {form: text for forms in _TABLES.values() for form, text in forms.items()}
_LINE = re.compile(r"^PYSIM_(?:KERNEL|DIRECT|SKINNY|PHASES|NCHWC)\((.*)\)", re.MULTILINE)
_PACKERS = re.compile(r"^PYSIM_PACKER\((\w+),\s*(\w+)\)", re.MULTILINE)
_ALGORITHM = re.compile(r"^PYSIM_ALGORITHM\((\w+), (\w+)\)", re.MULTILINE)
_TRANSFORMS = re.compile(r"^PYSIM_WINOGRAD\((\w+),\s*(\w+)\)", re.MULTILINE)
_FORMS = re.compile(r"^PYSIM_WINOGRAD_FORM\((\d+), (\d+)\)", re.MULTILINE)
_OPERATIONS = re.compile(r"^PYSIM_EPILOGUE\(\d+,\s*(\w+),\s*(\d+),", re.MULTILINE)
_ROWS = re.compile(r"^PYSIM_ROWS_OF\((\d+), (\w+), (\d+), (\d+)\)", re.MULTILINE)
_LOOPS = re.compile(r"^PYSIM_LOOPS\((\w+),\s*(\w+)\)", re.MULTILINE)
_DIRECT_BYTES = re.compile(r"^PYSIM_DIRECT_BYTES\((\d+), (\d+)\)", re.MULTILINE)
_GROUPED = re.compile(r"^PYSIM_GROUPED\((\d+), (\d+)\)", re.MULTILINE)
_FIELD = re.compile(r"(\w+)\((\w+)\)")  # of a line of kernels.inc


class Kernel(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """One micro-kernel: `windows` x `filters` outputs a call, `lane_windows` x `lane_filters` a multiply-add."""

    index: int
    target: str
    dtype: str
    form: str
    windows: int
    filters: int
    lane_windows: int
    lane_filters: int

    @lazy
    def name(self) -> str:
        return f"{self.dtype}_{self.form}_{self.windows}x{self.filters}__{self.target}"

    @lazy
    def group(self) -> int:
        """Elements of neighbouring k that lie beside each other in panels: 4 bytes of them in forms groups, bounded, pixels and
        unpacked, and of bf16 in nchwc; two in pairs, a block in tiles, else 1."""
        if self.form == "tiles":
            return _TILE_DEPTH[self.dtype]
        of_words = 4 // SIZES[self.dtype]
        return {"groups": of_words, "unpacked": of_words, "bounded": 4, "pixels": 4, "pairs": 2, "nchwc": max(1, of_words)}.get(
            self.form, 1
        )

    @lazy
    def split(self) -> bool:
        """Whether it multiplies parts of its operands, not the operands themselves."""
        return self.form == "tiles" and self.dtype == "f32"

    @lazy
    def panel_bytes(self) -> int:
        """Bytes of an element in panels: of a split one, those of its three parts; of form pairs, those of a wider element."""
        return 3 * SIZES["bf16"] if self.split else SIZES[self.dtype] * (2 if self.form == "pairs" else 1)

    @lazy
    def filter_bytes(self) -> int:
        """The same in panels of filters: behind some stand lists that are twice as long."""
        return self.panel_bytes * (3 if self.lists and not self.in_rows else 1)

    @lazy
    def window_bytes(self) -> int:
        """The same in panels of windows."""
        return self.panel_bytes * (3 if self.lists and self.in_rows else 1)

    @lazy
    def in_rows(self) -> int:
        """Of how many filters, or a multiple, it reads rows of k where they lie; 0 if it reads panels alone."""
        return 1 if self.reads_rows else 16 if self.form == "tiles" and not self.split else 0

    @lazy
    def reads_rows(self) -> bool:
        """Whether it reads rows of k, pixels with channels last or rows of A, one by one, beside panels made beforehand."""
        return self.form in ("pixels", "unpacked")

    @lazy
    def adds(self) -> bool:
        """Whether its store adds residuals of bytes as fast as an operator of their own. Other rows add them in a loop behind a tile's
        store: 256 -> 1024 channels of 14x14 take 1.44 times as long with that loop as without a sum, 1.06 times with the operator
        (Zen 3)."""
        return self.dtype == "s8" and (self.form == "tiles" or (self.target == "avx512vnni" and self.form in ("groups", "unpacked")))

    @lazy
    def lists(self) -> bool:
        """Whether weights are looked at beforehand, and those that do not fit listed."""
        return self.form in ("bounded", "pixels")

    @lazy
    def work(self) -> float:
        """Multiply-adds of its unit that one of its own counts as: of two groups of bytes, which five instructions multiply and add, beside
        two instructions of a pair."""
        return 1.25 if self.lists else 1.0

    @lazy
    def fused(self) -> bool:
        """Whether its multiply-adds round once, one after another, on any CPU. Plain C leaves that to the compiler, and POWER10's edges
        have several sums, unless the form says otherwise."""
        return (self.target not in ("portable", "mma") or self.slow) and not self.split

    @lazy
    def slow(self) -> bool:
        """Whether another row is faster, so that it is for accuracy reproducible alone."""
        return self.form in ("fused", "chain")

    @lazy
    def in_blocks(self) -> bool:
        """Whether its operands are channel blocks (NCHWc)."""
        return self.form in ("blocks", "grouped", "nchwc")

    @lazy
    def left_out(self) -> bool:
        """Whether a build for a CPU with wider vectors leaves it out (meson.build): kernels of channel blocks, and tiles that AVX-512 has
        with as many lanes."""
        of = operator.attrgetter("dtype", "form", "windows", "filters", "lane_windows", "lane_filters")
        twins = (one for one in cpu_kernels() if one.target == "avx512" != self.target and of(one) == of(self))
        return self.in_blocks or (self.lane_windows > 1 and any(twins))

    @lazy
    def along_filters(self) -> bool:
        """Whether the vector lanes hold filters alone, so that a tile is transposed when it is stored."""
        return self.lane_filters > self.lane_windows == 1

    def instructions(self, windows: int, filters: int) -> int:
        """Multiply-adds of one k-iteration on a tile of `windows` x `filters` (edges fill whole lanes)."""
        return -(-windows // self.lane_windows) * -(-filters // self.lane_filters)


@cache
def _rows(table: str) -> tuple[Kernel, ...]:
    """The rows of a file, in its order; indices continue from the files before it."""
    lines = _LINE.findall(native_file(table).read_text())
    first = sum(len(_rows(one)) for one in itertools.takewhile(lambda one: one != table, _TABLES))
    columns = (dict(_FIELD.findall(line)) for line in lines)
    rows = tuple(msgspec.convert({"index": index, **of}, Kernel, strict=False) for index, of in enumerate(columns, first))
    known = dict.fromkeys(_PACKERS.findall(native_file("kernels.inc").read_text()))
    for row in rows:
        if row.form not in _TABLES[table]:
            known_forms = choose(row.form, _TABLES[table])
            raise PysimError(f"{native_file(table)}: {row.name}: no form is named {quoted(row.form)}; {known_forms}")
        if (row.target, row.dtype) not in known:
            unit = f"{row.target} {row.dtype}"
            raise PysimError(f"{native_file(table)}: {row.name}: nothing packs for {quoted(unit)}; {choose(unit, map(' '.join, known))}")
    return rows


def kernels() -> tuple[Kernel, ...]:
    """Every micro-kernel of the loop nest."""
    return _rows("kernels.inc")


@cache
def products_of_bytes() -> tuple[Kernel, ...]:
    """The rows by which products of two computed values of bytes run (`native/operators/byte_products.c`)."""
    return tuple(row for row in kernels() if row.dtype == "s8" and row.reads_rows and not row.lists)


@cache
def direct_kernels() -> tuple[Kernel, ...]:
    """Every kernel that convolves operands in place; windows x filters: its largest tile."""
    return tuple(row for row in _rows("depthwise.inc") if row.form != "grouped")


@cache
def grouped_kernels() -> tuple[Kernel, ...]:
    """Every kernel of groups of several channels in blocks (NCHWc); windows: outputs of a tile."""
    return tuple(row for row in _rows("depthwise.inc") if row.form == "grouped")


@cache
def grouped_tile() -> tuple[int, int]:
    """Rows of outputs of a tile of form `grouped`, and taps of a kernel row."""
    ((rows, taps),) = _GROUPED.findall(native_file("depthwise.inc").read_text())
    return int(rows), int(taps)


@cache
def direct_bytes() -> tuple[int, int]:
    """Bytes of the groups that form `rows` computes in one call at the top and bottom of images; bytes behind the rows of form `taps`."""
    ((edge, behind),) = _DIRECT_BYTES.findall(native_file("depthwise.inc").read_text())
    return int(edge), int(behind)


def skinny_kernels() -> tuple[Kernel, ...]:
    """Every kernel of products with few rows or columns; windows: results accumulated in one pass."""
    return _rows("skinny.inc")


def phases_kernels() -> tuple[Kernel, ...]:
    """Every kernel of convolutions over rows split by the phases of the stride; windows x filters: its largest tile."""
    return _rows("polyphase.inc")


def nchwc_kernels() -> tuple[Kernel, ...]:
    """Every kernel that convolves channels in blocks (NCHWc); windows: pixels of a tile."""
    return _rows("direct_nchwc.inc")


@cache
def cpu_kernels() -> tuple[Kernel, ...]:
    """Every row of the native library, by index."""
    return tuple(row for table in _TABLES for row in _rows(table))


@cache
def _by_name() -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in cpu_kernels()}


def cpu_kernel(name: str) -> Kernel | None:
    """The row of that name."""
    return _by_name().get(name)


class NativeAlgorithm(msgspec.Struct, frozen=True):
    """A line of `native/algorithms.inc`; `problem` is CONV or GEMM."""

    index: int
    name: str
    problem: str


def results_of_multiply_add(target: str) -> int:
    """FP32 results of one multiply-add of a target, as the rows count them: a vector, a tile of a matrix unit, or one in plain C."""
    return max((row.lane_windows * row.lane_filters for row in kernels() if (row.target, row.dtype) == (target, "f32")), default=1)


def of_tiles(targets: Iterable[str]) -> set[str]:
    """Those of these targets whose rows multiply tiles."""
    return {row.target for row in kernels() if row.form == "tiles"}.intersection(targets)


@cache
def probed_dtype(target: str) -> str:
    """The type whose multiply-adds tell a target's rate: f32, or the first that it has kernels of."""
    dtypes = [row.dtype for row in kernels() if row.target == target]
    return "f32" if "f32" in dtypes or not dtypes else dtypes[0]


@cache
def algorithms() -> tuple[NativeAlgorithm, ...]:
    """The algorithms of the native library, in the order of the file."""
    lines = _ALGORITHM.findall(native_file("algorithms.inc").read_text())
    return tuple(NativeAlgorithm(index, *line) for index, line in enumerate(lines))


def kind_of(problem: Workload) -> str:
    """The native library's name for a kind of problem."""
    return "CONV" if isinstance(problem, Conv) else "GEMM"


def loop_nest(problem: Workload) -> str:
    """The algorithm of a kind of problem that is the loop nest itself: the file's first."""
    return next(one.name for one in algorithms() if one.problem == kind_of(problem))


@cache
def winograd_transforms() -> frozenset[tuple[str, str]]:
    """(target, dtype) of the CPU's Winograd transforms, the lines of `native/winograd.inc`."""
    return frozenset(_TRANSFORMS.findall(native_file("winograd.inc").read_text()))


@cache
def winograd_forms() -> tuple[tuple[int, int], ...]:
    """(m, r) of the CPU's F(m x m, r x r), in the order of the same file."""
    lines = _FORMS.findall(native_file("winograd.inc").read_text())
    return tuple((int(m), int(r)) for m, r in lines)


@cache
def cpu_epilogues() -> dict[str, int]:
    """The activations of the CPU, name -> the ABI's number (`native/epilogues.inc`)."""
    return epilogue_numbers("epilogues.inc")


def tables(declarations: int) -> list[str]:
    """What this package names by number in the native library, as the lines of `pysim_tables`; `declarations`: the header's number."""
    rows = [row.name for row in cpu_kernels()] + [f"{one.name} {one.problem}" for one in algorithms()]
    numbers = [*cpu_epilogues().items(), *((name, kind[0]) for name, kind in rows_kinds().items())]
    return [f"declarations {declarations:#010x}", *rows, *(f"{name} {number}" for name, number in numbers)]


@cache
def epilogue_operations() -> dict[str, int]:
    """Arithmetic instructions of a vector of FP32 of each activation (the same file); 0: kernels have it in their stores."""
    return {name: int(count) for name, count in _OPERATIONS.findall(native_file("epilogues.inc").read_text())}


@cache
def rows_kinds() -> dict[str, tuple[int, int, int]]:
    """Operators on rows, name -> the ABI's number, operations per vector and reductions per row (`native/rows.inc`)."""
    lines = _ROWS.findall(native_file("rows.inc").read_text())
    return {name: (int(number), int(operations), int(reductions)) for number, name, operations, reductions in lines}


@cache
def loop_targets(dtype: str) -> tuple[str, ...]:
    """Targets that loops over results of a dtype are compiled for, the fastest first (`native/loops.inc`)."""
    return tuple(target for target, of in _LOOPS.findall(native_file("loops.inc").read_text()) if of == dtype)
