# SPDX-License-Identifier: Apache-2.0
"""Named access patterns: the shared-memory tiles of published kernels, lane by lane, each with its source.

    opencnn-*   output layouts and main loop of the fused Winograd kernel of openCNN (Mathematics 2021, 9(17), 2033)
    im2win-*    tile stores and fragment loads of Im2win's kernel (arXiv 2306.14316)
    cutlass-*   the padded A and B tiles of CUTLASS 0.1.1, for its tile policies
    tma-*       rows of 32, 64 and 128 bytes under the swizzles of Hopper's TMA and WGMMA
    transpose-* the 32 x 32 float tile, plain and padded

A pattern gives every instruction of one thread block on one tile, for one pass of the kernel's loop over it.

Worked number: opencnn-optsts64 stores with 2 wavefronts an instruction, its minimum; opencnn-optsts64-unpadded with 8.
"""

import difflib
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from pysim.cachemodel.shared_memory.layout import Map, Padding, Rotation, Swizzle
from pysim.cachemodel.shared_memory.tile import Access, Tile
from pysim.errors import ProblemError

Integers = NDArray[np.int64]
LANE = np.arange(32, dtype=np.int64)

OPENCNN = "UDC-GAC/openCNN, src/store_and_transform_output_*.cuh, src/convolutionForward_32x64x8.cu, src/config.hpp"
IM2WIN = "seth-lu/Im2win, branch CUDA, src/cu/convImplentCUDA.cu, the kernel NCHWHPC"
CUTLASS = "NVIDIA/cutlass v0.1.1, cutlass/gemm/{block_task,block_loader_*,dispatch_policies}.h"
HOPPER = "CUTLASS/CuTe Swizzle<B,4,3> on byte offsets; CUDA driver API, CU_TENSOR_MAP_SWIZZLE_*"


def _loops(*sizes: int) -> list[Integers]:
    """Loop variables as arrays that broadcast to (n, 32) against the lanes, n the product of the sizes."""
    return [grid.reshape(-1, 1) for grid in np.indices(sizes, dtype=np.int64)]


def _access(name: str, index: Integers, width: int, store: bool, active: Integers | None = None, times: int = 1) -> Access:
    mask = None if active is None else np.broadcast_to(active != 0, index.shape)
    return Access(name, np.ascontiguousarray(index), width, store, mask, times)


# ---- openCNN: 8 warps; 16 planes of the 4 x 4 Winograd domain, warp w has planes w and w + 8 ----

_T, _B, _H, _Q = LANE % 8 // 2, LANE % 2, LANE // 16, LANE // 8 % 2


