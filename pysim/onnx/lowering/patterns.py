# SPDX-License-Identifier: Apache-2.0
"""Recognises operators that exporters write as several nodes because their opset lacks them: GELU by erf (before opset 20), Mish (before
opset 18) and layer norm (before opset 17).

Mul(x, Tanh(Softplus(x)))
x/2 (1 + Erf(x / sqrt 2))                            GELU; the factors of a product in any order, quotients by constants as factors
x/2 (1 + Tanh(sqrt(2/pi) (x + 0.044715 x^3)))        GELU by tanh; x^3 as a Pow or as products
Div(d, Sqrt(Add(ReduceMean(Pow(d, 2)), epsilon)))    where d = Sub(x, ReduceMean(x)) and means are over the last axes; followed by a product
    with a constant scale and a sum with a constant shift of these axes' shape
"""

from math import isclose, pi, sqrt

import numpy as np

from pysim.network.graph import Graph, Node, live

_NEAR = 1e-6  # relative: constants are float32
_NEAR_SHORT = {"narrow": 2.0**-8, "half": 2.0**-11}  # of constants rounded to bf16 and to float16


def with_patterns(graph: Graph) -> Graph:
    """The graph with each pattern replaced by one node, if no other node reads its intermediate values."""
    for find in (_Patterns.gelu, _Patterns.mish, _Patterns.layer_norm):
        found = _Patterns(graph)
        nodes = tuple(find(found, node) or node for node in graph.nodes)
        graph = graph._replace(nodes=nodes) if nodes != graph.nodes else graph
    return live(graph)


