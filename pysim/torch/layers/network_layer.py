# SPDX-License-Identifier: Apache-2.0
"""A region of a PyTorch model on a CPU as one planned network, as a module: its parameters, then its inputs, are the arguments.

The network is made from the values of the parameters, and again after these changed (`ParameterCache`); plans are made once. Its results
are new tensors with PyTorch's strides. PyTorch's own operators run where gradients are needed and for tensors that are not plain.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import fx

from pysim.calibration import host
from pysim.errors import OperandError, PysimError
from pysim.machine.allowed import allowed
from pysim.network.execution import Network
from pysim.problem.text import Workload
from pysim.torch.capture.aten import lowered
from pysim.torch.capture.forms import Form, module_name
from pysim.torch.capture.strides import with_strides
from pysim.torch.layers.expected_cpu import network_seconds, pytorch_seconds
from pysim.torch.layers.fused_layer import Decision
from pysim.torch.parameters import ParameterCache, needs_pytorch
from pysim.torch.precision import ModelAccuracy, plan_accuracy

_CACHE_SIZE = 32  # models that share the region
_NO_MEMORY = (PysimError, MemoryError, torch.OutOfMemoryError)


class NetworkLayer(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """`graph`: the region by PyTorch's operators, of which the first `parameter_count` inputs are parameters."""

    def __init__(self, graph: fx.GraphModule, parameter_count: int, accuracy: ModelAccuracy) -> None:
        super().__init__()
        self.parameter_count, self.accuracy = parameter_count, accuracy
        self.__dict__["_graph"] = graph  # not a submodule
        self._places, (output,) = graph.graph.find_nodes(op="placeholder"), graph.graph.find_nodes(op="output")
        self._outputs = output.all_input_nodes
        self.forms: list[Form] = [one.meta["form"] for one in self._outputs]  # of the results
        self.derived, self._casts = ParameterCache(_CACHE_SIZE), casts() if accuracy != "reproducible" else None
        self.decisions: list[Decision] = []
        self.is_faster = False

    def forward(self, *given: Any) -> Any:
        parameters, inputs = given[: self.parameter_count], given[self.parameter_count :]
        # parameters that are a graph's inputs are plain
        if needs_pytorch(given[-1], inputs if self.derived.watched else given) or casts() is not self._casts:
            return self._by_pytorch(given, "its tensors or settings need PyTorch's operators")
        threads = team()
        try:
            network: Network = self.derived.get(threads, parameters, lambda: self._network(parameters, threads))
            made = network.results([numbers_of(one) for one in inputs])
        except _NO_MEMORY as error:
            return self._by_pytorch(given, error)
        results = tuple(result_of(y, form.is_narrow, form.stride) for y, form in zip(made, self.forms, strict=True))
        return results[0] if len(results) == 1 else results

    __call__ = forward  # skips nn.Module's search for hooks; none can be registered here

    def _by_pytorch(self, given: Sequence[Any], reason: object) -> Any:
        if self.accuracy == "reproducible":
            raise OperandError(f"accuracy reproducible leaves nothing to PyTorch on a CPU; a network would be: {reason}")
        results = self.__dict__["_graph"](*given)
        return results[0] if len(results) == 1 else results

    def _network(self, parameters: Sequence[Any], threads: int) -> Network:
        # PyTorch 2.11 has no guard for these
        if any(one.stride() != node.meta["form"].stride for one, node in zip(parameters, self._places, strict=False)):
            raise OperandError("a parameter has other strides, from which PyTorch makes those of results")
        on, made = host.runnable("host"), lowered(self.__dict__["_graph"].graph, dict(zip(self._places, parameters, strict=False)))
        graph = made.graph(self._places[self.parameter_count :], self._outputs)
        return Network(graph, on, threads, plan_accuracy(self.accuracy))

    def choose(self, parameters: Sequence[Any]) -> None:
        """Decides by the expected times of the network and of PyTorch's operators."""
        on, nodes = host.runnable("host"), {node.name: node for node in self.__dict__["_graph"].graph.nodes}
        try:
            plan = self._network(parameters, team()).plan
        except _NO_MEMORY as error:
            if self.accuracy == "reproducible":
                raise OperandError(str(error)) from None
            self.decisions = [Decision(module_name(self._outputs[-1]), "", "torch", str(error))]
            return
        planned, problems = [(layer, layer.plan) for layer in plan.layers if layer.plan], dict[str, list[tuple[Workload, int]]]()
        for layer, one in planned:
            narrow = nodes[_operator(layer.node.name)].meta["form"]
            kind = "bf16" if getattr(narrow, "is_narrow", False) else "f32"  # PyTorch's are of numbers
            floats = one.workload if one.workload.dtype == "f64" else replace(one.workload, dtype=kind)
            problems.setdefault(_operator(layer.node.name), []).append((floats, layer.times))
        inputs, results = ([node.meta["form"] for node in some] for some in (self._places[self.parameter_count :], self._outputs))
        expected = pytorch_seconds(nodes.values(), problems, on)
        self.is_faster = self.accuracy == "reproducible" or network_seconds(plan, inputs, results, on) <= expected
        runs, kept = ("pysim", "") if self.is_faster else ("torch", "PyTorch's operators are expected to be about as fast or faster")
        for layer, one in planned:
            replaced = [nodes[name] for name in map(_operator, (layer.node.name, *layer.fused)) if name in nodes]
            seconds = layer.predicted_seconds, pytorch_seconds(replaced, problems, on)
            name = module_name(nodes[_operator(layer.node.name)])
            self.decisions.append(Decision(name, one.problem, runs, kept or one.name, *seconds))


def casts() -> Any:
    """The type that autocast gives operators on the CPU, if it is on. A region has the conversions of the one that it was traced under."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def team() -> int:
    """The threads of networks: PyTorch's, of which no more than this process has CPUs."""
    return min(torch.get_num_threads(), allowed().threads)


def numbers_of(x: Any) -> Any:
    """An input as a network reads it; OperandError for indices of tables if one is negative, which a network would count from the end."""
    plain = x.detach().contiguous()
    found = (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy()
    if found.dtype == np.int64 and found.min(initial=0) < 0:
        raise OperandError("an index is negative")
    return found


def result_of(y: Any, is_narrow: bool, stride: tuple[int, ...]) -> Any:
    """A result of a network as PyTorch's operators make it."""
    return with_strides(torch.from_numpy(y).to(torch.bfloat16) if is_narrow else torch.from_numpy(y), stride)


def _operator(name: str) -> str:
    """PyTorch's operator of which a node of the network is a part."""
    return name.partition(":")[0]
