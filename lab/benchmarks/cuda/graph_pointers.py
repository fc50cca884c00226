# SPDX-License-Identifier: Apache-2.0
"""Which device addresses a captured CUDA graph holds, and whether their memory is still allocated.

The parameters of a graph's nodes are read through the driver, and each aligned 8-byte word of them that lies in memory of PyTorch's
allocator counts as an address; so do the global addresses in TMA descriptors. An address is one of

    own       in the graph's private pool, which lives as long as the graph
    normal    in an allocated block of the ordinary pool: somebody must keep that alive
    foreign   in the private pool of another graph
    freed     in a block that is not allocated at present: another tensor may get it
    unmapped  in memory that was returned to the driver: a replay that reads it faults

An address one past the end of a block is counted with its neighbour. Needs CUDA 12.4's driver, and graphs made with `keep_graph=True`.
"""

import ctypes
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

_KERNEL, _MEMCPY, _MEMSET, _CHILD = 0, 1, 2, 4  # CUgraphNodeType
_LARGEST = 8192  # bytes of a node's parameters that are not of a kernel, more than any has
_NORMAL = (0, 0)  # id of the ordinary pool


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("sizes", ctypes.c_uint * 7),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class Block(NamedTuple):
    """A part of a segment of PyTorch's allocator."""

    begin: int
    end: int
    pool: tuple[int, int]
    allocated: bool


class Pointer(NamedTuple):
    """An address in a node's parameters, and the block in which it lay at the capture."""

    node: str
    address: int
    block: Block


class _Driver:
    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.lib, name)(*arguments))

    def need(self, name: str, *arguments: Any) -> None:
        if status := self(name, *arguments):
            raise RuntimeError(f"{name} returned {status}")

    def nodes(self, graph: int) -> list[int]:
        count = ctypes.c_size_t()
        self.need("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        self.need("cuGraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
        return [int(node or 0) for node in nodes]

    def words(self, graph: int) -> Iterator[tuple[str, int]]:
        """Each word of each node's parameters, with the name of the kernel or operation."""
        for node in self.nodes(graph):
            kind = ctypes.c_int()
            self.need("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
            if kind.value == _KERNEL:
                yield from self._kernel_words(node)
            elif kind.value == _CHILD:
                child = ctypes.c_void_p()
                self.need("cuGraphChildGraphNodeGetGraph", ctypes.c_void_p(node), ctypes.byref(child))
                yield from self.words(int(child.value or 0))
            elif kind.value in (_MEMCPY, _MEMSET):
                name = "Memcpy" if kind.value == _MEMCPY else "Memset"
                raw = ctypes.create_string_buffer(_LARGEST)
                self.need(f"cuGraph{name}NodeGetParams", ctypes.c_void_p(node), raw)
                for at in range(0, 512, 8):
                    yield name, int.from_bytes(raw.raw[at : at + 8], "little")

    def _kernel_words(self, node: int) -> Iterator[tuple[str, int]]:
        found = _KernelNode()
        self.need("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(found))
        kind, handle = ("Func", found.func) if found.func else ("Kernel", found.kern)
        text, offset, size = ctypes.c_char_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self(f"cu{kind}GetName", ctypes.byref(text), ctypes.c_void_p(handle))
        name, index = (text.value or b"?").decode(), 0
        while found.parameters and not self(
            f"cu{kind}GetParamInfo", ctypes.c_void_p(handle), ctypes.c_size_t(index), ctypes.byref(offset), ctypes.byref(size)
        ):
            raw = ctypes.string_at(found.parameters[index], size.value)
            for at in range(0, size.value - 7, 8):
                yield name, int.from_bytes(raw[at : at + 8], "little")
            index += 1


def blocks() -> list[Block]:
    """All memory that PyTorch's allocator holds at present, by address."""
    return sorted(
        Block(one["address"], one["address"] + one["size"], tuple(segment["segment_pool_id"]), one["state"] == "active_allocated")
        for segment in torch.cuda.memory_snapshot()
        for one in segment["blocks"]
    )


def _block_of(address: int, among: list[Block]) -> Block | None:
    at = bisect_right(among, address, key=lambda one: one.begin) - 1
    return among[at] if at >= 0 and address < among[at].end else None


def pointers(graph: Any) -> list[Pointer]:
    """The addresses in a graph, directly after its capture."""
    now = blocks()
    low, high = min((one.begin for one in now), default=0), max((one.end for one in now), default=0)
    found = dict.fromkeys(word for word in _Driver().words(graph.raw_cuda_graph()) if low <= word[1] < high)
    return [Pointer(name, address, block) for name, address in found if (block := _block_of(address, now))]


def audit(held: list[Pointer], own_pool: tuple[int, int]) -> dict[str, list[str]]:
    """Kind of address -> the nodes that hold such addresses, each with the address."""
    now, told = blocks(), dict[str, list[str]]()
    for name, address, before in held:
        block = _block_of(address, now)
        if block is None:
            kind = "unmapped"
        elif before.pool == own_pool:
            kind = "own"
        elif before.pool != _NORMAL:
            kind = "foreign" if block.allocated else "foreign, freed"
        else:
            kind = "normal" if block.allocated else "freed"
        told.setdefault(kind, []).append(f"{name[:80]} {address:#x}")
    return told
