# SPDX-License-Identifier: Apache-2.0
"""The kernel registries as Python sees them: the lines of `native/kernels.inc` (CPU), `native/cuda/gemms.inc` and `convs.inc`, read, never
copied.

The native libraries expand the same lines, so row i here is row i there (a test compares them).
"""

import re
from functools import cache
from pathlib import Path

import msgspec

_HERE = Path(__file__).parent
_LINE = re.compile(r"^PYSIM_KERNEL\((.*)\)", re.MULTILINE)
_ALGORITHM = re.compile(r"^PYSIM_ALGORITHM\((\w+), (\w+)\)", re.MULTILINE)
_COLUMN = re.compile(r"(\w+)\((\w+)\)")
_GEMM = re.compile(r"^PYSIM_CUDA_GEMM\(([^)]*)\)", re.MULTILINE)
_CONV = re.compile(r"^PYSIM_CUDA_CONV\(([^)]*)\)", re.MULTILINE)
_CLUSTER = re.compile(r"c(\d)x(\d)")
_EPILOGUE = re.compile(r"^PYSIM_EPILOGUE\((\d+),\s*(\w+),", re.MULTILINE)


class Kernel(msgspec.Struct, frozen=True):
    """One micro-kernel: `windows` x `filters` outputs a call, `lane_windows` x `lane_filters` a multiply-add."""

    index: int
    target: str
    dtype: str
    form: str
    windows: int
    filters: int
    lane_windows: int
    lane_filters: int

    @property
    def name(self) -> str:
        return f"{self.dtype}_{self.form}_{self.windows}x{self.filters}__{self.target}"

    @property
    def along_filters(self) -> bool:
        """Whether the vector lanes hold filters alone, so that a tile is turned around on its way out."""
        return self.lane_filters > self.lane_windows == 1

    def instructions(self, windows: int, filters: int) -> int:
        """Multiply-adds of one k step on a tile of `windows` x `filters` (edges fill whole lanes)."""
        return -(-windows // self.lane_windows) * -(-filters // self.lane_filters)


def native_file(name: str) -> Path:
    """A file of `native/`: shipped beside this module, or in the source tree of a checkout."""
    shipped = _HERE.parent / "native" / name
    return shipped if shipped.exists() else _HERE.parent.parent / "native" / name


@cache
def kernels() -> tuple[Kernel, ...]:
    """Every row, in the order of the file."""
    lines = (_COLUMN.findall(line) for line in _LINE.findall(native_file("kernels.inc").read_text()))
    return tuple(msgspec.convert({"index": index, **dict(columns)}, Kernel, strict=False) for index, columns in enumerate(lines))


class NativeAlgorithm(msgspec.Struct, frozen=True):
    """A line of `native/algorithms.inc`; `problem` is CONV or GEMM."""

    index: int
    name: str
    problem: str


@cache
def algorithms() -> tuple[NativeAlgorithm, ...]:
    """The algorithms of the native library, in the order of the file."""
    lines = _ALGORITHM.findall(native_file("algorithms.inc").read_text())
    return tuple(NativeAlgorithm(index, *line) for index, line in enumerate(lines))


# The CUDA kernels of matrix products

FAMILIES = ("simt", "wmma", "mma", "wgmma")
WARP, WARPGROUP = 32, 128
_GEMM_TILE = ("block_m", "block_n", "block_k", "warp_m", "warp_n", "thread_m", "thread_n", "stages", "cluster_m", "cluster_n")
_CONV_TILE = (
    "block_filters", "block_windows", "block_k", "warp_filters", "warp_windows", "thread_filters", "thread_windows", "stages", "outputs",
)  # fmt: skip


class GemmKernel(msgspec.Struct, frozen=True):
    """One CUDA kernel of a matrix product: the columns of its line in `native/cuda/gemms.inc`, as the file's head names them.

    `block_*` is a thread block's tile and step along k, `warp_*` a warp's (wgmma: a warpgroup's), `thread_*` a thread's (tensor
    cores: one instruction's); `stages` tiles of A and B lie in shared memory at once; `capability` is 10 major + minor at least.
    """

    index: int
    family: str
    dtype: str
    form: str
    block_m: int
    block_n: int
    block_k: int
    warp_m: int
    warp_n: int
    thread_m: int
    thread_n: int
    stages: int
    cluster_m: int
    cluster_n: int
    capability: int

    @property
    def name(self) -> str:
        tiles = f"{self.block_m}x{self.block_n}x{self.block_k}_{self.warp_m}x{self.warp_n}_{self.thread_m}x{self.thread_n}"
        form = "" if self.form == "full" else f"_{self.form}"
        return f"{self.dtype}_{self.family}_{tiles}_s{self.stages}_c{self.cluster_m}x{self.cluster_n}{form}"

    @property
    def tile(self) -> dict[str, int]:
        """Sizes of the tiles of blocks, warps and threads, stages and cluster."""
        return {name: getattr(self, name) for name in _GEMM_TILE}

    @property
    def math_threads(self) -> int:
        """Threads that multiply: a warp (wgmma: a warpgroup of four) for each warp tile of the block."""
        groups = self.block_m // self.warp_m * (self.block_n // self.warp_n)
        return groups * (WARPGROUP if self.family == "wgmma" else WARP)

    @property
    def pipe(self) -> str:
        """The arithmetic pipe that multiplies, a key of a machine's `fma_per_cycle`."""
        return self.dtype if self.family == "simt" else f"tensor_{self.dtype}"


@cache
def gemm_kernels() -> tuple[GemmKernel, ...]:
    """Every CUDA kernel of a matrix product, in the order of the file."""
    rows = []
    for index, match in enumerate(_GEMM.finditer(native_file("cuda/gemms.inc").read_text())):
        family, dtype, form, *numbers = (word.strip() for word in match.group(1).split(","))
        rows.append(GemmKernel(index, family, dtype, form, *map(int, numbers)))
    return tuple(rows)


def gemm_kernel(name: str) -> GemmKernel | None:
    """The row of that name, if there is one."""
    return _gemm_by_name().get(name)


@cache
def _gemm_by_name() -> dict[str, GemmKernel]:
    return {row.name: row for row in gemm_kernels()}


# The CUDA kernels of convolutions

CONV_FAMILIES = ("direct", "depthwise", "im2col", "implicit", "im2win", "winograd", "wgmma")


class ConvKernel(msgspec.Struct, frozen=True):
    """One CUDA algorithm and tiling of a convolution: the columns of its line in `native/cuda/convs.inc`, as the file's head names them.

    Tiles are filters x windows, 0 where an algorithm has none; `outputs` is the edge of the square of outputs that a window stands for
    (Winograd's F(2x2) and F(4x4): 2 and 4), `makes_product` whether its schedule names a row of gemms.inc too, `finite` what must be
    finite, an index of NEEDS_FINITE.
    """

    index: int
    family: str
    dtype: str
    form: str
    block_filters: int
    block_windows: int
    block_k: int
    warp_filters: int
    warp_windows: int
    thread_filters: int
    thread_windows: int
    stages: int
    outputs: int
    makes_product: int
    capability: int
    finite: int

    @property
    def name(self) -> str:
        family = f"{self.family}_f{self.outputs}" if self.outputs > 1 else self.family
        block = f"{self.block_filters}x{self.block_windows}{f'x{self.block_k}' if self.block_k else ''}"
        warp, thread = f"{self.warp_filters}x{self.warp_windows}", f"{self.thread_filters}x{self.thread_windows}"
        tiles = f"_{block}_{warp}_{thread}_s{self.stages}" if self.block_filters else ""
        form = "" if self.form == "full" else f"_{self.form}"
        return f"{self.dtype}_{family}{tiles}{form}"

    @property
    def tile(self) -> dict[str, int]:
        """Sizes of the tiles of blocks, warps and threads, stages, edge of a window's outputs."""
        return {name: getattr(self, name) for name in _CONV_TILE}

    @property
    def cluster(self) -> tuple[int, int]:
        """Blocks of a cluster along filters and windows, which a wgmma row's form names."""
        found = _CLUSTER.fullmatch(self.form)
        return (int(found.group(1)), int(found.group(2))) if found else (1, 1)

    @property
    def near(self) -> int:
        """Parts of split-K that meet in a cluster and so need no workspace (native/cuda/conv.h)."""
        return 2 if self.form == "single" else 0

    @property
    def layouts(self) -> tuple[str, ...]:
        """Layouts of input and output that the family takes, as CONV_LAYOUTS names them."""
        return CONV_LAYOUTS

    @property
    def decomposes(self) -> bool:
        """Whether tiles of its own may be split along k."""
        return bool(self.block_k) and not self.makes_product and self.form != "staged"

    @property
    def pipe(self) -> str:
        """The arithmetic pipe that multiplies, a key of a machine's `fma_per_cycle`."""
        return f"tensor_{self.dtype}" if self.family == "wgmma" else self.dtype


NEEDS_FINITE = ("nothing", "filters", "operands")  # pysim_needs_finite, in its order; filters: where the problem is padded
CONV_LAYOUTS = ("nchw", "nhwc")  # pysim_layout, in its order


@cache
def conv_kernels() -> tuple[ConvKernel, ...]:
    """Every CUDA algorithm and tiling of a convolution, in the order of the file."""
    rows = []
    for index, match in enumerate(_CONV.finditer(native_file("cuda/convs.inc").read_text())):
        family, dtype, form, *numbers = (word.strip() for word in match.group(1).split(","))
        rows.append(ConvKernel(index, family, dtype, form, *map(int, numbers)))
    return tuple(rows)


def conv_kernel(name: str) -> ConvKernel | None:
    """The row of that name, if there is one."""
    return _conv_by_name().get(name)


@cache
def _conv_by_name() -> dict[str, ConvKernel]:
    return {row.name: row for row in conv_kernels()}


@cache
def epilogues() -> dict[str, int]:
    """The functions that may follow alpha A B + beta C + bias on a GPU, name -> the ABI's number (`native/cuda/epilogues.inc`)."""
    return {name: int(number) for number, name in _EPILOGUE.findall(native_file("cuda/epilogues.inc").read_text())}


_LIMIT = re.compile(r"^PYSIM_LIMIT\((\w+),\s*(\d+)\)", re.MULTILINE)


@cache
def cuda_limits() -> dict[str, int]:
    """The largest sizes that the CUDA library takes, by the names of `native/cuda/limits.inc`."""
    return {name: int(value) for name, value in _LIMIT.findall(native_file("cuda/limits.inc").read_text())}


class Attributes(msgspec.Struct, frozen=True):
    """What the compiler made of a kernel: threads and bytes of shared memory of a block, registers of a thread, its bytes of local
    memory (stack and spills).

    `efficiency` is the share of the cost model's rate that its main loop was measured to reach on a machine of this capability; where
    nobody measured it, that of the kernel's family stands for it.
    """

    threads: int
    registers: int
    shared_bytes: int
    local_bytes: int = 0
    efficiency: float | None = None


def attributes_file(capability: int) -> Path:
    return _HERE / f"kernel_attributes-sm{capability}.json"


@cache
def gemm_attributes(capability: int) -> dict[str, Attributes]:
    """Attributes by kernel name from `kernel_attributes-sm<capability>.json`; {} without one.

    tools/cuda_attributes.py writes it from the compiler's output, tools/fit_gpu.py adds the efficiencies.
    """
    path = attributes_file(capability)
    if not path.exists():
        return {}
    return msgspec.convert(msgspec.json.decode(path.read_bytes())["kernels"], dict[str, Attributes])
