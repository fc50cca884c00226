# SPDX-License-Identifier: Apache-2.0
"""The state of the caches when a run begins.

hot      whatever the previous run on the same operands left
cold     none of the operands
chained  as a layer of a network finds them: the previous layer just wrote the input and used the same workspace. The output's memory held
         a value that the previous layer used last, so it is two runs old. The filters were read a whole network ago

In the loop nest of a product rows of A are filters and columns of B its input. There the layer before wrote A, and the prepared matrix B
was read a whole network ago ("chained matrix"), or it was computed, too ("chained values"); `Request.caches` tells which.
"""

from typing import Literal

RunState = Literal["hot", "cold"]  # states in which a single run is timed
State = Literal[RunState, "chained", "chained matrix", "chained values"]
TIMED: tuple[RunState, ...] = ("hot", "cold")
STATES: tuple[State, ...] = (*TIMED, "chained")  # that a request may name
NEVER = 1e30  # runs, or bytes

_AGO: dict[State, dict[str, float]] = {
    "chained": {"filters": NEVER, "output": 2.0},
    "chained matrix": {"input": NEVER, "input in place": NEVER, "prepared input": NEVER, "output": 2.0},
    "chained values": {"output": 2.0},
}


def runs_ago(state: State, operand: str) -> float:
    """How many runs ago an operand was used last, by its name in loop nests."""
    return NEVER if state == "cold" else _AGO.get(state, {}).get(operand, 1.0)
