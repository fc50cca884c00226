# SPDX-License-Identifier: Apache-2.0
"""What will run of a network, and how long that is expected to take: one layer a node that is left after fusion.

Convolutions and products have plans for caches as a layer finds them (`pysim.record.state`, "chained"): the layer before has just written
its input, and since its weights were read last the network has gone over its own size of other memory. A product of a constant matrix is
planned as one whose matrix is packed once, of one row as the 1x1 convolution that it is; one of two values as many as their other axes say.
What else a network does is `pysim.network.operator_seconds`.
"""

import math
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from pysim.errors import PlanError, printable
from pysim.explain.advice import advice, verdict, would_help
from pysim.machine.cpu import Machine
from pysim.network.arena import Buffers
from pysim.network.graph import Graph, Node, Tensor
from pysim.network.halves.narrow import faster
from pysim.network.halves.whole_blocks import whole_problem, with_whole_blocks
from pysim.network.integers.forms import beyond_16_bits, integer_problem
from pysim.network.integers.layers import INTEGER_LAYERS, turns, writes_bytes
from pysim.network.layouts import LayoutChoice, choose_layouts
from pysim.network.native_ops.arrays import shapes_of_products
from pysim.network.operator_seconds import DTYPES, other_seconds, pool_seconds, reordering_seconds, transposing_seconds
from pysim.network.reproducible import MEANS
from pysim.planner import planned
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.accuracy import Accuracy
from pysim.record.cost import Cost
from pysim.record.description import seconds_text
from pysim.record.html import table
from pysim.record.plan import Layout, Plan, Request
from pysim.record.state import State
from pysim.registry.cpu import cpu_kernel, kernels, nchwc_kernels
from pysim.runtime.integer_steps import BYTES

# What bounded rows take longer for each share of weights that they list: 1.27 times as long at 0.27, 1.35 at 0.41 (1x1 layers, Zen 3)
LISTED = 1.0
LISTED_TOGETHER = 0.6  # the same of form pixels: three instructions beside five
OF_TWO = ("ConvOfTwo", "MatMul")  # planned operators both of whose operands are computed


class Layer(NamedTuple):
    """A node, the plan of its convolution or product if it has one, how many `times` that runs, and the predicted seconds of its other
    work."""

    node: Node
    plan: Plan | None
    other_seconds: float = 0.0
    times: int = 1

    @property
    def fused(self) -> tuple[str, ...]:
        """The names of the nodes fused into it."""
        return self.node.absorbed

    @property
    def predicted_seconds(self) -> float:
        return self.times * (self.plan.seconds or 0.0 if self.plan else 0.0) + self.other_seconds

    def to_dict(self) -> dict[str, Any]:
        about = {"node": self.node.name, "op": self.node.op, "fused": list(self.fused), "predicted_seconds": self.predicted_seconds}
        return about | ({"problem": self.plan.problem, "plan": self.plan.name} if self.plan else {})


_SHOWN_OPERATORS, _SHOWN_LAYERS = 5, 10


