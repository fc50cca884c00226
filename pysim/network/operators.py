# SPDX-License-Identifier: Apache-2.0
"""Operators other than convolutions and products: run(out, inputs, attributes) writes into the array `out`.

Their meaning is that of https://onnx.ai/onnx/operators/. Pools, sums and operators on planes run natively (`pysim.runtime.operators`).
Other frequent ones use NumPy with few allocations. All remaining standard operators run by the onnx package's own definition
(`onnx.reference`), which is correct and often slow.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import erf, sqrt
from typing import Any

import numpy as np

from pysim.errors import MissingError, ProblemError, nearest, printable
from pysim.network.attention import attention
from pysim.network.graph import Array, Node
from pysim.network.native_ops import along, arrays, byte_operators
from pysim.network.native_ops.arrays import Attributes, Bind
from pysim.network.numpy_ops import convolutions
from pysim.network.numpy_ops.convolutions import taps
from pysim.network.numpy_ops.operators import DEFINED
from pysim.network.numpy_ops.selecting import Changing, widened
from pysim.record.plan import blocked_shape
from pysim.runtime.along_steps import halves_step
from pysim.runtime.operators import BITS, Window, copy_step, map_step, pool_step, reorder_step, takes
from pysim.runtime.steps import Chain, Step

Run = Callable[[Array, Sequence[Array], Attributes], object]


def _block(attributes: Attributes) -> int:
    """Channels per block of the input and output; 1 without blocks."""
    return int(attributes.get("blocks", (1, 1))[0])


def _reorder(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    return reorder_step(out, inputs[0], attributes["block"], attributes["to_planes"])


def _pool(largest: bool) -> Bind:
    """A native pool over images, or over sequences, which are treated as images of one row."""

    def bind(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
        (x,), window, counted = inputs, Window.of(attributes).of_image, bool(attributes["count_include_pad"])
        if x.ndim > 4 or not takes(out, x):
            return None
        if x.ndim == 3:
            x, out = x[:, :, None], out[:, :, None]
        return pool_step(out, x, window, largest, counted, _block(attributes))

    return bind


def _pool_by_taps(largest: bool) -> Run:
    """A pool by NumPy, over any number of axes and for any type."""

    def run(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
        (x,) = inputs
        kinds = np.float32 if x.dtype == np.float16 and not largest else x.dtype  # accumulate float16 in float32
        least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        found = np.full(out.shape, least if largest else 0, kinds)
        axes = _gather(found, x, attributes, np.maximum if largest else np.add)
        pads, padded = attributes["pads"], attributes["count_include_pad"]
        for at, axis in enumerate(axes if not largest else ()):
            found /= _counts(*axis, behind=pads[at + len(axes)], padded=padded).reshape(-1, *[1] * (len(axes) - 1 - at))
        out[...] = found

    return run


def _gather(found: Array, x: Array, attributes: Attributes, take: Any) -> list[tuple[int, ...]]:
    """Combines the elements at each tap into `found` by the ufunc `take`. Returns the axes as arguments of `taps`."""
    axes = list(zip(x.shape[2:], found.shape[2:], *Window.of(attributes), strict=False))
    for lies in product(*(tuple(taps(*axis)) for axis in axes)):
        to, of = ((slice(None), slice(None), *(lie[side] for lie in lies)) for side in (0, 1))
        take(found[to], x[of], out=found[to])
    return axes


def _lp_pool(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    found = np.zeros_like(out)
    _gather(found, np.abs(inputs[0]) ** attributes["p"], attributes, np.add)
    out[...] = found ** (1 / attributes["p"])


def _counts(size: int, out: int, kernel: int, stride: int, dilation: int, before: int, *, behind: int, padded: bool) -> Array:
    """Along an axis, the number of taps by which a mean divides each window: those inside the image, or inside the padded image; 1 if none
    are, whose mean is 0."""
    counts = np.zeros(out)
    size, before = (size + before + behind, 0) if padded else (size, before)
    for to, _ in taps(size, out, kernel, stride, dilation, before):
        counts[to] += 1
    return np.maximum(counts, 1)


def _plane_means(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    (x,) = inputs
    plane = (1, x.size // (x.shape[0] * x.shape[1]))
    if not takes(out, x):
        return None
    return pool_step(out.reshape(-1, 1, 1), x.reshape(-1, *plane), Window(plane), largest=False, block=_block(attributes))


def _mean_of_planes(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.mean(inputs[0], axis=tuple(range(2, inputs[0].ndim)), keepdims=True, out=out)


def parts(out: Array, shapes: Sequence[tuple[int, ...]], axis: int) -> list[Array]:
    """The views of a concatenation that hold arrays of these shapes."""
    ends = np.cumsum([shape[axis] for shape in shapes])
    return [out[(*[slice(None)] * axis, slice(end - shape[axis], end))] for shape, end in zip(shapes, ends, strict=True)]


def _softmax(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    axes = tuple(attributes["axes"])
    np.subtract(inputs[0], inputs[0].max(axis=axes, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(axis=axes, keepdims=True)


def _log_softmax(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    """x - max - log(sum(e^(x - max))). The logarithm of softmax itself would be -inf where softmax underflows to 0."""
    axes = tuple(attributes["axes"])
    np.subtract(inputs[0], inputs[0].max(axis=axes, keepdims=True), out=out)
    out -= np.log(np.exp(out).sum(axis=axes, keepdims=True))


def _hardmax(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    (x,), first, several = inputs, attributes["axes"][0], len(attributes["axes"]) > 1
    x, y = (one.reshape(*one.shape[:first], -1) if several else one for one in (x, out))
    y[...] = 0
    np.put_along_axis(y, x.argmax(first, keepdims=True), 1, first)


def _add(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.add(inputs[0], inputs[1], out=out)
    if attributes.get("activation"):
        np.maximum(out, 0, out=out)


def _times(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | Chain | None:
    """The product of planes, also in blocks, and one factor per plane, or of any two arrays."""
    for x, scale in (inputs, inputs[::-1]) if len(inputs) == 2 else ():
        fits = x.ndim > 2 and scale.shape == (*x.shape[:2], *[1] * (x.ndim - 2)) and out.shape == x.shape and takes(out, x, scale)
        if fits and not np.may_share_memory(out, scale):
            if scale.dtype == BITS:
                numbers = np.empty(scale.size, np.float32)
                widened_to = halves_step(numbers, scale)
                assert widened_to
                return Chain([widened_to, map_step(out, x, x.shape[0] * x.shape[1], scale=numbers, block=_block(attributes))])
            return map_step(out, x, x.shape[0] * x.shape[1], scale=scale.reshape(-1), block=_block(attributes))
    return arrays.pair("Mul")(out, inputs, attributes)


def _affine(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    x, scale, shift = inputs
    planes, activation = x.shape[0] * x.shape[1], attributes.get("activation")
    block = x.shape[1] if x.size == planes else _block(attributes)  # the channels of one pixel are a block
    return map_step(out, x, planes, scale, shift, activation=activation, block=block)


def _activated(activation: Callable[[Attributes], Any]) -> Bind:
    def bind(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
        return map_step(out, inputs[0], 1, activation=activation(attributes)) if takes(out, inputs[0]) else None

    return bind


def _clip(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.clip(inputs[0], attributes["min"], attributes["max"], out=out)


def _sigmoid(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.negative(inputs[0], out=out)
    with np.errstate(over="ignore"):  # exp is infinite, and its inverse 0, as it should be
        np.exp(out, out=out)
    out += 1
    np.reciprocal(out, out=out)


def _gelu(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    """GELU of arrays that the native operator does not take; NumPy has no erf."""
    values = (0.5 * x * (1 + erf(x / sqrt(2))) for x in inputs[0].ravel().tolist())
    out[...] = np.fromiter(values, np.float64, inputs[0].size).reshape(out.shape)


def _relu(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.maximum(inputs[0], 0, out=out)


def _leaky_relu(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.multiply(inputs[0], np.where(inputs[0] < 0, attributes["alpha"], 1.0), out=out, casting="same_kind")


def _ufunc(function: Any) -> Run:
    def run(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
        if function is not np.divide and inputs[0].dtype.kind in "biu":  # which raise no flags
            function(*inputs, out=out)
            return
        with np.errstate(all="ignore"):
            function(*inputs, out=out)

    return run


def _elu(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    x = widened(inputs[0])
    np.copyto(out, np.where(x < 0, attributes["low"] * np.expm1(np.minimum(x, 0)), attributes["high"] * x), casting="same_kind")


def _softplus(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.copyto(out, np.logaddexp(0, widened(inputs[0])), casting="same_kind")


def _take_each(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    (x, at), axis = inputs, attributes["axis"]
    places: list[Any] = list(np.indices(at.shape, sparse=True))
    places[axis] = at
    out[...] = x[tuple(places)]


def _where(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    np.copyto(out, inputs[2])
    np.copyto(out, inputs[1], where=inputs[0])


def _cast(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    if out.dtype == bool:  # twice as fast as NumPy's conversion
        np.not_equal(widened(inputs[0]), 0, out=out)
        return
    with np.errstate(all="ignore"):
        np.copyto(out, widened(inputs[0]) if out.dtype.kind == "f" else inputs[0], casting="unsafe")


def _transpose(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    out[...] = inputs[0].transpose(attributes["perm"])


_MOST_COPIES = 16  # in place of one


def _transposed(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | Chain | None:
    """A copy, or where its axes are too many for one, a copy for each place along the shortest axis but the last; also between rows of
    channels and images in blocks."""
    (x, *_), (read, written) = inputs, attributes.get("blocks", (1, 1))
    if read > 1:
        x, out = x.reshape(blocked_shape(x.shape, read)).transpose(0, 2, 3, 1, 4), out.reshape(*out.shape[:3], -1, read)
    elif written > 1:
        x, out = x.reshape(*x.shape[:3], -1, written).transpose(0, 3, 1, 2, 4), out.reshape(blocked_shape(out.shape, written))
    else:
        x = x.transpose(attributes["perm"])
    if (step := copy_step(out, x)) is not None or out.ndim < 2 or not out.size:
        return step
    axis = min((axis for axis, size in enumerate(out.shape[:-1]) if size > 1), key=lambda axis: out.shape[axis], default=0)
    if out.shape[axis] > _MOST_COPIES:
        return None
    found = (copy_step(to, read) for to, read in zip(np.moveaxis(out, axis, 0), np.moveaxis(x, axis, 0), strict=True))
    steps = [one for one in found if one is not None]
    return Chain(steps) if len(steps) == out.shape[axis] else None


def _piece(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    return copy_step(out, inputs[0][attributes["slices"]])


def _copied(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    return copy_step(out, inputs[0].reshape(out.shape))


def _pad(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    ends = [(max(0, before), max(0, -before), max(0, behind), max(0, -behind)) for before, behind in attributes["pads"]]
    out[...] = attributes["value"]
    inner = tuple(slice(more, size - behind) for (more, _, behind, _), size in zip(ends, out.shape, strict=True))
    out[inner] = inputs[0][tuple(slice(less, size - last) for (_, less, _, last), size in zip(ends, inputs[0].shape, strict=True))]


def _copy(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    out[...] = inputs[0].reshape(out.shape)


def _expand(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    out[...] = inputs[0]


def _tile(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    (x,) = inputs
    out[...] = np.tile(x, [whole // own for whole, own in zip(out.shape, x.shape, strict=True)])


def _slice(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    out[...] = inputs[0][attributes["slices"]]


def _reduce_mean(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    out[...] = np.mean(inputs[0], axis=tuple(attributes["axes"])).reshape(out.shape)


NATIVE: dict[str, Bind] = {
    "Add": arrays.pair("Add"), "Affine": _affine, "Attention": attention, "AveragePool": _pool(largest=False),
    "Cast": along.cast,
    "Clip": _activated(lambda of: ("clamp", of["min"], of["max"])), "Div": arrays.pair("Div"), "Erf": _activated(lambda of: "erf"),
    "Gelu": _activated(lambda of: "gelu_tanh" if of.get("approximate") == b"tanh" else "gelu"), "GlobalAveragePool": _plane_means,
    "HardSwish": _activated(lambda of: "hard_swish"), "Identity": _copied,
    "Elu": _activated(lambda of: ("elu", of["low"], of["high"])), "Exp": _activated(lambda of: "exp"),
    "GatherElements": arrays.take_each, "LogSoftmax": arrays.softmax("log_softmax"), "Softplus": _activated(lambda of: "softplus"),
    "Where": arrays.where,
    "LeakyRelu": _activated(lambda of: ("leaky_relu", of["alpha"], 1.0)), "MaxPool": _pool(largest=True),
    "Mish": _activated(lambda of: "mish"), "Mul": _times, "Pad": arrays.pad, "ReduceMean": along.mean,
    "Relu": _activated(lambda of: "relu"),
    "Reorder": _reorder, "Sigmoid": _activated(lambda of: "sigmoid"), "Slice": _piece, "Softmax": arrays.softmax("softmax"),
    "Sub": arrays.pair("Sub"), "Tanh": _activated(lambda of: "tanh"), "Transpose": _transposed, **arrays.NATIVE_ONLY,
    **along.NATIVE_ONLY, **byte_operators.NATIVE,
}  # fmt: skip
_BY_NUMPY: dict[str, Run] = {
    "Add": _add, "AveragePool": _pool_by_taps(largest=False), "Cast": _cast, "Clip": _clip, "ConvByTaps": convolutions.convolution,
    "ConvTranspose": convolutions.transposed, "Div": _ufunc(np.divide), "Gelu": _gelu, "GlobalAveragePool": _mean_of_planes,
    "Elu": _elu, "Expand": _expand, "GatherElements": _take_each, "Softplus": _softplus, "Tile": _tile,
    "Hardmax": _hardmax, "Identity": _copy, "LeakyRelu": _leaky_relu, "LogSoftmax": _log_softmax, "LpPool": _lp_pool,
    "MatMul": arrays.matmul, "MaxPool": _pool_by_taps(largest=True), "Mul": _ufunc(np.multiply), "Pad": _pad,
    "ReduceMean": _reduce_mean, "Relu": _relu, "Sigmoid": _sigmoid, "Slice": _slice, "Softmax": _softmax, "Sub": _ufunc(np.subtract),
    "Tanh": _ufunc(np.tanh), "Transpose": _transpose, "View": _copy, "Where": _where, **byte_operators.BY_NUMPY,
}  # fmt: skip


# elementwise operators that are a function of NumPy, for its own types
UFUNCS: dict[str, Any] = {
    "Abs": np.absolute, "And": np.logical_and, "Ceil": np.ceil, "Cos": np.cos, "Equal": np.equal, "Exp": np.exp, "Floor": np.floor,
    "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "IsNaN": np.isnan, "Less": np.less, "LessOrEqual": np.less_equal,
    "Log": np.log, "Max": np.maximum, "Min": np.minimum, "Neg": np.negative, "Not": np.logical_not, "Or": np.logical_or, "Round": np.rint,
    "Sin": np.sin, "Sqrt": np.sqrt, "Xor": np.logical_xor,
}  # fmt: skip
_BY_NUMPY |= {name: _ufunc(function) for name, function in UFUNCS.items()}


def _natively(name: str) -> Run:
    """The operator by the native library if that supports the arrays, else by NumPy."""

    def run(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
        step = NATIVE[name](out, inputs, attributes)
        if step is None:
            _BY_NUMPY[name](out, inputs, attributes)
        else:
            step()

    return run


OPERATORS = _BY_NUMPY | {name: _natively(name) for name in NATIVE}
# Elementwise or row operators that may overwrite their input: an element is written after its last read.
IN_PLACE = frozenset({"Add", "Affine", "Clip", "Div", "LeakyRelu", "Mul", "Relu", "Softmax", "Sub", "Table", "Tanh"})
ACTIVATED = frozenset({"Add", "Affine"})  # may have a fused ReLU


def overwritten(node: Node) -> Sequence[str]:
    """The inputs that an operator may overwrite: elementwise and row operators any, a convolution of bytes its residual."""
    return node.inputs if node.op in IN_PLACE else node.inputs[1:] if "pair" in node.attributes else ()


# (first version with today's meaning, first version that the onnx package defines correctly): in earlier versions its BatchNormalization
# uses the batch's statistics, and it has no DequantizeLinear
_BETTER_LATER = {"BatchNormalization": (7, 14), "DequantizeLinear": (10, 19)}


Reference = Callable[[Sequence[Array]], Sequence[Any]]


@dataclass(frozen=True)
class Checked:
    """What runs a node by `evaluate`, which returns the named outputs alone, with errors that name the node: `about`, and whose definition
    it is. `made`: of each output whether it has a name."""

    evaluate: Callable[[Sequence[Array]], Sequence[Any]]
    about: str
    whose: str
    made: Sequence[bool]

    def __call__(self, inputs: Sequence[Array]) -> Sequence[Any]:
        with self._named():
            found = iter(self.evaluate(inputs))
        return [next(found) if named else None for named in self.made]

    def into(self, out: Array, inputs: Sequence[Array]) -> bool:
        """Computes the one output where it is to lie, if it is the first input but for some elements."""
        if not isinstance(self.evaluate, Changing) or out.shape != inputs[0].shape or np.may_share_memory(out, inputs[0]):
            return False
        with self._named():
            np.copyto(out, inputs[0])
            self.evaluate.change(out, *inputs[1:])
        return True

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except ProblemError as error:
            raise ProblemError(f"{self.about}: {error}") from None
        except Exception as error:  # NumPy may raise anything for an unsupported case
            told = " ".join(str(error).split())
            raise ProblemError(f"{self.about}: {self.whose} fails: {told}") from error


def reference(node: Any, opset: int, elements: Mapping[str, str]) -> Reference:
    """The definition of a node (an onnx.NodeProto): that in `DEFINED`, else the onnx package's own. It is called with the named inputs in
    the node's order, and returns the outputs, None for unnamed ones. `elements`: ONNX's types of the inputs. ProblemError if there is no
    definition, or if it fails."""
    given = [name for name in node.input if name]
    about = f'{node.op_type} "{printable(node.name or node.output[0])}" cannot be run'
    own = DEFINED.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    try:
        defined = None if own is None else own(node, opset)
    except ProblemError as error:
        raise ProblemError(f"{about}: {error}") from None
    evaluate = _packages(node, opset, elements, given, about) if defined is None else defined
    return checked(node, evaluate, "onnx's own definition of it" if defined is None else "its definition")


def checked(node: Any, evaluate: Callable[[Sequence[Array]], Sequence[Any]], whose: str = "its definition") -> Checked:
    """What runs a node by `evaluate`, which returns the named outputs alone."""
    about = f'{node.op_type} "{printable(node.name or node.output[0])}" cannot be run'
    return Checked(evaluate, about, whose, [bool(name) for name in node.output])


def _packages(node: Any, opset: int, elements: Mapping[str, str], given: Sequence[str], about: str) -> Callable[..., Sequence[Any]]:
    """The onnx package's own definition, called with inputs in the order of the names `given`; ProblemError if there is none."""
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator
    except ImportError:
        raise MissingError("operators beside the frequent ones need the onnx package: pip install onnx") from None
    since, better = _BETTER_LATER.get(node.op_type, (opset, opset))
    if since <= opset < better:
        opset, node = better, _without(node, "spatial")
    kinds = dict(onnx.TensorProto.DataType.items())
    ends = [
        [onnx.helper.make_tensor_value_info(name, kinds.get(elements.get(name, ""), 0), None) for name in dict.fromkeys(names)]
        for names in (given, filter(None, node.output))
    ]
    graph = onnx.helper.make_graph([node], "one", inputs=ends[0], outputs=ends[1])
    opsets = [onnx.helper.make_opsetid(node.domain, opset if node.domain in ("", "ai.onnx") else 1)]
    try:
        ready = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
    except Exception as error:  # various types for an unknown operator, domain or version
        unknown = node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type)
        told = _unknown(node.op_type) if unknown else " ".join(str(error).split(", schema.has_function")[0].split())
        raise ProblemError(f"{about}: {told}") from None

    def evaluate(inputs: Sequence[Array]) -> Sequence[Any]:
        return list(ready.run(None, dict(zip(given, inputs, strict=True))))

    return evaluate


