# SPDX-License-Identifier: Apache-2.0
"""Random weights for ONNX models that have none: weights that are graph inputs without a value, or filled with one number. Their scale
keeps activations from growing or vanishing: He et al., "Delving Deep into Rectifiers", 2015."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pysim.network.graph import Array
from pysim.onnx.protos import array_of

if TYPE_CHECKING:
    import onnx


_PART = 1 << 15  # elements


def seeded(model: "onnx.ModelProto", seed: int) -> "onnx.ModelProto":
    """The model with random values for missing weights: normal with variance 2 / (C/g R S) for weights, 1 +- 0.1 for variances, +- 0.1 for
    shifts, and 0.8 +- 0.1 for scales, which keeps residual sums from growing. ModelError if a constant cannot be read."""
    import onnx

    graph, rng = model.graph, np.random.default_rng(seed)
    known = {tensor.name: array_of(tensor) for tensor in graph.initializer}
    shapes = {output: known[node.input[0]] for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in known
              for output in node.output}  # fmt: skip
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in known and all(dim.HasField("dim_value") for dim in dims):
            shapes[value.name] = np.array([dim.dim_value for dim in dims], np.int64)
    made: dict[str, Array] = {}
    for node in graph.node:
        for place, operand in enumerate(node.input):
            role = _ROLES.get((node.op_type, place))
            if role and operand in shapes and operand not in made:
                made[operand] = role(rng, tuple(map(int, shapes[operand])))
    kept = [node for node in graph.node if not set(node.output) & made.keys()]
    inputs = [value for value in graph.input if value.name not in made]
    for field, items in ((graph.node, kept), (graph.input, inputs)):
        copies = [type(item).FromString(item.SerializeToString()) for item in items]
        del field[:]
        field.extend(copies)
    model.ir_version = max(model.ir_version, 4)  # since 4, an initializer need not be an input
    for weights, array in made.items():  # set in place: VGG-19 copied takes a second
        added = graph.initializer.add(name=weights, data_type=onnx.TensorProto.FLOAT, dims=array.shape)
        added.raw_data = array.astype("<f4", copy=False).tobytes()
    return model


def _weights(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Float32 at once, a part that stays in a cache at a time."""
    drawn, deviation = np.empty(shape, np.float32), math.sqrt(2 / max(1, math.prod(shape[1:])))
    for part in np.split(drawn.reshape(-1), range(_PART, drawn.size, _PART)):
        part[:] = rng.normal(0, deviation, part.size)
    return drawn


def _around(middle: float) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    return lambda rng, shape: rng.uniform(middle - 0.1, middle + 0.1, shape)


# (operator, position of an input) -> the distribution of its random values
_Random = Callable[[np.random.Generator, tuple[int, ...]], Array]
_ROLES: dict[tuple[str, int], _Random] = {
    ("Conv", 1): _weights, ("Conv", 2): _around(0), ("Gemm", 1): _weights, ("Gemm", 2): _around(0), ("MatMul", 1): _weights,
    ("BatchNormalization", 1): _around(0.8), ("BatchNormalization", 2): _around(0), ("BatchNormalization", 3): _around(0),
    ("BatchNormalization", 4): _around(1), ("Unsqueeze", 0): _around(0.8),
}  # fmt: skip
