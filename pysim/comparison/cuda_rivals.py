# SPDX-License-Identifier: Apache-2.0
"""Who is timed beside a plan on a GPU: others' ways to the same result, each checked on the plan's own operands before.

A peer may have several: every forward algorithm of cuDNN enters, and the fastest right one of them is what cuDNN needs for the problem.
What a rival refuses, cannot get memory for or computes wrongly is a reason, never an error of the plan.
"""

import gc
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from pysim.comparison.cuda_bench import Bench, ConvBench, ProductBench
from pysim.errors import MissingError, PysimError
from pysim.peers import cuda as cuda_peers
from pysim.peers import cudnn
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm


class Rival(NamedTuple):
    """Someone else's call, which was right; `workspace_bytes` is None where the peer does not say what it takes."""

    call: Callable[[], object]
    peer: str
    version: str
    algorithm: str = ""
    workspace_bytes: int | None = None


class Field:
    """The rivals of one plan by name ("cublas", "cudnn GEMM"), the seconds that analytic peers expect, and why others take no part."""

    def __init__(self, gpu: str) -> None:
        self.gpu = gpu
        self.ready: dict[str, Rival] = {}
        self.estimates: dict[str, float] = {}
        self.versions: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def enter(self, name: str, make: Callable[[], tuple[str, Rival]]) -> None:
        """Adds what `make` prepares and checks: (what is wrong or "", rival). Whatever it raises is others' code, and a reason."""
        try:
            wrong, rival = make()
        except Exception as error:
            self.missing[name] = reason_of(error)
            return
        if wrong:
            self.missing[name] = f"its result is wrong: {wrong}"
        else:
            self.ready[name], self.versions[name] = rival, rival.version

    def drop(self, name: str, error: Exception) -> None:
        """A rival that failed after its check."""
        del self.ready[name], self.versions[name]
        self.missing[name] = f"failed when timed: {reason_of(error)}"


def reason_of(error: Exception) -> str:
    """An error as a reason: pysim's own sentences as they are, others with their kind."""
    return str(error) if isinstance(error, PysimError) else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def release() -> None:
    """Gives the memory of a problem's contenders back, PyTorch's too."""
    gc.collect()
    if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()


# Matrix products


def _enter_cublas(bench: ProductBench, field: Field) -> None:
    """cuBLAS, which works in a pool of its own that it does not tell the size of."""

    def made() -> tuple[str, Rival]:
        calls = {exact: cuda_peers.cublas(bench.workload, bench.result, bench.pointers(exact)) for exact in (True, False)}
        wrong, _ = bench.check(lambda exact: calls[exact][0]())
        return wrong, Rival(calls[False][0], "cublas", calls[False][1])

    field.enter("cublas", made)


def _estimate(bench: ProductBench, field: Field) -> None:
    """nvidia-matmul-heuristics, which runs nothing."""
    name = "matmul_heuristics"
    try:
        field.estimates[name] = cuda_peers.estimate(bench.workload, field.gpu)
        field.versions[name] = cuda_peers.heuristics_version()
    except MissingError as error:
        field.missing[name] = str(error)


# Convolutions


def _enter_cudnn(bench: ConvBench, field: Field) -> None:
    """Every algorithm of cuDNN. What one refuses is told where none ran; that there was no memory for one, or that it is wrong, always."""
    found = cudnn.algorithms(bench.workload, bench.pointers(), layout=bench.layout)
    refused = {}

    def made(name: str, one: cudnn.Algorithm, call: Callable[[], object]) -> tuple[str, Rival]:
        wrong, _ = bench.check_theirs(call, name not in cudnn.GEMM_CLASS)
        return wrong, Rival(call, "cudnn", cudnn.version(), name, one.workspace_bytes)

    for name, one in found.items():
        if one.call is not None:
            field.enter(f"cudnn {name}", partial(made, name, one, one.call))
        elif one.workspace_bytes is None:
            refused[name] = one.reason
        else:
            field.missing[f"cudnn {name}"] = one.reason
    if len(refused) == len(found):
        field.missing["cudnn"] = next(iter(refused.values()))
    elif not any(rival.peer == "cudnn" for rival in field.ready.values()):
        field.missing["cudnn"] = f"none of its algorithms ran: {', '.join(refused)} refused {bench.workload.text}, the others failed"


def _enter_torch(bench: ConvBench, field: Field) -> None:
    """PyTorch, its own search done before."""

    def made() -> tuple[str, Rival]:
        one = cudnn.TorchForward(bench.workload, bench.pointers(), layout=bench.layout)
        wrong, _ = bench.check_theirs(one.store, transforms=True)
        return wrong, Rival(one.run, "torch", cudnn.torch_version(), "", one.extra_bytes())

    field.enter("torch", made)


# Who there is

PEERS: dict[type, dict[str, Callable[[Any, Field], None]]] = {Gemm: {"cublas": _enter_cublas}, Conv: {"cudnn": _enter_cudnn}}
ASKED: dict[type, dict[str, Callable[[Any, Field], None]]] = {Gemm: {"matmul_heuristics": _estimate}, Conv: {"torch": _enter_torch}}


def peers_of(kinds: Iterable[type], asked: bool) -> list[str]:
    """The peers of problems of these types, once each; with those that are asked for alone if `asked`."""
    known = list(kinds)
    tables = [PEERS] + [ASKED] * asked
    return list(dict.fromkeys(name for table in tables for kind in table if kind in known for name in table[kind]))


def field_of(bench: Bench, kind: type, gpu: str, asked: bool | None) -> Field:
    """The rivals of a plan whose operands lie on a bench, checked; nobody if `asked` is None."""
    field = Field(gpu)
    if asked is None:
        return field
    for enter in (PEERS[kind] | (ASKED[kind] if asked else {})).values():
        enter(bench, field)
    return field
