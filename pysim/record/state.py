# SPDX-License-Identifier: Apache-2.0
"""The state of the caches when a run begins.

hot      whatever the previous run on the same operands left
cold     none of the operands
chained  as a layer of a network finds them: the previous layer just wrote the input and used the same workspace. The output's memory held
         a value that the previous layer used last, so it is two runs old. The filters were read a whole network ago

In the loop nest of a product rows of A are filters and columns of B its input. There the layer before wrote A, and the prepared matrix B
was read a whole network ago ("chained matrix"), or it was computed, too ("chained values"); `Request.caches` tells which.

in turns         an algorithm makes TURNS like products for one block of the problem after another: each operand was used that many
                 products ago
first in turns   the same, of the first block in a network: the weights were read a whole network ago
"""

from typing import Literal

RunState = Literal["hot", "cold"]  # states in which a single run is timed
State = Literal[RunState, "chained", "chained matrix", "chained values", "in turns", "first in turns", "first in turns matrix"]
TIMED: tuple[RunState, ...] = ("hot", "cold")
STATES: tuple[State, ...] = (*TIMED, "chained")  # that a request may name
NEVER = 1e30  # runs, or bytes

TURNS = 7.0  # of pysim.algorithms.seven_products

_INPUTS = "input", "input in place", "prepared input"  # of the nest of a product
_AGO: dict[State, dict[str, float]] = {
    "chained": {"filters": NEVER, "output": 2.0},
    "chained matrix": dict.fromkeys(_INPUTS, NEVER) | {"output": 2.0},
    "chained values": {"output": 2.0},
    "in turns": dict.fromkeys((*_INPUTS, "filters", "output"), TURNS),
    "first in turns": {"input": TURNS, "filters": NEVER, "output": TURNS},
    "first in turns matrix": dict.fromkeys(_INPUTS, NEVER) | {"filters": TURNS, "output": TURNS},
}


def runs_ago(state: State, operand: str) -> float:
    """How many runs ago an operand was used last, by its name in loop nests."""
    return NEVER if state == "cold" else _AGO.get(state, {}).get(operand, 1.0)
