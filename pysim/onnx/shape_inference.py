# SPDX-License-Identifier: Apache-2.0
"""Infers the shapes of an ONNX model's values, with the window counts of pools as libraries compute them, and compares declared shapes.

    floor((H + pads - extent) / stride) + 1     windows of a pool. With ceil_mode, ceil replaces floor, but no window starts in the padding
                                                after the image: the rule of PyTorch, ONNX Runtime and, since opset 22, ONNX
    ceil(H / stride)                            auto_pad SAME_UPPER, SAME_LOWER, whatever ceil_mode is

Before opset 22 shape inference counts differently. It is therefore given pools with other attributes that lead to the right sizes, and
likewise transposed convolutions with auto_pad (`pysim.network.numpy_ops.convolutions`), a Resize or Upsample by scales, a PRelu whose slope
has more axes than its input, and operators that keep a shape but are unknown to inference in an early opset.

Worked number: 5 pixels, a window of 2, stride 2, one pixel of padding on either side and ceil_mode give 3 windows: a fourth would start
at the sixth pixel, which is padding.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysim.errors import ProblemError
from pysim.network.numpy_ops.convolutions import SAME, Transposed, transposed_window
from pysim.network.numpy_ops.resize import sizes_by
from pysim.onnx import layers
from pysim.onnx.names import text_of

if TYPE_CHECKING:
    import onnx

Types = Mapping[str, layers.ValueType]
Sizes = tuple[int | str, ...] | None
_UNDEFINED = "UNDEFINED"
_POOLS = ("AveragePool", "LpPool", "MaxPool")
_SHAPE_KEEPING = ("Erf", "GroupNormalization", "LayerNormalization", "MeanVarianceNormalization", "ThresholdedRelu")


class Pool(NamedTuple):
    """Parameters for each axis after the channels; pads before each axis, then pads after each."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    outputs: list[int]


def pool_of(given: Mapping[str, Any], sizes: list[int]) -> Pool:
    """The windows of a pool with these attributes over an image of these sizes; ProblemError if the attributes do not fit."""
    ones = [1] * len(sizes)
    kernel, strides, dilations = (layers.integers_of(given, name, ones) for name in ("kernel_shape", "strides", "dilations"))
    if min(*kernel, *strides, *dilations) < 1:
        raise ProblemError(f"its kernel is {kernel}, its strides {strides}, its dilations {dilations}; all should be at least 1")
    extents = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, kernel, strict=True)]
    pads = layers.pads_of(given, sizes, extents, strides)
    padded = [sum(sides) for sides in zip(sizes, pads, pads[len(sizes) :], strict=False)]
    rounds_up = given.get("ceil_mode") and given.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    outputs = []
    for size, extent, stride, before, all_of in zip(sizes, extents, strides, pads, padded, strict=False):
        free = all_of - extent
        windows = free // stride + 1
        another = rounds_up and free % stride and windows * stride < size + before
        outputs.append(windows + bool(another))
    if min(outputs) < 1:
        raise ProblemError(f"its window spans {extents}, more than the padded image, {padded}")
    return Pool(kernel, strides, dilations, pads, outputs)


def is_known(value: layers.ValueType) -> bool:
    return value.sizes is not None and all(isinstance(size, int) for size in value.sizes)


def inferred(model: "onnx.ModelProto", name: str, declared: Types) -> tuple["onnx.ModelProto", Types]:
    """(a model for further inference only, the inferred type of each value). Of the shapes that the model declares, only `declared` are
    used."""
    import onnx

    made = onnx.ModelProto.FromString(model.SerializeToString())
    inputs = {value.name for value in made.graph.input}
    for value in [one for one in made.graph.output if one.name in inputs]:  # inference would treat its type as unknown
        made.graph.output.remove(value)
    while True:
        layers.undeclared(made.graph)
        for value, told in declared.items():
            made.graph.value_info.append(onnx.helper.make_tensor_value_info(value, _number(told.element), told.sizes))
        made = layers.infer(made, name)
        types = layers.tensors_of(made)
        held = _constants_of(made.graph)
        if not [node for node in made.graph.node if _counted_anew(node, types) or _scaled_anew(node, made.graph, types, held)]:
            return made, types


