# SPDX-License-Identifier: Apache-2.0
"""Quantised networks computed as integers: a Dequantize, an operator and a Quantize become one operator on bytes.

    Quantize, Dequantize   (x)      attribute: of (a `Quantity`); https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    IntegerConv, -Linear   (x)      INT32 sums of byte products; attributes: problem, weights, bias, pads, zero, sums (`Sums`)
                           (x, scale, zero) of a dynamically quantised input
                           (x, residual) of a convolution that adds another value: attribute pair (of, low, high)
    IntegerPair            (a, b)   attributes: of (quantities of a, b and y), multiply, low, high
    QuantizeAffine         (x)      a factor and a sum for each channel of numbers, or one for all, and Quantize; attributes: sums, inner
                                    (numbers of a channel side by side)
    IntegerMeans           (x)      means of planes in float32, of exact sums; attribute: of
    IntegerPool            (x)      attributes of a pool, largest, of (quantities of x and y)
    Table                  (x)      y = table[x] of bytes: any function of one element, and requantisation
    View, Transpose, Slice, Concat, MaxPool, Take of bytes as of numbers

A layer's sum of products is exact. Its result is round(sum (x_scale w_scale / y_scale)) + y_zero, factor and product in float32, as
QLinearConv and QLinearMatMul say and ONNX Runtime computes them. All other operators compute what ONNX's definitions of Dequantize,
operator and Quantize give one after another in float32. A ReLU or clip before a Quantize bounds the bytes: rounding keeps the order.

Weights with a zero point are centred if they stay within 8 bits; else the layer computes in float32, as do operators not named here.

Worked number: x_scale 0.5, w_scale 0.02, y_scale 0.1: the sum 37 is round(3.7) = 4 steps above y's zero.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pysim.network.fusion import activation_of
from pysim.network.graph import Array, Graph, Node, Quantized, Tensor, live
from pysim.network.integers.columns import with_divided_products
from pysim.network.integers.dynamic import with_dynamic
from pysim.network.integers.forms import Rows, form_of, rounded_bias, whole_bias, wrapped
from pysim.network.operators import OPERATORS
from pysim.runtime.integer_steps import BYTES, Quantity, Sums

_MOVES = ("MaxPool", "Slice", "Take", "Transpose", "View")  # commute with Dequantize
_UNARY = (
    "Abs", "Affine", "Clip", "Erf", "Exp", "Gelu", "HardSwish", "LeakyRelu", "Mish", "Neg", "Relu", "Sigmoid", "Silu", "Sqrt", "Tanh",
    "Elu", "Softplus", "onnx.Elu", "onnx.Selu", "onnx.Softplus", "onnx.Softsign", "onnx.HardSigmoid", "onnx.Celu",
)  # fmt: skip
_BOUNDS = ("Clip", "Relu")
_WITH_NUMBER = ("Add", "Div", "Mul", "Sub")


class _Bytes(NamedTuple):
    """A value of bytes that stands for one of numbers."""

    name: str
    of: Quantity


def with_integers(graph: Graph, rows: Rows, rounds: bool = False) -> Graph:
    """The graph with integer layers wherever its operators are quantised. A convolution or product that is faster in float32, which does
    not hold its sums, stands as such between a Dequantize and a Quantize. `rounds`: biases in float32 may be rounded to whole sums."""
    if not any(node.op in ("Dequantize", "DynamicQuantizeLinear", "Quantize") for node in graph.nodes):
        return graph
    graph = with_divided_products(with_dynamic(graph, rows))
    return _Integers(_Integers(graph, rows, rounds).before_quantize(), rows).without_quantize()


class _Integers:
    def __init__(self, graph: Graph, rows: Rows, rounds: bool = False) -> None:
        self._graph, self._users, self._rows, self._rounds = graph, graph.users(), rows, rounds
        self._makers = {name: node for node in graph.nodes for name in node.outputs if name}
        self._tensors, self._constants = dict(graph.tensors), dict(graph.constants)
        self._nodes: list[Node] = []
        self._found: dict[str, _Bytes | None] = {}
        self._functions: dict[str, tuple[str, Array]] = {}  # values of bytes that are tables of another one

    def before_quantize(self) -> Graph:
        """Folds every Quantize with what computes its input."""
        for node in self._graph.nodes:
            if node.op != "Quantize" or not self._folded(node):
                self._nodes.append(_of_bytes(node, self._tensors))
        return self._result()

    def without_quantize(self) -> Graph:
        """Layers of quantised operands whose results are numbers."""
        for node in self._graph.nodes:
            if node.op == "GlobalAveragePool" and self._means(node):
                continue
            if node.op not in ("Conv", "Linear") or node.attributes.get("activation") or not self._layer(node, None, node, ()):
                self._nodes.append(node)
        return self._result()

    def _result(self) -> Graph:
        constants = {name: array for name, array in self._constants.items() if name in self._graph.constants or name.endswith(":bytes")}
        return live(self._graph._replace(nodes=tuple(self._nodes), tensors=self._tensors, constants=constants))

    def _add(self, op: str, like: Node, inputs: Sequence[str], output: str, tensor: Tensor, **attributes: Any) -> str:
        self._tensors[output] = tensor
        self._nodes.append(Node(op, like.name, tuple(inputs), (output,), attributes, like.absorbed))
        return output

    def _alone(self, name: str, readers: int = 1) -> Node | None:
        """The producer of a value that is read exactly once, or so often."""
        return self._makers.get(name) if len(self._users.get(name, ())) == readers else None

    def _gated(self, node: Node) -> Node | None:
        """The function x sigmoid(x), or x clip(x / 6 + 1/2, 0, 1), that a product ends, if nothing else reads x or its gate."""
        for x, other in (node.inputs, node.inputs[::-1]) if node.op == "Mul" and len(node.inputs) == 2 else ():
            gates = self._gates(x, other) if self._alone(x, 2) is not None else ()
            if gates:
                names = (name for gate in gates for name in (gate.name, *gate.absorbed))
                op, about = "Silu" if len(gates) == 1 else "HardSwish", {"reference": partial(self._times_gate, gates)}
                return Node(op, node.name, (x,), node.outputs, about, tuple(names))
        return None

    def _gates(self, x: str, name: str) -> tuple[Node, ...]:
        """The operators that make a gate of x, in their order; none if it is no known one."""
        last = self._alone(name)
        if last is not None and last.op == "Sigmoid" and last.inputs == (x,):
            return (last,)
        first = self._alone(last.inputs[0]) if last is not None and activation_of(last) == ("clamp", 0.0, 1.0) else None
        if last is None or first is None or first.op != "Affine" or first.inputs[0] != x:
            return ()
        scale, shift = (self._graph.constants.get(one, np.zeros(1)) for one in first.inputs[1:])
        return (first, last) if np.allclose(scale, 1 / 6, rtol=1e-6, atol=0) and (shift == 0.5).all() else ()

    def _times_gate(self, gates: Sequence[Node], inputs: Sequence[Array]) -> list[Array]:
        numbers = inputs[0]
        for gate in gates:
            numbers = self._computed(gate, numbers)
        return [inputs[0] * numbers]

    def _bytes(self, name: str) -> _Bytes | None:
        """The bytes that a value of numbers was made of, moved as the value was."""
        if name not in self._found:
            self._found[name] = self._moved(name)
        return self._found[name]

    def _moved(self, name: str) -> _Bytes | None:
        held, made = self._graph.quantized.get(name), self._makers.get(name)
        if held is not None and (of := _quantity(held)) is not None:
            self._constants[f"{name}:bytes"] = held.values
            self._tensors[f"{name}:bytes"] = Tensor(held.values.shape, held.values.dtype)
            return _Bytes(f"{name}:bytes", of)
        if made is None:
            return None
        if made.op == "Dequantize":
            return _Bytes(made.inputs[0], made.attributes["of"])
        parts = made.inputs if made.op == "Concat" else made.inputs[:1]
        known = made.op == "Concat" or (made.op in _MOVES and (made.op != "Take" or len(made.inputs) == 2))
        if not known or (made.op == "MaxPool" and len(self._tensors[name].shape) not in (3, 4)):
            return None
        found = [self._bytes(one) for one in parts]
        first = found[0]
        if first is None or any(one is None or one.of != first.of for one in found):
            return None
        tensor = Tensor(self._tensors[name].shape, first.of.dtype)
        inputs = (*(one.name for one in found if one), *made.inputs[len(parts) :])
        about = dict(made.attributes)
        if made.op == "MaxPool":
            about |= {"largest": True, "of": (first.of, first.of)}
        op = "IntegerPool" if made.op == "MaxPool" else made.op
        return _Bytes(self._add(op, made, inputs, f"{name}:bytes", tensor, **about), first.of)

    def _folded(self, node: Node) -> bool:
        """Whether a Quantize was replaced by an operator on bytes, which is added."""
        to: Quantity = node.attributes["of"]
        unary, name, readers = list[Node](), node.inputs[0], 1
        if (scales := self._channels(name, "Div")) is not None and to.scale == 1:
            return self._by_channel(node, self._makers[name].inputs[0], scales, to)
        if self._by_column(node, to) or self._before_moves(node, to):
            return True
        while True:
            if (found := self._bytes(name)) is not None:
                self._requantized(node, found, to, unary[::-1], node.output)
                return True
            made = self._alone(name, readers)
            if made is None:
                return self._multiplied(node, to)
            function = self._gated(made) or made
            source, readers = self._unary_of(function), 1 if function is made else 2
            if source is None:
                return self._operator(node, made, to, unary[::-1]) or self._multiplied(node, to)
            unary.append(function)
            name = source

    def _channels(self, name: str, op: str) -> Array | None:
        """The number for each channel of images by which a value was multiplied or divided."""
        made, shape = self._makers.get(name), self._tensors[name].shape
        numbers = self._graph.constants.get(made.inputs[1]) if made is not None and made.op == op and len(made.inputs) == 2 else None
        return numbers.reshape(-1) if numbers is not None and len(shape) == 4 and numbers.shape == (shape[1], 1, 1) else None

    def _by_channel(self, node: Node, name: str, scales: Array, to: Quantity) -> bool:
        """Whether a Quantize by channel was replaced by a convolution to bytes, whose bounds are the same in all channels."""
        unary, readers = list[Node](), 1
        while (made := self._alone(name, readers)) is not None:
            function = self._gated(made) or made
            if len(function.inputs) > 1 or (function.op not in _BOUNDS and activation_of(function) is None):
                break
            unary.append(function)
            name, readers = function.inputs[0], 1 if function is made else 2
        if made is None or made.op != "Conv" or made.attributes.get("activation"):
            return False
        return self._layer(made, to, node, unary[::-1], scales)

    def _by_column(self, node: Node, to: Quantity) -> bool:
        """Whether a product became an integer layer, with views, an activation and factors of columns before its Quantize."""
        (name, scales), unary, readers = self._column_factors(node.inputs[0], to), list[Node](), 1
        columns = self._tensors[name].shape[-1:]
        while (made := self._alone(name, readers)) is not None and made.op != "Linear":
            function = self._gated(made) or made
            moves, of = function.op == "View", activation_of(function)
            if self._tensors[function.inputs[0]].shape[-1:] != columns or (not moves and (of is None or unary)):
                return False
            unary += [] if moves else [function]
            name, readers = function.inputs[0], 1 if function is made else 2
        if made is None or made.output == node.inputs[0] or made.attributes.get("activation"):
            return False
        return self._layer(made, to, node, unary, scales)

    def _column_factors(self, name: str, to: Quantity) -> tuple[str, Array]:
        """The value that is multiplied by positive factors of its columns before it is quantised, and what it is divided by instead."""
        made, shape = self._alone(name), self._tensors[name].shape
        for x, other in (made.inputs, made.inputs[::-1]) if made is not None and made.op == "Mul" and len(made.inputs) == 2 else ():
            factors = self._graph.constants.get(other)
            if factors is None or not shape or factors.shape[-1:] != shape[-1:] or factors.size != shape[-1] or not (factors > 0).all():
                continue
            divisors = np.float32(to.scale) / factors.reshape(-1).astype(np.float32)
            if self._tensors[x].shape == shape and ((divisors > 0) & np.isfinite(divisors)).all():
                return x, divisors
        return name, np.full(1, to.scale, np.float32)

    def _multiplied(self, node: Node, to: Quantity) -> bool:
        """Whether factors of columns and a Quantize became one pass."""
        x, divisors = self._column_factors(node.inputs[0], to)
        if not self._rounds or x == node.inputs[0] or not np.isfinite(scale := np.float32(1) / divisors).all():
            return False
        sums = Sums(scale, np.zeros_like(scale), np.zeros(scale.size, np.int32), to, to.least, to.most)
        like = self._absorbed(node, self._makers[node.inputs[0]], ())
        self._add("QuantizeAffine", like, (x,), node.output, self._tensors[node.output], sums=sums, inner=1)
        return True

    def _before_moves(self, node: Node, to: Quantity) -> bool:
        """Whether a product that is moved and multiplied by numbers before its Quantize became an integer layer whose bytes are moved."""
        name, moves, factor, names = node.inputs[0], list[Node](), np.float32(1), list[str]()
        while (made := self._alone(name)) is not None and made.op != "Linear":
            if made.op in ("Transpose", "View"):
                moves.append(made)
                name = made.inputs[0]
                continue
            factor, name = factor * self._multiplier(made), self._unary_of(made) or ""
            if not self._rounds or not 0 < factor < np.inf:
                return False
            names.append(made.name)
        if made is None or made.output == node.inputs[0]:
            return False
        first = f"{node.output}:{made.output}" if moves else node.output
        self._tensors[first] = Tensor(self._tensors[made.output].shape, to.dtype)
        last = node._replace(outputs=(first,), absorbed=(*node.absorbed, *names))
        of = to._replace(scale=float(np.float32(to.scale) / factor))
        if not self._layer(made, of, last, ()):
            return False
        for at, move in enumerate(moves[::-1], 1):
            output = node.output if at == len(moves) else f"{node.output}:{move.output}"
            tensor = Tensor(self._tensors[move.output].shape, to.dtype)
            first = self._add(move.op, move, (first, *move.inputs[1:]), output, tensor, **move.attributes)
        return True

    def _multiplier(self, made: Node) -> np.float32:
        """The number by which a node multiplies all elements of a value; 0 of others."""
        if made.op not in ("Affine", "Div", "Mul") or self._unary_of(made) is None:
            return np.float32(0)
        none, one = self._computed(made, np.array([0, 1], np.float32))
        return np.float32(0) if none else np.float32(one)

    def _by_group(self, made: Node) -> tuple[_Bytes | None, Any]:
        """The bytes that a Conv or Linear reads, and their scale: of a depthwise convolution one for each filter."""
        name, conv = made.inputs[0], made.attributes.get("problem")
        factors = self._channels(name, "Mul")
        if factors is None or conv is None or conv.groups != conv.channels:
            found = self._bytes(name)
            return found, np.float32(found.of.scale if found else 1)
        found = self._bytes(self._makers[name].inputs[0])
        alone = found if found is not None and found.of.scale == 1 else None
        return alone, factors.repeat(conv.filters // conv.groups)

    def _unary_of(self, node: Node) -> str | None:
        """What a node computes a function of, element by element; None of other nodes."""
        constants = self._graph.constants
        if node.op == "Affine":
            return node.inputs[0] if all(len(np.unique(constants.get(name, np.arange(2)))) == 1 for name in node.inputs[1:]) else None
        if node.op in _UNARY:
            return node.inputs[0] if len(node.inputs) == 1 else None
        if node.op in _WITH_NUMBER and len(node.inputs) == 2:
            for name, other in (node.inputs, node.inputs[::-1]):
                if other in constants and constants[other].size == 1 and self._tensors[name].shape == self._tensors[node.output].shape:
                    return name
        return None

    def _requantized(self, like: Node, x: _Bytes, to: Quantity, unary: Sequence[Node], output: str) -> str:
        """A function of bytes: nothing if it changes none, else a table."""
        tensor = Tensor(self._tensors[x.name].shape, to.dtype)
        root, every = self._function(x)
        if x.of == to and not unary:
            self._functions[output] = root, every.view(np.uint8)
            return self._add("View", like, (x.name,), output, tensor)
        numbers = x.of.numbers(every)
        for node in unary:
            numbers = self._computed(node, numbers)
        like = like._replace(absorbed=(*like.absorbed, *(node.name for node in unary)))
        return self._table(like, root, output, tensor, to.quantized(numbers))

    def _function(self, x: _Bytes) -> tuple[str, Array]:
        """The value of bytes that a value is a function of, element by element, perhaps itself; and what it is for each of the 256."""
        root, table = self._functions.get(x.name, (x.name, np.arange(256, dtype=np.uint8)))
        return root, table.view(x.of.dtype)

    def _table(self, like: Node, root: str, output: str, tensor: Tensor, table: Array) -> str:
        self._functions[output] = root, table.view(np.uint8)
        return self._add("Table", like, (root,), output, tensor, table=table.view(np.uint8))

    def _computed(self, node: Node, numbers: Array) -> Array:
        """A unary node's results of some numbers."""
        if "reference" in node.attributes:
            return np.asarray(node.attributes["reference"]([numbers])[0])
        constants, out = self._graph.constants, np.empty_like(numbers)
        if node.op == "Affine":
            scale, shift = (constants[name].reshape(-1)[0] for name in node.inputs[1:])
            return np.asarray(numbers * scale + shift)
        inputs = [constants[name].reshape(()) if name in constants else numbers for name in node.inputs]
        if any(np.ndim(one) == 0 for one in inputs):
            inputs = [np.ascontiguousarray(np.broadcast_to(one, numbers.shape)) for one in inputs]
        OPERATORS[node.op](out, inputs, node.attributes)
        return out

    def _operator(self, node: Node, made: Node, to: Quantity, unary: Sequence[Node]) -> bool:
        """Whether an operator, bounded by `unary`, became one on bytes."""
        if made.op == "Concat":
            return not unary and self._concat(node, made, to)
        if made.op in ("Conv", "Linear"):
            return not made.attributes.get("activation") and self._layer(made, to, node, unary)
        if any(one.op not in _BOUNDS for one in unary):
            return False
        if made.op == "Affine":
            return self._rescaled(node, made, to, unary)
        if made.op in ("Add", "Mul") and len(made.inputs) == 2:
            return self._pair(node, made, to, unary)
        return not unary and made.op in ("AveragePool", "GlobalAveragePool") and self._mean(node, made, to)

    def _bounds(self, to: Quantity, unary: Sequence[Node]) -> dict[str, int]:
        low, high = to.least, to.most
        for one in unary:
            ends = (0.0, np.inf) if one.op == "Relu" else (one.attributes["min"], one.attributes["max"])
            low, high = (int(to.quantized(np.array(end, np.float32)).clip(low, high)) for end in ends)
        return {"low": low, "high": high}

    def _same_bounds(self, to: Quantity | None, unary: Sequence[Node], scales: Array | None) -> dict[str, Any] | None:
        """What bounds bytes of all scales; None if they differ, or where a function does not bound."""
        if to is None:
            return {}
        if any(one.op not in _BOUNDS for one in unary):
            return None
        found = [
            self._bounds(to if scales is None else to._replace(scale=float(scale)), unary) for scale in ([1] if scales is None else scales)
        ]
        return found[0] if all(one == found[0] for one in found) else None

    def _absorbed(self, last: Node, made: Node, unary: Sequence[Node]) -> Node:
        names = (*made.absorbed, *(one.name for one in unary), *([last.name] if last is not made else []))
        return made._replace(absorbed=names)

    def _concat(self, node: Node, made: Node, to: Quantity) -> bool:
        parts = [self._bytes(name) for name in made.inputs]
        if any(part is None for part in parts):
            return False
        names = [
            part.name if part.of == to else self._requantized(made, part, to, (), f"{node.output}:part {at}")
            for at, part in enumerate(parts)
            if part
        ]
        self._add("Concat", self._absorbed(node, made, ()), names, node.output, self._tensors[node.output], **made.attributes)
        return True

    def _pair(self, node: Node, made: Node, to: Quantity, unary: Sequence[Node]) -> bool:
        sides = [self._bytes(name) for name in made.inputs]
        if sides[0] is None or sides[1] is None or made.attributes.get("activation"):
            return False
        of, bounds = (sides[0].of, sides[1].of, to), self._bounds(to, unary)
        tensor, about = self._tensors[node.output], {"of": of, "multiply": made.op == "Mul", **bounds}
        (root, a), (other, b) = self._function(sides[0]), self._function(sides[1])
        if root == other and self._tensors[sides[0].name].shape == self._tensors[sides[1].name].shape:  # as x sigmoid(x) is
            numbers = of[0].numbers(a) * of[1].numbers(b) if about["multiply"] else of[0].numbers(a) + of[1].numbers(b)
            table = to.quantized(numbers).clip(bounds["low"], bounds["high"]).astype(to.dtype)
            self._table(self._absorbed(node, made, unary), root, node.output, tensor, table)
            return True
        self._add("IntegerPair", self._absorbed(node, made, unary), [one.name for one in sides if one], node.output, tensor, **about)
        return True

    def _rescaled(self, node: Node, made: Node, to: Quantity, unary: Sequence[Node]) -> bool:
        """Whether a factor and a sum for each channel of an image and a Quantize became one pass."""
        shape, numbers = self._tensors[made.output].shape, [self._graph.constants.get(name) for name in made.inputs[1:]]
        known = [one.reshape(-1).astype(np.float32) for one in numbers if one is not None and len(shape) == 4 and one.size == shape[1]]
        if len(known) < 2 or not self._rounds or made.attributes.get("activation") or self._tensors[made.inputs[0]].shape != shape:
            return False
        with np.errstate(over="ignore"):
            scale, shift = (one / np.float32(to.scale) for one in known)
        if not np.isfinite(scale).all() or not np.isfinite(shift).all():
            return False
        bounds = self._bounds(to, unary)
        sums = Sums(scale, shift, np.zeros(shape[1], np.int32), to, low=bounds["low"], high=bounds["high"])
        about = {"sums": sums, "inner": int(np.prod(shape[2:]))}
        self._add("QuantizeAffine", self._absorbed(node, made, unary), made.inputs[:1], node.output, self._tensors[node.output], **about)
        return True

    def _means(self, node: Node) -> bool:
        """Whether the means of a quantised image's planes, as numbers, became those of its bytes."""
        made, y = self._makers.get(node.inputs[0]), self._tensors[node.output]
        if made is None or made.op != "Dequantize" or len(y.shape) != 4 or y.dtype != np.float32:
            return False
        self._add("IntegerMeans", node, made.inputs, node.output, y, of=made.attributes["of"])
        return True

    def _mean(self, node: Node, made: Node, to: Quantity) -> bool:
        x = self._bytes(made.inputs[0])
        if x is None or len(self._tensors[made.inputs[0]].shape) not in (3, 4):
            return False
        about, shape = dict(made.attributes), self._tensors[made.inputs[0]].shape
        if made.op == "GlobalAveragePool":
            axes = len(shape) - 2
            about = {"kernel_shape": shape[2:], "strides": (1,) * axes, "dilations": (1,) * axes, "pads": (0,) * 2 * axes}
            about["count_include_pad"] = 0
        about |= {"largest": False, "of": (x.of, to)}
        self._add("IntegerPool", self._absorbed(node, made, ()), (x.name,), node.output, self._tensors[node.output], **about)
        return True

    def _layer(self, made: Node, to: Quantity | None, last: Node, unary: Sequence[Node], scales: Array | None = None) -> bool:
        """Whether a Conv or Linear became an integer layer. `scales`: of its results, one for each filter, in place of that of `to`. A bias
        that is no whole number, and a function of numbers, are computed in its store before numbers become bytes."""
        (x, x_scale), weights = self._by_group(made), self._graph.quantized.get(made.inputs[1])
        if x is None or weights is None or len(made.inputs) > 3 or self._tensors[made.output].dtype != np.float32:
            return False
        form = form_of(made, self._tensors[x.name], weights)
        if form is None:
            return False
        unit, to_scale = x_scale * form.scale, np.float32(1 if to is None else to.scale) if scales is None else scales
        bounds = self._same_bounds(to, unary, scales)
        activation = activation_of(unary[0]) if len(unary) == 1 else None if unary else "identity"
        by = unit if to is None else unit / to_scale
        bias_name = next(iter(made.inputs[2:]), "")
        added, how = self._addends(bias_name, unit, by, to_scale, to is not None), form.run_on(self._tensors[x.name], self._rows)
        if added is None or how is None:
            return False
        bias, shift = added
        with np.errstate(over="ignore"):
            factors = np.ascontiguousarray(np.float32(1) / (np.full(1, to_scale, np.float32) if scales is None else scales), np.float32)
        of_numbers = to is not None and activation is not None and self._rounds and how["dtype"] == "s8" and np.isfinite(factors).all()
        if bounds is None and not of_numbers:
            return False
        sums = Sums(by, np.ascontiguousarray(shift), wrapped(bias), to, **(bounds or {}))
        if of_numbers and (bounds is None or shift.any()):
            numbers = self._addends(bias_name, unit, unit, np.float32(1), False)
            assert numbers is not None
            sums = Sums(unit, np.ascontiguousarray(numbers[1]), wrapped(0 * bias), to, activation=activation, factors=factors)
        about = {**how, "zero": x.of.zero, "sums": sums}
        op = "IntegerConv" if made.op == "Conv" else "IntegerLinear"
        self._add(op, self._absorbed(last, made, unary), (x.name,), last.output, self._tensors[last.output], **about)
        return True

    def _addends(self, name: str, unit: Array, by: Array, to_scale: Any, to_bytes: bool) -> tuple[Array, Array] | None:
        """What a layer adds to its sums, of this unit, and to its results, by the name of its bias. None for one that is no constant."""
        bias, shift, numbers = np.zeros(len(unit), np.int64), np.zeros(len(unit), np.float32), self._graph.constants.get(name)
        if not name:
            return bias, shift
        whole = whole_bias(self._graph.quantized.get(name), unit) if to_bytes else None
        if whole is None and to_bytes and self._rounds:
            whole = rounded_bias(numbers, unit, by)
        if whole is not None:
            return whole, shift
        return None if numbers is None else (bias, numbers.reshape(-1).astype(np.float32) / to_scale)


def _of_bytes(node: Node, tensors: Mapping[str, Tensor]) -> Node:
    """A max pool of bytes as one on the kernels of such; other nodes as they are."""
    if node.op != "MaxPool" or "reference" in node.attributes:
        return node
    shape, dtype = tensors[node.inputs[0]]
    one = Quantity(1.0, 0, dtype)
    return node._replace(op="IntegerPool").having(largest=True, of=(one, one)) if dtype in BYTES and len(shape) in (3, 4) else node


def _quantity(held: Quantized) -> Quantity | None:
    """Of a constant with one scale."""
    if held.values.dtype not in BYTES or held.scale.size != 1 or held.zero.size != 1:
        return None
    return Quantity(float(held.scale.reshape(())), int(held.zero.reshape(())), held.values.dtype)
