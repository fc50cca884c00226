# SPDX-License-Identifier: Apache-2.0
"""What the caches hold when a run begins.

hot      what the run before left there, of the same operands
cold     nothing of them
chained  what a layer of a network finds: the layer before has just written its input and used the same workspace; where its output
         will lie a value did that died with the layer before, so twice as far back; its filters were read a whole network ago
"""

from typing import Literal

RunState = Literal["hot", "cold"]  # the states that a single run is timed in
State = Literal[RunState, "chained"]
TIMED: tuple[RunState, ...] = ("hot", "cold")
STATES: tuple[State, ...] = (*TIMED, "chained")
NEVER = 1e30  # runs, or bytes

_CHAINED = {"filters": NEVER, "output": 2.0}


def runs_ago(state: State, operand: str) -> float:
    """How many runs ago an operand was used last, by its name in loop nests."""
    return NEVER if state == "cold" else _CHAINED.get(operand, 1.0) if state == "chained" else 1.0
