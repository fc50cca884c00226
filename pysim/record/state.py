# SPDX-License-Identifier: Apache-2.0
"""The state of the caches when a run begins.

hot      whatever the previous run on the same operands left
cold     none of the operands
chained  as a layer of a network finds them: the previous layer just wrote the input and used the same workspace. The output's memory held
         a value that the previous layer used last, so it is two runs old. The filters were read a whole network ago
"""

from typing import Literal

RunState = Literal["hot", "cold"]  # states in which a single run is timed
State = Literal[RunState, "chained"]
TIMED: tuple[RunState, ...] = ("hot", "cold")
STATES: tuple[State, ...] = (*TIMED, "chained")
NEVER = 1e30  # runs, or bytes

_CHAINED = {"filters": NEVER, "output": 2.0}


def runs_ago(state: State, operand: str) -> float:
    """How many runs ago an operand was used last, by its name in loop nests."""
    return NEVER if state == "cold" else _CHAINED.get(operand, 1.0) if state == "chained" else 1.0
