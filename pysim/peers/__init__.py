# SPDX-License-Identifier: Apache-2.0
"""Other libraries to compare with, one module each, loaded on use (`pysim.peers.peer` has the interface)."""

from collections.abc import Collection
from importlib import import_module
from typing import Any, Literal, NamedTuple

from pysim.errors import OperandError, choose, quoted
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm

PeerChoice = Literal["none", "default", "all"] | Collection[str]


class Peer(NamedTuple):
    """A library that `computes` these problems `on` a CPU or a GPU. `default`: timed unless others are requested; `analytic`: predicts
    times and runs nothing; `made`: in place of the module."""

    module: str
    on: Literal["cpu", "gpu"]
    computes: tuple[type, ...] = (Conv, Gemm)
    default: bool = False
    analytic: bool = False
    made: Any = None

    @property
    def library(self) -> Any:
        """The peer's module: a `pysim.peers.peer.Library`, or for an analytic peer one with `estimate`."""
        return self.made or import_module(f"pysim.peers.{self.module}")


PEERS = {
    "im2col_openblas": Peer("openblas", "cpu", default=True),
    "onednn": Peer("onednn", "cpu"),
    "onnxruntime": Peer("onnxruntime", "cpu"),
    "cublas": Peer("cublas", "gpu", (Gemm,), default=True),
    "cudnn": Peer("cudnn", "gpu", (Conv,), default=True),
    "matmul_heuristics": Peer("matmul_heuristics", "gpu", (Gemm,), analytic=True),
    "torch": Peer("torch", "gpu", (Conv,)),
}


def chosen(choice: PeerChoice, machine: Machine | Gpu) -> dict[str, Peer]:
    """The chosen peers of a machine: "none", "default", "all", or names. OperandError for an unknown name."""
    here = {name: peer for name, peer in PEERS.items() if peer.on == ("gpu" if isinstance(machine, Gpu) else "cpu")}
    if isinstance(choice, str) and choice == "all":
        return here
    if isinstance(choice, str) and choice in ("none", "default"):
        return {name: peer for name, peer in here.items() if peer.default and choice == "default"}
    names = tuple(choice) if isinstance(choice, list | tuple | set | frozenset) else (choice,)
    for name in names:
        if not isinstance(name, str) or name not in here:
            raise OperandError(f"no peer on {machine.name} is named {quoted(name)}; {choose(name, ('none', 'default', 'all', *here))}")
    return {name: here[name] for name in names}
