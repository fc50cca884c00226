# SPDX-License-Identifier: Apache-2.0
"""Weights that many calls on a GPU share."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pysim.errors import OperandError
from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.runtime import arrays
from pysim.runtime.cuda import Activation


class Prepared:
    """A convolution `y = conv(x, out=None)` or product `c = product(a, out=None)` whose weights are fixed.

    Weights on the device are converted once to the layout that the plan reads. Weights that already have it are not copied, and must not
    be changed. Weights in host memory are copied, and `x` must be in host memory, too. `run` is `pysim.api.Plan.run` of the plan.
    """

    def __init__(
        self,
        workload: Workload,
        run: Callable[..., Any],
        weights: Any,
        bias: Any = None,
        activation: Activation = None,
        channels_last: bool = False,
    ) -> None:
        shape = tuple(np.shape(weights))
        if shape != (right := _shape(workload)):
            raise OperandError(f"{'w' if isinstance(workload, Conv) else 'b'} has shape {shape}, but {workload.text} needs {right}")
        self.workload = workload
        self._run, self._activation = run, activation
        self._weights, self._bias = _kept(weights, channels_last), None if bias is None else _kept(bias, False)

    def __call__(self, x: Any, out: Any = None) -> Any:
        return self._run(x, self._weights, self._bias, self._activation, out=out)


def _shape(w: Workload) -> tuple[int, ...]:
    """The shape of the filters, or of B."""
    if isinstance(w, Conv):
        return w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w
    return (w.n, w.k) if w.trans_b else (w.k, w.n)


def _kept(array: Any, channels_last: bool) -> Any:
    if not arrays.is_cuda(array):
        return np.array(array)
    converted = arrays.library_of(type(array)).with_layout(array, channels_last) if len(array.shape) == 4 else None
    return array if converted is None else converted
