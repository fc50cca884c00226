# SPDX-License-Identifier: Apache-2.0
"""What will run of a network, and how long that is expected to take: one layer a node that is left after fusion.

Convolutions and products have plans. A product of a constant matrix is planned as the 1x1 convolution that it is (rows of x as the windows
of one image of k channels), whose filters are packed once. The other operators, which NumPy runs, are not predicted.
"""

from functools import lru_cache
from typing import Any, NamedTuple

from pysim import planner
from pysim.errors import PlanError, printable
from pysim.machine.cpu import Machine
from pysim.models.buffers import Buffers
from pysim.models.graph import Graph, Node
from pysim.problem.conv import Conv
from pysim.record.accuracy import Accuracy
from pysim.record.plan import Plan

_DTYPES = {"float32": "f32", "float64": "f64"}


class Layer(NamedTuple):
    """A node, and the plan of its convolution or product."""

    node: Node
    plan: Plan | None

    @property
    def fused(self) -> tuple[str, ...]:
        """What its native epilogue or its weights take in."""
        return self.node.absorbed

    @property
    def predicted_seconds(self) -> float | None:
        return self.plan.seconds if self.plan else None

    def to_dict(self) -> dict[str, Any]:
        about = {"node": self.node.name, "op": self.node.op, "fused": list(self.fused), "predicted_seconds": self.predicted_seconds}
        return about | ({"problem": self.plan.problem, "plan": self.plan.name} if self.plan else {})


class ModelPlan(NamedTuple):
    layers: tuple[Layer, ...]
    buffers: Buffers
    machine: str

    @property
    def predicted_seconds(self) -> float:
        """Of all convolutions and products; the other operators are not predicted."""
        return sum(layer.predicted_seconds or 0.0 for layer in self.layers)

    def explain(self) -> str:
        """The chain of layers as text: what each computes, what was fused into it, its plan and predicted time."""
        lines = [f"{len(self.layers)} layers on {self.machine}; values in {self.buffers.nbytes:,} bytes"]
        for layer in self.layers:
            fused = f" + {', '.join(map(printable, layer.fused))}" if layer.fused else ""
            how = f"  {layer.plan.problem}  {layer.plan.name}  {(layer.predicted_seconds or 0) * 1e6:.0f} us" if layer.plan else "  NumPy"
            lines.append(f"{layer.node.op:<12} {printable(layer.node.name)}{fused}{how}")
        lines.append(f"predicted of convolutions and products: {self.predicted_seconds * 1e3:.3g} ms")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ModelPlan of {len(self.layers)} layers on {self.machine}: {self.predicted_seconds:.3g} s of convolutions and products>"


def problem_of(node: Node, graph: Graph) -> Conv | None:
    """The convolution that a node is run as."""
    if node.op == "Conv":
        problem: Conv = node.attributes["problem"]
        return problem
    if node.op != "Linear":
        return None
    x, (filters, channels) = graph.tensors[node.inputs[0]], graph.tensors[node.inputs[1]].shape
    rows = x.nbytes // x.dtype.itemsize // channels
    return Conv(channels=channels, height=1, width=rows, filters=filters, kernel_h=1, kernel_w=1, dtype=_DTYPES[x.dtype.name])


@lru_cache(maxsize=4096)
def _plan(problem: Conv, on: Machine, accuracy: Accuracy) -> Plan:
    return planner.plan(problem, on, accuracy=accuracy)


def layers_of(graph: Graph, on: Machine, accuracy: Accuracy = "standard") -> tuple[Layer, ...]:
    """The layers with their plans; PlanError names the node that has none."""
    layers = []
    for node in graph.nodes:
        problem = problem_of(node, graph)
        try:
            layers.append(Layer(node, _plan(problem, on, accuracy) if problem else None))
        except PlanError as error:
            raise PlanError(f'{node.op} "{printable(node.name)}": {error}') from None
    return tuple(layers)
