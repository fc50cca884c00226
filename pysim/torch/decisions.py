# SPDX-License-Identifier: Apache-2.0
"""What became of a PyTorch model's layers, as a list of decisions and, printed, as a table with a total, the time to first results and the
memory that is kept.

Worked line: `layer1.0.conv1   conv:mb1ic64ih56oc64kh3ph1   pysim   0.370 ms   PyTorch 1.020 ms   sconv ...`
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from pysim.torch.layers.fused_layer import Decision

ONE_BY_ONE = "between layers PyTorch's operators run one by one"


class _Graph(Protocol):
    layers: Sequence[Any]  # with decisions and held_bytes
    reason: str
    between: str


class FirstCall(NamedTuple):
    """A call for which something was captured or loaded: seconds until it returned, and how many of them went into choices, plans and
    compiling. The others are PyTorch's capture and the call."""

    seconds: float
    choosing: float


class Report(list[Decision]):
    """The decisions of these graphs' layers; `first`: what is to be said of the whole model. `notes`: sentences on what is no layer.
    `first_calls`: of each kind of input. `held_bytes`: of weights as kernels read them, and on CPUs of values between layers, kept from
    call to call beside the model."""

    def __init__(self, graphs: Iterable[_Graph], first: Decision | None = None, first_calls: Sequence[FirstCall] = ()) -> None:
        super().__init__([first] if first else [])
        graphs, self.first_calls = [*graphs], [*first_calls]
        self.held_bytes = sum(one.held_bytes for graph in graphs for one in graph.layers)
        self.notes = [*dict.fromkeys(graph.between for graph in graphs if graph.between)]
        for graph in graphs:
            if graph.reason:
                self.append(Decision("a graph", "", "torch", graph.reason))
            self += [decision for layer in graph.layers for decision in layer.decisions]

    def __str__(self) -> str:
        if not self:
            return "no call yet, or no convolution or product in it"
        rows = [("layer", "problem", "runs by", "predicted", "PyTorch's", "plan, or why not")]
        rows += [(one.layer, one.problem, one.runs, _ms(one.predicted_seconds), _ms(one.torch_seconds), one.reason) for one in self]
        widths = [max(len(row[at]) for row in rows) for at in range(5)]
        lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)) + "  " + row[5] for row in rows]
        return "\n".join(line.rstrip() for line in (*lines, self._total(), *self._costs(), *self.notes))

    def _costs(self) -> list[str]:
        """What first results took and what is kept, as far as that is known."""
        calls = [f"first result after {one.seconds:.2f} s, choices, plans and compiling {one.choosing:.2f}" for one in self.first_calls]
        return [*calls, *([f"{self.held_bytes / 1e6:.1f} MB kept beside the model"] if self.held_bytes else [])]

    def _total(self) -> str:
        ours = [one for one in self if one.runs == "pysim"]
        seconds = sum(one.predicted_seconds or 0.0 for one in ours)
        instead = sum(one.torch_seconds or 0.0 for one in ours)
        total = f"{len(ours)} of {len(self)} layers and kinds of input run by pysim"
        return f"{total}: {_ms(seconds)} predicted, {_ms(instead)} expected of PyTorch" if ours else total


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f} ms"
