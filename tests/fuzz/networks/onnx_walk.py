# SPDX-License-Identifier: Apache-2.0
"""Random ONNX graphs of any operator: they grow by a node at a time, and ONNX Runtime says what each makes, or that it is none.

So a generator need not know which attributes fit together: a node that ONNX Runtime refuses, whose result is not finite, or larger than
any network needs, is left out again.
"""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

LARGEST = 1e4  # magnitude of a number
MOST = 20_000  # elements of a value
OPSETS = range(7, 23)


def session(content: bytes) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def value_info(name: str, array: Any, shape: Any = ()) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape if shape == () else shape)


class Walk:
    """`values` has every value made so far, as ONNX Runtime makes it; `sharp` are those that small differences of an input may change."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.choice(OPSETS))
        self.batch = self.whole(1, 3)
        self.dtype = np.dtype(np.float64 if self.chance(0.15) else np.float32)
        self.values: dict[str, Any] = {}
        self.inputs: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}
        self.nodes: list[Any] = []
        self.sharp: set[str] = set()
        self.refused: dict[str, str] = {}

    # choices

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def one(self, *of: Any) -> Any:
        return of[self.whole(0, len(of) - 1)]

    def some(self, **attributes: Any) -> dict[str, Any]:
        """About half of the attributes."""
        return {name: value for name, value in attributes.items() if self.chance()}

    def axis(self, rank: int) -> int:
        return self.whole(-rank, rank - 1) if rank else 0

    def axes(self, rank: int) -> list[int]:
        chosen = self.rng.permutation(rank)[: self.whole(1, max(1, rank))].tolist()
        return [int(axis) - rank * self.chance(0.3) for axis in chosen]

    # values

    def numbers(self, shape: Any, dtype: Any = None) -> Any:
        dtype = np.dtype(dtype or self.dtype)
        if dtype.kind == "f":
            return np.asarray(self.rng.standard_normal(shape)).astype(dtype)
        return np.asarray(self.rng.integers(0, 2 if dtype.kind == "b" else 8, shape)).astype(dtype)

    def name(self, kind: str) -> str:
        return f"{kind}{len(self.values)}"

    def given(self, shape: Any, dtype: Any = None) -> str:
        """A new input of the graph."""
        name = self.name("x")
        self.inputs[name] = self.values[name] = self.numbers(shape, dtype)
        return name

    def constant(self, array: Any, dtype: Any = None) -> str:
        """An initializer, or what a Constant node makes."""
        name, array = self.name("c"), np.asarray(array, dtype or self.dtype)
        self.values[name] = array
        if self.chance(0.1):
            self.nodes.append(helper.make_node("Constant", [], [name], name=f"Constant_{name}", value=numpy_helper.from_array(array, name)))
        self.constants[name] = array
        return name

    def indices(self, array: Any) -> str:
        return self.constant(array, np.int64)

    def weights(self, shape: Any, dtype: Any = None) -> str:
        """As a rule a constant, as a rule a new one; sometimes an input."""
        kind = np.dtype(dtype or self.dtype)
        known = [name for name, array in self.values.items() if array.shape == tuple(shape) and array.dtype == kind]
        if known and self.chance(0.2):
            return str(self.one(*known))
        return self.given(shape, kind) if self.chance(0.08) else self.constant(self.numbers(shape, kind), kind)

    def shape(self, name: str) -> tuple[int, ...]:
        found: tuple[int, ...] = self.values[name].shape
        return found

    def value(self, low: int = 0, high: int = 5, dtype: Any = None) -> str:
        """One of so many axes: a late one as a rule, or a new input."""
        kind = np.dtype(dtype or self.dtype)
        fits = [name for name, array in self.values.items() if low <= array.ndim <= high and array.dtype == kind and name[0] != "c"]
        if not fits or self.chance(0.1):
            return self.given(self.sizes(self.whole(low, high)), kind)
        return fits[-1] if self.chance(0.6) else str(self.one(*fits))

    def sizes(self, rank: int) -> tuple[int, ...]:
        most = {0: 1, 1: 40, 2: 24, 3: 12, 4: 12}.get(rank, 5)
        behind = self.rng.integers(1, most + 1, max(0, rank - 1)).tolist()
        return (self.batch, *behind)[:rank]

    def image(self) -> str:
        return self.value(4, 4)

    # nodes

    def add(self, op: str, inputs: list[str], outputs: int = 1, sharp: bool = False, domain: str = "", **attributes: Any) -> str | None:
        """The first output of a new node, or None for one that ONNX Runtime refuses."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        made = [f"v{len(self.values) + at}" for at in range(outputs)]
        node = helper.make_node(op, inputs, made, name=f"{op}_{made[0]}", domain=domain, **attributes)
        arrays = {name: self.values[name] for name in read_by(node)}
        try:
            found = session(self.proto([node], arrays, made).SerializeToString()).run(
                None, {name: array for name, array in arrays.items() if name not in self.constants}
            )
        except Exception as error:  # its own kinds, for whatever does not fit
            self.refused[node.name] = str(error)
            return None
        if not all(isinstance(array, np.ndarray) and kept(array) for array in found):
            return None
        empty = any(array.size == 0 for array in (*arrays.values(), *found))
        if empty and (op.endswith("Pool") or "Conv" in op or op.startswith("Reduce")):
            return None  # a window larger than its image, a mean of nothing: each library has its own answer
        self.nodes.append(node)
        self.values |= dict(zip(made, found, strict=True))
        if sharp or self.sharp & arrays.keys():
            self.sharp |= set(made)
        return made[0]

    def proto(self, nodes: list[Any], arrays: dict[str, Any], outputs: list[str], declared: bool = False) -> onnx.ModelProto:
        """A model of nodes that reads arrays, those that are constants as initializers."""
        inputs = [value_info(name, array) for name, array in arrays.items() if name not in self.constants]
        made = {name for node in nodes for name in node.output}
        kept = [numpy_helper.from_array(self.constants[name], name) for name in arrays if name in self.constants and name not in made]
        ends = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
        if declared:
            ends = [value_info(name, self.values[name], () if self.chance() else None) for name in outputs]
        graph = helper.make_graph(nodes, "walk", inputs, ends, kept)
        if declared and self.chance(0.3):
            graph.value_info.extend(value_info(name, self.values[name]) for name in made - set(outputs) if name and self.chance())
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8 if self.opset < 20 else 10)

    def model(self) -> tuple[onnx.ModelProto, dict[str, Any], list[str]]:
        """The whole graph with an output that is its last value, and now and then others; what it is given; its outputs."""
        made = [name for node in self.nodes for name in node.output if node.op_type != "Constant"]
        outputs = [made[-1], *(str(self.one(*made)) for _ in range(self.whole(0, 2)))]
        if self.inputs and self.chance(0.03):
            outputs.append(str(self.one(*self.inputs)))
        outputs = list(dict.fromkeys(outputs))
        read = {name for node in self.nodes for name in read_by(node)}
        arrays = {name: self.values[name] for name in self.values if (name in read or name in outputs) and name[0] in "xc"}
        given = {name: array for name, array in self.inputs.items() if name in arrays}
        return self.proto(self.nodes, arrays, outputs, declared=True), given, outputs


