# SPDX-License-Identifier: Apache-2.0
"""A network as Caffe runs it, to be compared with: the same graph, fused and placed alike, whose convolutions and products with constant
weights are im2col and OpenBLAS. Biases, residuals and activations are one pass over what OpenBLAS made; all values are planes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pysim.models.graph import Array
from pysim.models.model import Model
from pysim.peers import openblas
from pysim.peers.peer import Operands
from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.runtime.array_steps import pair_step
from pysim.runtime.cpu import LOCAL
from pysim.runtime.operators import map_step


class Im2col:
    """What a plan's `Prepared` is to a model: of one thread, whatever the schedule."""

    executor, workspace_bytes = LOCAL, 0

    def __init__(self, workload: Workload, weights: Array, schedule: object, bias: Array | None, activation: Any, *_: object) -> None:
        w = workload
        self._workload, self._weights, self._bias, self._activation = w, weights, bias, activation
        self.shapes: tuple[tuple[int, ...], tuple[int, ...]] = (
            ((w.batch, w.channels, w.height, w.width), (w.batch, w.filters, w.out_h, w.out_w))
            if isinstance(w, Conv)
            else ((w.m, w.k), (w.m, w.n))
        )

    def step(self, x: Array, out: Array, workspace: object = None, residual: Array | None = None) -> Callable[[], object]:
        ready = openblas.make(self._workload, Operands(x, self._weights, out))
        behind = self._behind(out, residual)

        def run() -> None:
            ready.call()
            if behind is not None:
                behind()

        return run

    def _behind(self, out: Array, residual: Array | None) -> Callable[[], object] | None:
        if self._bias is None and residual is None and self._activation is None:
            return None
        if isinstance(self._workload, Conv):
            return map_step(out, out, out.shape[0] * out.shape[1], shift=self._bias, residual=residual, activation=self._activation)
        return pair_step(out, out, np.zeros(1, out.dtype) if self._bias is None else self._bias, "Add", self._activation)

    def __call__(self, x: Array, out: Array, residual: Array | None = None) -> None:
        self.step(x, out, None, residual)()


class Im2colModel(Model):
    made, blocks = Im2col, False