class _Patterns:
    def __init__(self, graph: Graph) -> None:
        self._graph, self._makers, self._users = graph, graph.makers(), graph.users()

    def gelu(self, last: Node) -> Node | None:
        """The Gelu that ends with this node."""
        half, operands = self._product(last)
        near = max((near for which, near in _NEAR_SHORT.items() if last.output in getattr(self._graph, which)), default=_NEAR)
        for x, other in (operands, operands[::-1]) if len(operands) == 2 and isclose(half, 0.5, rel_tol=_NEAR) else ():
            gate = self._by(self._alone(other, "Add"), ("Add",), 1.0)
            inner = self._alone(gate, "Erf", "Tanh")
            if inner is None or not self._graph.tensors[x].native or self._graph.tensors[x] != self._graph.tensors[last.output]:
                continue
            scale, (of, *more) = self._factors(inner.inputs[0])
            if inner.op == "Erf" and (of, *more) == (x,) and isclose(scale, sqrt(0.5), rel_tol=near):
                return Node("Gelu", last.name, (x,), last.outputs)
            if inner.op == "Tanh" and not more and self._is_cubic(of, x, near) and isclose(scale, sqrt(2 / pi), rel_tol=near):
                return Node("Gelu", last.name, (x,), last.outputs, {"approximate": b"tanh"})
        return None

    def _is_cubic(self, name: str, x: str, near: float) -> bool:
        """Whether a value, read once, is x + 0.044715 x^3."""
        total = self._alone(name, "Add")
        for one, other in (total.inputs, total.inputs[::-1]) if total and x in total.inputs else ():
            if one == x:
                scale, of = self._factors(other)
                return of == (x, x, x) and isclose(scale, 0.044715, rel_tol=near)
        return False

    def _factors(self, name: str) -> tuple[float, tuple[str, ...]]:
        """(number, values) whose product a value is: taken apart as far as it is products that nothing else reads."""
        made = self._alone(name, "Div", "Mul", "Pow")
        return self._product(made) if made else (1.0, (name,))

    def _product(self, node: Node) -> tuple[float, tuple[str, ...]]:
        """The same of a node's result."""
        number, values = 1.0, list[str]()
        sides = node.inputs if node.op in ("Div", "Mul", "Pow") and len(node.inputs) == 2 else ()
        constants = [self._number(name) for name in sides]
        if node.op == "Mul" and sides:
            for name, constant in zip(sides, constants, strict=True):
                scale, of = (constant, ()) if constant is not None else self._factors(name)
                number *= scale
                values += of
        elif node.op == "Div" and sides and constants[1]:
            scale, of = self._factors(sides[0])
            number, values = scale / constants[1], [*of]
        elif node.op == "Pow" and sides and constants[1] in (2, 3):
            values = [sides[0]] * int(constants[1] or 0)
        else:
            values = [node.output]
        return number, tuple(values)

    def _number(self, name: str) -> float | None:
        """The constant of one element that a name is; None if it is none."""
        value = self._graph.constants.get(name)
        return float(value.reshape(())) if value is not None and value.size == 1 and value.dtype.kind == "f" else None

    def mish(self, product: Node) -> Node | None:
        """The Mish that ends with this node."""
        for x, other in (product.inputs, product.inputs[::-1]) if product.op == "Mul" and len(product.inputs) == 2 else ():
            tanh = self._alone(other, "Tanh")
            softplus = self._alone(tanh.inputs[0], "Softplus") if tanh else None
            if softplus and softplus.inputs == (x,) and self._graph.tensors[x].native:
                return Node("Mish", product.name, (x,), product.outputs)
        return None

    def layer_norm(self, last: Node) -> Node | None:
        """The layer norm that ends with this node, the sum with its shift."""
        scaled, shift = self._with_constant(last, "Add")
        quotient, scale = self._with_constant(scaled, "Mul")
        if quotient is None or scaled is None or scale is None or shift is None or quotient.op != "Div":
            return None
        found = self._standard(quotient)
        if found is None:
            return None
        x, axis, epsilon = found
        shape = self._graph.tensors[x].shape
        numbers = [self._graph.constants[name] for name in (scale, shift)]
        if not self._graph.tensors[x].native or any(one.shape != shape[axis:] for one in numbers):
            return None
        return Node("LayerNormalization", last.name, (x, scale, shift), last.outputs, {"axis": axis, "epsilon": epsilon})

    def _standard(self, quotient: Node) -> tuple[str, int, float] | None:
        """(x, first axis, epsilon) of (x - mean) / sqrt(variance + epsilon)."""
        root = self._alone(quotient.inputs[1], "Sqrt")
        total, epsilon = self._with_constant(self._alone(root.inputs[0], "Add") if root else None, "Add")
        difference = self._graph.nodes[self._makers[quotient.inputs[0]]] if quotient.inputs[0] in self._makers else None
        if total is None or epsilon is None or difference is None or difference.op != "Sub" or total.op != "ReduceMean":
            return None
        square = self._alone(total.inputs[0], "Pow", "Mul")
        mean = self._alone(difference.inputs[1], "ReduceMean")
        d, value = difference.output, self._graph.constants[epsilon]
        is_square = square and square.inputs[0] == d and (square.inputs == (d, d) or self._by(square, ("Pow",), 2.0) == d)
        readers = sum(name == d for node in (square, quotient) if node for name in node.inputs)
        if not is_square or mean is None or mean.inputs[0] != difference.inputs[0] or value.size != 1 or len(self._users[d]) != readers:
            return None
        axes = [self._last_axes(one) for one in (mean, total)]
        return (difference.inputs[0], axes[0], float(value.reshape(()))) if axes[0] is not None and axes[0] == axes[1] else None

    def _last_axes(self, mean: Node) -> int | None:
        """The first axis of a mean over all axes from that one on, with kept dimensions; None for another mean."""
        rank, given = len(self._graph.tensors[mean.inputs[0]].shape), mean.attributes.get("axes")
        if len(mean.inputs) > 1 and mean.inputs[1]:
            given = self._graph.constants[mean.inputs[1]].tolist() if mean.inputs[1] in self._graph.constants else None
        axes = sorted(axis % rank for axis in given or ())
        return axes[0] if axes and axes == list(range(axes[0], rank)) and mean.attributes.get("keepdims", 1) else None

    def _with_constant(self, node: Node | None, op: str) -> tuple[Node | None, str | None]:
        """(the producer of one operand, the constant that is the other operand) of a product or a sum. Nothing else may read the first."""
        if node is None or node.op != op or len(node.inputs) != 2:
            return None, None
        for x, other in (node.inputs, node.inputs[::-1]):
            made = self._alone(x, "Add", "Div", "Mul", "ReduceMean")
            if made is not None and other in self._graph.constants:
                return made, other
        return None, None

    def _alone(self, name: str | None, *ops: str) -> Node | None:
        """The producer of a value that is read exactly once, if its op is one of `ops`."""
        at = self._makers.get(name or "")
        node = self._graph.nodes[at] if at is not None and name and len(self._users.get(name, ())) == 1 else None
        return node if node and node.op in ops else None

    def _by(self, node: Node | None, ops: tuple[str, ...], number: float) -> str | None:
        """The operand of a node whose other operand is this number; in a quotient the number must be the divisor."""
        if node is None or node.op not in ops or len(node.inputs) != 2:
            return None
        for x, other in (node.inputs, node.inputs[::-1])[: 1 if node.op in ("Div", "Pow") else 2]:
            value = self._graph.constants.get(other)
            if value is not None and value.size == 1 and np.isclose(value.reshape(()), number, rtol=1e-6, atol=0):
                return x if self._graph.tensors[x].shape == self._graph.tensors[node.output].shape else None
        return None
