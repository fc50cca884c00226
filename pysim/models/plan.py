# SPDX-License-Identifier: Apache-2.0
"""What will run of a network, and how long that is expected to take: one layer a node that is left after fusion.

Convolutions and products have plans for caches as a layer finds them (`pysim.record.state`, "chained"): the layer before has just written
its input, and since its weights were read last the network has gone over its own size of other memory. A product of a constant matrix is
planned as one whose matrix is packed once, of one row as the 1x1 convolution that it is; one of two values as many as their other axes say.

A residual and what other operators read and write moves at the rate of the level of the caches that holds it all; pools besides pass over
rows in L1, reading an element for each tap of a column and of a row. Activations that kernels' stores do not have pass over
results in L1 (`pysim.cachemodel.cpu.finish`). Until a layer computes it waits for START_LINES from memory.
"""

from functools import lru_cache
from math import log2, prod
from typing import Any, NamedTuple

import numpy as np

from pysim import planner
from pysim.cachemodel.cpu.finish import finish_cycles
from pysim.errors import PlanError, printable
from pysim.machine.cpu import Machine, Unit
from pysim.models.arrays import imagined
from pysim.models.buffers import Buffers, offset_in
from pysim.models.fusion import PARAMETERS, activation_of
from pysim.models.graph import Graph, Node, Tensor
from pysim.models.layouts import Laid, laid_out
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.accuracy import Accuracy
from pysim.record.plan import Layout, Plan
from pysim.record.state import State
from pysim.registry.cpu import loop_targets, nchwc_kernels

_DTYPES = {"float32": "f32", "float64": "f64"}
START_LINES = 12  # of code, structs, weights, that a layer waits for one after another (Zen 5: layers of one pixel, 1.9 us each)


class Layer(NamedTuple):
    """A node, the plan of its convolution or product, which is run so many times, and the predicted seconds of what else it does."""

    node: Node
    plan: Plan | None
    other_seconds: float = 0.0
    times: int = 1

    @property
    def fused(self) -> tuple[str, ...]:
        """What its native epilogue or its weights take in."""
        return self.node.absorbed

    @property
    def predicted_seconds(self) -> float:
        return self.times * (self.plan.seconds or 0.0 if self.plan else 0.0) + self.other_seconds

    def to_dict(self) -> dict[str, Any]:
        about = {"node": self.node.name, "op": self.node.op, "fused": list(self.fused), "predicted_seconds": self.predicted_seconds}
        return about | ({"problem": self.plan.problem, "plan": self.plan.name} if self.plan else {})


class ModelPlan(NamedTuple):
    layers: tuple[Layer, ...]
    buffers: Buffers
    machine: str

    @property
    def predicted_seconds(self) -> float:
        return sum(layer.predicted_seconds for layer in self.layers)

    @property
    def layouts(self) -> tuple[str, ...]:
        """Changes of layout between layers, with what they are predicted to take."""
        changes = [layer for layer in self.layers if layer.node.op == "Reorder"]
        return tuple(f"{printable(one.node.name)}: {_told(one.node)}, {one.predicted_seconds * 1e6:.0f} us" for one in changes)

    def explain(self) -> str:
        """The chain of layers as text: what each computes, what was fused into it, its plan and predicted time."""
        lines = [f"{len(self.layers)} layers on {self.machine}; values in {self.buffers.nbytes:,} bytes"]
        for layer in self.layers:
            fused = f" + {', '.join(map(printable, layer.fused))}" if layer.fused else ""
            how = f"  {layer.plan.problem}  {layer.plan.name}" if layer.plan else ""
            how += f"  {layer.plan.layout}" if layer.plan and layer.plan.layout != "nchw" else ""
            lines.append(f"{layer.node.op:<12} {printable(layer.node.name)}{fused}{how}  {layer.predicted_seconds * 1e6:.0f} us")
        lines.append(f"predicted: {self.predicted_seconds * 1e3:.3g} ms")
        lines += self.layouts
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ModelPlan of {len(self.layers)} layers on {self.machine}: {self.predicted_seconds:.3g} s>"


