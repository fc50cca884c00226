# SPDX-License-Identifier: Apache-2.0
"""A network that is ready to run on a CPU: weights prepared once, a place for every value, one native call for what is native in a row.

What calls differ by is the arrays that they are given and a `_Run`: an arena with views of it and the calls that work on them. A call
borrows a run, so any number of threads may call one model at once; as many runs are kept as were in use together.
"""

import math
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from pysim.arguments import whole
from pysim.errors import OperandError, printable
from pysim.machine.cpu import Machine
from pysim.models import operators
from pysim.models.arrays import imagined, products_of, with_orders
from pysim.models.buffers import Buffers, plan_buffers, view_offset
from pysim.models.fusion import INPUT_OP, NORM, OVERWRITE, PARTS, RESIDUAL, RESIDUAL_INPUT, SCALE, fuse
from pysim.models.graph import Array, Graph, Node, Tensor
from pysim.models.plan import Layer, ModelPlan, layers_of, with_layouts
from pysim.problem.gemm import Gemm
from pysim.record.accuracy import Accuracy
from pysim.record.plan import Plan, blocked_shape, on_cpu
from pysim.runtime import cpu
from pysim.runtime.cpu_launch import Prepared
from pysim.runtime.operators import copy_step
from pysim.runtime.steps import Chain, Step

Call = Callable[[], object]


def _supports(node: Node, epilogue: Any) -> bool:
    """The kernels of convolutions and products apply any activation, those of convolutions add a residual, some operators apply ReLU."""
    if epilogue in (NORM, OVERWRITE, RESIDUAL, INPUT_OP, PARTS, SCALE):
        return epilogue == RESIDUAL and node.op == "Conv"
    return node.op in ("Conv", "Linear") or (epilogue == "relu" and node.op in operators.ACTIVATED)


class Timed(NamedTuple):
    """A layer and the median seconds of its calls."""

    layer: Layer
    seconds: float


class Model:
    """y = model(x): arrays in the order of `inputs`, or by their names; the result is an array, or a tuple where there are several."""

    made: Any = Prepared  # what computes convolutions and products with constant weights
    blocks = True  # values may lie in blocks of channels

    def __init__(
        self, graph: Graph, on: Machine, threads: int = 1, executor: cpu.Executor = cpu.LOCAL, accuracy: Accuracy = "standard"
    ) -> None:
        graph = with_orders(fuse(graph, _supports))
        graph = with_layouts(graph, on, accuracy).graph if self.blocks else graph
        constants = dict(graph.constants)
        self._graph = graph = graph._replace(constants=constants)
        self.threads = threads
        buffers = plan_buffers(graph, lambda node: node.op in operators.IN_PLACE)
        self.plan = ModelPlan(layers_of(graph, on, buffers, accuracy, threads), buffers, on.name)
        packs = [layer.plan is not None and layer.node.op != "MatMul" for layer in self.plan.layers]
        last = {name: at for at, layer in enumerate(self.plan.layers) if packs[at] for name in layer.node.inputs[1:RESIDUAL_INPUT]}
        elsewhere = {
            name for layer, packed in zip(self.plan.layers, packs, strict=True) for name in layer.node.inputs[RESIDUAL_INPUT * packed :]
        }
        self._natives = list[Prepared | None]()
        for at, layer in enumerate(self.plan.layers):
            self._natives.append(self._prepared(layer, executor))
            for name in layer.node.inputs[1:RESIDUAL_INPUT] if packs[at] else ():  # packed, and needed no more as they were
                if last[name] == at and name not in elsewhere and name not in graph.outputs:
                    constants.pop(name, None)
        self._idle: list[_Run] = []

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {name: self._graph.tensors[name] for name in self._graph.inputs}

    @property
    def outputs(self) -> dict[str, Tensor]:
        return {name: self._graph.tensors[name] for name in self._graph.outputs}

    def _prepared(self, layer: Layer, executor: cpu.Executor) -> Prepared | None:
        if layer.plan is None or layer.node.op == "MatMul":  # of two values
            return None
        w, *rest = (self._graph.constants[name] for name in layer.node.inputs[1:RESIDUAL_INPUT] if name)
        bias, problem = (rest[0] if rest else None), layer.plan.workload
        weights = np.ascontiguousarray(w).reshape(w.shape if isinstance(problem, Gemm) or w.ndim == 4 else (*w.shape, 1, 1))
        activation = layer.node.attributes.get("activation")
        made: Prepared = self.made(problem, weights, on_cpu(layer.plan)[0], bias, activation, self.threads, executor, layer.plan.layout)
        return made

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        given = self._given(arrays, named)
        run = self._taken()
        try:
            run.take(given)
            for call in run.calls:
                call()
            results = [np.array(run.values[name]) for name in self._graph.outputs]
        finally:
            self._idle.append(run)
        first = next(iter((*arrays, *named.values())), None)
        alike = [cpu.like(first, y) for y in results]
        return alike[0] if len(alike) == 1 else tuple(alike)

    def profile(self, *arrays: Any, calls: int = 5, **named: Any) -> list[Timed]:
        """Where the time goes: median seconds of each layer over so many calls, clocks included, after one that is not counted."""
        calls = whole(calls, "calls", 1)
        given, run = self._given(arrays, named), self._taken()
        run.take(given)
        spent = np.empty((calls + 1, len(run.steps)))
        for row in spent:
            for at, step in enumerate(run.steps):
                start = time.perf_counter()
                step()
                row[at] = time.perf_counter() - start
        self._idle.append(run)
        return [Timed(layer, float(seconds)) for layer, seconds in zip(self.plan.layers, np.median(spent[1:], axis=0), strict=True)]

    def _taken(self) -> "_Run":
        try:
            return self._idle.pop()
        except IndexError:
            return _Run(self._graph, self.plan, self._natives, self.threads)

    def _given(self, arrays: Sequence[Any], named: dict[str, Any]) -> dict[str, Array]:
        """The inputs by name, dense; OperandError says what does not fit."""
        names = self._graph.inputs
        if len(arrays) > len(names):
            raise OperandError(f"the model takes {len(names)} arrays ({', '.join(map(printable, names))}), not {len(arrays)}")
        given = dict(zip(names, arrays, strict=False))
        for name, x in named.items():
            if name not in names or name in given:
                listed = ", ".join(map(printable, names))
                raise OperandError(f'no input that is still open is called "{printable(name)}"; there are: {listed}')
            given[name] = x
        if missing := [printable(name) for name in names if name not in given]:
            raise OperandError(f"the model's inputs {', '.join(missing)} are not given")
        return {name: _dense(given[name], name, self._graph.tensors[name]) for name in names}