def read_by(node: Any) -> list[str]:
    """Its inputs, and what its graphs read from outside, once each."""
    inner = (name for one in node.attribute if one.HasField("g") for name in sorted(captured(one.g)))
    return list(dict.fromkeys(name for name in (*node.input, *inner) if name))


def captured(graph: Any) -> set[str]:
    """What a graph reads from outside."""
    made = {one.name for one in (*graph.input, *graph.initializer)} | {name for node in graph.node for name in node.output}
    return ({name for node in graph.node for name in read_by(node)} | {one.name for one in graph.output}) - made


def kept(array: Any) -> bool:
    if array.size > MOST or array.dtype.kind not in "fiub":
        return False
    return array.dtype.kind in "iub" or bool(np.isfinite(array).all() and np.abs(array).max(initial=0) <= LARGEST)


def differs(found: Any, right: Any, sharp: bool) -> str:
    """What is wrong with a result, in words; "" where nothing is."""
    if found.shape != right.shape or found.dtype != right.dtype:
        return f"{found.dtype}{found.shape} for {right.dtype}{right.shape}"
    if not right.size:
        return ""
    wide = right.astype(np.float64)
    apart = np.abs(found.astype(np.float64) - wide)
    within = {"float16": 4e-3, "float32": 5e-5, "float64": 1e-8}.get(right.dtype.name, 0) * max(np.abs(wide).max(), 0.1)
    off = ~(apart <= within)
    if off.mean() <= (0.05 if sharp else 0):
        return ""
    return f"{off.sum()} of {off.size} elements, by up to {apart.max():.3g}"
