# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear, and DequantizeLinear of blocks, in NumPy (https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html):
y = saturate(round(x / scale) + zero point), and x = (y - zero point) scale.

A quotient of any size, also an infinite one, saturates to the largest or smallest whole number of the type. Eight-bit floats saturate
unless `saturate` is 0, and have no zero point. From opset 23 on quotients are of `precision`, by default the scale's type, before of
float32 at least. A NaN becomes the smallest number, as where ONNX Runtime has vector code.

Worked number: x = 1e30, scale 0.05, uint8: 255; x = -infinity: 0.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim.errors import ProblemError

Array = NDArray[Any]


def quantize_linear(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """What runs an onnx.NodeProto, called with x, scale and perhaps the zero point."""
    import onnx

    about = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    named, precision = about.get("output_dtype", 0), about.get("precision", 0)

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        x, scale, *zero = inputs
        kind = zero[0].dtype if zero else np.dtype(onnx.helper.tensor_dtype_to_np_dtype(named)) if named else np.dtype(np.uint8)
        own = scale.dtype if opset >= 23 else np.result_type(x, np.float32)
        wide = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(precision)) if precision else own
        axis, block = about.get("axis", 1), about.get("block_size", 0)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # infinite, as it should be
            quotient = np.asarray(x.astype(wide) / _spread(scale, x.shape, axis, block).astype(wide))  # also of a number
        if kind.name in ("int8", "uint8") and wide == np.float32 and quotient.dtype == wide:
            return [_bytes(quotient, _spread(zero[0], x.shape, axis, block) if zero else 0, kind)]
        if kind.name in _WHOLE:
            low, high = _WHOLE[kind.name]
            shifted = np.rint(quotient).astype(np.float64) + (_spread(zero[0], x.shape, axis, block).astype(np.float64) if zero else 0)
            return [np.clip(np.where(np.isnan(shifted), low, shifted), low, high).astype(np.int32).astype(kind)]
        if kind.name.startswith("float8") and about.get("saturate", 1):
            return [onnx.numpy_helper.saturate_cast(quotient, dtype=kind)]
        return [quotient.astype(kind)]

    return run


def dequantize_blocks(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]] | None:
    """What runs an onnx.NodeProto with a scale for each block, called with x, scale and perhaps the zero point; None for another."""
    import onnx

    about = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    if not about.get("block_size") or about.get("output_dtype"):
        return None
    axis, block = about.get("axis", 1), about["block_size"]

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        x, scale, *zero = inputs
        whole = x.astype(np.int32) if x.dtype.name in _WHOLE else x
        if zero:
            whole = whole - _spread(zero[0], x.shape, axis, block).astype(whole.dtype)
        return [(whole.astype(scale.dtype) * _spread(scale, x.shape, axis, block)).astype(scale.dtype)]

    return run


def _bytes(quotient: Array, zero: Any, kind: "np.dtype[Any]") -> Array:
    """As of other whole numbers, in less time: sums beyond 2^24 are not exact, and saturate anyway. `quotient` is lost."""
    np.rint(quotient, out=quotient)
    quotient += np.asarray(zero, np.float32)
    ends = np.iinfo(kind)
    np.fmax(quotient, np.float32(ends.min), out=quotient)  # also of NaN
    return np.fmin(quotient, np.float32(ends.max), out=quotient).astype(kind)


def _spread(of: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """Scales or zero points, of all, of each place of an axis, or of blocks of it, so that they are broadcast to `shape`."""
    if of.size == 1:
        return of.reshape(())
    if block:
        if of.ndim != len(shape):
            raise ProblemError(f"its scales are {list(of.shape)}; of blocks of an input of {list(shape)} they have as many axes")
        return np.repeat(of, block, axis)[tuple(slice(0, size) for size in shape)]
    if of.ndim != 1 or not -len(shape) <= axis < len(shape) or of.size != shape[axis]:
        raise ProblemError(f"its scales are {list(of.shape)}; expected one number, or one for each place of axis {axis} of {list(shape)}")
    return of.reshape([-1 if at == axis % len(shape) else 1 for at in range(len(shape))])


_WHOLE = {
    **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (2, 4, 8, 16)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (2, 4, 8, 16)},
}