class NetworkPlan(NamedTuple):
    layers: tuple[Layer, ...]
    buffers: Buffers
    machine: str

    @property
    def predicted_seconds(self) -> float:
        return sum(layer.predicted_seconds for layer in self.layers)

    @property
    def layouts(self) -> tuple[str, ...]:
        """Layout conversions between layers, with their predicted times."""
        changes = [layer for layer in self.layers if layer.node.op == "Reorder"]
        return tuple(f"{printable(one.node.name)}: {_conversion_text(one.node)}, {one.predicted_seconds * 1e6:.0f} us" for one in changes)

    def explain(self) -> str:
        """The chain of layers as text: what each computes, what was fused into it, its plan and predicted time."""
        lines = [f"{len(self.layers)} layers on {self.machine}; values in {self.buffers.nbytes:,} bytes"]
        for layer in self.layers:
            fused = f" + {', '.join(map(printable, layer.fused))}" if layer.fused else ""
            how = f"  {layer.plan.problem}  {layer.plan.name}" if layer.plan else ""
            how += f"  {layer.plan.layout}" if layer.plan and layer.plan.layout != "nchw" else ""
            lines.append(f"{layer.node.op:<12} {printable(layer.node.name)}{fused}{how}  {layer.predicted_seconds * 1e6:.0f} us")
        lines.append(f"predicted: {self.predicted_seconds * 1e3:.3g} ms{self._shares()}")
        if plans := [(layer.times, layer.plan) for layer in self.layers if layer.plan]:
            lines += [f"convolutions and products: {verdict(plans)}", would_help(advice(plans))]
        lines += self.layouts
        return "\n".join(lines)

    def _shares(self) -> str:
        """The operators that take most time, those after which the layers are named."""
        seconds: dict[str, float] = {}
        for layer in self.layers:
            seconds[layer.node.op] = seconds.get(layer.node.op, 0.0) + layer.predicted_seconds
        told = sorted(((of / (self.predicted_seconds or 1.0), op) for op, of in seconds.items()), reverse=True)
        return "".join(
            f"{'; ' if at == 0 else ', '}{share:.0%} {op}" for at, (share, op) in enumerate(told[:_SHOWN_OPERATORS]) if share >= 0.005
        )

    def _repr_html_(self) -> str:
        """What notebooks show: the slowest layers; all of them when it is unfolded."""
        slowest, total = sorted(self.layers, key=lambda one: -one.predicted_seconds)[:_SHOWN_LAYERS], self.predicted_seconds or 1.0
        rows = [
            (one.node.op, one.node.name, one.plan.problem if one.plan else "", one.plan.algorithm if one.plan else "",
             seconds_text(one.predicted_seconds), f"{one.predicted_seconds / total:.1%}")
            for one in slowest
        ]  # fmt: skip
        which = f", the {len(rows)} slowest" if len(rows) < len(self.layers) else ""
        caption = f"{len(self.layers)} layers on {self.machine}: {seconds_text(self.predicted_seconds)} predicted{which}"
        return table(caption, ("operator", "layer", "problem", "algorithm", "predicted", "share"), rows, self.explain(), left=4)

    def __repr__(self) -> str:
        return f"<NetworkPlan of {len(self.layers)} layers on {self.machine}: {self.predicted_seconds:.3g} s>"


def _conversion_text(node: Node) -> str:
    block = f"nchw{node.attributes['block']}c"
    return f"{block} to nchw" if node.attributes["to_planes"] else f"nchw to {block}"


def problem_of(node: Node, graph: Graph) -> tuple[Workload | None, int]:
    """The convolution or product that a node runs, or None, and how many times."""
    if node.op in ("Conv", "ConvOfTwo"):
        return node.attributes["problem"], 1
    if node.op in INTEGER_LAYERS:
        about = node.attributes
        return integer_problem(about["problem"], about["weights"], graph.tensors[node.inputs[0]], about["dtype"]), 1
    if node.op == "MatMul" and "reference" not in node.attributes:
        products = shapes_of_products(node, graph)
        return products.workload, products.count
    if node.op != "Linear":
        return None, 1
    x, (filters, channels) = graph.tensors[node.inputs[0]], graph.tensors[node.inputs[1]].shape
    rows, dtype = x.nbytes // x.dtype.itemsize // channels, DTYPES[x.dtype.name]
    if rows > 1 or "narrow" in node.attributes:  # kernels of products read one row of bf16 at the speed of memory
        return Gemm(m=rows, n=filters, k=channels, trans_b=True, dtype=dtype), 1
    return Conv(channels=channels, height=1, width=1, filters=filters, kernel_h=1, kernel_w=1, dtype=dtype), 1


def integer_rows(problem: Workload, on: Machine, threads: int = 1) -> str:
    """The type, s8 or f32, whose rows are expected to compute an integer layer fastest; they add whole numbers exactly ("ieee"). Those of
    f32 read bytes that were converted, and their sums become bytes. Bytes may have channels last."""
    sides = (problem.input_shape, problem.output_shape) if isinstance(problem, Conv) else ((problem.m, problem.k), (problem.m, problem.n))
    converted = sum(reordering_seconds(Tensor(side, np.dtype(np.float32)), on) for side in sides)

    def seconds(dtype: str, layout: Layout = "nchw") -> float:
        whole = dtype == "s8"
        terms: Any = {
            "threads": threads,
            "accuracy": "ieee",
            "prepared": True,
            "quantised": whole,
            "to_bytes": whole and isinstance(problem, Conv),
        }
        request = Request(replace(problem, dtype=dtype), on, layout, "chained", **terms)
        try:
            return planned(request).seconds or math.inf
        except PlanError:
            return math.inf

    whole = min(seconds("s8"), seconds("s8", "nhwc") if isinstance(problem, Conv) else math.inf)
    return "s8" if whole <= seconds("f32") + converted else "f32"


