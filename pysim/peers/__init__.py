# SPDX-License-Identifier: Apache-2.0
"""Other people's libraries, timed beside ours: a module each, opened when it is asked for (`pysim.peers.peer` says what it has)."""

from collections.abc import Collection
from importlib import import_module
from typing import Any, Literal, NamedTuple

from pysim.errors import OperandError, choose, quoted
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm

Asked = Literal["none", "default", "all"] | Collection[str]


class Peer(NamedTuple):
    """`computes` these problems `on` a CPU or a GPU; a `default` one takes part unless others are asked for, an `analytic` one runs
    nothing."""

    module: str
    on: Literal["cpu", "gpu"]
    computes: tuple[type, ...] = (Conv, Gemm)
    default: bool = False
    analytic: bool = False

    @property
    def library(self) -> Any:
        """Its module: a `pysim.peers.peer.Library`, or one that estimates."""
        return import_module(f"pysim.peers.{self.module}")


PEERS = {
    "im2col_openblas": Peer("openblas", "cpu", default=True),
    "onednn": Peer("onednn", "cpu"),
    "onnxruntime": Peer("onnxruntime", "cpu"),
    "cublas": Peer("cublas", "gpu", (Gemm,), default=True),
    "cudnn": Peer("cudnn", "gpu", (Conv,), default=True),
    "matmul_heuristics": Peer("matmul_heuristics", "gpu", (Gemm,), analytic=True),
    "torch": Peer("torch", "gpu", (Conv,)),
}


def chosen(asked: Asked, machine: Machine | Gpu) -> dict[str, Peer]:
    """The peers on a machine that are asked for: "none", "default", "all", or some by name. OperandError for a name that none has."""
    here = {name: peer for name, peer in PEERS.items() if peer.on == ("gpu" if isinstance(machine, Gpu) else "cpu")}
    if isinstance(asked, str) and asked == "all":
        return here
    if isinstance(asked, str) and asked in ("none", "default"):
        return {name: peer for name, peer in here.items() if peer.default and asked == "default"}
    names = tuple(asked) if isinstance(asked, list | tuple | set | frozenset) else (asked,)
    for name in names:
        if not isinstance(name, str) or name not in here:
            raise OperandError(f"no peer on {machine.name} is named {quoted(name)}; {choose(name, ('none', 'default', 'all', *here))}")
    return {name: here[name] for name in names}
