# SPDX-License-Identifier: Apache-2.0
"""Native operators along an axis, samples and recurrent layers, bound to their arrays (`pysim.runtime.along_steps`).

Front ends emit them in this form (`pysim.network.lowering.along`), for types of the kernels:

    ReduceSum ReduceProd ReduceMax ReduceMin ArgMax ArgMin CumSum                (x)       axis: (outer, size, inner); flags
    GridSample                                                                    (x, grid) nearest, padding, aligned
    TopK                                                                          (x)       largest; along the last axis; two outputs
    Recurrent       (sums, packed weights, bias, initial h, initial c), each direction beside the other; outputs Y, Y_h, Y_c
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from pysim.network.graph import Array
from pysim.runtime.along_steps import Axis, best_step, fold_step, halves_step, recurrent_step, sample_step
from pysim.runtime.along_steps import Sequence as Direction
from pysim.runtime.steps import Chain, Step

Attributes = Mapping[str, Any]


def split_at(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[int, int, int] | None:
    """(outer, size, inner) of consecutive axes; None of others."""
    if not axes or [*axes] != [*range(axes[0], axes[-1] + 1)]:
        return None
    return prod(shape[: axes[0]]), prod(shape[axis] for axis in axes), prod(shape[axes[-1] + 1 :])


def mean(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    axis = split_at(inputs[0].shape, sorted(attributes["axes"]))
    return None if axis is None else fold_step(out, inputs[0], Axis(*axis), "Mean")


def fold(kind: str) -> Callable[[Array, Sequence[Array], Attributes], Step | None]:
    def bind(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
        flags = {name: attributes[name] for name in ("last", "exclusive", "backward") if name in attributes}
        return fold_step(out, inputs[0], Axis(*attributes["axis"]), kind, **flags)

    return bind


def cast(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    return halves_step(out, inputs[0])


def sample(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    return sample_step(out, inputs[0], inputs[1], attributes["nearest"], attributes["padding"], attributes["aligned"])


def best(outs: Sequence[Array | None], inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    values, places = outs
    assert values is not None and places is not None
    return best_step(values, places, inputs[0], attributes["largest"])


def recurrent(outs: Sequence[Array | None], inputs: Sequence[Array | None], attributes: Attributes) -> Chain:
    """Both directions, whose sums lie beside each other."""
    op, hidden, directions, batch_first = (attributes[name] for name in ("op", "hidden", "backward", "batch_first"))
    sums, weights, bias, *initial = inputs
    assert sums is not None and weights is not None
    if batch_first:
        sums = sums.transpose(1, 0, 2)
    wide, steps = sums.shape[-1] // len(directions), []
    y = None if outs[0] is None else outs[0].transpose(1, 2, 0, 3) if batch_first else outs[0]  # (steps, directions, batch, hidden)
    states = [None if one is None else one.swapaxes(0, 1) if batch_first else one for one in (*initial, *outs[1:])]
    for at, is_backward in enumerate(directions):
        first_h, first_c, last_h, last_c = (None if one is None else one[at] for one in states)
        of_bias, of_y = None if bias is None else bias[at], None if y is None else y[:, at]
        own = sums[..., at * wide : (at + 1) * wide]
        of = Direction(own, weights[at], of_bias, of_y, (first_h, first_c), (last_h, last_c))
        steps.append(recurrent_step(of, op, attributes["separate"], is_backward, hidden))
    return Chain(steps)


NATIVE_ONLY: dict[str, Callable[[Array, Sequence[Array], Attributes], Step | None]] = {
    **{f"Reduce{kind}": fold(kind) for kind in ("Sum", "Prod", "Max", "Min")},
    **{kind: fold(kind) for kind in ("ArgMax", "ArgMin", "CumSum")},
    "GridSample": sample,
}  # fmt: skip
# operators with several outputs: (outputs, inputs, attributes), None for those that are left out
SEVERAL: dict[str, Callable[[Sequence[Array | None], Sequence[Any], Attributes], Step | Chain | None]] = {
    "Recurrent": recurrent, "TopK": best,
}  # fmt: skip
