# SPDX-License-Identifier: Apache-2.0
"""A network ready to run on a CPU: prepared weights, an arena for all values, consecutive native operators as one native call.

Each call borrows a `_Run`, an arena with the calls that work on it, so any number of threads may call one model at once. A model keeps as
many runs as were in use at the same time. Native steps read the caller's arrays and write new results where they are: each call moves
their addresses.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pysim.arguments import whole
from pysim.errors import OperandError, choose, printable
from pysim.file_io import path_to_save
from pysim.machine.cpu import Machine
from pysim.network import operators, saved
from pysim.network.arena import Buffers, plan_buffers, view_offset
from pysim.network.fingerprint import entry
from pysim.network.fusion import RESIDUAL_INPUT
from pysim.network.graph import Array, Graph, Node, Tensor
from pysim.network.halves.ends import Ends, with_ends
from pysim.network.halves.narrow import prepared_type
from pysim.network.integers.layers import INTEGER_LAYERS, IntegerLayer
from pysim.network.native_ops.along import SEVERAL
from pysim.network.native_ops.arrays import products_of, shapes_of_products
from pysim.network.plan import OF_TWO, Layer, NetworkPlan, layers_of
from pysim.network.rewrites import Target, rewritten
from pysim.problem.gemm import Gemm
from pysim.record.accuracy import Accuracy
from pysim.record.plan import Plan, lying, on_cpu
from pysim.runtime import cpu
from pysim.runtime.cpu import library
from pysim.runtime.cpu_launch import Launch, Prepared
from pysim.runtime.integer_steps import BYTES, quantize_range_step
from pysim.runtime.operators import BITS, copy_step
from pysim.runtime.steps import Chain, Slot, Step, addresses

Call = Callable[[], object]


def _buffers_of(graph: Graph) -> Buffers:
    return plan_buffers(graph, operators.overwritten)


class Timed(NamedTuple):
    """A layer and its median seconds."""

    layer: Layer
    seconds: float


class Network:
    """y = model(x): arrays in the order of `inputs` or by name; the result is an array, or a tuple of several."""

    prepared_type: Any = Prepared  # computes convolutions and products with constant weights
    blocks = True  # values may be in NCHWc
    about: Mapping[str, Any] = {}  # what a front end has saved with it

    def __init__(self, graph: Graph, on: Machine, threads: int = 1, accuracy: Accuracy = "standard") -> None:
        graph = with_ends(rewritten(graph, Target(on, threads, accuracy, self.blocks)), graph)
        self._graph, self._ends = (graph := graph._replace(constants=(constants := dict(graph.constants)))), Ends(graph)
        self.threads, self.accuracy, self._idle, self._calling = threads, accuracy, list[_Run](), _calling(accuracy)
        buffers = _buffers_of(graph)
        self.plan = NetworkPlan(layers_of(graph, on, buffers, accuracy, threads), buffers, on.name)
        packs = [layer.plan is not None and layer.node.op not in OF_TWO for layer in self.plan.layers]
        last_use = {name: at for at, layer in enumerate(self.plan.layers) if packs[at] for name in layer.node.inputs[1:RESIDUAL_INPUT]}
        read_unpacked = {
            name for layer, packed in zip(self.plan.layers, packs, strict=True) for name in layer.node.inputs[RESIDUAL_INPUT * packed :]
        }
        self._natives = list[Prepared | IntegerLayer | None]()
        for at, layer in enumerate(self.plan.layers):
            self._natives.append(self._prepared(layer))
            for name in layer.node.inputs[1:RESIDUAL_INPUT] if packs[at] else ():  # free weights once all their layers packed them
                if last_use[name] == at and name not in read_unpacked and name not in graph.outputs:
                    constants.pop(name, None)

    @classmethod
    def of_file(cls, path: Path, on: Machine, threads: int) -> "Network":
        """The network that `save` wrote."""
        made, (graph, layers, natives, accuracy, about) = cls.__new__(cls), saved.load(path, on, threads)
        made.about = about
        made._graph, made._ends, made._natives, made.threads, made._idle = graph, Ends(graph), natives, threads, []
        made.accuracy, made._calling = accuracy, _calling(accuracy)
        made.plan = NetworkPlan(layers, _buffers_of(graph), on.name)
        return made

    @property
    def held_bytes(self) -> int:
        """Bytes of weights, prepared or as they are, and of the values of one call."""
        prepared = sum(one.bytes.nbytes for one in self._natives if isinstance(one, Prepared))
        return prepared + sum(one.nbytes for one in self._graph.constants.values()) + self.plan.buffers.nbytes

    def save(self, path: str | Path, about: Mapping[str, Any] | None = None) -> None:
        """Writes the network with its plans and prepared weights, for `pysim.load(path)` of another process (`pysim.network.saved`)."""
        parts = saved.Parts(self._graph, self.plan.layers, self._natives, self.accuracy, about or self.about)
        saved.save(path_to_save(path), parts, self.plan.machine, self.threads)

    def _repr_html_(self) -> str:
        """What notebooks show: its plan."""
        return self.plan._repr_html_()

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {name: self._ends.declared(name) for name in self._graph.inputs}

    @property
    def outputs(self) -> dict[str, Tensor]:
        return {name: self._ends.declared(name) for name in self._graph.outputs}

    def _prepared(self, layer: Layer) -> Prepared | IntegerLayer | None:
        if layer.plan is None or layer.node.op in OF_TWO:  # which have no constant weights
            return None
        if layer.node.op in INTEGER_LAYERS:
            return IntegerLayer(layer.node, self._graph.tensors[layer.node.inputs[0]], layer.plan, self.threads)
        w, *rest = (self._graph.constants[name] for name in layer.node.inputs[1:RESIDUAL_INPUT] if name)
        bias, problem = (rest[0] if rest else None), layer.plan.workload
        weights = np.ascontiguousarray(w).reshape(w.shape if isinstance(problem, Gemm) else problem.filter_shape)
        activation = layer.node.attributes.get("activation")
        try:
            prepared: Prepared = prepared_type(layer.plan, self.prepared_type).of(layer.plan, weights, bias, activation, self.threads)
        except OperandError as error:
            raise OperandError(f'{layer.node.op} "{printable(layer.node.name)}": {error}') from None
        return prepared

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        inputs = self._inputs_by_name(arrays, named)
        first = next(iter((*arrays, *named.values())), None)
        results = zip(self._graph.outputs, self._results(inputs), strict=True)
        outputs = [cpu.like(first, self._ends.as_declared(name, y)) for name, y in results]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def results(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs, of dense arrays that have the shapes of the inputs, in their order. Steps read them by address alone, so their types
        are looked at: a number of Python's comes as one of float64, whatever it is multiplied with."""
        named, tensors = zip(self._graph.inputs, arrays, strict=True), self._graph.tensors
        return self._results({name: x if x.dtype == tensors[name].dtype else x.astype(tensors[name].dtype) for name, x in named})

    def _results(self, inputs: dict[str, Array]) -> list[Array]:
        run = self._borrow_run()
        try:
            run.begin(inputs, run.moves)
            with self._calling():
                for call in run.calls:
                    call()
            return run.results(self._graph.outputs)
        finally:
            run.end()
            self._idle.append(run)

    def profile(self, *arrays: Any, calls: int = 5, **named: Any) -> list[Timed]:
        """The median seconds of each layer over `calls` calls, clock overhead included, after one warm-up call."""
        calls = whole(calls, "calls", 1)
        inputs, run = self._inputs_by_name(arrays, named), self._borrow_run()
        run.begin(inputs, run.step_moves)
        spent = np.empty((calls + 1, len(run.steps)))
        for row in spent:
            for at, step in enumerate(run.steps):
                start = time.perf_counter()
                step()
                row[at] = time.perf_counter() - start
        run.end()
        self._idle.append(run)
        return [Timed(layer, float(seconds)) for layer, seconds in zip(self.plan.layers, np.median(spent[1:], axis=0), strict=True)]

    def fingerprint(self, *arrays: Any, **named: Any) -> list[dict[str, Any]]:
        """Of each layer the node, the contract and the digest of its results (`pysim.network.fingerprint`)."""
        inputs, run = self._inputs_by_name(arrays, named), self._borrow_run()
        run.begin(inputs, run.step_moves)
        found = []
        for layer, step in zip(self.plan.layers, run.steps, strict=True):
            with self._calling():
                step()
            if layer.node.op not in ("Reorder", "View"):
                found.append(entry(layer, [run.values[name] for name in layer.node.outputs if name]))
        run.end()
        self._idle.append(run)
        return found

    def _borrow_run(self) -> "_Run":
        try:
            return self._idle.pop()
        except IndexError:
            return _Run(self._graph, self.plan, self._natives, self.threads, self._ends)

    def _inputs_by_name(self, arrays: Sequence[Any], named: dict[str, Any]) -> dict[str, Array]:
        """The inputs as dense arrays; OperandError if they do not match the model's."""
        names = self._graph.inputs
        if not named and len(arrays) == len(names) and all(type(x) is np.ndarray for x in arrays):
            return dict(zip(names, map(self._ends.dense, arrays, names), strict=True))
        if len(arrays) > len(names):
            one = "one array" if len(names) == 1 else f"{len(names)} arrays"
            raise OperandError(f"the model takes {one} ({', '.join(map(printable, names))}), but {len(arrays)} are given")
        if any(isinstance(one, Mapping) for one in arrays):
            raise OperandError("a dict is given in the place of an array; inputs go by their places or as keywords: model(**inputs)")
        given = dict(zip(names, arrays, strict=False))
        for name, x in named.items():
            if name in given:
                raise OperandError(f'the input "{printable(name)}" is given twice: by its place and by its name')
            if name not in names:
                raise OperandError(f'the model has no input "{printable(name)}"; {choose(name, map(printable, names))}')
            given[name] = x
        if missing := [printable(name) for name in names if name not in given]:
            raise OperandError(f"the model's inputs {', '.join(missing)} are not given")
        return {name: self._ends.dense(given[name], name) for name in names}