def adds_bytes(node: Node, graph: Graph, on: Machine, threads: int = 1) -> bool:
    """Whether the plan of an integer convolution adds residuals in its store faster than an operator of its own."""
    problem, _ = problem_of(node, graph)
    if not problem or problem.dtype != "s8":
        return False
    plan = _planned(node, _request(node, problem, graph, on, "nchw", "ieee", threads))
    row = cpu_kernel(plan.kernel)
    return row is not None and row.adds


def _request(node: Node, problem: Workload, graph: Graph, on: Machine, layout: Layout, accuracy: Accuracy, threads: int) -> Request:
    terms: Any = {
        "accuracy": "ieee" if node.op in INTEGER_LAYERS or node.attributes.get("whole") else accuracy,  # whole: exact sums, also of halves
        "threads": threads,
        "prepared": node.op not in OF_TWO,
        "quantised": node.op in INTEGER_LAYERS and problem.dtype == "s8",
        "to_bytes": node.op in INTEGER_LAYERS and problem.dtype == "s8" and writes_bytes(node),
    }
    return Request(problem, on, layout, _state(node, graph), **terms)


def _state(node: Node, graph: Graph) -> State:
    """The state of the caches when a layer begins: the network's own inputs may be cold."""
    return "cold" if node.inputs[0] in graph.inputs else "chained"


def _layout(node: Node, read: int, written: int) -> Layout:
    """The layout of a convolution with these block sizes of input and output; those of bytes have channels last."""
    if node.op in INTEGER_LAYERS:
        return "nhwc" if max(read, written) > 1 else "nchw"
    blocks: Any = f"nchw{written}c" if written > 1 else "nchw"
    return blocks if read == written else f"nchw-{blocks}"  # type: ignore[return-value]


def _block_of(graph: Graph, on: Machine) -> int:
    """The block size of the machine's widest NCHWc kernels for the network's type; 1 if it has none."""
    dtypes = {"bf16"} if graph.narrow else {node.attributes["problem"].dtype for node in graph.nodes if node.op == "Conv"}
    rows = [row.lane_filters for row in nchwc_kernels() if {row.dtype} == dtypes and on.unit(row.target)]
    return max(rows, default=1)


def seconds_of(problem: Workload, on: Machine, accuracy: Accuracy) -> float:
    """Predicted seconds of a convolution within a network, on one thread; infinity without a plan."""
    try:
        return float(planned(Request(problem, on, state="chained", accuracy=accuracy, prepared=True)).seconds or 0.0)
    except PlanError:
        return math.inf


def with_layouts(graph: Graph, on: Machine, accuracy: Accuracy = "standard") -> LayoutChoice:
    """The graph with the layouts of least predicted time on one thread. Blocks of a network of bf16 are float32 where a machine has no
    kernels for others, where no convolution is of bf16 and where results keep their bits; channels that are no whole blocks of bf16 become
    such if that is faster."""
    narrow, block = any(node.op == "Conv" and node.output in graph.narrow for node in graph.nodes), _block_of(graph, on)
    if not narrow or block == 1 or accuracy == "reproducible":
        return _with_layouts(graph._replace(narrow=frozenset()), on, accuracy, accuracy != "reproducible")
    plain, whole = _with_layouts(graph, on, accuracy), with_whole_blocks(graph, block)
    if whole is graph:
        return plain
    return min(plain, _with_layouts(whole, on, accuracy), key=lambda one: _laid_seconds(one.graph, on, accuracy))


def _with_layouts(graph: Graph, on: Machine, accuracy: Accuracy, widens: bool = False) -> LayoutChoice:
    def seconds(node: Node, read: int, written: int) -> float | None:
        return _node_seconds(node, read, written, graph, on, accuracy)

    return choose_layouts(graph, _block_of(graph, on), seconds, lambda name, _: reordering_seconds(graph.tensors[name], on), widens)


def _laid_seconds(graph: Graph, on: Machine, accuracy: Accuracy) -> float:
    """Predicted seconds of all that depends on layouts."""
    total = 0.0
    for node in graph.nodes:
        if node.op == "Reorder":
            total += reordering_seconds(graph.tensors[node.output], on)
        else:
            read, written = node.attributes.get("blocks", (1, 1))
            total += _node_seconds(node, read, written, graph, on, accuracy) or 0.0
    return total


