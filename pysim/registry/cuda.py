# SPDX-License-Identifier: Apache-2.0
"""The GPU's kernel registry as Python sees it: the tables of the families that `native/cuda/families.inc` lists, read, never copied.

The native library expands the same lines, so row i here is row i there (a test compares them).
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from pysim.caches import lazy
from pysim.problem.dtypes import SIZES, SUM_BYTES
from pysim.registry.native_files import epilogue_numbers, native_file

_HERE = Path(__file__).parent
_FAMILIES = re.compile(r"^PYSIM_CUDA_(CONV|GEMM)\((\w+),", re.MULTILINE)
_ROWS = re.compile(r"^PYSIM_CUDA_(FAMILY|ROW)\(([^)]*)\)", re.MULTILINE)  # a family's common columns, and each of its rows
_COLUMN = re.compile(r'(\w+) = (?:"(\w+)"|\{([^}]*)\}|(\w+))')
_LIMIT = re.compile(r"^PYSIM_LIMIT\((\w+),\s*(\d+)\)", re.MULTILINE)

BY_INSTRUCTION = 16  # a promotion that is the k of one instruction
CHAIN, WHOLE_NUMBERS = "chain", "whole numbers"  # sums of rows (`pysim.record.contract.GpuContract`)

# Matrix products

WARP, WARPGROUP = 32, 128
STREAMED, POINTWISE, LOAD_BYTES = "streamed", "pointwise", 16  # products of few rows; streams; bytes of a lane's load of the former
_GEMM_TILE = ("block_m", "block_n", "block_k", "warp_m", "warp_n", "thread_m", "thread_n", "stages", "cluster_m", "cluster_n")
_CONV_TILE = (
    "block_filters", "block_windows", "block_k", "warp_filters", "warp_windows", "thread_filters", "thread_windows", "stages", "outputs",
)  # fmt: skip
_SIZES = ("block", "warp", "thread", "cluster")  # columns of two or three numbers
_GEMM_DEFAULTS: dict[str, Any] = {"variant": "full", "stages": 2, "cluster_m": 1, "cluster_n": 1}
_CONV_DEFAULTS: dict[str, Any] = {"variant": "full", "makes_product": False} | dict.fromkeys(_CONV_TILE, 0) | {"outputs": 1}


def _rows(problem: Literal["conv", "gemm"], axes: tuple[str, ...]) -> list[dict[str, Any]]:
    """The columns of each row of all families (`native/cuda/families.inc`) of a problem; a size becomes one column per axis."""
    families = _FAMILIES.findall(native_file("cuda/families.inc").read_text())
    tables = (native_file(f"cuda/{problem}/{name}/rows.inc") for kind, name in families if kind.lower() == problem)
    parsed: list[dict[str, Any]] = []
    common: dict[str, Any] = {}
    for kind, text in _ROWS.findall("".join(table.read_text() for table in tables)):
        columns: dict[str, Any] = {}
        for name, word, sizes, value in _COLUMN.findall(text):
            if name in _SIZES:
                columns |= {f"{name}_{axis}": int(size) for axis, size in zip(axes, sizes.split(","), strict=False)}
            else:
                columns[name] = word or (int(value) if value.isdigit() else value)
        if kind == "FAMILY":
            common = columns
        else:
            parsed.append(common | columns)
    return parsed


class Tiles(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """The tiling of a CUDA kernel of any problem: a block's tile of `rows` x `columns`, `depth` of k per k-iteration, divided into warp
    tiles and thread tiles (tensor cores: instruction tiles); `stages` in shared memory; clusters of blocks; the arithmetic `pipe`.

    `group`: threads that share a warp tile (a warp or a warpgroup). `producer`: a further warpgroup only loads. For ablations: without
    `vectors` elements move one by one, without `spread` rows of shared memory are neither swizzled nor padded. `promotion`: FP32
    operands are split into TF32 halves (three products) or (`thirds`) BF16 thirds (six products, which take as long), and accumulators are
    added to FP32 registers every `promotion` of k. `pingpong`: two sets of warpgroups alternate over a block's tiles. `taps`: of a
    k-iteration, which multiply the same rows, shifted by one each. `k_warps`: that share the k of one tile.
    """

    dtype: str
    pipe: str
    rows: int
    columns: int
    depth: int
    warp_rows: int
    warp_columns: int
    thread_rows: int
    thread_columns: int
    stages: int
    cluster_rows: int
    cluster_columns: int
    group: int
    producer: bool
    vectors: bool = True
    spread: bool = True
    promotion: int = 0
    thirds: bool = False
    pingpong: bool = False
    taps: int = 1
    k_warps: int = 1

    @lazy
    def products(self) -> int:
        """Products of the pipe per product of the problem."""
        return 3 if self.promotion else 1

    @lazy
    def parts(self) -> float:
        """Bytes of B read per byte of the operand. Warpgroups read B from shared memory, so its halves or thirds are made beforehand."""
        return (1.5 if self.thirds else 2.0) if self.promotion and self.by_warpgroups else 1.0

    @lazy
    def tensor(self) -> bool:
        """Whether tensor cores multiply."""
        return self.pipe.startswith("tensor")

    @lazy
    def by_warpgroups(self) -> bool:
        """Whether warpgroups issue the instructions; these read both operands from shared memory."""
        return self.group == WARPGROUP

    @lazy
    def math_threads(self) -> int:
        """Threads that multiply a tile: a group for each warp tile of the block."""
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * self.group * self.k_warps

    @lazy
    def threads(self) -> int:
        """Threads of a block."""
        return self.math_threads * (1 + self.pingpong) + (WARPGROUP if self.producer else 0)

    @lazy
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_rows * self.cluster_columns

    @lazy
    def transposed(self) -> "Tiles":
        """The same kernel with rows and columns exchanged."""
        return msgspec.structs.replace(
            self,
            rows=self.columns,
            columns=self.rows,
            warp_rows=self.warp_columns,
            warp_columns=self.warp_rows,
            thread_rows=self.thread_columns,
            thread_columns=self.thread_rows,
            cluster_rows=self.cluster_columns,
            cluster_columns=self.cluster_rows,
        )


class GemmKernel(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """One CUDA kernel of a matrix product: the columns of its line in `native/cuda/gemm/<family>/rows.inc`, as gemm/rows.h names them.

    `block_*`: a thread block's tile, with k of one k-iteration; `warp_*`: a warp's (wgmma: a warpgroup's); `thread_*`: a thread's (tensor
    cores: one instruction's). `tensor_threads`: threads that issue an instruction of tensor cores together (0: CUDA cores multiply).
    `stages`: tiles of A and B in shared memory at once. `capability`: 10 major + minor, the lowest or (`exact_capability`) the only one;
    other rows replace this one from `below` on and on `replaced_on` (0: never). `alignment`: base and pitch of an operand are multiples of
    this many bytes. `k_major`: 1 if both operands must be K-major, 2 if B must be (if only A is, the kernel computes C' = B' A').
    `narrows`: see product_tiles. `pingpong`, `promotion`: see Tiles. `reduces_in_cluster`: the most parts of split-K that a cluster
    reduces without workspace. `residues`: number of s8 products that make one. `dense`: rows of both operands lie without gaps.
    """

    index: int
    mainloop: str
    dtype: str
    variant: str
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
    tensor_threads: int = 0
    exact_capability: bool = False
    alignment: int = 1
    k_major: int = 0
    dense: bool = False
    producer: bool = False
    narrows: int = 0
    pingpong: bool = False
    promotion: int = 0
    accumulates_f16: bool = False
    reduces_in_cluster: int = 0
    residues: int = 0
    ablation: bool = False
    below: int = 0
    replaced_on: int = 0

    @lazy
    def name(self) -> str:
        tiles = f"{self.block_m}x{self.block_n}x{self.block_k}_{self.warp_m}x{self.warp_n}_{self.thread_m}x{self.thread_n}"
        variant = "" if self.variant == "full" else f"_{self.variant}"
        return f"{self.dtype}_{self.mainloop}_{tiles}_s{self.stages}_c{self.cluster_m}x{self.cluster_n}{variant}"

    @property
    def tile(self) -> dict[str, int]:
        """Sizes of the tiles of blocks, warps and threads, stages and cluster."""
        return {name: getattr(self, name) for name in _GEMM_TILE}

    @property
    def sum_bytes(self) -> int:
        """Bytes of an accumulator."""
        return 2 if self.accumulates_f16 else SUM_BYTES[self.dtype]

    @property
    def math_threads(self) -> int:
        """Threads that multiply."""
        return self.tiles.math_threads

    @property
    def by_tiles(self) -> bool:
        """Whether any algorithm may use it; rows of residues and of dense operands have their own."""
        return not (self.residues or self.dense)

    @lazy
    def pipe(self) -> str:
        """The arithmetic pipe that multiplies, a key of a machine's `fma_per_cycle`."""
        if self.mainloop == STREAMED and not self.promotion:
            return "f32"
        multiplied = "tf32" if self.promotion else self.tiled_dtype
        return f"tensor_{multiplied}" if self.tensor_threads else multiplied

    @property
    def tiled_dtype(self) -> str:
        """The type of the elements in its tiles."""
        return "s8" if self.residues else self.dtype

    @property
    def sums(self) -> str | None:
        """How its results are summed along k (`pysim.record.contract.GpuContract`), whatever its tiles; None if other operands enter."""
        if self.residues or self.accumulates_f16:
            return None
        if self.mainloop == STREAMED and not self.promotion:
            return f"chains of {self.math_threads} lanes, {LOAD_BYTES // SIZES[self.dtype]} k in turn"
        if self.tiled_dtype == "s8":
            return WHOLE_NUMBERS
        if not self.tensor_threads:
            return CHAIN
        if not self.promotion:
            return f"{self.dtype} on {self.mainloop}"
        on = self.mainloop if self.promotion == BY_INSTRUCTION else "tensor cores"  # warps add 64 as warpgroups do
        return f"bf16 thirds on {on}, {self.promotion} a sum"

    def adds_last(self, splits: int) -> Literal["bias", "residual"]:
        """Of a bias and a residual, which its epilogue adds last (native/cuda/core/epilogue.cuh; of warpgroups mainloop/wgmma, where a
        cluster's reduction of `splits` parts has its own; warps that add as warpgroups do so here too: mainloop/mma/pipeline.cuh)."""
        if self.promotion > BY_INSTRUCTION and not self.tiles.by_warpgroups:
            return "bias" if splits > 1 else "residual"
        return "residual" if self.tiles.by_warpgroups and not 1 < splits <= self.reduces_in_cluster else "bias"

    @lazy
    def families(self) -> tuple[str, ...]:
        """Keys of the machine's constants for it; the first that exists applies: of its main loop and type, of its main loop."""
        mainloop = "wgmma" if self.residues else f"conv_{POINTWISE}" if self.dense else self.mainloop  # dense: their kernel
        return f"{mainloop}_{self.tiled_dtype}", mainloop, *["mma"] * self.dense

    @lazy
    def tiles(self) -> Tiles:
        """Its tiles."""
        sizes = (self.block_m, self.block_n, self.block_k, self.warp_m, self.warp_n, self.thread_m, self.thread_n, self.stages)
        group = self.tensor_threads or WARP
        kept = (self.variant != "scalar", self.variant != "unpadded")
        cluster = (self.cluster_m, self.cluster_n)
        tiles = Tiles(
            self.tiled_dtype, self.pipe, *sizes, *cluster, group, self.producer, *kept, self.promotion, self.promotion > 0, self.pingpong
        )
        if self.mainloop != STREAMED:
            return tiles
        if self.promotion:  # each of `stages` warps has a k-iteration, and the next one's loads in flight
            return msgspec.structs.replace(tiles, depth=self.stages * self.block_k, k_warps=self.stages, stages=2)
        return msgspec.structs.replace(tiles, k_warps=self.block_k * SIZES[self.dtype] // LOAD_BYTES // WARP)


@cache
def gemm_kernels() -> tuple[GemmKernel, ...]:
    """Every CUDA kernel of a matrix product, in the order of the families."""
    rows = [_GEMM_DEFAULTS | row for row in _rows("gemm", ("m", "n", "k"))]
    return tuple(msgspec.convert(row | {"index": index}, GemmKernel, strict=False) for index, row in enumerate(rows))


def gemm_kernel(name: str) -> GemmKernel | None:
    """The row of that name, if there is one."""
    return _gemm_by_name().get(name)


@cache
def _gemm_by_name() -> dict[str, GemmKernel]:
    return {row.name: row for row in gemm_kernels()}


@cache
def gemm_of_tiles(tiles: Tiles) -> GemmKernel | None:
    """The product with these tiles that is no ablation, if there is one."""
    return _gemm_by_tiles().get(msgspec.structs.replace(tiles, vectors=True, spread=True))


@cache
def _gemm_by_tiles() -> dict[Tiles, GemmKernel]:
    return {row.tiles: row for row in gemm_kernels() if not row.ablation and row.by_tiles}


# The CUDA kernels of convolutions

Finite = Literal["nothing", "filters", "operands"]


class ConvKernel(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """One CUDA algorithm and tiling of a convolution: the columns of its line in `native/cuda/conv/<family>/rows.inc`, as conv/rows.h
    names them.

    Tiles are filters x windows, 0 if the algorithm has none; blocks of a cluster multicast shared loads. `outputs`: a window is a tile of
    outputs x outputs pixels (Winograd's F(2x2) and F(4x4): 2 and 4). `makes_product`: the schedule names a row of gemm/. `fused`: one
    kernel has all phases (Winograd's transforms and products, im2win's gather). `staged`: separate kernels, run per chunk of windows.
    `keeps_tensor`: im2win's tensor is stored in the workspace. `row_taps`: taps of a kernel's row in a k-iteration (0: one), each of
    `block_k`. `folds`: space-to-depth, for any kernel size. `alignment`: base addresses of
    input and filters are multiples of this many bytes (1: of their elements). `finite`: operands that must be finite, an index of
    NEEDS_FINITE. `prologue`: it accepts one, on some problems. `volumes`: it computes volumes, too. `pingpong`, `promotion`: see Tiles.
    `tensor_threads`, `reduces_in_cluster`, `replaced_on`, `ablation`: see GemmKernel.
    """

    index: int
    algorithm: str
    dtype: str
    variant: str
    block_filters: int
    block_windows: int
    block_k: int
    warp_filters: int
    warp_windows: int
    thread_filters: int
    thread_windows: int
    stages: int
    outputs: int
    makes_product: bool
    capability: int
    tensor_threads: int = 0
    cluster_filters: int = 1
    cluster_windows: int = 1
    exact_capability: bool = False
    alignment: int = 1
    fused: bool = False
    staged: bool = False
    keeps_tensor: bool = False
    reduces_in_cluster: int = 0
    row_taps: int = 0
    folds: bool = False
    pingpong: bool = False
    promotion: int = 0
    ablation: bool = False
    replaced_on: int = 0
    finite: int = 0
    prologue: bool = False
    volumes: bool = False

    @property
    def needs_finite(self) -> Finite:
        """Operands that must be finite for the result of the definition; otherwise it may be NaN."""
        return NEEDS_FINITE[self.finite]

    @lazy
    def name(self) -> str:
        family = f"{self.algorithm}_f{self.outputs}" if self.outputs > 1 else self.algorithm
        block = f"{self.block_filters}x{self.block_windows}{f'x{self.block_k}' if self.block_k else ''}"
        warp, thread = f"{self.warp_filters}x{self.warp_windows}", f"{self.thread_filters}x{self.thread_windows}"
        tiles = f"_{block}_{warp}_{thread}_s{self.stages}" if self.block_filters else ""
        variant = "" if self.variant == "full" else f"_{self.variant}"
        cluster = "" if self.cluster == (1, 1) else "_c{}x{}".format(*self.cluster)
        return f"{self.dtype}_{family}{tiles}{variant}{cluster}"

    @property
    def tile(self) -> dict[str, int]:
        """Sizes of the tiles of blocks, warps and threads, stages, outputs per side of a window."""
        return {name: getattr(self, name) for name in _CONV_TILE}

    @property
    def cluster(self) -> tuple[int, int]:
        """Blocks of a cluster along filters and windows."""
        return self.cluster_filters, self.cluster_windows

    @property
    def decomposes(self) -> bool:
        """Whether its own tiles may be split along k."""
        return bool(self.block_k) and not self.makes_product and not self.staged

    @property
    def sums(self) -> str:
        """How its results are summed, whatever its tiles (`pysim.record.contract.GpuContract`)."""
        if self.algorithm == "winograd":
            return f"F({self.outputs}x{self.outputs}, 3x3) {self.variant}"
        if not self.tensor_threads:
            return CHAIN
        unit = "wgmma" if self.tiles.by_warpgroups else "mma"
        parts = "bf16 thirds" if self.tiles.thirds else "tf32 halves"
        return f"{parts} on {unit}, {self.promotion} a sum" if self.promotion else f"{self.dtype} on {unit}"

    def adds_last(self, splits: int) -> Literal["bias", "residual"]:
        """As of a product; the stream of pointwise kernels adds the residual last."""
        streams = self.algorithm == POINTWISE
        return "residual" if streams or (self.tiles.by_warpgroups and not 1 < splits <= self.reduces_in_cluster) else "bias"

    @lazy
    def pipe(self) -> str:
        """The arithmetic pipe that multiplies, a key of a machine's `fma_per_cycle`."""
        return f"tensor_{'tf32' if self.promotion else self.dtype}" if self.tensor_threads else self.dtype

    @lazy
    def family(self) -> str:
        """The key of the machine's constants for it: the algorithm, and on tensor cores the type."""
        return f"conv_{self.algorithm}" + (f"_{self.dtype}" if self.tiles.tensor else "")

    @lazy
    def families(self) -> tuple[str, ...]:
        """Keys of the machine's constants for it; the first that exists applies: its variant's, its family's (each of its type, or of all
        types), or those of its products."""
        own = (self.family, f"conv_{self.algorithm}")
        products = "wgmma" if self.tiles.by_warpgroups else "mma" if self.tiles.tensor else "simt"
        return *dict.fromkeys((*(f"{family}_{self.variant}" for family in own), *own)), products

    @lazy
    def tiles(self) -> Tiles:
        """Its tiles: filters are rows, windows are columns; zeros if it has none."""
        taps = self.row_taps or 1
        block, warp = (self.block_filters, self.block_windows, self.block_k * taps), (self.warp_filters, self.warp_windows)
        sizes = (*block, *warp, self.thread_filters, self.thread_windows, self.stages, self.cluster_filters, self.cluster_windows)
        group = self.tensor_threads or WARP
        by_warpgroups, vectors = group == WARPGROUP, self.variant != "no_vector"
        thirds = self.promotion > 0 and not by_warpgroups
        promotion, pingpong = self.promotion, self.pingpong
        tiles = Tiles(self.dtype, self.pipe, *sizes, group, by_warpgroups, vectors, promotion=promotion, thirds=thirds, pingpong=pingpong)
        return msgspec.structs.replace(tiles, taps=taps)


NEEDS_FINITE: tuple[Finite, ...] = (
    "nothing",
    "filters",
    "operands",
)  # pysim_needs_finite, in its order
CONV_LAYOUTS = ("nchw", "nhwc")  # pysim_layout, in its order


@cache
def conv_kernels() -> tuple[ConvKernel, ...]:
    """Every CUDA algorithm and tiling of a convolution, in the order of the families."""
    rows = [_CONV_DEFAULTS | row for row in _rows("conv", ("filters", "windows", "k"))]
    return tuple(msgspec.convert(row | {"index": index}, ConvKernel, strict=False) for index, row in enumerate(rows))


def conv_kernel(name: str) -> ConvKernel | None:
    """The row of that name, if there is one."""
    return _conv_by_name().get(name)


@cache
def _conv_by_name() -> dict[str, ConvKernel]:
    return {row.name: row for row in conv_kernels()}


@cache
def epilogues() -> dict[str, int]:
    """The activations after alpha A B + beta C + bias on a GPU, name -> the ABI's number (`native/cuda/epilogues.inc`)."""
    return epilogue_numbers("cuda/epilogues.inc")


def tables(*numbers: int) -> list[str]:
    """What this package names by number in the CUDA library: the lines of `pysim_cuda_tables`, then its rows. `numbers`: of the headers."""
    lines = [f"declarations {' '.join(f'{number:#010x}' for number in numbers)}", *(f"{name} {at}" for name, at in epilogues().items())]
    return [*lines, *(row.name for row in gemm_kernels()), *(row.name for row in conv_kernels())]


@cache
def cuda_limits() -> dict[str, int]:
    """The largest sizes that the CUDA library accepts, and block sizes, by the names of `native/cuda/limits.inc`."""
    return {name: int(value) for name, value in _LIMIT.findall(native_file("cuda/limits.inc").read_text())}


class Attributes(msgspec.Struct, frozen=True, cache_hash=True):
    """The compiler's figures for a kernel: threads and bytes of shared memory of a block, registers and bytes of local memory (stack and
    spills) of a thread.

    `efficiency`: the measured share of the cost model's rate that its main loop reaches on a machine of this capability; None if not
    measured, then the family's applies.
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
    """Attributes by kernel name from `kernel_attributes-sm<capability>.json` (lab/fits/cuda_attributes.py, fit_gpu.py); {} without one."""
    path = attributes_file(capability)
    if not path.exists():
        return {}
    return msgspec.convert(msgspec.json.decode(path.read_bytes())["kernels"], dict[str, Attributes])