def _calling(accuracy: Accuracy) -> Callable[[], AbstractContextManager[None]]:
    """What the calls of a network of this accuracy are in."""
    return cpu.rounding_once if accuracy == "reproducible" else nullcontext


Moves = dict[str, list[tuple[Slot, int]]]  # for the values that lie elsewhere in each call, where steps have their addresses


class _Run:
    """An arena and the calls that compute its values. Native steps are bound to stand-ins for the caller's arrays; Python's calls look all
    arrays up in `values`. Outputs in `_still`, by their places in the arena, are written to new memory; others are copied,
    but for `_lent`, which are inputs that a conversion of the ends copies."""

    def __init__(
        self, graph: Graph, plan: NetworkPlan, natives: Sequence[Prepared | IntegerLayer | None], threads: int, ends: Ends
    ) -> None:
        buffers = plan.buffers
        self._arena = cpu.aligned(buffers.nbytes, np.uint8)
        self.values: dict[str, Array] = dict(graph.constants)
        for name, offset in buffers.offsets.items():
            tensor = graph.tensors[name]
            self.values[name] = np.ndarray(tensor.shape, tensor.dtype, self._arena, offset)
        self._stand_ins = {name: np.empty(*graph.tensors[name]) for name in graph.inputs}  # never touched, so they have no memory
        self.values |= self._stand_ins
        bound = [name for name, array in self._stand_ins.items() if array.size]
        self._moving = set(bound)  # at another address in each call, which steps are told
        self._fixed = {*graph.constants, *buffers.offsets, *bound}  # what native steps may be bound to
        self._views: list[Call] = []
        self._threads = threads
        products = [_workspace_bytes(layer, graph, threads) for layer in plan.layers]
        self._workspace = cpu.aligned(max([64, *products, *(native.workspace_bytes for native in natives if native is not None)]), np.uint8)
        self.steps = [self._step(layer, graph, native, buffers) for layer, native in zip(plan.layers, natives, strict=True)]
        self.calls = _join_native(self.steps)
        makers = {name: step for layer, step in zip(plan.layers, self.steps, strict=True) for name in layer.node.outputs}
        self._written = {name: _before_views(name, graph) for name in graph.outputs}
        self._shapes = {name: graph.tensors[name].shape for name in graph.outputs}
        self._still = {name: self.values[name] for name in self._written.values() if self._is_written_once(name, graph, makers, buffers)}
        self._results = {name: cpu.Results(memory.shape, memory.dtype) for name, memory in self._still.items()}
        copied = [name for name in dict.fromkeys(graph.outputs) if self._written[name] not in self._still]
        once = {name for name in copied if graph.outputs.count(name) == 1 and name not in graph.inputs}
        self._lent = {name for name in once if self._written[name] in graph.inputs and ends.converts(self._written[name], name)}
        self._copies = {name: cpu.Results(self.values[name].shape, self.values[name].dtype) for name in copied}
        self._between_calls = self._stand_ins | self._still
        self.moves, self.step_moves = (self._moves(calls, bound, makers) for calls in (self.calls, self.steps))

    def _is_written_once(self, name: str, graph: Graph, makers: dict[str, Call], buffers: Buffers) -> bool:
        """Whether an output can be written to memory of the caller's: its maker writes it alone, and nothing but views reads it."""
        made = {one: node for node in graph.nodes for one in node.outputs}.get(name)
        if made is None or name not in buffers.offsets or len(graph.users()[name]) != 1 or not self.values[name].nbytes:
            return False
        joined = any(name == result for result, _ in buffers.joined)  # parts of it are computed in the arena
        in_place = any(np.may_share_memory(self.values[name], self.values[one]) for one in made.inputs if one in self.values)
        return not (joined or in_place) and view_offset(graph, made) is None and isinstance(makers[name], Step | Chain | _ByName)

    def _moves(self, calls: Sequence[Call], inputs: Sequence[str], makers: dict[str, Call]) -> Moves:
        native = [call for call in calls if isinstance(call, Step | Chain)]
        placed = [one for call in native for one in addresses(call.slots())]
        moves = {name: _offsets(placed, self._stand_ins[name]) for name in inputs}
        for name, memory in self._still.items():
            maker = makers[name]
            steps = maker.steps if isinstance(maker, Chain) else (maker,)
            slots = [slot for call in native for one in steps if isinstance(one, Step) for slot in call.slots(one)]
            moves[name] = _offsets(addresses(slots), memory)
        return moves

    def begin(self, inputs: dict[str, Array], moves: Moves) -> None:
        """Binds the steps to the caller's arrays and to new memory for results."""
        values, pointer = self.values, library()[0].from_buffer
        values.update(inputs)
        for name, results in self._results.items():
            values[name] = results.take()
        for view in self._views:
            view()
        for name, slots in moves.items():
            start: Any = pointer(values[name]) if slots else None
            for (struct, field), offset in slots:
                setattr(struct, field, start + offset)

    def results(self, names: Sequence[str]) -> list[Array]:
        return [self._result(name) for name in names]

    def _result(self, name: str) -> Array:
        written = self._written[name]
        if written in self._still:
            return self.values[written].reshape(self._shapes[name])
        if name in self._lent:
            return self.values[name]
        np.copyto(made := self._copies[name].take(), self.values[name])
        return made

    def end(self) -> None:
        """Lets go of the caller's arrays and of results, which are the caller's alone."""
        self.values.update(self._between_calls)
        for view in self._views:
            view()

    def _step(self, layer: Layer, graph: Graph, native: Prepared | IntegerLayer | None, buffers: Buffers) -> Call:
        node, values = layer.node, self.values
        names = [name for name in node.inputs if name]
        if native is not None:
            if (step := self._bound_step(node, native)) is not None:
                return step
            if isinstance(native, IntegerLayer):
                layer_of, out = native, values[node.output]
                return lambda: layer_of(*_shaped(layer_of, values, names, out))
            return _prepared(native, values, names[0], values[node.output], *node.inputs[RESIDUAL_INPUT:])
        if (offset := view_offset(graph, node)) is not None:
            return self._view(node, graph, buffers, offset)
        if "reference" in node.attributes:
            run = operators.by_reference(node)
            return _ByName(lambda: run([values.get(name) for name in node.outputs], [values[name] for name in names]))
        if node.op in SEVERAL:
            return self._several(node)
        if node.op == "DynamicQuantizeLinear":
            return self._quantize_range(node)
        if node.op == "Concat":
            return self._concat(node, graph, buffers)
        if node.op in OF_TWO and layer.plan is not None:
            return self._products(layer, layer.plan) if node.op == "MatMul" else self._conv_of_two(node, layer.plan)
        operator, attributes = operators.OPERATORS[node.op], node.attributes
        if node.op in operators.NATIVE and self._fixed.issuperset(names):
            step = operators.NATIVE[node.op](values[node.output], [values[name] for name in names], attributes)
            if step is not None:
                for one in step.steps if isinstance(step, Chain) else (step,):
                    one.on_threads(self._threads)
                return step
        return _ByName(lambda: operator(values[node.output], [values[name] for name in names], attributes))

    def _several(self, node: Node) -> Call:
        """An operator with several results."""

        def bound() -> Step | Chain | None:
            outs, inputs = ([self.values[name] if name else None for name in names] for names in (node.outputs, node.inputs))
            return SEVERAL[node.op](outs, inputs, node.attributes)

        step = bound() if self._fixed.issuperset(filter(None, node.inputs)) else None
        return step or _ByName(lambda: (bound() or _nothing)())

    def _products(self, layer: Layer, plan: Plan) -> Call:
        """The products of a MatMul."""
        node, (schedule, *_) = layer.node, on_cpu(plan)

        def bound() -> Step:
            arrays = [self.values[name] for name in node.inputs]
            products = products_of(self.values[node.output], arrays, node.attributes)
            return products.step(schedule, self._threads, self._workspace, node.attributes.get("alpha", 1.0))

        return bound() if self._fixed.issuperset(node.inputs) else _ByName(lambda: bound()())

    def _conv_of_two(self, node: Node, plan: Plan) -> Call:
        """A convolution by computed filters, which each call prepares."""
        launch, (x, w, *bias) = Launch.of(plan, self._threads), node.inputs
        added, values = (bias or [""])[0], self.values
        return _ByName(lambda: launch.run(values[x], values[w], values[node.output], values[added] if added else None))

    def _quantize_range(self, node: Node) -> Call:
        """DynamicQuantizeLinear; results that nothing reads get memory of their own."""
        (name,), kinds = node.inputs, (np.uint8, np.float32, np.uint8)
        x = self.values[name] if name in self._fixed else None
        shapes = [() if at or x is None else x.shape for at in range(3)]
        outs = [self.values[one] if one else np.empty(shape, kind) for one, shape, kind in zip(node.outputs, shapes, kinds, strict=True)]
        if x is not None:
            return quantize_range_step(outs[0], x, outs[1], outs[2])
        return lambda: quantize_range_step(outs[0], self.values[name], outs[1], outs[2])()

    def _bound_step(self, node: Node, native: Prepared | IntegerLayer) -> Step | Chain | None:
        """The layer bound to its arrays, if these are the same in every call."""
        if isinstance(native, IntegerLayer):
            if native.executor is not cpu.LOCAL or not self._fixed.issuperset(node.inputs):
                return None
            image, y, *more = _shaped(native, self.values, node.inputs, self.values[node.output])
            return native.step(image, y, self._workspace, *more)
        values, (x, *residual) = self.values, (node.inputs[0], *node.inputs[RESIDUAL_INPUT:])
        if native.executor is not cpu.LOCAL or not self._fixed.issuperset((x, *residual)):
            return None
        read, written = native.shapes
        image, out, *added = _bits(values[x]).reshape(read), *(_bits(values[name]).reshape(written) for name in (node.output, *residual))
        step = native.step(image, out, self._workspace, *added)
        return step if isinstance(step, Step | Chain) or self._moving.isdisjoint((x, *residual)) else None

    def _concat(self, node: Node, graph: Graph, buffers: Buffers) -> Call:
        """Copies the parts that were not computed in the result."""
        values, block, axis = self.values, node.attributes.get("blocks", (1, 1))[1], node.attributes["axis"]
        last = block > 1 and graph.tensors[node.output].dtype in BYTES
        out, *shapes = (lying(graph.tensors[name].shape, "nhwc" if last else "nchw", block) for name in (node.output, *node.inputs))
        places = operators.parts(_pairs(values[node.output].reshape(out)), shapes, 3 if last else axis)
        copied = [
            (to, name, shape)
            for to, name, shape in zip(places, node.inputs, shapes, strict=True)
            if (node.output, name) not in buffers.joined
        ]
        if self._fixed.issuperset(name for _, name, _ in copied):
            steps = [copy_step(to, _pairs(values[name].reshape(shape))) for to, name, shape in copied]
            if copied and None not in steps:
                return Chain([step for step in steps if step])

        def concat() -> None:
            for to, name, shape in copied:
                to[...] = _pairs(values[name].reshape(shape))

        return concat if copied else _nothing

    def _view(self, node: Node, graph: Graph, buffers: Buffers, offset: int) -> Call:
        """A view of a value in the arena needs no call; a view of a caller's array is made in each call."""
        values, (name,), (shape, dtype) = self.values, node.inputs[:1], graph.tensors[node.output]
        first, size = offset // dtype.itemsize, math.prod(shape)
        if node.output in buffers.offsets:
            return _nothing

        def view() -> None:
            values[node.output] = values[name].reshape(-1)[first : first + size].reshape(shape)

        view()
        self._views.append(view)
        if name in self._fixed:
            self._fixed.add(node.output)
        if name in self._moving:
            self._moving.add(node.output)
        return _nothing


