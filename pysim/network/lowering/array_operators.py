# SPDX-License-Identifier: Apache-2.0
"""Lowers ONNX operators on arrays of any shape to native operators: layer norms, Gather, Pad, Resize, Einsum, DepthToSpace.

    Take         (x, at[, shares]), axis: y = x.take(at, axis); with shares, a weighted sum of several taken rows
    Resize, Pad  (Pad in edge or reflect mode) a Take along each axis whose size changes; linear interpolation has two shares, cubic four
    Einsum       of two operands: transpositions, views and a MatMul

Which pixels those are is in `pysim.network.numpy_ops.resize`.

Worked number: a Resize of 2 x 8 x 5 x 5 to 10 x 10 is two Takes of two rows and two shares each, the first along the axis that grows least.
"""

from math import prod

import numpy as np

from pysim.errors import ProblemError, printable
from pysim.network.graph import Array, Graph, Node, Tensor
from pysim.network.numpy_ops.resize import CROP, axis_of, rule_of

Constants = dict[str, Array]
Rows = tuple[int, Array, Array | None]  # axis, indices and shares of a Take
Parts = list[tuple[Node, tuple[int, ...] | Tensor | None]]  # nodes with the shapes of their outputs, None where that is known


def constant_of(constants: Constants, node: Node, what: str, array: Array) -> str:
    """Adds an array to the constants, as an input of a node, and returns its name."""
    name = f"{node.output}:{what}"
    constants[name] = array
    return name


def is_native(graph: Graph, *names: str) -> bool:
    """Whether the values have types that the kernels support, and are not empty."""
    return all(graph.tensors[name].native and graph.tensors[name].nbytes for name in names)


def can_move(graph: Graph, *names: str) -> bool:
    """Whether kernels can move the values' elements: numbers of 4 or 8 bytes, not empty."""
    kinds = [graph.tensors[name].dtype for name in names]
    return all(kind.isbuiltin == 1 and kind.kind in "iuf" and kind.itemsize in (4, 8) for kind in kinds) and all(
        graph.tensors[name].nbytes for name in names
    )