def _dense(x: Any, name: str, tensor: Tensor) -> Array:
    array = cpu.as_numpy(x, name)
    if array.shape != tensor.shape or array.dtype != tensor.dtype:
        have = f"{array.dtype} of shape {array.shape}"
        raise OperandError(f'the input "{printable(name)}" is {have}; the model takes {tensor.dtype} of shape {tensor.shape}')
    return cpu.dense(array, name, tensor.shape)


class _Run:
    """Values in an arena, and the steps that compute one from the other. What reads the caller's arrays finds them by `values`."""

    def __init__(self, graph: Graph, plan: ModelPlan, natives: Sequence[Prepared | None], threads: int) -> None:
        buffers = plan.buffers
        self._arena = cpu.aligned(buffers.nbytes, np.uint8)
        self.values: dict[str, Array] = dict(graph.constants)
        for name, offset in buffers.offsets.items():
            tensor = graph.tensors[name]
            self.values[name] = np.ndarray(tensor.shape, tensor.dtype, self._arena, offset)
        self._fixed = graph.constants.keys() | buffers.offsets.keys()  # values that lie in one place in every call
        self._threads = threads
        products = [_workspace_bytes(layer, graph, threads) for layer in plan.layers]
        self._workspace = cpu.aligned(max([64, *products, *(native.workspace_bytes for native in natives if native is not None)]), np.uint8)
        self.steps = [self._step(layer, graph, native, buffers) for layer, native in zip(plan.layers, natives, strict=True)]
        self.calls = _chained(self.steps)

    def take(self, given: dict[str, Array]) -> None:
        self.values.update(given)

    def _step(self, layer: Layer, graph: Graph, native: Prepared | None, buffers: Buffers) -> Call:
        node, values = layer.node, self.values
        names = [name for name in node.inputs if name]
        if native is not None:
            if (step := self._bound(node, native)) is not None:
                return step
            return _prepared(native, values, names[0], values[node.output], *node.inputs[RESIDUAL_INPUT:])
        if (offset := view_offset(graph, node)) is not None:
            return self._view(node, graph, buffers, offset)
        if "reference" in node.attributes:
            run, outs = operators.by_reference(node), [values.get(name) for name in node.outputs]
            return lambda: run(outs, [values[name] for name in names])
        if node.op == "Concat":
            return self._concat(node, graph, buffers)
        if node.op == "MatMul" and layer.plan is not None:
            return self._products(layer, layer.plan)
        operator, out, attributes = operators.OPERATORS[node.op], values[node.output], node.attributes
        if node.op in operators.NATIVE and self._fixed.issuperset(names):
            step = operators.NATIVE[node.op](out, [values[name] for name in names], attributes)
            if step is not None:
                return step
        return lambda: operator(out, [values[name] for name in names], attributes)

    def _products(self, layer: Layer, plan: Plan) -> Call:
        """As many products as there are, of what the arrays are in each call."""
        node, (schedule, *_) = layer.node, on_cpu(plan)

        def bound() -> Step:
            arrays = [self.values[name] for name in node.inputs]
            products = products_of(self.values[node.output], arrays, node.attributes)
            return products.step(schedule, self._threads, self._workspace, node.attributes.get("alpha", 1.0))

        return bound() if self._fixed.issuperset(node.inputs) else lambda: bound()()

    def _bound(self, node: Node, native: Prepared) -> Step | Chain | None:
        """The layer with its arrays, where they are the same ones in every call."""
        values, (x, *residual) = self.values, (node.inputs[0], *node.inputs[RESIDUAL_INPUT:])
        if native.executor is not cpu.LOCAL or not self._fixed.issuperset((x, *residual)):
            return None
        read, written = native.shapes
        image, out, *added = values[x].reshape(read), *(values[name].reshape(written) for name in (node.output, *residual))
        return native.step(image, out, self._workspace, *added)

    def _concat(self, node: Node, graph: Graph, buffers: Buffers) -> Call:
        """Copies the parts that do not lie in the result already."""
        values, block = self.values, node.attributes.get("blocks", (1, 1))[1]
        out, *shapes = (blocked_shape(graph.tensors[name].shape, block) for name in (node.output, *node.inputs))
        places = operators.parts(values[node.output].reshape(out), shapes, node.attributes["axis"])
        copied = [
            (to, name, shape)
            for to, name, shape in zip(places, node.inputs, shapes, strict=True)
            if (node.output, name) not in buffers.joined
        ]
        if self._fixed.issuperset(name for _, name, _ in copied):
            steps = [copy_step(to, values[name].reshape(shape)) for to, name, shape in copied]
            if copied and None not in steps:
                return Chain([step for step in steps if step])

        def concat() -> None:
            for to, name, shape in copied:
                to[...] = values[name].reshape(shape)

        return concat if copied else _nothing

    def _view(self, node: Node, graph: Graph, buffers: Buffers, offset: int) -> Call:
        """Nothing to do for a value of the arena; what the caller gave is seen under another shape, from so many bytes on, in each call."""
        values, (name,), (shape, dtype) = self.values, node.inputs[:1], graph.tensors[node.output]
        first, size = offset // dtype.itemsize, math.prod(shape)
        if node.output in buffers.offsets:
            return _nothing

        def view() -> None:
            values[node.output] = values[name].reshape(-1)[first : first + size].reshape(shape)

        return view


def _workspace_bytes(layer: Layer, graph: Graph, threads: int) -> int:
    """Of products of two values, whose operands are not prepared."""
    if layer.plan is None or layer.node.op != "MatMul":
        return 0
    return imagined(layer.node, graph).workspace_bytes(on_cpu(layer.plan)[0], threads)


def _nothing() -> None:
    """What needs no call."""


def _chained(steps: Sequence[Call]) -> list[Call]:
    """The same calls, native ones that follow each other as one."""
    calls: list[Call] = []
    for native, group in groupby((step for step in steps if step is not _nothing), lambda step: isinstance(step, Step | Chain)):
        together: list[Any] = list(group)
        calls += [Chain([one for step in together for one in (step.steps if isinstance(step, Chain) else [step])])] if native else together
    return calls


def _prepared(prepared: Prepared, values: dict[str, Array], x: str, out: Array, residual: str = "") -> Call:
    read, written = prepared.shapes
    y = out.reshape(written)
    if not residual:
        return lambda: prepared(values[x].reshape(read), y)
    return lambda: prepared(values[x].reshape(read), y, values[residual].reshape(written))