def _before_views(name: str, graph: Graph) -> str:
    """The value that an output is a view of, if nothing else reads that value; else the output."""
    made, users = {one: node for node in graph.nodes for one in node.outputs}, graph.users()
    while (node := made.get(name)) is not None and node.op == "View" and len(users[name]) == len(users[node.inputs[0]]) == 1:
        name = node.inputs[0]
    return name


def _offsets(placed: Sequence[tuple[Slot, int]], memory: Array) -> list[tuple[Slot, int]]:
    """The slots with addresses in an array, and their offsets there."""
    start = memory.ctypes.data
    return [(slot, address - start) for slot, address in placed if 0 <= address - start < memory.nbytes]


def _workspace_bytes(layer: Layer, graph: Graph, threads: int) -> int:
    """The workspace of a product of two values; 0 of other layers."""
    if layer.plan is None or layer.node.op != "MatMul":
        return 0
    return shapes_of_products(layer.node, graph).workspace_bytes(on_cpu(layer.plan)[0], threads)


class _ByName:
    """A call that looks up all its arrays by their names."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self) -> None:
        self._call()


def _nothing() -> None:
    """The call of a layer that computes nothing."""


def _join_native(steps: Sequence[Call]) -> list[Call]:
    """The calls with consecutive native ones joined."""
    calls: list[Call] = []
    for native, group in groupby((step for step in steps if step is not _nothing), lambda step: isinstance(step, Step | Chain)):
        together: list[Any] = list(group)
        calls += [Chain([one for step in together for one in (step.steps if isinstance(step, Chain) else [step])])] if native else together
    return calls


def _shaped(layer: IntegerLayer, values: Mapping[str, Array], names: Sequence[str], out: Array) -> list[Array]:
    """The arrays of an integer layer: its input and result, and the scale and zero of a dynamic input."""
    read, written = layer.shapes
    return [values[names[0]].reshape(read), out.reshape(written), *(values[name] for name in names[1:])]


def _prepared(prepared: Prepared, values: dict[str, Array], x: str, out: Array, residual: str = "") -> Call:
    read, written = prepared.shapes
    y = _bits(out).reshape(written)
    if not residual:
        return lambda: prepared(_bits(values[x]).reshape(read), y)
    return lambda: prepared(_bits(values[x]).reshape(read), y, _bits(values[residual]).reshape(written))


def _pairs(value: Array) -> Array:
    """bf16 in blocks, to be copied, two and two as one float."""
    return value.view(np.float32) if value.dtype == BITS else value


def _bits(value: Array) -> Array:
    """A value as kernels take it: bf16 by its bits."""
    return value.view(np.uint16) if value.dtype == BITS else value
