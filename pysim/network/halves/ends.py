# SPDX-License-Identifier: Apache-2.0
"""The inputs and outputs of a network as its model has them: some of bfloat16 (`Graph.narrow`) or float16 (`Graph.half`), which are float32
inside."""

from typing import Any

import numpy as np

from pysim.errors import OperandError, printable
from pysim.network.graph import Array, Graph, Tensor
from pysim.runtime import cpu
from pysim.runtime.along_steps import halves_step
from pysim.runtime.operators import BITS


def _bfloat16() -> "np.dtype[Any]":
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def with_ends(graph: Graph, model: Graph) -> Graph:
    """A graph that a model's was rewritten to, whose `narrow` and `half` are inputs and outputs alone."""

    def kept(names: frozenset[str]) -> frozenset[str]:
        found = (now for now, name in zip(graph.outputs, model.outputs, strict=True) if name in names)
        return names.intersection(model.inputs).union(found)

    return graph._replace(narrow=kept(model.narrow), half=kept(model.half))


class Ends:
    """The inputs and outputs of a network's graph. Converted arrays lie in memory of earlier ones (`cpu.Results`)."""

    def __init__(self, graph: Graph) -> None:
        self._kinds = dict.fromkeys(graph.half, np.dtype(np.float16))
        self._kinds |= dict.fromkeys(graph.narrow, _bfloat16()) if graph.narrow else {}
        self._tensors = {name: graph.tensors[name] for name in (*graph.inputs, *graph.outputs)}
        short = [[name for name in names if name in self._kinds] for names in (graph.inputs, graph.outputs)]
        self._given = {name: cpu.Results(self._tensors[name].shape, np.float32) for name in short[0]}
        self._made = {name: cpu.Results(self._tensors[name].shape, np.uint16) for name in short[1]}

    def declared(self, name: str) -> Tensor:
        """As the model has it."""
        kind = self._kinds.get(name)
        return self._tensors[name] if kind is None else self._tensors[name]._replace(dtype=kind)

    def as_declared(self, name: str, result: Array) -> Array:
        """A result as the model has it."""
        return _converted(result, self._made[name].take().view(self._kinds[name])) if name in self._made else result

    def dense(self, x: Any, name: str) -> Array:
        """An input as the network reads it; OperandError if it has another shape or type than the model's."""
        tensor, is_same = self.declared(name), name not in self._given
        if type(x) is np.ndarray and x.shape == tensor.shape and x.dtype == tensor.dtype and cpu.is_dense(x) and is_same:
            return x
        array = cpu.as_numpy(x, name)
        if array.shape != tensor.shape or array.dtype != tensor.dtype:
            have = f"{array.dtype} of shape {array.shape}"
            raise OperandError(f'the input "{printable(name)}" is {have}; the model takes {tensor.dtype} of shape {tensor.shape}')
        return cpu.dense(array, name, tensor.shape) if is_same else _converted(array, self._given[name].take())


def _converted(x: Array, made: Array) -> Array:
    """Numbers of 16 bits as float32, or the other way round."""
    of, to = (one.view(BITS) if one.dtype.name == "bfloat16" else one for one in (np.asarray(x, order="C"), made))
    step = halves_step(to, of)
    if step is not None:
        step()
    return made