def _number(element: str) -> int:
    import onnx

    return int(onnx.TensorProto.DataType.Value(element))


def _counted_anew(node: "onnx.NodeProto", types: Types) -> bool:
    """If the inferred output sizes of a pool are wrong, gives it attributes that lead to the right ones. Returns whether it did."""
    import onnx

    if node.domain not in ("", "ai.onnx") or len(node.input) < 1 or not node.output:
        return False
    if node.op_type == "ConvTranspose":
        return _enlarged_anew(node, types)
    if node.op_type == "PRelu":
        return _broadcast_both(node, types)
    if node.op_type == "STFT" and not any(one.name == "onesided" for one in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("onesided", 1))  # its default, which inference takes for 0
        return True
    if node.op_type in _SHAPE_KEEPING:
        return _kept(node, types)
    if node.op_type not in _POOLS:
        return False
    x, y = (types.get(name, layers.ValueType(None, "")).sizes for name in (node.input[0], node.output[0]))
    sizes = [size for size in (x or ())[2:] if isinstance(size, int)]
    if not y or not sizes or len(sizes) + 2 != len(x or ()):
        return False
    try:
        found = pool_of({one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}, sizes)
    except ProblemError as error:
        raise ProblemError(f'{node.op_type} "{text_of(node.name or node.output[0])}": {error}') from None
    if list(y[2:]) == found.outputs:
        return False
    both = list(zip(sizes, found.outputs, strict=True))
    plain = {
        "kernel_shape": [max(1, size - out + 1) for size, out in both],
        "pads": [0] * len(both) + [max(0, out - size) for size, out in both],
    }
    del node.attribute[:]
    node.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in plain.items())
    return True


def _constants_of(graph: "onnx.GraphProto") -> dict[str, Any]:
    """The initializers and Constants by name, as tensors or lists of numbers."""
    made = {one.name: one for one in graph.initializer}
    for node in graph.node:
        for one in node.attribute if node.op_type == "Constant" else ():
            made[node.output[0]] = one.t if one.name == "value" else list(one.floats)
    return made


def _scaled_anew(node: "onnx.NodeProto", graph: "onnx.GraphProto", types: Types, told: Mapping[str, Any]) -> bool:
    """Gives a Resize or Upsample scales that lead to the sizes that they mean: inference computes their product in double. Returns whether
    the inferred shape was wrong."""
    import onnx

    if node.op_type not in ("Resize", "Upsample") or node.domain not in ("", "ai.onnx") or not node.input:
        return False
    place = 1 if node.op_type == "Upsample" or len(node.input) == 2 else 2
    name = node.input[place] if len(node.input) > place else ""
    (x, y), given = (types.get(one, layers.ValueType(None, "")) for one in (node.input[0], node.output[0])), _given(node)
    if name in told:
        held = told[name]
        scales = held if isinstance(held, list) else onnx.numpy_helper.to_array(held).tolist()
    else:
        scales = list(given.get("scales", ()))
    sizes = [int(size) for size in x.sizes or ()] if is_known(x) else []
    axes = [axis % len(sizes) for axis in given.get("axes", range(len(sizes)))] if sizes else []
    if not scales or len(scales) != len(axes) or not is_known(y):
        return False
    out = dict(zip(axes, sizes_by(scales, [sizes[axis] for axis in axes]), strict=True))
    if all((y.sizes or ())[axis] == size for axis, size in out.items()):
        return False
    plain = np.array([(out[axis] + 0.5) / sizes[axis] for axis in axes], np.float32)
    if name not in told:
        next(one for one in node.attribute if one.name == "scales").floats[:] = plain.tolist()
        return True
    mended = f"{node.output[0]}:scales"
    graph.initializer.append(onnx.numpy_helper.from_array(plain, mended))
    node.input[place] = mended
    return True


