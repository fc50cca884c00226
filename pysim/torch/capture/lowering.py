# SPDX-License-Identifier: Apache-2.0
"""A graph of PyTorch's own operators (aten) as nodes of `pysim.network.graph`.

What depends on parameters alone is computed by PyTorch's operators and is constant. Each other operator is lowered by its function of
`pysim.torch.capture.aten`, or stays PyTorch's, with a reason.

Values that are seen under another shape keep the name of their memory (`Lowering.view`), so a product of rows reads the images that the
rows were made of, and operators on elements follow the layer before them, whatever shape they see.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from pysim.errors import ProblemError
from pysim.network.graph import Array, Graph, Node, Quantized, Tensor, live
from pysim.network.native_ops.along import split_at
from pysim.runtime.integer_steps import BYTES, Quantity
from pysim.runtime.operators import BITS
from pysim.torch.capture.forms import Form, forms_in

Made = str | tuple[str, ...]
Operator = Callable[["Lowering", fx.Node, "Arguments"], Made]  # what it made, by name; "" for a part that nothing reads


class UnknownError(Exception):
    """Why an operator stays PyTorch's."""


class Arguments(dict[str, Any]):
    """Arguments of an operator by the names of its schema; an overload without one of them is not known."""

    def __missing__(self, name: str) -> Any:
        raise UnknownError(f"it is called without {name}")


def arguments_of(node: fx.Node) -> Arguments:
    schema = node.target._schema.arguments
    given = {one.name: one.default_value for one in schema if one.has_default_value()}
    return Arguments(given | dict(zip((one.name for one in schema), node.args, strict=False)) | dict(node.kwargs))


