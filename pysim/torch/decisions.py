# SPDX-License-Identifier: Apache-2.0
"""What became of a PyTorch model's layers, as a list of decisions and, printed, as a table with a total.

Worked line: `layer1.0.conv1   conv:mb1ic64ih56oc64kh3ph1   pysim   0.370 ms   PyTorch 1.020 ms   sconv ...`
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from pysim.torch.layers.fused_layer import Decision

ONE_BY_ONE = "between layers PyTorch's operators run one by one"


class _Graph(Protocol):
    layers: Sequence[Any]  # with decisions
    reason: str
    between: str


class Report(list[Decision]):
    """The decisions of these graphs' layers; `first`: what is to be said of the whole model. `notes`: sentences on what is no layer."""

    def __init__(self, graphs: Iterable[_Graph], first: Decision | None = None) -> None:
        super().__init__([first] if first else [])
        graphs = [*graphs]
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
        return "\n".join(line.rstrip() for line in (*lines, self._total(), *self.notes))

    def _total(self) -> str:
        ours = [one for one in self if one.runs == "pysim"]
        seconds = sum(one.predicted_seconds or 0.0 for one in ours)
        instead = sum(one.torch_seconds or 0.0 for one in ours)
        total = f"{len(ours)} of {len(self)} layers and kinds of input run by pysim"
        return f"{total}: {_ms(seconds)} predicted, {_ms(instead)} expected of PyTorch" if ours else total


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f} ms"
