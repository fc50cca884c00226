# SPDX-License-Identifier: Apache-2.0
"""Native operators on arrays of any shape, bound to their arrays (`pysim.runtime.array_steps`), and products of two values.

Operators in NATIVE_ONLY have no NumPy form: front ends emit them only for nonempty values of the kernels' types.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from pysim.network.graph import Array, Graph, Node, live
from pysim.network.numpy_ops.selecting import widened
from pysim.record.plan import blocked_shape
from pysim.runtime.array_steps import Local, Products, pair_step, rows_step, take_each_step, take_step
from pysim.runtime.operators import as_floats, copy_step
from pysim.runtime.steps import Chain, Step

Attributes = Mapping[str, Any]
Bind = Callable[[Array, Sequence[Array], Attributes], Step | Chain | None]  # (result, inputs, attributes); None: not supported natively


def pair(kind: str) -> Bind:
    """An operator on two broadcast arrays."""

    def bind(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
        return pair_step(out, inputs[0], inputs[1], kind, attributes.get("activation")) if len(inputs) == 2 else None

    return bind


def softmax(kind: str) -> Bind:
    """Softmax or its logarithm over consecutive axes."""

    def bind(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
        (x,), axes = inputs, attributes["axes"]
        if list(axes) != list(range(axes[0], axes[0] + len(axes))) or not x.flags.c_contiguous or not x.size:
            return None
        rows = (*x.shape[: axes[0]], -1, *x.shape[axes[0] + len(axes) :])
        return rows_step(out.reshape(rows), x.reshape(rows), kind, axis=axes[0])

    return bind


def where(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Chain | None:
    """The second operand where the first is true, over a copy of the third."""
    condition, x, y = inputs
    if condition.dtype != np.bool_ or not x.dtype == y.dtype == out.dtype:
        return None
    chosen, x = as_floats(out, x)
    steps = copy_step(out, np.broadcast_to(y, out.shape)), pair_step(chosen, x, condition, "Choose")
    return Chain([step for step in steps if step]) if None not in steps else None


def take_each(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    x, at = inputs
    return take_each_step(out, x, at, attributes["axis"])


def lrn(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    """Over neighbouring channels."""
    size = attributes["size"]
    local = Local(size, attributes["alpha"] / size, attributes["beta"])
    return rows_step(out, inputs[0], "local", epsilon=attributes["bias"], axis=1, local=local)


def layer_norm(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    x, scale, *shift = inputs
    axes = attributes.get("axes") or range(attributes["axis"], x.ndim)
    rows = (-1, prod(x.shape[axis] for axis in axes), prod(x.shape[axes[-1] + 1 :]))
    last = shift[0].reshape(-1) if shift else None
    return rows_step(out.reshape(rows), x.reshape(rows), "standard", scale.reshape(-1), last, attributes["epsilon"], axis=1)


def length(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    x = inputs[0].reshape(-1, int(np.prod(inputs[0].shape[attributes["axis"] :])))
    return rows_step(out.reshape(-1), x, "length")


def take(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    """Gather; also of rows or columns of images in blocks of channels."""
    x, at, *shares = inputs
    if (block := attributes.get("blocks", (1, 1))[0]) > 1:
        x, out = (one.reshape(blocked_shape(one.shape, block)) for one in (x, out))
    return take_step(out, x, at, attributes["axis"], *shares)


def expand(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    return copy_step(out, np.broadcast_to(inputs[0], out.shape))


def tile(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    """Each axis is two: the repeats, which all read the same, and the elements."""
    (x,) = inputs
    pairs = [size for whole, own in zip(out.shape, x.shape, strict=True) for size in (whole // own, own)]
    read = x.reshape([size for own in x.shape for size in (1, own)])
    return copy_step(out.reshape(pairs), np.broadcast_to(read, pairs))


def pad(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Chain | None:
    """Copies what remains of x, and fills slabs around it, axis by axis."""
    (x,), pads = inputs, attributes["pads"]
    kept = tuple(slice(max(0, -before), size - max(0, -behind)) for (before, behind), size in zip(pads, x.shape, strict=True))
    inside = [slice(max(0, before), size - max(0, behind)) for (before, behind), size in zip(pads, out.shape, strict=True)]
    steps = [copy_step(out[tuple(inside)], x[kept])] if x[kept].size else []
    value = np.asarray(attributes["value"], out.dtype).reshape([1] * out.ndim)
    for axis, within in enumerate(inside):
        for end in (slice(0, within.start), slice(within.stop, out.shape[axis])):
            slab = out[(*inside[:axis], end, *[slice(None)] * (out.ndim - axis - 1))]
            steps += [copy_step(slab, np.broadcast_to(value, slab.shape))] if slab.size else []
    return None if None in steps or not steps else Chain([step for step in steps if step])


def products_of(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Products:
    """A MatMul's operands and result, with their axes permuted as fused transpositions say (`orders`, `result`)."""
    a, b = (x if order is None else x.transpose(order) for x, order in zip(inputs, attributes.get("orders", (None, None)), strict=True))
    result = attributes.get("result")
    return Products(out if result is None else out.transpose(np.argsort(result)), a, b)


