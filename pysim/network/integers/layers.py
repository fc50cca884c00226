# SPDX-License-Identifier: Apache-2.0
"""An integer convolution or product of a network, ready to run: prepared weights, and what surrounds the kernels.

    bytes -> bytes                                          the kernel's store rounds (`pysim.record.integers`)
    bytes -> INT32 sums -> bytes or float32                 of a dynamic input, or with a bias that is no whole number
    bytes -> float32 without the zero point -> whole sums in float32 -> bytes or float32
    bytes -> activation of numbers -> bytes                 likewise, tile by tile
    bytes -> bytes + residual -> bytes                      the same store adds a residual (attribute `pair`, `network.integers.residuals`)
    bytes -> channels last -> float32 -> planes             a convolution to numbers whose plan has channels last (`turns`)

Values between lie in the workspace. Padding of a dynamic input is its zero point, which is known when it runs: it is padded before.
"""

from collections.abc import Sequence

import numpy as np

from pysim.network.graph import Array, Node, Tensor
from pysim.problem.conv import Conv
from pysim.record.integers import Integers
from pysim.record.plan import Plan
from pysim.runtime import cpu
from pysim.runtime.cpu_launch import Prepared
from pysim.runtime.integer_steps import Quantity, Sums, byte_pad_step, byte_sum_of, dequantize_step, sums_step
from pysim.runtime.operators import reorder_step
from pysim.runtime.steps import Chain, Step

INTEGER_LAYERS = ("IntegerConv", "IntegerLinear")
_LINE_BYTES = 64


