# SPDX-License-Identifier: Apache-2.0
"""Networks of accuracy reproducible: only operators whose results are a function of the network alone, on any CPU.

    convolutions, products with weights     keep their layer's contract (`pysim.algorithms.reproducible`); ReLU or a clamp may follow
    means of windows                        down each column, then along the row
    means of planes                         by 16 partial sums, which are added pairwise
    EXACT                                   round each result once, or not at all

Channel blocks would add the pixels of a mean in another order, so means read planes. Others (exponentials, norms, softmax, attention,
integers, volumes) are refused: they sum by the lanes of this CPU's vectors, or the compiler decides how their multiply-adds round.

Worked number: a mean of 49 pixels is 16 partial sums of 3 or 4 pixels each, whether a vector has 4, 8 or 16 lanes.
"""

from typing import Any

from pysim.errors import PlanError, printable
from pysim.network.graph import Graph, Node

LAYERS = ("Conv", "Linear")
MEANS = ("AveragePool", "GlobalAveragePool")
EXACT = (
    "Add", "Affine", "Clip", "Concat", "Div", "Identity", "MaxPool", "Mul", "Pad", "Relu", "Reorder", "Slice", "Sub", "Transpose", "View",
)  # fmt: skip


def refuse_others(graph: Graph) -> None:
    """PlanError names the first operator that no contract covers."""
    for node in graph.nodes:
        if reason := _reason(node, graph):
            known = ", ".join((*MEANS, *EXACT))
            right = f"accuracy reproducible takes convolutions, products with weights, {known}, with ReLU or clamps"
            raise PlanError(f'{node.op} "{printable(node.name)}": {reason}; {right}')


def _reason(node: Node, graph: Graph) -> str | None:
    activation: Any = node.attributes.get("activation")
    if node.op not in (*LAYERS, *MEANS, *EXACT):
        return "its bits depend on this CPU's vectors"
    if not (activation is None or activation == "relu" or (isinstance(activation, tuple) and activation[0] == "clamp")):
        return f"its activation, {printable(str(activation))}, depends on how this CPU's multiply-adds round"
    if node.op not in (*LAYERS, *MEANS):
        return None
    problem = node.attributes.get("problem")
    if "reference" in node.attributes or (problem is not None and problem.is_volume):
        return "no contract covers how it is computed"
    native = all(graph.tensors[name].native for name in node.inputs if name)
    return None if native else "only float32 and float64 have a contract"