def _unknown(name: str) -> str:
    """What is wrong with the name of an operator that no version of ONNX has."""
    import onnx

    close = nearest(name, [one.name for one in onnx.defs.get_all_schemas() if not one.domain])
    return "ONNX has no such operator" + (f'; did you mean "{close}"?' if close else "")


def _without(node: Any, default: str) -> Any:
    """The node without this attribute if it is 1; later versions removed it."""
    made = type(node).FromString(node.SerializeToString())
    left = [one for one in node.attribute if one.name != default or one.i != 1]
    del made.attribute[:]
    made.attribute.extend(left)
    return made


def by_reference(node: Node) -> Callable[..., None]:
    """A node's reference as an operator with several outputs; None for an unused output."""
    evaluate = node.attributes["reference"]

    def run(outs: Sequence[Array | None], inputs: Sequence[Array]) -> None:
        if len(outs) == 1 and outs[0] is not None and isinstance(evaluate, Checked) and evaluate.into(outs[0], inputs):
            return
        for out, found in zip(outs, evaluate(inputs), strict=True):
            if out is None:
                continue
            if np.shape(found) != out.shape:
                told = f"its result has the shape {list(np.shape(found))}, declared or inferred is {list(out.shape)}"
                raise ProblemError(f'{node.op.removeprefix("onnx.")} "{printable(node.name)}" cannot be run: {told}')
            out[...] = found

    return run


def operator(node: Node) -> Run | None:
    """The function that runs a node, or None."""
    return OPERATORS.get(node.op)
