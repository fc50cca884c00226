# SPDX-License-Identifier: Apache-2.0
"""Standard operators of which the onnx package has no definition, or one that is not what https://onnx.ai/onnx/operators/ says.

Each is run(inputs, attributes) and returns the one output, except DynamicQuantizeLinear. What is wrong in the package's definitions:
    AffineGrid                  divides by 0 for an axis of one pixel
    Celu, Elu, Selu             lose the digits of small numbers in e^x - 1
    Clip                        keeps infinities where a bound is left out
    CumSum, GatherND, ScatterElements, ScatterND, TopK    are loops over elements, or sort all of them
    Col2Im                      leaves out dilations
    ConvTranspose               with auto_pad it may make more outputs than the full ones
    DynamicQuantizeLinear       of zeros has another scale
    Gelu                        of halves is computed in halves
    GatherElements              rejects indices that leave out some of an axis
    GlobalMaxPool, MeanVarianceNormalization    support images only
    GroupNormalization          sums halves as halves
    GridSample                  is a Python loop over points, and lacks opset 16's names of the modes
    GRU, LSTM, RNN              ignore sequence_lens, clip, input_forget, activations and most directions
    LRN                         of size 1 leaves out all channels but the first
    LpNormalization             adds numbers instead of magnitudes, and divides by a norm of 0
    Mean                        writes into its first operand
    OneHot                      takes an index beyond the depth for another one
    NonMaxSuppression           rejects thresholds that are scalars
    QuantizeLinear              wraps around where the quotient is no int32
    PRelu                       multiplies 0 by an infinite slope
    ReduceLogSum, ReduceLogSumExp, Softsign   reject scalars, and the first two whole numbers
    Resize                      computes its sizes and coordinates in double
    RoiAlign                    shifts coordinates by half a pixel before opset 16, too
    LayerNormalization          sums halves as halves
    MaxRoiPool, Scatter         there are none
    ReduceSumSquare             of a scalar has another type
    Unique                      of an axis, unsorted, takes rows of another axis
    Shape                       from before the first axis begins behind it
    Slice                       backward from before an axis is empty
    Softmax, LogSoftmax, Hardmax    take one axis; until opset 12 they take all from that one on
    Unsqueeze                   inserts several axes one after the other
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pysim.network.numpy_ops import convolutions
from pysim.network.numpy_ops.grid_sample import affine_grid, grid_sample
from pysim.network.numpy_ops.quantize import dequantize_blocks, quantize_linear
from pysim.network.numpy_ops.recurrent import recurrent
from pysim.network.numpy_ops.regions import col2im, max_roi_pool, non_max_suppression, roi_align
from pysim.network.numpy_ops.resize import resize
from pysim.network.numpy_ops.selecting import Changing, cum_sum, gather_nd, places_of, top_k_of

Array = NDArray[Any]
_SELU = float(np.float32(1.6732632)), float(np.float32(1.050701))  # alpha, gamma; ONNX has them in float32
_SMALL = 1e-9  # what a standard deviation gets added, of the function that defines MeanVarianceNormalization


def _norms(x: Array, axes: int | tuple[int, ...], p: int) -> Array:
    total: Array = np.sum(np.abs(x) ** p, axis=axes, keepdims=True)
    return total ** (1 / p)


def _planes(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _conv_transpose(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, weights, *bias = (one.astype(np.float32) if one.dtype == np.float16 else one for one in inputs)
    groups = attributes.get("group", 1)
    window = convolutions.transposed_window(attributes, x.shape[2:], weights.shape[2:])
    out = np.empty((len(x), weights.shape[1] * groups, *window.outputs), x.dtype)
    convolutions.transposed(out, [x, weights, *bias], window._asdict() | {"group": groups})
    return out.astype(inputs[0].dtype)


def _global_lp_pool(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    return _norms(inputs[0], _planes(inputs[0]), attributes.get("p", 2)).astype(inputs[0].dtype)


def _global_max_pool(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    largest: Array = np.max(inputs[0], axis=_planes(inputs[0]), keepdims=True)
    return largest


def _lp_normalization(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    (x,) = inputs
    norms = _norms(x, attributes.get("axis", -1), attributes.get("p", 2))
    return np.divide(x, norms, out=np.zeros_like(x), where=norms != 0, casting="same_kind")


def _lrn(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """x / (bias + alpha / size * sum of squares of neighbouring channels)^beta, (size - 1) // 2 of them in front."""
    (x,), size = inputs, attributes["size"]
    around = [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)]
    squares = np.lib.stride_tricks.sliding_window_view(np.pad(np.square(x), around), size, 1)
    scale = attributes.get("bias", 1.0) + attributes.get("alpha", 1e-4) / size * squares.sum(axis=-1)
    return np.asarray(x / scale ** attributes.get("beta", 0.75), x.dtype)


