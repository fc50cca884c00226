# SPDX-License-Identifier: Apache-2.0
"""The inputs and outputs of a network as its model has them: some of bfloat16 (`Graph.narrow`) or float16 (`Graph.half`), which are float32
inside."""

import math
from typing import Any

import numpy as np

from pysim.errors import OperandError, printable
from pysim.network.graph import Array, Graph, Tensor
from pysim.runtime import cpu
from pysim.runtime.along_steps import Halves
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
        ends = {name: graph.tensors[name] for name in (*graph.inputs, *graph.outputs)}
        self._tensors = {name: of._replace(dtype=self._kinds.get(name, of.dtype)) for name, of in ends.items()}
        short = [[name for name in names if name in self._kinds] for names in (graph.inputs, graph.outputs)]
        self._given = {name: (cpu.Results(ends[name].shape, np.float32), self._conversion(name, False)) for name in short[0]}
        self._made = {name: (cpu.Results(ends[name].shape, np.uint16), self._conversion(name, True)) for name in short[1]}

    def _conversion(self, name: str, rounds: bool) -> Halves:
        kind = self._kinds[name]
        return Halves(kind if kind == np.float16 else BITS, math.prod(self._tensors[name].shape), rounds)

    def converts(self, given: str, made: str) -> bool:
        """Whether an input, or an output that shows its elements, is converted: what the caller gets is not what it gave."""
        return given in self._given or made in self._made

    def declared(self, name: str) -> Tensor:
        """As the model has it."""
        return self._tensors[name]

    def as_declared(self, name: str, result: Array) -> Array:
        """A result as the model has it."""
        if name not in self._made:
            return result
        results, convert = self._made[name]
        convert(np.asarray(result, order="C"), made := results.take())
        return made.view(self._kinds[name])

    def dense(self, x: Any, name: str) -> Array:
        """An input as the network reads it; OperandError if it has another shape or type than the model's."""
        tensor, short = self._tensors[name], self._given.get(name)
        array = x
        if not (type(x) is np.ndarray and x.shape == tensor.shape and x.dtype == tensor.dtype and cpu.is_dense(x)):
            array = cpu.as_numpy(x, name)
            if array.shape != tensor.shape or array.dtype != tensor.dtype:
                have = f"{array.dtype} of shape {array.shape}"
                raise OperandError(f'the input "{printable(name)}" is {have}; the model takes {tensor.dtype} of shape {tensor.shape}')
            array = np.asarray(array, order="C") if short else cpu.dense(array, name, tensor.shape)
        if short is None:
            return array
        results, convert = short
        convert(array, made := results.take())
        return made
