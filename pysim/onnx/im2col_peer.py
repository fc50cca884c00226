# SPDX-License-Identifier: Apache-2.0
"""A peer that runs a network as Caffe does: the same fused graph and arena, but convolutions and products with constant weights are im2col
and OpenBLAS. Bias, residual and activation are one pass over the product; all values are NCHW."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pysim.network.execution import Network
from pysim.network.graph import Array
from pysim.peers import openblas
from pysim.peers.peer import Operands
from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.record.plan import Plan
from pysim.runtime.array_steps import pair_step
from pysim.runtime.cpu import LOCAL
from pysim.runtime.operators import map_step


class Im2col:
    """Stands in for `Prepared`, on one thread, whatever the schedule."""

    executor, workspace_bytes = LOCAL, 0

    def __init__(self, workload: Workload, weights: Array, bias: Array | None, activation: Any) -> None:
        w = workload
        self._workload, self._weights, self._bias, self._activation = w, weights, bias, activation
        self.shapes: tuple[tuple[int, ...], tuple[int, ...]] = (
            ((w.batch, w.channels, w.height, w.width), (w.batch, w.filters, w.out_h, w.out_w))
            if isinstance(w, Conv)
            else ((w.m, w.k), (w.m, w.n))
        )

    @classmethod
    def of(cls, plan: Plan, weights: Array, bias: Array | None, activation: Any, threads: int) -> "Im2col":
        return cls(plan.workload, weights, bias, activation)

    def step(self, x: Array, out: Array, workspace: object = None, residual: Array | None = None) -> Callable[[], object]:
        ready = openblas.make(self._workload, Operands(x, self._weights, out))
        epilogue = self._epilogue(out, residual)

        def run() -> None:
            ready.call()
            if epilogue is not None:
                epilogue()

        return run

    def _epilogue(self, out: Array, residual: Array | None) -> Callable[[], object] | None:
        if self._bias is None and residual is None and self._activation is None:
            return None
        if isinstance(self._workload, Conv):
            return map_step(out, out, out.shape[0] * out.shape[1], shift=self._bias, residual=residual, activation=self._activation)
        return pair_step(out, out, np.zeros(1, out.dtype) if self._bias is None else self._bias, "Add", self._activation)

    def __call__(self, x: Array, out: Array, residual: Array | None = None) -> None:
        self.step(x, out, None, residual)()


class Im2colNetwork(Network):
    prepared_type, blocks = Im2col, False