def layer_norm(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """A layer norm over the last axes, with only its first output used."""
    x = graph.tensors[node.inputs[0]].shape
    axis = node.attributes.get("axis", -1) % max(1, len(x))
    given = [name for name in node.inputs[1:] if name]
    fits = all(name in constants and constants[name].size == prod(x[axis:]) for name in given)
    if not fits or not is_native(graph, node.inputs[0]) or any(node.outputs[1:]) or not given:
        return None
    about = {"axis": axis, "epsilon": node.attributes.get("epsilon", 1e-5)}
    return Node("LayerNormalization", node.name, (node.inputs[0], *given), node.outputs[:1], about)


def activation(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Elementwise functions with vector code."""
    return Node(node.op, node.name, node.inputs, node.outputs) if is_native(graph, *node.inputs) else None


def gelu(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    about = {"approximate": node.attributes.get("approximate", b"none")}
    return Node(node.op, node.name, node.inputs, node.outputs, about) if is_native(graph, *node.inputs) else None


def expand(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Expand; the target shape is the inferred one."""
    return Node("Expand", node.name, node.inputs[:1], node.outputs) if can_move(graph, node.inputs[0], node.output) else None


def tile(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """Tile with constant repeats."""
    x, y = (graph.tensors[name].shape for name in (node.inputs[0], node.output))
    if opset < 6 or node.inputs[1] not in constants or not can_move(graph, node.inputs[0], node.output):
        return None
    return Node("Tile", node.name, node.inputs[:1], node.outputs) if len(x) == len(y) else None


def where(node: Node, graph: Graph, constants: Constants, opset: int) -> Node:
    return Node("Where", node.name, node.inputs, node.outputs)


def elu(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    if not is_native(graph, *node.inputs):
        return None
    return Node("Elu", node.name, node.inputs, node.outputs, {"low": float(node.attributes.get("alpha", 1.0)), "high": 1.0})


def triangle(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """Trilu with a constant diagonal: a Where with a constant condition."""
    y, given = graph.tensors[node.output], node.inputs[1] if len(node.inputs) > 1 else ""
    if (given and given not in constants) or len(y.shape) < 2 or not can_move(graph, node.inputs[0]):
        return None
    diagonal, whole = int(constants[given].reshape(())) if given else 0, np.ones(y.shape[-2:], np.bool_)
    kept = np.triu(whole, diagonal) if node.attributes.get("upper", 1) else np.tril(whole, diagonal)
    names = constant_of(constants, node, "kept", kept), node.inputs[0], constant_of(constants, node, "zero", np.zeros((), y.dtype))
    return [(Node("Where", node.name, names, node.outputs), y.shape)]


def take_each(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """GatherElements whose indices cover all of the other axes."""
    (x, at), given = (graph.tensors[name] for name in node.inputs), node.attributes.get("axis", 0)
    if at.dtype != np.int64 or not x.shape or not can_move(graph, node.inputs[0], node.output):
        return None
    axis, indices = given % len(x.shape), constants.get(node.inputs[1])
    sides = [of.shape[:axis] + of.shape[axis + 1 :] for of in (x, at)]
    if sides[0] != sides[1] or (indices is not None and ((indices < -x.shape[axis]) | (indices >= x.shape[axis])).any()):
        return None
    return Node("GatherElements", node.name, node.inputs, node.outputs, {"axis": axis})


def length(node: Node, graph: Graph, constants: Constants, opset: int) -> Node | None:
    """ReduceL2 over the last axes."""
    rank, given = len(graph.tensors[node.inputs[0]].shape), node.attributes.get("axes")
    if len(node.inputs) > 1 and node.inputs[1]:
        given = constants[node.inputs[1]].tolist() if node.inputs[1] in constants else None
    axes = sorted(axis % rank for axis in given or ())
    if not axes or axes != list(range(axes[0], rank)) or not is_native(graph, node.inputs[0]):
        return None
    return Node("ReduceL2", node.name, node.inputs[:1], node.outputs, {"axis": axes[0]})


def gather(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A Gather with one constant index is a Slice, which is no copy if the slice is contiguous; any other is a Take."""
    (x, at), shape = node.inputs, graph.tensors[node.output].shape
    sizes, indices = graph.tensors[x].shape, constants.get(at)
    axis = node.attributes.get("axis", 0) % max(1, len(sizes))
    if not can_move(graph, x, node.output) or graph.tensors[at].dtype != np.int64:
        return None
    if indices is not None and (wrong := [one for one in indices.reshape(-1).tolist() if not -sizes[axis] <= one < sizes[axis]]):
        raise ProblemError(f'Gather "{printable(node.name)}": the index {wrong[0]} is none of an axis of {sizes[axis]}')
    if indices is None or indices.size != 1:
        return [(Node("Take", node.name, (x, at), node.outputs, {"axis": axis}), shape)]
    first = int(indices.reshape(())) % sizes[axis]
    slices = tuple(slice(first, first + 1, 1) if i == axis else slice(0, size, 1) for i, size in enumerate(sizes))
    cut = tuple(1 if i == axis else size for i, size in enumerate(sizes))
    piece = Node("Slice", f"{node.name}:row", (x,), (f"{node.output}:row",), {"slices": slices})
    return [(piece, cut), (Node("View", node.name, piece.outputs, node.outputs), shape)]


def _taken(node: Node, graph: Graph, constants: Constants, axes: list[Rows]) -> Parts:
    """A Take along each axis, in the order that keeps intermediate results smallest."""
    shape, name = list(graph.tensors[node.inputs[0]].shape), node.inputs[0]
    rows = sorted(axes, key=lambda one: (one[1].shape[-1] / shape[one[0]], -one[0]))
    found: Parts = []
    for at, (axis, indices, shares) in enumerate(rows):
        shape[axis] = indices.shape[-1]
        inputs = [name, constant_of(constants, node, f"rows {axis}", np.ascontiguousarray(indices, np.int64))]
        if shares is not None:
            dtype = graph.tensors[node.output].dtype
            inputs.append(constant_of(constants, node, f"shares {axis}", np.ascontiguousarray(shares, dtype)))
        is_last = at + 1 == len(rows)
        name = node.output if is_last else f"{node.output}:{axis}"
        label = node.name if is_last else f"{node.name}:{axis}"
        found.append((Node("Take", label, tuple(inputs), (name,), {"axis": axis}), tuple(shape)))
    return found or [(Node("View", node.name, node.inputs[:1], node.outputs), tuple(shape))]


def pad(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """Pad in edge or reflect mode; constant padding is another operator."""
    mode, x = node.attributes.get("mode", b"constant"), graph.tensors[node.inputs[0]].shape
    pads = pads_of(node, constants, len(x))
    if pads is not None and not any(map(any, pads)):
        return _taken(node, graph, constants, [])
    if mode not in (b"edge", b"reflect") or pads is None or not is_native(graph, node.inputs[0], node.output):
        return None
    axes: list[Rows] = []
    for axis, (size, (before, behind)) in enumerate(zip(x, pads, strict=True)):
        if mode == b"reflect" and max(before, behind) >= size and (before, behind) != (0, 0):
            told = f"it mirrors {max(before, behind)} of an axis of {size}; at most {size - 1} can be"
            raise ProblemError(f'Pad "{printable(node.name)}" cannot be run: {told}')
        where = np.arange(-before, size + behind)
        if (before, behind) != (0, 0):
            axes.append((axis, np.clip(where, 0, size - 1) if mode == b"edge" else size - 1 - np.abs(size - 1 - np.abs(where)), None))
    return _taken(node, graph, constants, axes)


def pads_of(node: Node, constants: Constants, rank: int) -> list[tuple[int, int]] | None:
    """(before, after) of each axis of a Pad; None if the pads are not constant."""
    named = {place: name for place, name in enumerate(node.inputs) if name and place in (1, 3)}
    if any(name not in constants for name in named.values()):
        return None
    told = {place: constants[name].tolist() for place, name in named.items()}
    numbers = told.get(1, node.attributes.get("pads", node.attributes.get("paddings", ())))
    axes = [axis % rank for axis in told.get(3, range(rank))]
    pads = [(0, 0)] * rank
    for axis, before, behind in zip(axes, numbers, numbers[len(numbers) // 2 :], strict=False):
        pads[axis] = (before, behind)
    return pads


def resize(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """Nearest, linear and cubic Resize to constant sizes; what is outside of an image stays one of its pixels."""
    x, y = (graph.tensors[name].shape for name in (node.inputs[0], node.output))
    upsample = node.op == "Upsample" or len(node.inputs) == 2  # opset 10 and earlier
    scales, rule = _scales(node, x, y, constants), rule_of(node.op, node.attributes, upsample)
    fits = node.attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    if scales is None or rule is None or rule.place == CROP or not fits or not is_native(graph, node.inputs[0], node.output):
        return None
    if x == y:
        return _taken(node, graph, constants, [])
    axes: list[Rows] = []
    for axis, (size, out, scale) in enumerate(zip(x, y, scales, strict=True)):
        if size != out or scale != 1:
            found = axis_of(rule, size, out, scale)
            axes.append((axis, found.indices, found.shares))
    return _taken(node, graph, constants, axes)


def _scales(node: Node, x: tuple[int, ...], y: tuple[int, ...], constants: Constants) -> list[float] | None:
    """The scale of each axis; None if the scales are not constant."""
    names = [*node.inputs, "", "", ""][:4]
    place = 1 if len(node.inputs) == 2 else 2
    if node.op == "Upsample" and len(node.inputs) == 1:
        told = node.attributes.get("scales")
    elif names[3]:
        told = [after / before for before, after in zip(x, y, strict=True)] if names[3] in constants else None
    else:
        told = constants[names[place]].tolist() if names[place] in constants else None
    if told is None:
        return None
    axes = node.attributes.get("axes") if not names[3] else None
    if axes is None:
        return list(told) if len(told) == len(x) else None
    found = [1.0] * len(x)
    for axis, scale in zip(axes, told, strict=True):
        found[axis % len(x)] = scale
    return found


def einsum(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """Einsum of two operands. Every letter must be a batch axis (in both operands and the result), a row or column axis (in one operand and
    the result), or a contracted axis (in both operands only)."""
    equation = node.attributes["equation"].decode().replace(" ", "")
    terms, _, result = equation.partition("->")
    sides = terms.split(",")
    plain = len(sides) == 2 == len(node.inputs) and "->" in equation and equation.replace(",", "").replace("->", "").isalpha()
    if not plain or not is_native(graph, *node.inputs, node.output) or any(len(set(one)) < len(one) for one in (*sides, result)):
        return None
    (a, b), sizes = sides, dict[str, int]()
    for side, name in zip(sides, node.inputs, strict=True):
        sizes |= dict(zip(side, graph.tensors[name].shape, strict=True))
    batch, summed = [one for one in result if one in a and one in b], [one for one in a if one in b and one not in result]
    rows, columns = [one for one in result if one in a and one not in b], [one for one in result if one in b and one not in a]
    if any(one not in (*batch, *summed, *rows, *columns) for one in (*a, *b)) or not summed:
        return None
    found: Parts = []
    names = []
    for at, (side, name, order) in enumerate(zip(sides, node.inputs, ((batch, rows, summed), (batch, summed, columns)), strict=True)):
        transposed, seen = (f"{node.output}:{what} {at}" for what in ("transposed", "matrices"))
        perm = tuple(side.index(one) for part in order for one in part)
        found.append((Node("Transpose", f"{node.name}:{at}", (name,), (transposed,), {"perm": perm}), tuple(sizes[side[i]] for i in perm)))
        shape = (*(sizes[one] for one in batch), *(prod(sizes[one] for one in part) for part in order[1:]))
        found.append((Node("View", f"{node.name}:{at}:matrices", (transposed,), (seen,)), shape))
        names.append(seen)
    made = (*(sizes[one] for one in batch), prod(sizes[one] for one in rows), prod(sizes[one] for one in columns))
    product, axes = f"{node.output}:product", f"{node.output}:axes"
    found.append((Node("MatMul", f"{node.name}:product", tuple(names), (product,)), made))
    letters = [*batch, *rows, *columns]
    found.append((Node("View", f"{node.name}:axes", (product,), (axes,)), tuple(sizes[one] for one in letters)))
    last = Node("Transpose", node.name, (axes,), node.outputs, {"perm": tuple(letters.index(one) for one in result)})
    return [*found, (last, tuple(sizes[one] for one in result))]


def blocks(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """DepthToSpace and SpaceToDepth of images: a permutation of their channels', rows' and columns' parts."""
    x, y, by = graph.tensors[node.inputs[0]].shape, graph.tensors[node.output].shape, node.attributes["blocksize"]
    if len(x) != 4 or not can_move(graph, node.inputs[0]) or node.attributes.get("mode", b"DCR") not in (b"DCR", b"CRD"):
        return None
    n, c, h, w = x
    by_channel = node.attributes.get("mode", b"DCR") == b"CRD"
    if node.op == "SpaceToDepth":
        split, perm = (n, c, h // by, by, w // by, by), (0, 1, 3, 5, 2, 4) if by_channel else (0, 3, 5, 1, 2, 4)
    elif by_channel:
        split, perm = (n, c // by**2, by, by, h, w), (0, 1, 4, 2, 5, 3)
    else:
        split, perm = (n, by, by, c // by**2, h, w), (0, 3, 4, 1, 5, 2)
    if prod(split) != prod(x):
        return None
    apart, turned = f"{node.output}:apart", f"{node.output}:turned"
    return [
        (Node("View", f"{node.name}:apart", node.inputs, (apart,)), split),
        (Node("Transpose", f"{node.name}:turned", (apart,), (turned,), {"perm": perm}), tuple(split[axis] for axis in perm)),
        (Node("View", node.name, (turned,), node.outputs), y),
    ]


EXPANSIONS = {
    "DepthToSpace": blocks, "Einsum": einsum, "Gather": gather, "Pad": pad, "Resize": resize, "SpaceToDepth": blocks, "Trilu": triangle,
    "Upsample": resize,
}  # fmt: skip
LOWER = {
    "Elu": elu, "Erf": activation, "Expand": expand, "GatherElements": take_each, "Gelu": gelu, "HardSwish": activation,
    "LayerNormalization": layer_norm, "Mish": activation, "ReduceL2": length, "Softplus": activation, "Tile": tile, "Where": where,
}  # fmt: skip
