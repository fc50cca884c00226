# SPDX-License-Identifier: Apache-2.0
"""One generated ONNX node as a model, for `onnx_peer`: random choices, and inputs that are given or constants."""

from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOATS = ("float32", "float64", "float16")
WHOLE = ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, -3e38, 1e-30, 0.5, -0.5, 1.5, 2.5, 65504.0, 1e10, -1e10, 300.0, -129.0)
OPSETS = range(7, 24)


@cache
def _first_opsets() -> dict[str, int]:
    since: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            since[schema.name] = min(schema.since_version, since.get(schema.name, schema.since_version))
    return since


class Case(NamedTuple):
    op: str
    opset: int
    content: bytes
    given: dict[str, Any]
    outputs: list[str]
    how: str  # what a person reads: the node with its attributes and inputs


class Refused(Exception):  # noqa: N818
    """A recipe has nothing for these choices."""


class Make:
    """A node under construction: `rng` and what it is given."""

    def __init__(self, seed: int, op: str, domain: str = "") -> None:
        self.rng = np.random.default_rng(seed)
        self.op, self.domain = op, domain
        self.opset = int(self.rng.choice(OPSETS))
        if not domain:
            self.opset = max(self.opset, _first_opsets().get(op, 1))
        self.arrays: dict[str, Any] = {}
        self.constants: set[str] = set()

    # choices

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def one(self, *of: Any) -> Any:
        return of[self.whole(0, len(of) - 1)]

    def some(self, **attributes: Any) -> dict[str, Any]:
        """About half of the attributes."""
        return {name: value for name, value in attributes.items() if value is not None and self.chance()}

    def axis(self, rank: int) -> int:
        if not rank:
            return 0
        return self.whole(-rank if self.opset >= 11 else 0, rank - 1)

    def axes(self, rank: int) -> list[int]:
        chosen = self.rng.permutation(rank)[: self.whole(1, max(1, rank))].tolist()
        return [int(axis) - rank * (self.opset >= 11 and self.chance(0.3)) for axis in chosen]

    def shape(self, low: int = 0, high: int = 4, most: int = 5) -> tuple[int, ...]:
        return tuple(self.rng.integers(1, most + 1, self.whole(low, high)).tolist())

    def spread(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that is broadcast with this one."""
        kept = tuple(size if self.chance(0.7) else 1 for size in shape)
        return kept[self.whole(0, len(kept)) if self.chance(0.4) else 0 :]

    def real(self, low: float = -2, high: float = 2) -> float:
        return float(np.float32(self.rng.uniform(low, high)))

    # values

    def numbers(self, shape: Any, dtype: Any = "float32", special: float = 0.0, low: float | None = None, high: float | None = None) -> Any:
        dtype = np.dtype(getattr(ml_dtypes, dtype) if isinstance(dtype, str) and hasattr(ml_dtypes, dtype) else dtype)
        if dtype.kind == "b":
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            bounds = max(info.min, -20 if low is None else int(low)), min(info.max, 20 if high is None else int(high))
            found = np.asarray(self.rng.integers(*bounds, shape, endpoint=True)).astype(dtype)
            if special and self.chance(special):
                found = np.where(self.rng.random(shape) < 0.3, self.rng.choice(np.array([info.min, info.max, 0, 1], dtype), shape), found)
            return found.astype(dtype)
        wide = np.asarray(self.rng.standard_normal(shape) * self.one(1, 1, 3) if low is None else self.rng.uniform(low, high, shape))
        if special and self.chance(special):
            wide = np.where(self.rng.random(shape) < 0.3, self.rng.choice(SPECIAL, shape), wide)
        with np.errstate(over="ignore"):
            return wide.astype(dtype)

    def value(self, array: Any, constant: float = 0.3) -> str:
        """A new input of the node: one of the graph, or a constant."""
        name = f"x{len(self.arrays)}"
        self.arrays[name] = np.asarray(array)
        if self.chance(constant):
            self.constants.add(name)
        return name

    def x(self, shape: Any, dtype: Any = "float32", **how: Any) -> str:
        return self.value(self.numbers(shape, dtype, **how))

    def ints(self, array: Any, dtype: Any = "int64") -> str:
        return self.value(np.asarray(array, dtype), constant=0.7)

    # the model

    def case(self, inputs: list[str], outputs: int = 1, attributes: dict[str, Any] | None = None, extra: tuple[str, ...] = ()) -> Case:
        """The node; attributes that its opset does not have are left out, unless they are `extra`."""
        attributes = dict(attributes or {})
        if not self.domain:
            schema = onnx.defs.get_schema(self.op, self.opset)
            attributes = {name: value for name, value in attributes.items() if name in schema.attributes or name in extra}
            if not schema.min_input <= len(inputs) <= schema.max_input or outputs > schema.max_output:
                raise Refused
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        made = [f"y{at}" for at in range(outputs)]
        node = helper.make_node(self.op, inputs, made, name="it", domain=self.domain, **attributes)
        ends = [helper.make_value_info(name, onnx.TypeProto()) for name in made]
        constants = [numpy_helper.from_array(self.arrays[name], name) for name in self.constants if name in inputs]
        given = {name: self.arrays[name] for name in dict.fromkeys(inputs) if name and name not in self.constants}
        infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(of.dtype), of.shape) for name, of in given.items()]
        graph = helper.make_graph([node], "one", infos, ends, constants)
        opsets = [helper.make_opsetid("", self.opset)] + [helper.make_opsetid(self.domain, 1)] * bool(self.domain)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8 if self.opset < 19 else 10)
        told = ", ".join(f"{name}:{self.arrays[name].dtype}{list(self.arrays[name].shape)}{'!' if name in self.constants else ''}"
                         for name in inputs if name)  # fmt: skip
        return Case(self.op, self.opset, model.SerializeToString(), given, made, f"{self.op}-{self.opset}({told}) {attributes}")


def type_of(name: str) -> int:
    return int(TensorProto.DataType.Value(name))