def _node_seconds(node: Node, read: int, written: int, graph: Graph, on: Machine, accuracy: Accuracy) -> float | None:
    """Predicted seconds of a node by the block sizes of its input and output; None if nothing computes it so."""
    if accuracy == "reproducible" and read > 1 and node.op in MEANS:
        return math.inf
    if node.op == "Concat" and read > 1 and graph.tensors[node.output].dtype in BYTES:  # parts lie between each other, and are copied
        return reordering_seconds(graph.tensors[node.output], on)
    if node.op == "IntegerConv":
        return _integer_seconds(node, graph, on, _layout(node, read, written))
    if node.op == "Transpose":
        return transposing_seconds(node.having(blocks=(read, written)), graph, on)
    if node.op != "Conv":
        return pool_seconds(node, graph, on, read) if "kernel_shape" in node.attributes else 0.0
    try:
        problem = node.attributes["problem"]
        if graph.narrow:
            problem = replace(problem, dtype="bf16") if written > 1 else problem
        elif (problem := whole_problem(problem, read, written)) is None:
            return None
        request = Request(problem, on, _layout(node, read, written), _state(node, graph), accuracy=accuracy, prepared=True)
        plan, rounding = planned(request), 0.0
        if "narrow" in node.attributes and written == 1:
            plan, rounding = faster(plan, request)
        return (plan.seconds or 0.0) + rounding
    except PlanError:
        return None


def _integer_seconds(node: Node, graph: Graph, on: Machine, layout: Layout) -> float | None:
    """Predicted seconds of an integer convolution. Channels are last only where its stores make its results."""
    problem, _ = problem_of(node, graph)
    if not problem or (layout == "nhwc" and not writes_bytes(node)):
        return None
    try:
        return _with_seconds(node, _request(node, problem, graph, on, layout, "ieee", 1))[1]
    except PlanError:
        return None


def _turned(node: Node, plan: Plan, graph: Graph, on: Machine, request: Request) -> tuple[Plan, float]:
    """The plan of an integer convolution to numbers in planes, or one with channels last if that is faster with its conversions; and the
    seconds of these."""
    last = _planned(node, msgspec.structs.replace(request, layout="nhwc"))
    around = sum(reordering_seconds(graph.tensors[name], on) for name in (node.inputs[0], node.output))
    return (last, around) if (last.seconds or math.inf) + around < (plan.seconds or math.inf) else (plan, 0.0)


def _planned(node: Node, request: Request) -> Plan:
    """The plan of a node's problem. Where its kernel's target has rows of bounded weights, too, these are looked at."""
    return _with_seconds(node, request)[0]


def _with_seconds(node: Node, request: Request) -> tuple[Plan, float]:
    """The same, and its seconds with the weights that it lists."""
    plan = planned(request)
    row, seconds = cpu_kernel(plan.kernel) if request.quantised else None, plan.seconds or math.inf
    if row is None or not any(one.lists and one.target == row.target for one in kernels()):
        return plan, seconds
    bounded = planned(replace(request, bounded=True))
    in_rows = (found := cpu_kernel(bounded.kernel)) is not None and found.in_rows > 0
    share = (LISTED_TOGETHER if in_rows else LISTED) * beyond_16_bits(node.attributes["weights"], in_rows) if bounded != plan else 0.0
    assert isinstance(bounded.cost, Cost)
    longer = (1 + share * min(1.0, bounded.cost.terms["kernel"] / bounded.cost.cycles)) * (bounded.seconds or math.inf)
    return (bounded, longer) if longer < seconds else (plan, seconds)


def layers_of(graph: Graph, on: Machine, buffers: Buffers, accuracy: Accuracy = "standard", threads: int = 1) -> tuple[Layer, ...]:
    """The layers with their plans; PlanError names a node that has none."""
    layers = []
    for node in graph.nodes:
        problem, times = problem_of(node, graph)
        other = other_seconds(node, graph, on, buffers, threads)
        try:
            plan, layout = None, _layout(node, *node.attributes.get("blocks", (1, 1)))
            if problem:
                plan = _planned(node, request := _request(node, problem, graph, on, layout, accuracy, threads))
                if "narrow" in node.attributes and layout == "nchw":
                    plan, rounding = faster(plan, request)
                    other += rounding
                if layout == "nchw" and turns(node):
                    plan, moving = _turned(node, plan, graph, on, request)
                    other += moving
                if node.op == "IntegerLinear" and isinstance(problem, Conv) and problem.dtype == "s8":  # one pixel, the same in both
                    last = _planned(node, _request(node, problem, graph, on, "nhwc", accuracy, threads))
                    plan = min(plan, last, key=lambda one: one.seconds or math.inf)
            layers.append(Layer(node, plan, other, times))
        except PlanError as error:
            raise PlanError(f'{node.op} "{printable(node.name)}": {error}') from None
    return tuple(layers)