def _given(node: "onnx.NodeProto") -> dict[str, Any]:
    import onnx

    return {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}


def _enlarged_anew(node: "onnx.NodeProto", types: Types) -> bool:
    """Sets the output_shape of a transposed convolution with auto_pad SAME. Returns whether the inferred shape was wrong."""
    import onnx

    given = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    x, w, y = (types.get(name, layers.ValueType(None, "")) for name in (*node.input[:2], node.output[0]))
    if given.get("auto_pad") not in SAME or "output_shape" in given or not (is_known(x) and is_known(w)):
        return False
    sizes, kernel = ([size for size in of.sizes[2:] if isinstance(size, int)] for of in (x, w) if of.sizes)
    made = transposed_of(given, sizes, kernel).outputs
    if list((y.sizes or ())[2:]) == made:
        return False
    kept = [one for one in node.attribute if one.name not in ("auto_pad", "output_padding")]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("output_shape", made)])
    return True


def transposed_of(given: Mapping[str, Any], sizes: Sequence[int], kernel: Sequence[int]) -> Transposed:
    """The window of a transposed convolution with these attributes; ProblemError if their lengths are wrong."""
    count = len(sizes)
    lengths = {"strides": count, "dilations": count, "output_padding": count, "pads": 2 * count}
    checked = {name: layers.integers_of(given, name, [0] * length) for name, length in lengths.items() if name in given}
    return transposed_window({**given, **checked}, sizes, kernel)


def _broadcast_both(node: "onnx.NodeProto", types: Types) -> bool:
    """Gives a PRelu the shape to which its input and slope are broadcast, as in ONNX Runtime: that of a sum. Returns whether the inferred
    shape, its input's, was wrong."""
    x, slope = (types.get(name, layers.ValueType(None, "")) for name in node.input[:2])
    if not (is_known(x) and is_known(slope)):
        return False
    sizes: list[Any] = [x.sizes, slope.sizes]
    try:
        wrong = np.broadcast_shapes(*sizes) != x.sizes
    except ValueError:
        return False
    if not wrong:
        return False
    node.op_type = "Add"
    return True


def _kept(node: "onnx.NodeProto", types: Types) -> bool:
    """Makes an Identity of an operator that keeps the shape of its input, if inference of its opset does not know it. Returns whether it
    did."""
    x, y = (types.get(name, layers.ValueType(None, "")) for name in (node.input[0], node.output[0]))
    if not is_known(x) or is_known(y) or any(node.output[1:]):
        return False
    node.op_type = "Identity"
    del node.input[1:], node.output[1:], node.attribute[:]
    return True


def check_declared(declared: Types, inferred: Types, name: str, makers: Mapping[str, str]) -> None:
    """ProblemError for a value whose declared shape or element type contradicts the inferred one; what is unknown contradicts nothing.
    `makers` are the nodes that make the values, in words."""
    for value, told in declared.items():
        found = inferred.get(value, layers.ValueType(None, _UNDEFINED))
        if not _same_shape(told.sizes, found.sizes):
            wrong, right, what = _listed(told.sizes), _listed(found.sizes), "shapes"
        elif told.element != found.element and _UNDEFINED not in (told.element, found.element):
            wrong, right, what = told.element, found.element, "types"
        else:
            continue
        by = f"; it is made by {makers[value]}" if value in makers else ""
        fault = f'declares the value "{text_of(value)}" as {wrong}, but it is {right}'
        raise ProblemError(f"{name} {fault}; export it again, or delete the declared {what}{by}")


def _same_shape(a: Sizes, b: Sizes) -> bool:
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(x == y for x, y in zip(a, b, strict=True) if isinstance(x, int) and isinstance(y, int))


def _listed(sizes: Sizes) -> str:
    return f"[{', '.join(map(str, sizes or ()))}]"