class Lowering:
    """A traced graph as nodes. `values`: the constants, by FX node; `made`: the name or names of what every other operator computes;
    `unknown`: why the others stay PyTorch's, whose results are inputs here."""

    def __init__(self, graph: fx.Graph, parameters: Mapping[fx.Node, Any], operators: Mapping[str, Operator]) -> None:
        self._operators = operators
        self.values: dict[fx.Node, Any] = dict(parameters)
        self.made: dict[fx.Node, Any] = {}
        self.unknown: dict[fx.Node, str] = {}
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.constants: dict[str, Array] = {}
        self.quantized: dict[str, Quantized] = {}
        self.narrow = set[str]()  # values of bfloat16
        self._integers: dict[int, Quantized] = {}  # what tensors were made of, by their id
        self._bases: dict[str, str] = {}
        self._views: dict[tuple[str, tuple[int, ...]], str] = {}
        self.label = ""
        for node in graph.nodes:
            self._visit(node)

    def graph(self, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> Graph:
        names = tuple(self.made[one] for one in outputs)
        tensors = self.tensors | {name: Tensor(one.shape, one.dtype) for name, one in self.constants.items()}
        return live(
            Graph(
                tuple(self.nodes),
                tuple(self.made[one] for one in inputs),
                names,
                tensors,
                self.constants,
                self.quantized,
                frozenset(self.narrow),
            )
        )

    def _visit(self, node: fx.Node) -> None:
        if node in self.values or node.op == "output":
            return
        if node.op == "get_attr":
            self.values[node] = getattr(node.graph.owning_module, str(node.target))
            return
        if node.op == "placeholder":
            self._given(node)
            return
        inputs = node.all_input_nodes
        if all(one in self.values for one in inputs) or name_of(node) in _SHAPED:
            self._compute(node)
        elif name_of(node) == "getitem":
            self._part(node)
        else:
            self._lower(node)

    def _given(self, node: fx.Node) -> None:
        """A value that is not computed here; the parts of a tuple are given each."""
        form = node.meta.get("form")
        if isinstance(form, Form):
            self.made[node] = node.name
            self.tensors[node.name] = form.tensor
            self.narrow |= {node.name} if form.is_narrow else set()

    def _part(self, node: fx.Node) -> None:
        of, at = node.args
        if of in self.unknown:
            self.unknown[node] = self.unknown[of]
            self._given(node)
        else:
            self.made[node] = self.made[of][at]

    def _compute(self, node: fx.Node) -> None:
        """A constant."""
        args, named = fx.node.map_arg(
            (node.args, dict(node.kwargs)), lambda one: self.values[one] if one in self.values else one.meta["form"].empty()
        )
        self.values[node] = node.target(*args, **named)
        self._note_integers(node)

    def _note_integers(self, node: fx.Node) -> None:
        """Remembers the integers of which a constant was made, also of a matrix the other way round."""
        if name_of(node) in ("dequantize_per_channel", "dequantize_per_tensor"):
            given = arguments_of(node)
            values, scale, zero = (self.values.get(one, one) for one in _operands_of(given))
            numbers = [np.asarray(one) for one in (scale, zero)]
            self._integers[id(self.values[node])] = Quantized(
                array_of(values), numbers[0].astype(np.float32), numbers[1].astype(np.int64), given.get("axis", 0)
            )
        elif name_of(node) in ("t", "transpose", "permute") and self.values[node].dim() == 2:
            before = self._integers.get(id(self.values.get(node.all_input_nodes[0])))
            if before is not None and self.values[node].shape != (1, 1) and self._turned(node):
                self._integers[id(self.values[node])] = before.transposed()

    def _turned(self, node: fx.Node) -> bool:
        """Whether a matrix is the transposed of its input."""
        old = self.values[node.all_input_nodes[0]]
        return bool(self.values[node].stride() == old.stride()[::-1] and self.values[node].shape == old.shape[::-1])

    def integers_of(self, value: Any) -> Quantized | None:
        """The integers that a tensor among the constants was made of."""
        return self._integers.get(id(value))

    def _lower(self, node: fx.Node) -> None:
        count, self.label = len(self.nodes), node.name
        try:
            found = self._operators.get(name_of(node))
            if found is None:
                raise UnknownError(f"{node.target} has no native operator")
            _check_types(node)
            self.made[node] = made = found(self, node, arguments_of(node))
            results = zip(forms_in(made), forms_in(node.meta.get("form")), strict=False)
            self.narrow |= {name for name, form in results if name and isinstance(form, Form) and form.is_narrow}
        except (UnknownError, ProblemError) as error:
            del self.nodes[count:]
            self.unknown[node] = str(error)
            self._given(node)

    # What the functions of operators use

    def __getitem__(self, node: Any) -> str:
        """The name of a value or constant."""
        if node in self.values:
            if node.name not in self.constants:
                self.constants[node.name] = array_of(self.values[node])
                if (integers := self.integers_of(self.values[node])) is not None:
                    self.quantized[node.name] = integers
            return str(node.name)
        found = self.made.get(node)
        if not isinstance(found, str):
            raise UnknownError(f"{node} is no tensor")
        return found

    def constant(self, node: Any, what: str = "its weights are") -> Any:
        """The value of a constant, in NumPy."""
        if node not in self.values:
            raise UnknownError(f"{what} computed in each call")
        return array_of(self.values[node])

    def shape(self, name: str) -> tuple[int, ...]:
        return self.constants[name].shape if name in self.constants else self.tensors[name].shape

    def dtype(self, name: str) -> Any:
        return self.constants[name].dtype if name in self.constants else self.tensors[name].dtype

    def new(self, array: Any) -> str:
        """A constant."""
        name = f"{self.label}:constant {len(self.constants)}"
        self.constants[name] = np.asarray(array, order="C")
        return name

    def add(self, op: str, inputs: Sequence[str], shape: Sequence[int], dtype: Any = None, **attributes: Any) -> str:
        name = f"{self.label}:{len(self.tensors)}"
        self.tensors[name] = Tensor(tuple(shape), dtype or self.dtype(next(one for one in inputs if one)))
        self.nodes.append(Node(op, self.label, tuple(inputs), (name,), attributes))
        return name

    def parts(self, parts: Any, name: str) -> str:
        """The nodes that `pysim.network.lowering` made of one whose output has this name."""
        if parts is None:
            raise UnknownError("its form has no native operator")
        for part, shape in parts:
            if part.op == "View" and len(parts) == 1:
                return self.view(part.inputs[0], shape)
            self.tensors[part.output] = Tensor(tuple(shape), self.dtype(part.inputs[0]))
            self.nodes.append(part)
        return name

    def base(self, name: str) -> str:
        """The value in whose shape these elements were made."""
        return self._bases.get(name, name)

    def view(self, name: str, shape: Sequence[int]) -> str:
        base, shape = self.base(name), tuple(shape)
        if self.shape(base) == shape:
            return base
        if base in self.constants:
            return self.new(self.constants[base].reshape(shape))
        if (base, shape) not in self._views:
            made = self._views[base, shape] = self.add("View", (base,), shape)
            self._bases[made] = base
        return self._views[base, shape]

    def without_hidden_rows(self, y: str, mask: str) -> str:
        """Attention's results y, with 0 for each row all of whose keys the mask hides: its softmax is 0 / 0."""
        *rows, keys = self.shape(mask)
        if mask in self.constants and not np.isneginf(self.constants[mask].max(-1)).any():
            return y
        most = self.add("ReduceMax", (mask,), (*rows, 1), axis=split_at((*rows, keys), [len(rows)]))
        hidden = self.add("Equal", (most, self.new(np.asarray(-np.inf, self.dtype(y)))), (*rows, 1), np.dtype(np.bool_))
        return self.add("Where", (hidden, self.new(np.zeros((), self.dtype(y))), y), self.shape(y), self.dtype(y))

    def without_hidden_scores(self, shares: str, scores: str, axis: int) -> str:
        """The softmax of scores along an axis, with 0 for each row all of whose scores are -inf. A mask of parameters alone tells that
        there is none, but for products that are infinite themselves."""
        if axis != len(self.shape(scores)) - 1 or not self.shape(scores)[axis]:
            raise UnknownError("it is along another axis than the last")
        added = next((one.inputs for one in self.nodes if one.output == scores and one.op == "Add"), ())
        return self.without_hidden_rows(shares, next((one for one in added if one in self.constants), scores))

    def in_groups(self, name: str, groups: int) -> str:
        """An operand of attention with an axis of those heads that share one of keys; a value for all heads has one."""
        *batch, heads, rows, columns = (1, *self.shape(name)) if len(self.shape(name)) == 2 else self.shape(name)
        return self.view(name, (*batch, min(groups, heads), heads // min(groups, heads), rows, columns))

    def transpose(self, name: str, order: Sequence[int]) -> str:
        shape = self.shape(name)
        made = [shape[axis] for axis in order]
        moved = [axis for axis in order if shape[axis] != 1]
        return self.view(name, made) if moved == sorted(moved) else self.add("Transpose", (name,), made, perm=tuple(order))

    def unary(self, op: str, name: str, **attributes: Any) -> str:
        """An operator on elements, in the shape in which these were made."""
        base = self.base(name)
        return self.view(self.add(op, (base,), self.shape(base), **attributes), self.shape(name))

    def slices(self, name: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        shape = list(self.shape(name))
        cut = tuple(slice(start, stop, step) if at == axis else slice(0, size, 1) for at, size in enumerate(shape))
        shape[axis] = len(range(start, stop, step))
        return name if tuple(shape) == self.shape(name) and step == 1 else self.add("Slice", (name,), shape, slices=cut)

    def pair(self, op: str, a: str, b: str, shape: Sequence[int]) -> str:
        """An operator on two broadcast values."""
        shape = tuple(shape)
        for x, other in ((a, b), (b, a)):
            value = self.constants.get(other)
            if value is not None and x not in self.constants and op in ("Add", "Mul") and self.shape(x) == shape:
                return self.with_constant(op, x, value)
        one, two = self.base(a), self.base(b)
        if self.shape(a) == self.shape(b) == shape and self.shape(one) == self.shape(two):
            return self.view(self.add(op, (one, two), self.shape(one)), shape)
        return self.add(op, (a, b), shape)

    def with_constant(self, op: str, x: str, value: Array) -> str:
        """The sum or product of a value and a constant: an Affine if that is a number for each channel of images, or one for all."""
        shape, base = self.shape(x), self.base(x)
        if value.size == 1:
            x, value = base, value.reshape(())
        at = self.shape(x)
        if len(at) == 4 and (value.size == 1 or (value.shape[-3:] == (at[1], 1, 1) and value.size == at[1])):
            numbers = np.broadcast_to(value.reshape(-1), at[1])
            one, nothing = np.ones(at[1], value.dtype), np.full(at[1], -0.0, value.dtype)  # 0 + -0.0 is 0, and -0.0 + -0.0 is -0.0
            scale, shift = (numbers, nothing) if op == "Mul" else (one, numbers)
            return self.view(self.add("Affine", (x, self.new(scale), self.new(shift)), at), shape)
        return self.view(self.add(op, (x, self.new(value)), at), shape)


def _operands_of(given: Arguments) -> tuple[Any, Any, Any]:
    """What a dequantisation reads: integers, scale and zero, or one of each for each channel."""
    many = "scales" in given
    return given["input"], given["scales" if many else "scale"], given["zero_points" if many else "zero_point"]


def name_of(node: fx.Node) -> str:
    """Of an operator without its overload."""
    return str(getattr(node.target, "overloadpacket", node.target).__name__) if node.op == "call_function" else ""


_SHAPED = {"new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like", "full_like"}  # read only the form of their input


def array_of(value: Any) -> Array:
    """A tensor's memory; `Tensor.numpy` would leave a model's own tensor one that cannot be resized. bfloat16 becomes float32."""
    plain = value.detach().resolve_neg().contiguous()
    array: Array = np.from_dlpack(plain.float() if plain.dtype is torch.bfloat16 else plain)
    return array


_COMPUTED = (torch.float32, torch.float64, torch.bfloat16)
# What computes in float32 where some of its values are bfloat16
_MIXED = (
    "_native_batch_norm_legit_no_training", "_to_copy", "add", "div", "mul", "native_batch_norm", "native_layer_norm", "sub",
)  # fmt: skip


def _check_types(node: fx.Node) -> None:
    """Refuses values that no kernel takes. Of several results, the first counts, of an embedding the table and what is taken of it."""
    if name_of(node) in ("dequantize_per_tensor", "quantize_per_tensor"):
        return
    inputs = node.args[:1] if name_of(node) == "embedding" else node.all_input_nodes
    read = [one for of in inputs for one in forms_in(of.meta.get("form"))]
    forms = [*read, *forms_in(node.meta.get("form"))[:1]]
    if any(not isinstance(one, Form) or one.dtype not in _COMPUTED or not math.prod(one.shape) for one in forms):
        raise UnknownError("its values are no floating-point numbers of 32 or 64 bits and no bfloat16, or none at all")
    kinds = {one.dtype for one in forms}
    if len(kinds) > 1 and not (name_of(node) in _MIXED and kinds == {torch.float32, torch.bfloat16}):
        raise UnknownError("its values are of different types")


def same(low: Lowering, node: fx.Node, given: Arguments) -> str:
    """The same elements."""
    x, form = low[given["self"]], node.meta["form"]
    if low.shape(x) != form.shape or low.dtype(x) != form.tensor.dtype:
        raise UnknownError("it makes other elements")
    return x


_MULTIPLY = ("_scaled_dot_product_flash_attention_for_cpu", "addmm", "baddbmm", "bmm", "convolution", "mm")
_MOVE = ("_unsafe_view", "clone", "expand", "permute", "t", "transpose", "view")


def _is_multiplied(node: fx.Node) -> bool:
    """Whether a value is an operand of products and nothing else, which kernels of bf16 round themselves."""
    return all(name_of(user) in _MULTIPLY or (name_of(user) in _MOVE and _is_multiplied(user)) for user in node.users)


def converted(low: Lowering, node: fx.Node, given: Arguments) -> str:
    """The same elements, also as bfloat16, to which those of float32 are rounded, and back."""
    x, shape = same(low, node, given), node.meta["form"].shape
    if not node.meta["form"].is_narrow or given["self"].meta["form"].is_narrow:
        return x
    if _is_multiplied(node):
        return low.add("View", (x,), shape)  # a value of its own, which is bf16
    return low.add("Cast", (low.add("Cast", (x,), shape, BITS),), shape, low.dtype(x))


def conversion(op: str) -> Operator:
    """From or to bytes of one scale and zero, in programs that PyTorch's export quantised (quantized_decomposed)."""

    def lower(low: Lowering, node: fx.Node, given: Arguments) -> str:
        x, form = low[given["input"]], node.meta["form"]
        scale, zero, kind = given["scale"], given["zero_point"], np.dtype(str(given["dtype"]).removeprefix("torch."))
        if not isinstance(scale, float) or not isinstance(zero, int) or kind not in BYTES or low.dtype(x) not in (np.float32, kind):
            raise UnknownError("its scale and zero are no numbers, or its values are neither bytes nor float32")
        of = Quantity(scale, zero, kind)
        if (given["quant_min"], given["quant_max"]) != (of.least, of.most) or not 0 < np.float32(scale) < math.inf:
            raise UnknownError(
                f"its range is {given['quant_min']} to {given['quant_max']}, not that of its type, or its scale is not positive"
            )
        return low.add(op, (x,), form.shape, np.dtype(np.float32) if op == "Dequantize" else kind, of=of)

    return lower