def _told(node: Node) -> str:
    block = f"nchw{node.attributes['block']}c"
    return f"{block} to nchw" if node.attributes["to_planes"] else f"nchw to {block}"


def problem_of(node: Node, graph: Graph) -> tuple[Workload | None, int]:
    """The convolution or product that a node is run as, and how many times."""
    if node.op == "Conv":
        return node.attributes["problem"], 1
    if node.op == "MatMul" and "reference" not in node.attributes:
        products = imagined(node, graph)
        return products.workload, products.count
    if node.op != "Linear":
        return None, 1
    x, (filters, channels) = graph.tensors[node.inputs[0]], graph.tensors[node.inputs[1]].shape
    rows, dtype = x.nbytes // x.dtype.itemsize // channels, _DTYPES[x.dtype.name]
    if rows > 1:
        return Gemm(m=rows, n=filters, k=channels, trans_b=True, dtype=dtype), 1
    return Conv(channels=channels, height=1, width=1, filters=filters, kernel_h=1, kernel_w=1, dtype=dtype), 1


@lru_cache(maxsize=4096)
def _plan(
    problem: Workload,
    on: Machine,
    accuracy: Accuracy,
    layout: Layout = "nchw",
    state: State = "chained",
    threads: int = 1,
    prepared: bool = True,
) -> Plan:
    return planner.plan(problem, on, accuracy=accuracy, state=state, layout=layout, threads=threads, prepared=prepared)


def _state(node: Node, graph: Graph) -> State:
    """Of the caches when a layer begins: what the network is given lies wherever the caller had it."""
    return "cold" if node.inputs[0] in graph.inputs else "chained"


def _layout(read: int, written: int) -> Layout:
    """Of a convolution whose input and output have blocks of so many channels."""
    blocks: Any = f"nchw{written}c" if written > 1 else "nchw"
    return blocks if read == written else f"nchw-{blocks}"  # type: ignore[return-value]


def _block_of(graph: Graph, on: Machine) -> int:
    """Channels in a block of the widest kernels that the machine has for the network's type; 1: there are none."""
    dtypes = {node.attributes["problem"].dtype for node in graph.nodes if node.op == "Conv"}
    rows = [row.lane_filters for row in nchwc_kernels() if {row.dtype} == dtypes and on.unit(row.target)]
    return max(rows, default=1)


def with_layouts(graph: Graph, on: Machine, accuracy: Accuracy = "standard") -> Laid:
    """The graph with the layouts and changes of layout of least predicted time, of one thread."""

    def seconds(node: Node, read: int, written: int) -> float | None:
        if node.op != "Conv":
            return _pool_seconds(node, graph, on, read) if "kernel_shape" in node.attributes else 0.0
        try:
            return _plan(node.attributes["problem"], on, accuracy, _layout(read, written), _state(node, graph)).seconds
        except PlanError:
            return None

    return laid_out(graph, _block_of(graph, on), seconds, lambda name, _: _reordering(graph.tensors[name], on))


def _loops_unit(on: Machine, tensor: Tensor) -> Unit | None:
    """What runs loops over a tensor's elements."""
    return next(filter(None, map(on.unit, loop_targets(_DTYPES[tensor.dtype.name]))), None)


def _reordering(tensor: Tensor, on: Machine) -> float:
    """Seconds of a change of layout: what it reads and writes, and log2(lanes) shuffles a vector, on the machine's widest unit."""
    unit = _loops_unit(on, tensor)
    lanes = unit.vector_bytes // tensor.dtype.itemsize if unit else 1
    elements = tensor.nbytes // tensor.dtype.itemsize
    shuffles = elements / lanes * max(1.0, log2(lanes))
    return _moved_seconds(on, tensor.nbytes, tensor.nbytes) + shuffles / on.core.frequency_hz.value


def _moved_seconds(on: Machine, read: int, written: int) -> float:
    """Of bytes that another layer wrote, and others that another one will read."""
    level = next((one for one in on.levels if one.size_bytes >= read + written), on.memory)
    cycles = read / level.read_bytes_per_cycle.value + written / level.write_bytes_per_cycle.value
    return cycles / on.core.frequency_hz.value


