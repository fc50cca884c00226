# SPDX-License-Identifier: Apache-2.0
"""The inputs and outputs of a network as its model has them: some of bfloat16 (`Graph.narrow`), which are float32 inside."""

from typing import Any

import numpy as np

from pysim.errors import OperandError, printable
from pysim.network.graph import Array, Graph, Tensor
from pysim.runtime import cpu


def _bfloat16() -> "np.dtype[Any]":
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def declared(graph: Graph, name: str) -> Tensor:
    """An input or output of the model."""
    tensor = graph.tensors[name]
    return tensor._replace(dtype=_bfloat16()) if name in graph.narrow else tensor


def as_declared(graph: Graph, name: str, result: Array) -> Array:
    """A result as the model has it."""
    return result.astype(_bfloat16()) if name in graph.narrow else result


def dense(x: Any, name: str, graph: Graph) -> Array:
    """An input as the network reads it; OperandError if it has another shape or type than the model's."""
    tensor = declared(graph, name)
    if type(x) is np.ndarray and x.shape == tensor.shape and x.dtype == tensor.dtype and cpu.is_dense(x) and name not in graph.narrow:
        return x
    array = cpu.as_numpy(x, name)
    if array.shape != tensor.shape or array.dtype != tensor.dtype:
        have = f"{array.dtype} of shape {array.shape}"
        raise OperandError(f'the input "{printable(name)}" is {have}; the model takes {tensor.dtype} of shape {tensor.shape}')
    return array.astype(np.float32, order="C") if name in graph.narrow else cpu.dense(array, name, tensor.shape)