class IntegerLayer:
    """y = layer(x): `step` binds it to arrays. `shapes`: of the input and of the result."""

    def __init__(self, node: Node, x: Tensor, plan: Plan, threads: int = 1) -> None:
        about, problem = node.attributes, plan.workload
        sums: Sums = about["sums"]
        self._floats, self._pads, self._zero, self._sums = about["dtype"] == "f32", about["pads"], about["zero"], sums
        weights = about["weights"].astype(np.float32 if self._floats else np.int8)
        if isinstance(problem, Conv):
            weights = weights.reshape(problem.filters, -1, problem.kernel_h, problem.kernel_w)
        self._added = byte_sum_of(*about["pair"]) if "pair" in about else None
        self._turns = turns(node) and plan.layout == "nhwc"
        shifts = self._turns or (sums.to is None and node.op == "IntegerLinear" and bool((sums.scale > 0).all()))
        self._stores = not self._floats and len(node.inputs) < 3 and (shifts or stored_whole(sums))
        bias, activation, integers = None, None, None
        if self._stores:
            result = "f32" if sums.to is None else "u8" if sums.to.dtype == np.uint8 else "s8"
            zero = 0 if sums.to is None else sums.to.zero
            integers = Integers(x.dtype == np.uint8, self._zero, sums.scale, result, zero, self._added)  # type: ignore[arg-type]  # one of three words
            activation = None if sums.to is None else ("clamp", float(sums.low), float(sums.high))
            if shifts or sums.factors is not None:
                integers, activation = integers._replace(result_scales=sums.factors, shifts=sums.shift), sums.activation
            bias = sums.offset if sums.offset.any() else None
        elif not self._floats:
            integers = Integers(x.dtype == np.uint8, self._zero)
        self._inner = Prepared.of(plan, weights, bias, activation, threads, integers=integers)
        self.executor, (self._read, self._written) = self._inner.executor, self._inner.shapes
        shape = self._read
        if isinstance(problem, Conv) and plan.layout == "nchw":
            shape = (*shape[:2], shape[2] - self._pads[0] - self._pads[2], shape[3] - self._pads[1] - self._pads[3])
        self.shapes = shape, self._written
        if self._turns and isinstance(problem, Conv):
            self.shapes = problem.input_shape, problem.output_shape
        self._of = Quantity(1.0, self._zero, x.dtype)
        self._image_type = np.dtype(np.float32) if self._floats else x.dtype
        copies = self._floats or self._turns or any(self._pads)
        self._image_bytes = _lines(self._image_type.itemsize * int(np.prod(self._read))) if copies else 0
        self._sum_bytes = 0 if self._stores and not self._turns else _lines(4 * int(np.prod(self._written)))
        self._per_filter = problem.windows if isinstance(problem, Conv) else 1  # sums of one filter side by side

    @property
    def workspace_bytes(self) -> int:
        return self._image_bytes + self._sum_bytes + self._inner.workspace_bytes

    def _around(self, x: Array, out: Array, workspace: Array, more: Sequence[Array]) -> tuple[list[Step], Array, Array, list[Step]]:
        """The steps before and behind the kernels, and what these read and write."""
        scale, zero = more or (None, None)
        image = np.ndarray(self._read, self._image_type, workspace) if self._image_bytes else x.reshape(self._read)
        before = list[Step]()
        if self._turns:
            numbers = np.ndarray(self._written, np.float32, workspace, self._image_bytes)
            turned = reorder_step(out, numbers.reshape(out.shape), out.shape[1], True)
            return [reorder_step(image.reshape(x.shape), x, x.shape[1], False)], image, numbers, [turned]
        if self._floats:
            before.append(dequantize_step(image, x, self._of, zero))
        elif self._image_bytes:
            before.append(byte_pad_step(image, x, self._pads, 0, False, zero))
        if self._stores:
            return before, image, out, []
        sums = np.ndarray(self._written, np.float32 if self._floats else np.int32, workspace, self._image_bytes)
        return before, image, sums, [sums_step(out, sums, self._sums, self._per_filter, scale, zero)]

    def step(self, x: Array, out: Array, workspace: Array, *more: Array) -> Chain:
        """`more`: the scale and zero of a dynamic input, or a residual."""
        scales, residual = self._divided(more)
        before, image, sums, behind = self._around(x, out, workspace, scales)
        return Chain([*before, self._inner.step(image, sums, workspace[self._image_bytes + self._sum_bytes :], residual), *behind])

    def _divided(self, more: Sequence[Array]) -> tuple[Sequence[Array], Array | None]:
        return ((), more[0].reshape(self._written)) if self._added else (more, None)

    def __call__(self, x: Array, out: Array, *more: Array) -> None:
        """The same once, also on an emulated CPU."""
        scales, residual = self._divided(more)
        room = cpu.aligned(max(1, self._image_bytes + self._sum_bytes), np.uint8)
        before, image, sums, behind = self._around(x, out, room, scales)
        for step in before:
            step()
        self._inner(image, sums, residual)
        for step in behind:
            step()


def writes_bytes(node: Node) -> bool:
    """Whether an integer layer is one run of a kernel whose stores make its results, bytes."""
    sums, plain = node.attributes["sums"], node.attributes["dtype"] == "s8" and not any(node.attributes["pads"])
    of_input = len(node.inputs) == 1 or "pair" in node.attributes
    return plain and of_input and sums.to is not None and stored_whole(sums)


def turns(node: Node) -> bool:
    """Whether a convolution of planes to numbers in planes may have its plan with channels last, between two conversions of its own.
    Depthwise stores add no shifts to numbers."""
    if node.op != "IntegerConv" or node.attributes["problem"].groups > 1:
        return False
    plain = node.attributes["dtype"] == "s8" and not any(node.attributes["pads"]) and len(node.inputs) == 1
    sums: Sums = node.attributes["sums"]
    return plain and sums.to is None and bool((sums.scale > 0).all())


def stored_whole(sums: Sums) -> bool:
    """Whether the kernels' stores make a layer's results of its sums, if its input is not dynamic."""
    return (sums.factors is not None or not sums.shift.any()) and bool((sums.scale > 0).all())


def _lines(nbytes: int) -> int:
    return -(-nbytes // _LINE_BYTES) * _LINE_BYTES