def _opencnn_reference(name: str, padded: bool) -> Tile:
    """Yan et al.'s output layout: float4 10 t + b + 2 h + 4 e in rows of 40, half the lanes in each round."""
    warp, half, slot, e = _loops(8, 2, 4, 2)
    row = slot * 16 + warp + 8 * half
    index = ((row * 4 + _T) * 8 + _B + 2 * _H + 4 * e) * 4
    stores = [_access(f"store, rounds {2 * q} and {2 * q + 1}", index, 16, True, np.where(q == _Q, 1, 0), times=2) for q in (0, 1)]
    warp, plane, second = _loops(8, 16, 2)
    words = (((warp // 4 + 2 * second) * 16 + plane) * 4 + warp % 4) * 32 + LANE
    return Tile(
        name=name,
        about=f"openCNN output transpose, reference layout, {'padded' if padded else 'without its padding'}",
        source=OPENCNN,
        shape=(4, 16, 4, 32),
        element_bytes=4,
        accesses=(*stores, _access("load", words, 4, False, times=4)),
        maps=(Padding(32, 8),) if padded else (),
    )


def _opencnn_optsts64(name: str, about: str, maps: tuple[Map, ...]) -> Tile:
    """float2 cell b + 2 h + 4 e + 8 q of segment d of t; the layouts differ only in padding and rotation."""
    warp, half, slot, e, d = _loops(8, 2, 2, 2, 2)
    row = slot * 16 + warp + 8 * half
    index = (((row * 4 + _T) * 2 + d) * 16 + _B + 2 * _H + 4 * e + 8 * _Q) * 2
    warp, plane, d = _loops(8, 16, 2)
    words = (((warp // 4 * 16 + plane) * 4 + warp % 4) * 2 + d) * 32 + LANE
    return Tile(
        name=name,
        about=f"openCNN output transpose, {about}",
        source=OPENCNN,
        shape=(2, 16, 4, 2, 32),
        element_bytes=4,
        accesses=(_access("store", index, 8, True, times=4), _access("load", words, 4, False, times=4)),
        maps=maps,
    )


def _opencnn_main(name: str, columns: int, cell: Integers, second: int) -> Tile:
    """Main loop: 16 planes x 8 channels x `columns` floats; lanes read float4 `cell`, and `second` further on."""
    warp, half, channel, part = _loops(8, 2, 8, 2)
    loads = ((warp + 8 * half) * 8 + channel) * columns + 4 * (cell + second * part)
    plane, channel, block = _loops(16, 8, columns // 32)
    stores = (plane * 8 + channel) * columns + 32 * block + LANE
    return Tile(
        name=name,
        about=f"openCNN main loop, transformed {'filters' if columns == 64 else 'input tiles'}",
        source=OPENCNN,
        shape=(16, 8, columns),
        element_bytes=4,
        accesses=(_access("store", stores, 4, True), _access("load fragments", loads, 16, False)),
    )


# ---- Im2win: 256 threads, tiles of 8 x 128 floats ----


def _im2win(name: str, fragment: Callable[[Integers], Integers]) -> Tile:
    """Element (k, column) at 128 k + column; stored one float at a time, loaded as two float4 of 8 neighbours."""
    warp, strip = _loops(8, 4)
    thread = 32 * warp + LANE
    stores = thread % 8 * 128 + thread // 8 + 32 * strip
    warp, k, part = _loops(8, 8, 2)
    loads = 128 * k + 8 * fragment(32 * warp + LANE) + 4 * part
    return Tile(
        name=name,
        about=f"Im2win's kernel, {name.removeprefix('im2win-')} tile",
        source=IM2WIN,
        shape=(8, 128),
        element_bytes=4,
        accesses=(_access("store", stores, 4, True), _access("load fragments", loads, 16, False)),
    )


# ---- CUTLASS 0.1.1: block Y x X x depth (depth in dot-product vectors), thread Y x X ----

_ELEMENT = {"sgemm": 4, "dgemm": 8, "hgemm": 2, "igemm": 4}  # bytes of a dot-product vector: igemm packs 4 int8
_POLICIES = {
    "sgemm-small": (16, 16, 16, 2, 2),
    "sgemm-medium": (32, 32, 8, 4, 4),
    "sgemm-large": (64, 64, 8, 8, 8),
    "sgemm-tall": (128, 32, 8, 8, 4),
    "sgemm-wide": (32, 128, 8, 4, 8),
    "sgemm-huge": (128, 128, 8, 8, 8),
    "dgemm-small": (16, 16, 16, 2, 2),
    "dgemm-medium": (32, 32, 16, 4, 4),
    "dgemm-large": (64, 64, 8, 4, 4),
    "dgemm-tall": (128, 32, 8, 8, 4),
    "dgemm-wide": (32, 128, 8, 4, 8),
    "dgemm-huge": (64, 128, 8, 8, 8),
    "hgemm-small": (32, 32, 8, 4, 4),
    "hgemm-medium": (32, 32, 16, 8, 4),
    "hgemm-large": (64, 64, 8, 16, 8),
    "hgemm-tall": (128, 32, 8, 16, 4),
    "hgemm-wide": (32, 128, 8, 8, 8),
    "hgemm-huge": (128, 128, 8, 16, 8),
    "igemm-small": (16, 32, 8, 4, 4),
    "igemm-medium": (32, 32, 8, 4, 4),
    "igemm-large": (64, 64, 8, 8, 4),
    "igemm-tall": (128, 64, 16, 8, 4),
    "igemm-wide": (64, 128, 16, 4, 8),
    "igemm-huge": (128, 128, 8, 8, 8),
}


def _cutlass(name: str, policy: str, operand: str, crosswise: bool) -> Tile:
    """`depth` rows, each padded by one load vector. A thread's items lie in strips: neighbours read neighbours."""
    block_y, block_x, depth, thread_y, thread_x = _POLICIES[policy]
    size, threads = _ELEMENT[policy[:5]], block_y * block_x // (thread_y * thread_x)
    lanes_y = 8 if block_y > block_x else 4
    warps_x = block_x // (32 // lanes_y * thread_x)
    length, items, lanes = (block_y, thread_y, lanes_y) if operand == "a" else (block_x, thread_x, 32 // lanes_y)
    vector = min(items, 16 // size)
    warp, k, strip = _loops(threads // 32, depth, items // vector)
    lane_at, warp_at = (LANE % lanes_y, warp // warps_x) if operand == "a" else (LANE // lanes_y, warp % warps_x)
    loads = k * length + warp_at * lanes * items + strip * lanes * vector + lane_at * vector
    stores, moved = _cutlass_stores(crosswise, size, threads, depth, length)
    how = "transposed" if crosswise else "copied"
    return Tile(
        name=name,
        about=f"CUTLASS 0.1.1 {policy}, tile of {operand.upper()}, {how} from global memory",
        source=CUTLASS,
        shape=(depth, length),
        element_bytes=size,
        accesses=(
            _access("store", stores, moved * size, True),
            _access("load fragments", loads, vector * size, False),
        ),
        maps=(Padding(length, max(vector, moved)),),
    )


def _cutlass_stores(crosswise: bool, size: int, threads: int, depth: int, length: int) -> tuple[Integers, int]:
    """Where a thread puts what it loaded with 16-byte loads, and how many elements a store moves."""
    per_thread = depth * length // threads
    vector = min(per_thread, depth if crosswise else length, 16 // size)
    if crosswise:  # the vector lies along depth: one store per element, into as many rows
        vectors = depth // vector
        warp, strip, part = _loops(threads // 32, per_thread // vector, vector)
        thread = 32 * warp + LANE
        column = thread // vectors + strip * (threads // vectors)
        return (thread % vectors * vector + part) * length + column, 1
    vectors = length // vector
    warp, strip = _loops(threads // 32, per_thread // vector)
    thread = 32 * warp + LANE
    return (thread // vectors + strip * (threads // vectors)) * length + thread % vectors * vector, vector


# ---- Hopper: rows of 16-byte chunks ----


def _tma(name: str, row_bytes: int, swizzled: bool) -> Tile:
    """64 rows; chunk number XOR address bits 7 and up. Lanes walk down a column of chunks, as ldmatrix and WGMMA do."""
    chunks = row_bytes // 16
    block, chunk = _loops(2, chunks)
    down = (32 * block + LANE) * chunks + chunk
    (start,) = _loops(2 * chunks)
    return Tile(
        name=name,
        about=f"rows of {row_bytes} bytes, {'the TMA and WGMMA swizzle of that size' if swizzled else 'no swizzle'}",
        source=HOPPER,
        shape=(64, chunks),
        element_bytes=16,
        accesses=(_access("store rows", 32 * start + LANE, 16, True), _access("load columns", down, 16, False)),
        maps=(Swizzle(chunks.bit_length() - 1, 0, 3),) if swizzled else (),
    )


def _transpose(name: str, padded: bool) -> Tile:
    (warp,) = _loops(32)
    return Tile(
        name=name,
        about=f"32 x 32 floats, rows stored and columns loaded, {'a padding of one float' if padded else 'no padding'}",
        source="CUDA C++ Best Practices Guide, shared memory in matrix multiplication (C = AA^T)",
        shape=(32, 32),
        element_bytes=4,
        accesses=(
            _access("store rows", 32 * warp + LANE, 4, True),
            _access("load columns", 32 * LANE + warp, 4, False),
        ),
        maps=(Padding(32, 1),) if padded else (),
    )


@cache
def _catalog() -> dict[str, Callable[[str], Tile]]:
    catalog: dict[str, Callable[[str], Tile]] = {
        "opencnn-reference": partial(_opencnn_reference, padded=True),
        "opencnn-reference-unpadded": partial(_opencnn_reference, padded=False),
        "opencnn-optsts64": partial(_opencnn_optsts64, about="layout optSTS64", maps=(Padding(64, 4), Padding(272, 4))),
        "opencnn-optsts64-unpadded": partial(_opencnn_optsts64, about="layout optSTS64 without its padding", maps=()),
        "opencnn-optsts64-compact": partial(
            _opencnn_optsts64,
            about="layout optSTS64 compact, one of its two buffers",
            maps=(Rotation(length=32, step=4, every=2, period=4),),
        ),
        "opencnn-filters": partial(_opencnn_main, columns=64, cell=LANE % 16 // 2, second=8),
        "opencnn-input": partial(_opencnn_main, columns=32, cell=LANE % 2 + 2 * (LANE // 16), second=4),
        "im2win-input": partial(_im2win, fragment=lambda thread: thread % 16),
        "im2win-filters": partial(_im2win, fragment=lambda thread: thread // 16),
        "transpose-32x32": partial(_transpose, padded=False),
        "transpose-32x33": partial(_transpose, padded=True),
    }
    for size in (32, 64, 128):
        catalog[f"tma-{size}b"] = partial(_tma, row_bytes=size, swizzled=True)
        catalog[f"tma-{size}b-unswizzled"] = partial(_tma, row_bytes=size, swizzled=False)
    for policy in _POLICIES:
        for operand in ("a", "b"):
            if not policy.startswith("igemm"):  # int8 is re-packed on the way, another loader
                row = partial(_cutlass, policy=policy, operand=operand, crosswise=False)
                catalog[f"cutlass-{policy}-{operand}-congruous"] = row
            if not policy.startswith("hgemm"):  # half a word per store, below the narrowest access of the model
                row = partial(_cutlass, policy=policy, operand=operand, crosswise=True)
                catalog[f"cutlass-{policy}-{operand}-crosswise"] = row
    return catalog


def names() -> list[str]:
    """Every pattern's name."""
    return sorted(_catalog())


def pattern(name: str) -> Tile:
    """The pattern of that name, or a ProblemError that names similar ones."""
    if name not in _catalog():
        close = difflib.get_close_matches(name, names(), n=3)
        if "(" in name or ":" in name:
            right = "expected (sizes):(strides) of whole numbers, strides at least 0, e.g. (8,4):(4,1)"
            raise ProblemError(f'"{name}" is not a map from lanes to places; {right}')
        hint = f"did you mean {' or '.join(close)}?" if close else "pysim banks --list shows all; a file ends in .toml or .json"
        raise ProblemError(f'no layout is named "{name}"; {hint}')
    return _catalog()[name](name)


def matching(glob: str) -> list[Tile]:
    """The pattern of that name, or every pattern that a name with * ? [] matches."""
    found = [name for name in names() if fnmatchcase(name, glob)]
    return [pattern(name) for name in found] if found else [pattern(glob)]