def _quantized(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """Of zeros the scale is 1, as ONNX Runtime has it, where the package's is 1/255."""

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        (x,) = inputs
        low, high = (np.float32(bound(x, initial=0)) for bound in (np.min, np.max))
        scale = (high - low) / np.float32(255) or np.float32(1)
        zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
        return [np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8), np.asarray(scale), zero]

    return run


def _gather_elements(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, indices = inputs
    places: list[Any] = list(np.indices(indices.shape, sparse=True))
    places[attributes.get("axis", 0)] = indices
    found: Array = x[tuple(places)]
    return found


def _mean(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    total = _wide(inputs[0])
    for x in inputs[1:]:
        total = total + x
    return np.asarray(total / len(inputs), inputs[0].dtype)


def _mean_variance(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, axes = _wide(inputs[0]), tuple(attributes.get("axes", (0, 2, 3)))
    from_mean = x - x.mean(axis=axes, keepdims=True)
    return np.asarray(from_mean / (np.sqrt(np.mean(from_mean**2, axis=axes, keepdims=True)) + _SMALL), inputs[0].dtype)


def _slice(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, *told = inputs
    given = dict(zip(("starts", "ends", "axes", "steps"), (one.tolist() for one in told), strict=False)) or attributes
    count = len(given["starts"])
    slices = [slice(None)] * x.ndim
    axes, steps = given.get("axes") or range(count), given.get("steps") or [1] * count
    for axis, start, end, step in zip(axes, given["starts"], given["ends"], steps, strict=True):
        slices[axis] = backward_too(start, end, step, x.shape[axis])
    return x[tuple(slices)]


def backward_too(start: int, end: int, step: int, size: int) -> slice:
    """A slice of an axis of `size` elements, as in Python; a backward slice that begins before the axis begins at its first element."""
    first, last, by = slice(start, end, step).indices(size)
    return slice(max(first, 0), None if last < 0 else last, by)


def _shares(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _logarithms(x: Array) -> Array:
    low = x - x.max(axis=-1, keepdims=True)
    return np.asarray(low - np.log(np.exp(low).sum(axis=-1, keepdims=True)))


def _largest(x: Array) -> Array:
    return np.asarray(np.arange(x.shape[-1]) == x.argmax(axis=-1)[..., None], x.dtype)


def _along(function: Callable[[Array], Array]) -> "Definition":
    """Of the last axis, along one axis, or before opset 13 along all from one on."""

    def bound(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
        told = _attributes(node).get("axis", -1 if opset >= 13 else 1)

        def run(inputs: Sequence[Array]) -> Sequence[Array]:
            (x,) = inputs
            if not x.size:
                return [x]
            if opset >= 13:
                return [np.moveaxis(function(np.moveaxis(x, told, -1)), -1, told)]
            return [function(x.reshape(*x.shape[: told % x.ndim], -1)).reshape(x.shape)]

        return run

    return bound


def _unsqueeze(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    axes = inputs[1].tolist() if len(inputs) > 1 else attributes["axes"]
    return np.expand_dims(inputs[0], tuple(np.atleast_1d(axes).tolist()))


def _clip(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """A bound that is left out is the largest or smallest finite number: infinities are clipped, too."""
    given, named = _attributes(node), [place for place, name in zip(("x", "min", "max"), node.input, strict=False) if name]

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        of = dict(zip(named, inputs, strict=True))
        kind: np.dtype[Any] = of["x"].dtype if opset >= 11 else np.dtype(np.float32)
        most = _limits(kind)
        low, high = (of.get(name, given.get(name, getattr(most, name))) for name in ("min", "max"))
        return [np.minimum(np.maximum(of["x"], low), high).astype(of["x"].dtype)]

    return run


def _limits(kind: np.dtype[Any]) -> Any:
    import ml_dtypes  # has bfloat16, too

    limits: Any = np.iinfo if kind.kind in "iu" else ml_dtypes.finfo
    return limits(kind)


def _exponential(y: Callable[[Array, Callable[..., Any]], Array]) -> "Definition":
    """An activation of x in float32 at least, with the digits of small results; `y` gets x and what reads attributes."""

    def run(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return y(_wide(inputs[0]), attributes.get).astype(inputs[0].dtype)

    return _of(run)


def _celu(x: Array, given: Callable[..., Any]) -> Array:
    alpha = given("alpha", 1.0)
    return np.asarray(np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha)))


def _elu(x: Array, given: Callable[..., Any]) -> Array:
    return np.asarray(np.where(x < 0, given("alpha", 1.0) * np.expm1(x), x))


def _selu(x: Array, given: Callable[..., Any]) -> Array:
    alpha, gamma = given("alpha", _SELU[0]), given("gamma", _SELU[1])
    return np.asarray(gamma * np.where(x > 0, x, alpha * np.expm1(x)))


def _gelu(x: Array, given: Callable[..., Any]) -> Array:
    if given("approximate", b"none") == b"tanh":  # (1 + tanh u) / 2 = 1 / (1 + exp(-2u))
        return np.asarray(x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * np.vectorize(math.erfc, otypes=[x.dtype])(-x / np.sqrt(2)))


def _put(found: Array, places: tuple[Array, ...], updates: Array, reduce: Any) -> None:
    if reduce:
        reduce.at(found, places, updates)
    else:
        found[places] = updates


def _scatter_elements(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]] | None:
    """Without a reduction, or sums and products of what goes to one place; the package's loop does the rest."""
    attributes = _attributes(node)
    kind = attributes.get("reduction", b"none")
    reduce: Any = {b"add": np.add, b"mul": np.multiply}.get(kind)
    axis = attributes.get("axis", 0)

    def change(found: Array, indices: Array, updates: Array) -> None:
        places: list[Any] = list(np.indices(indices.shape, sparse=True))
        places[axis] = indices
        _put(found, tuple(places), updates, reduce)

    return Changing(change) if reduce or kind == b"none" else None


def _scatter_nd(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]] | None:
    """Without a reduction, or sums and products of what goes to one place; the package's loop does the rest."""
    kind = _attributes(node).get("reduction", b"none")
    reduce: Any = {b"add": np.add, b"mul": np.multiply}.get(kind)

    def change(found: Array, indices: Array, updates: Array) -> None:
        _put(found, places_of(indices), updates, reduce)

    return Changing(change) if reduce or kind == b"none" else None


def _one_hot(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """Negative indices count from the end; others beyond the depth have no place."""
    indices, depth, (off, on) = inputs[0].astype(np.int64), int(inputs[1].reshape(())), inputs[2]
    rows = indices.reshape(-1)
    found = np.full((rows.size, depth), off)
    (placed,) = np.nonzero((rows >= -depth) & (rows < depth))
    found[placed, rows[placed]] = on
    return np.moveaxis(found.reshape(*indices.shape, depth), -1, attributes.get("axis", -1))


def _prelu(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, slope = inputs
    if slope.ndim == 1 and x.ndim > 1 and slope.size == x.shape[1] and slope.size not in (1, x.shape[-1]):
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))  # one number for each channel, as before opset 7
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.where(x < 0, x * slope, x + np.zeros_like(slope)), x.dtype)


def _shape(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    return np.array(inputs[0].shape[attributes.get("start", 0) : attributes.get("end", inputs[0].ndim)], np.int64)


def _softsign(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    return np.asarray(inputs[0] / (1 + np.abs(inputs[0])), inputs[0].dtype)


def _reduced(reduce: Callable[[Array, tuple[int, ...]], Array]) -> "Definition":
    """A reduction along the axes that an attribute or an input names, all if none are."""

    def run(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        x, told = inputs[0], inputs[1].tolist() if len(inputs) > 1 else attributes.get("axes", ())
        if not told and attributes.get("noop_with_empty_axes", 0):
            axes: tuple[int, ...] = ()
        else:
            axes = tuple(axis % x.ndim for axis in told) or tuple(range(x.ndim))
        with np.errstate(divide="ignore", invalid="ignore"):
            y = reduce(x, axes)
        kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        shape = kept if attributes.get("keepdims", 1) else [size for axis, size in enumerate(x.shape) if axis not in axes]
        return np.asarray(y).astype(x.dtype).reshape(shape)

    return _of(run)


def _wide(x: Array) -> Array:
    """In the type in which ONNX Runtime sums."""
    return x.astype(np.float64 if x.dtype.kind in "iu" else np.result_type(x, np.float32))


def _square_sum(x: Array, axes: tuple[int, ...]) -> Array:
    x = x if x.dtype.kind in "iu" else _wide(x)
    return np.asarray(np.square(x).sum(axis=axes))


def _log_sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.log(_wide(x).sum(axis=axes)))


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    x = _wide(x)
    most = x.max(axis=axes, keepdims=True, initial=-np.inf)
    most = np.where(np.isfinite(most), most, 0)
    return np.asarray(np.log(np.exp(x - most).sum(axis=axes)) + most.reshape(np.sum(x, axis=axes).shape))


def _layer_norm(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """Sums are of float32 at least (stash_type), also for half numbers."""
    given = _attributes(node)
    made = [bool(name) for name in node.output]

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        x, scale, *shift = inputs
        axes = tuple(range(given.get("axis", -1) % x.ndim, x.ndim))
        wide = _wide(x)
        mean = wide.mean(axis=axes, keepdims=True)
        inverse = 1 / np.sqrt(np.square(wide - mean).mean(axis=axes, keepdims=True) + np.float32(given.get("epsilon", 1e-5)))
        y = ((wide - mean) * inverse).astype(x.dtype) * scale
        y = y + shift[0] if shift else y
        found = (y.astype(x.dtype), mean.astype(np.float32), inverse.astype(np.float32))
        return [of for of, wanted in zip(found, made, strict=False) if wanted]

    return run


def _group_norm(inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """Sums are of float32 at least (stash_type). Scale and shift have a number for each group until opset 20, then one for each channel."""
    x, *affine = inputs
    groups = _wide(x).reshape(len(x), attributes["num_groups"], -1)
    from_mean = groups - groups.mean(axis=2, keepdims=True)
    y = from_mean / np.sqrt(np.square(from_mean).mean(axis=2, keepdims=True) + np.float32(attributes.get("epsilon", 1e-5)))
    of_channel = [np.repeat(_wide(of), x.shape[1] // of.size).reshape(-1, *[1] * (x.ndim - 2)) for of in affine]
    return np.asarray(y.reshape(x.shape) * of_channel[0] + of_channel[1], x.dtype)


def _unique(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """Along an axis or of all elements; unsorted ones in the order in which they come."""
    given = _attributes(node)
    made = [bool(name) for name in node.output]

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        x, axis = (inputs[0], given["axis"]) if "axis" in given else (inputs[0].reshape(-1), 0)
        y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not given.get("sorted", 1):
            order = np.argsort(first)
            inverse = np.argsort(order)[inverse]
            first, counts, y = first[order], counts[order], x.take(first[order], axis)
        found = (y, *(of.astype(np.int64) for of in (first, inverse, counts)))
        return [of for of, wanted in zip(found, made, strict=False) if wanted]

    return run


def _attributes(node: Any) -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    return {one.name: get_attribute_value(one) for one in node.attribute}


def _of(function: Callable[[Sequence[Array], Mapping[str, Any]], Array]) -> "Definition":
    def bound(node: Any, opset: int) -> Callable[[Sequence[Array]], Sequence[Array]]:
        attributes = _attributes(node)
        return lambda inputs: [function(inputs, attributes)]

    return bound


# an onnx.NodeProto and its opset -> what runs it; None: the onnx package's definition does
Definition = Callable[[Any, int], Callable[[Sequence[Array]], Sequence[Array]] | None]
DEFINED: dict[str, Definition] = {
    "AffineGrid": _of(affine_grid), "Celu": _exponential(_celu), "Clip": _clip, "Col2Im": _of(col2im),
    "ConvTranspose": _of(_conv_transpose), "CumSum": _of(cum_sum), "DequantizeLinear": dequantize_blocks,
    "DynamicQuantizeLinear": _quantized, "Elu": _exponential(_elu),
    "GatherElements": _of(_gather_elements), "GatherND": gather_nd, "Gelu": _exponential(_gelu), "GlobalLpPool": _of(_global_lp_pool),
    "GlobalMaxPool": _of(_global_max_pool), "GridSample": _of(grid_sample), "GroupNormalization": _of(_group_norm),
    "Hardmax": _along(_largest), "LRN": _of(_lrn), "LayerNormalization": _layer_norm,
    "LogSoftmax": _along(_logarithms), "LpNormalization": _of(_lp_normalization),
    "MaxRoiPool": _of(max_roi_pool), "Mean": _of(_mean), "MeanVarianceNormalization": _of(_mean_variance),
    "NonMaxSuppression": non_max_suppression, "OneHot": _of(_one_hot), "PRelu": _of(_prelu), "QuantizeLinear": quantize_linear,
    "ReduceLogSum": _reduced(_log_sum), "ReduceLogSumExp": _reduced(_log_sum_exp), "ReduceSumSquare": _reduced(_square_sum),
    "RoiAlign": roi_align, "Scatter": _scatter_elements, "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
    "Selu": _exponential(_selu),
    "Shape": _of(_shape), "Slice": _of(_slice), "Softmax": _along(_shares), "Softsign": _of(_softsign), "TopK": top_k_of, "Unique": _unique,
    "Unsqueeze": _of(_unsqueeze), **dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent), **dict.fromkeys(("Resize", "Upsample"), resize),
}  # fmt: skip