def matmul(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    """In NumPy, for types that the kernels do not support; of half numbers in float32, rounded once."""
    product = products_of(out, [widened(x) for x in inputs], attributes)
    if out.dtype == np.float16:
        product.out[...] = np.matmul(product.a, product.b, dtype=np.float32)
    else:
        np.matmul(product.a, product.b, out=product.out)
    if attributes.get("alpha", 1.0) != 1:
        out *= out.dtype.type(attributes["alpha"])


def shapes_of_products(node: Node, graph: Graph) -> Products:
    """The same for the shapes in the graph, before arrays exist, on placeholder memory."""
    out, *inputs = (np.empty(graph.tensors[name].shape, graph.tensors[name].dtype) for name in (node.output, *node.inputs))
    return products_of(out, inputs, node.attributes)


NATIVE_ONLY: dict[str, Bind] = {
    "Expand": expand,
    "LRN": lrn,
    "LayerNormalization": layer_norm,
    "ReduceL2": length,
    "Take": take,
    "Tile": tile,
}


def norms_in_place(graph: Graph) -> Graph:
    """Layer norms between a transposition of their axis to the last and the one back, along that axis where it is (attribute `axes`): of
    channels in planes."""
    users, makers, nodes = graph.users(), graph.makers(), list[Node | None](graph.nodes)
    for at, node in enumerate(graph.nodes):
        if node.op != "LayerNormalization" or "reference" in node.attributes:
            continue
        rank = len(graph.tensors[node.output].shape)
        before = graph.nodes[makers[node.inputs[0]]] if node.inputs[0] in makers and node.attributes["axis"] == rank - 1 else None
        readers = users[node.output]
        behind = graph.nodes[readers[0]] if len(readers) == 1 and readers[0] < len(nodes) else None
        if before is None or behind is None or not before.op == behind.op == "Transpose":
            continue
        order = [*before.attributes["perm"]]
        if [order[axis] for axis in behind.attributes["perm"]] != [*range(rank)] or order[:-1] != sorted(order[:-1]):
            continue
        made = node._replace(inputs=(before.inputs[0], *node.inputs[1:]), outputs=behind.outputs).having(axes=(order[-1],))
        nodes[at], nodes[readers[0]] = made._replace(absorbed=(*node.absorbed, before.name, behind.name)), None
    return live(graph._replace(nodes=tuple(node for node in nodes if node is not None)))


def fuse_transpositions(graph: Graph) -> Graph:
    """Fuses transpositions before and behind a MatMul, if rows or columns stay contiguous, and constant factors before and behind it."""
    users, makers, nodes = graph.users(), graph.makers(), list[Node | None](graph.nodes)

    def alone(name: str, ops: Sequence[str]) -> int | None:
        """The index of the only reader of a value, if it is one of these operators."""
        (at, *more) = users.get(name, [len(nodes)])
        found = nodes[at] if at < len(nodes) and not more else None
        return at if found is not None and found.op in ops else None

    for at, one in enumerate(graph.nodes):
        if one.op != "MatMul" or "reference" in one.attributes or len({*one.inputs}) < 2:
            continue
        node = _reading(_unscaled(one, nodes, graph, makers, users), nodes, makers, users)
        while (later := alone(node.output, ("Affine", "Div", "Mul", "Transpose"))) is not None:
            last = nodes[later]
            assert last is not None
            joined = _writing(node, last, graph)
            if joined is None:
                break
            node, nodes[later] = joined._replace(outputs=last.outputs, absorbed=(*node.absorbed, last.name)), None
        nodes[at] = node
    return graph._replace(nodes=tuple(node for node in nodes if node is not None))


def _unscaled(node: Node, nodes: list[Node | None], graph: Graph, makers: Mapping[str, int], users: Mapping[str, list[int]]) -> Node:
    """The product with constant factors of its operands as its own factor."""
    inputs, alpha, absorbed = list(node.inputs), node.attributes.get("alpha", 1.0), list(node.absorbed)
    for side, name in enumerate(inputs if graph.tensors[node.output].native else ()):  # of others each operator rounds as it is defined
        place = makers.get(name)
        made = nodes[place] if place is not None else None
        if (
            place is None
            or made is None
            or made.op not in ("Affine", "Div", "Mul")
            or len(users[name]) > 1
            or made.attributes.get("activation")
        ):
            continue
        for x in made.inputs[:2] if made.op == "Mul" else made.inputs[:1]:
            factor = _factor(x, made, graph, alpha) if x not in graph.constants else None
            if factor is not None and graph.tensors[x] == graph.tensors[name] and x != inputs[1 - side]:
                inputs[side], alpha, nodes[place] = x, alpha * factor, None
                absorbed.append(made.name)
                break
    return node._replace(inputs=tuple(inputs), absorbed=tuple(absorbed)).having(alpha=alpha)


def _reading(node: Node, nodes: list[Node | None], makers: Mapping[str, int], users: Mapping[str, list[int]]) -> Node:
    orders: list[tuple[int, ...] | None] = [None, None]
    inputs, absorbed = list(node.inputs), list(node.absorbed)
    for side, name in enumerate(node.inputs):
        place = makers.get(name)
        made = nodes[place] if place is not None else None
        order = made.attributes.get("perm") if made is not None and made.op == "Transpose" else None
        if place is None or made is None or order is None or len(users[name]) > 1 or len(order) - 1 not in order[-2:]:
            continue
        orders[side], inputs[side], nodes[place] = tuple(order), made.inputs[0], None
        absorbed.append(made.name)
    return node._replace(inputs=tuple(inputs), absorbed=tuple(absorbed)).having(orders=tuple(orders))


def _writing(node: Node, last: Node, graph: Graph) -> Node | None:
    """The product with the node behind it fused; None if that is not possible."""
    if last.op == "Transpose":
        order = tuple(last.attributes["perm"])
        return None if "result" in node.attributes or order[-1] != len(order) - 1 else node.having(result=order)
    alpha = node.attributes.get("alpha", 1.0)
    factor = _factor(node.output, last, graph, alpha)
    if factor is None or graph.tensors[last.output] != graph.tensors[node.output] or last.attributes.get("activation"):
        return None
    return node.having(alpha=alpha * factor)


def _factor(x: str, last: Node, graph: Graph, alpha: float) -> float | None:
    """The constant by which a node multiplies all elements of x; None if there is none, or if with the factor alpha it leaves the range in
    which values may be multiplied by both at once: more of them may lead back, where one after the other would give 0 or an infinity."""
    number = graph.constants.get(last.inputs[1] if last.inputs[0] == x else last.inputs[0])
    if number is None or not number.size or (number != number.flat[0]).any() or not np.isfinite(number.flat[0]):
        return None
    if last.op == "Affine":
        factor = None if graph.constants[last.inputs[2]].any() else float(number.flat[0])
    elif number.size != 1 or (last.op == "Div" and (last.inputs[0] != x or not number.flat[0])):
        factor = None
    else:
        factor = 1 / float(number.flat[0]) if last.op == "Div" else float(number.flat[0])
    return factor if factor is not None and 2.0**-63 <= abs(alpha * factor) <= 2.0**63 else None
