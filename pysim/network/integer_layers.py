# SPDX-License-Identifier: Apache-2.0
"""An integer convolution or product of a network, ready to run: prepared weights, and what surrounds the kernels.

    bytes -> signed bytes, padded by the zero point -> INT32 sums -> bytes or float32
    bytes -> float32 without the zero point         -> whole sums in float32 -> bytes or float32

The two intermediate values lie in the workspace.
"""

from collections.abc import Sequence

import numpy as np

from pysim.network.graph import Array, Node, Tensor
from pysim.problem.conv import Conv
from pysim.record.plan import Plan
from pysim.runtime import cpu
from pysim.runtime.cpu_launch import Prepared
from pysim.runtime.integer_steps import Quantity, byte_pad_step, dequantize_step, sums_step
from pysim.runtime.steps import Chain, Step

INTEGER_LAYERS = ("IntegerConv", "IntegerLinear")
_LINE_BYTES = 64


class IntegerLayer:
    """y = layer(x): `step` binds it to arrays. `shapes`: of the input and of the result."""

    def __init__(self, node: Node, x: Tensor, plan: Plan, threads: int = 1) -> None:
        about, problem = node.attributes, plan.workload
        self._kinds = (np.float32, np.float32) if about["dtype"] == "f32" else (np.int8, np.int32)
        weights = about["weights"].astype(self._kinds[0])
        if isinstance(problem, Conv):
            weights = weights.reshape(problem.filters, -1, problem.kernel_h, problem.kernel_w)
        self._inner = Prepared.of(plan, weights, about["bias"], None, threads)
        self.executor, (self._read, self._written) = self._inner.executor, self._inner.shapes
        self._pads, self._zero, self._sums = about["pads"], about["zero"], about["sums"]
        top, left, bottom, right = self._pads
        shape = self._read
        if isinstance(problem, Conv):
            shape = (*shape[:2], shape[2] - top - bottom, shape[3] - left - right)
        self.shapes = shape, self._written
        self._of = Quantity(1.0, self._zero, x.dtype)
        self._flips = x.dtype == np.uint8
        self._copies = about["dtype"] == "f32" or self._flips or any(self._pads)
        self._image_bytes = _lines(np.dtype(self._kinds[0]).itemsize * int(np.prod(self._read))) if self._copies else 0
        self._sum_bytes = _lines(4 * int(np.prod(self._written)))
        self._per_filter = self._written[2] * self._written[3] if isinstance(problem, Conv) else 1  # sums of one filter side by side

    @property
    def workspace_bytes(self) -> int:
        return self._image_bytes + self._sum_bytes + self._inner.workspace_bytes

    def _parts(self, x: Array, workspace: Array) -> tuple[Array, Array]:
        image = np.ndarray(self._read, self._kinds[0], workspace) if self._copies else x.view(np.int8).reshape(self._read)
        return image, np.ndarray(self._written, self._kinds[1], workspace, self._image_bytes)

    def _around(self, x: Array, out: Array, image: Array, sums: Array, more: Sequence[Array]) -> tuple[list[Step], Step]:
        """The steps before and behind the kernels."""
        scale, zero = more or (None, None)
        before = []
        if self._kinds[0] == np.float32:
            before = [dequantize_step(image, x, self._of, zero)]
        elif self._copies:
            planes = x if x.ndim == 4 else x.reshape(1, 1, 1, -1)
            before = [byte_pad_step(image, planes, self._pads, self._zero & 0xFF, self._flips, zero if any(self._pads) else None)]
        return before, sums_step(out, sums, self._sums, self._per_filter, scale, zero)

    def step(self, x: Array, out: Array, workspace: Array, *more: Array) -> Chain:
        """`more`: the scale and zero of a dynamic input."""
        image, sums = self._parts(x, workspace)
        before, behind = self._around(x, out, image, sums, more)
        inner = self._inner.step(image, sums, workspace[self._image_bytes + self._sum_bytes :])
        return Chain([*before, inner, behind])

    def __call__(self, x: Array, out: Array, *more: Array) -> None:
        """The same once, also on an emulated CPU."""
        image, sums = self._parts(x, cpu.aligned(self._image_bytes + self._sum_bytes, np.uint8))
        before, behind = self._around(x, out, image, sums, more)
        for step in before:
            step()
        self._inner(image, sums)
        behind()


def _lines(nbytes: int) -> int:
    return -(-nbytes // _LINE_BYTES) * _LINE_BYTES