def _pool_seconds(node: Node, graph: Graph, on: Machine, block: int) -> float:
    """Of its passes in L1, for each row of outputs: down the columns of a row of the input, then along it. Of blocks, whose taps follow one
    another in a register: a latency for each vector and tap."""
    x, y = graph.tensors[node.inputs[0]], graph.tensors[node.output]
    (*others, along), level = node.attributes["kernel_shape"], on.levels[0]
    down = prod(others)
    if block > 1 and (unit := _loops_unit(on, y)):
        vectors = y.nbytes / min(unit.vector_bytes, block * y.dtype.itemsize)
        return float(vectors * down * along * unit.fma_latency_cycles.value / on.core.frequency_hz.value)
    row = y.nbytes // y.shape[-1]  # bytes of one column of all rows of outputs
    read, written = row * (down * x.shape[-1] + (along + 1) * y.shape[-1]), row * (x.shape[-1] + y.shape[-1])
    cycles = read / level.read_bytes_per_cycle.value + written / level.write_bytes_per_cycle.value
    return float(cycles / on.core.frequency_hz.value)


def _starting(node: Node, graph: Graph, on: Machine) -> float:
    """Seconds until a layer computes: its code lies as far away as its weights."""
    return 0.0 if offset_in(graph, node) is not None else START_LINES * on.memory.latency_cycles.value / on.core.frequency_hz.value


def _activating(node: Node, graph: Graph, on: Machine) -> float:
    """Seconds of an activation behind what a node computes, or that it is."""
    found = None if "reference" in node.attributes else node.attributes.get("activation") or activation_of(node)
    if not found or (y := graph.tensors[node.output]).dtype.name not in _DTYPES:
        return 0.0
    rows, item = int(np.prod(y.shape[:2])) if len(y.shape) > 2 else 1, y.dtype.itemsize
    name = found[0] if isinstance(found, tuple) else found
    cycles = finish_cycles(on, name, _DTYPES[y.dtype.name], item, rows, y.nbytes // item // rows)
    return cycles / on.core.frequency_hz.value


def _moving(node: Node, graph: Graph, on: Machine, buffers: Buffers) -> float:
    """Seconds of what a node reads and writes beside a plan."""
    if node.op in ("Conv", "Linear", "MatMul") and "reference" not in node.attributes:
        return _moved_seconds(on, sum(graph.tensors[name].nbytes for name in node.inputs[PARAMETERS:]), 0)
    if offset_in(graph, node) is not None:
        return 0.0
    if node.op == "Reorder":
        return _reordering(graph.tensors[node.output], on)
    given = [name for name in node.inputs if name and name not in graph.constants]
    if node.op == "Concat":
        copied = sum(graph.tensors[name].nbytes for name in given if (node.output, name) not in buffers.joined)
        return _moved_seconds(on, copied, copied)
    moved = _moved_seconds(on, *(sum(graph.tensors[name].nbytes for name in names if name) for names in (given, node.outputs)))
    pools = "kernel_shape" in node.attributes and "reference" not in node.attributes
    return moved + (_pool_seconds(node, graph, on, node.attributes.get("blocks", (1, 1))[0]) if pools else 0.0)


def layers_of(graph: Graph, on: Machine, buffers: Buffers, accuracy: Accuracy = "standard", threads: int = 1) -> tuple[Layer, ...]:
    """The layers with their plans for so many threads; PlanError names the node that has none."""
    layers = []
    for node in graph.nodes:
        problem, times = problem_of(node, graph)
        besides = _moving(node, graph, on, buffers) + _activating(node, graph, on) + _starting(node, graph, on)
        try:
            layout = _layout(*node.attributes.get("blocks", (1, 1)))
            asked = on, accuracy, layout, _state(node, graph), threads, node.op != "MatMul"
            layers.append(Layer(node, _plan(problem, *asked) if problem else None, besides, times))
        except PlanError as error:
            raise PlanError(f'{node.op} "{printable(node.name)}": {error}') from None
    return tuple(layers)
