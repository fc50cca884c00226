# SPDX-License-Identifier: Apache-2.0
"""Networks of accuracy reproducible: only operators whose results are a function of the network alone, on any CPU.

    convolutions, products                  keep their layer's contract (`pysim.algorithms.reproducible`); an activation may follow
    means of windows                        down each column, then along the row
    FOLDS                                   along rows by 16 or 32 partial sums, added in a tree; beside each other in order
    EXPONENTIALS, attention                 of float32 by one formula of multiply-adds that round once; others are the C library's
    EXACT                                   round each result once, or not at all

Channel blocks would add the pixels of a mean in another order, so means read planes. Others are refused: NumPy's sums and functions
depend on the CPU, or nobody compared them.

Worked number: a mean of 49 pixels is 16 partial sums of 3 or 4 pixels each, whether a vector has 4, 8 or 16 lanes.
"""

from typing import Any

import numpy as np

from pysim.arguments import EXACT_ACTIVATIONS
from pysim.errors import PlanError, printable
from pysim.network.graph import Graph, Node
from pysim.network.operators import NATIVE

LAYERS = ("Conv", "Linear", "MatMul")
MEANS = ("AveragePool", "GlobalAveragePool")
FOLDS = ("LayerNormalization", "ReduceL2", "ReduceMean", "ReduceSum")
EXPONENTIALS = ("Attention", "Elu", "Erf", "Exp", "Gelu", "Mish", "Sigmoid", "Softmax", "Softplus", "Tanh")
EXACT = (
    "Abs", "Add", "Affine", "And", "ArgMax", "ArgMin", "Cast", "Clip", "Concat", "Div", "Equal", "Expand", "Floor", "GatherElements",
    "Greater", "GreaterOrEqual", "HardSwish", "Identity", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Max", "MaxPool", "Min", "Mul",
    "Neg", "Not", "Or", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reorder", "Round", "Slice", "Sqrt", "Sub", "Take", "Tile", "TopK",
    "Transpose", "View", "Where",
)  # fmt: skip


def refuse_others(graph: Graph) -> None:
    """PlanError names the first operator that no contract covers."""
    for node in graph.nodes:
        if reason := _reason(node, graph):
            known = ", ".join((*MEANS, *FOLDS, *EXPONENTIALS, *EXACT))
            right = f"accuracy reproducible takes convolutions, products, {known}"
            raise PlanError(f'{node.op} "{printable(node.name)}": {reason}; {right}')


def _reason(node: Node, graph: Graph) -> str | None:
    types = {graph.tensors[name].dtype for name in node.inputs if name}
    activation: Any = node.attributes.get("activation")
    name = activation[0] if isinstance(activation, tuple) else activation
    if node.op not in (*LAYERS, *MEANS, *FOLDS, *EXPONENTIALS, *EXACT):
        return "its bits may depend on the CPU"
    if (node.op in EXPONENTIALS or name not in EXACT_ACTIVATIONS) and types != {np.dtype(np.float32)}:
        return f"its exponentials, {printable(str(name or node.op))}, are the C library's but for float32"
    if node.op in EXACT:
        return None
    if "reference" in node.attributes:
        return "no contract covers how it is computed"
    if not all(graph.tensors[name].native for name in node.inputs if name):
        return "only float32 and float64 have a contract"
    return None if node.op not in (*FOLDS, *EXPONENTIALS) or _is_native(node, graph) else "NumPy computes it, in an order of its own"


def _is_native(node: Node, graph: Graph) -> bool:
    """Whether the library takes these shapes, on placeholder memory."""
    out, *inputs = (np.empty(graph.tensors[name].shape, graph.tensors[name].dtype) for name in (node.output, *node.inputs) if name)
    return NATIVE[node.op](out, inputs, node.attributes) is not None
