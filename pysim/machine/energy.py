# SPDX-License-Identifier: Apache-2.0
"""The energy of a run, as a roofline model of energy has it (Choi, Bedard, Fowler and Vuduc, IPDPS 2013):

    joules = static_watts seconds + flop_joules FLOPs + sum over levels of byte_joules bytes,     at most limit_watts seconds

static_watts   of a GPU's board, or of one core and its share of the chip, whatever it computes
flop_joules    of a FLOP that is executed, with its operands' way from registers: by pipe on a GPU, by element type on a CPU
byte_joules    of a byte that a level supplies
limit_watts    what the board keeps to; none on a CPU

Worked number: an H200 at 782 TFLOP/s of f16 and 1 TB/s from memory: 75 W + 0.7 pJ x 782e12 / s + 31 pJ x 1e12 / s = 653 W.
"""

from collections.abc import Mapping

import msgspec

from pysim.machine.quantity import Number


class Energy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine's file may say under [energy]. Plans of a machine without it, or with a type that it lacks, state no energy."""

    static_watts: Number
    limit_watts: Number | None = None
    flop_joules: dict[str, Number] = {}
    byte_joules: dict[str, Number] = {}

    def joules(self, kind: str, flops: float, level_bytes: Mapping[str, float], seconds: float, cores: int = 1) -> dict[str, float] | None:
        """Joules by part, their names as in costs; None for a pipe or type that has no energy."""
        if kind not in self.flop_joules:
            return None
        parts = {"static": self.static_watts.value * cores * seconds, "multiply-adds": self.flop_joules[kind].value * flops}
        parts |= {name: self.byte_joules[name].value * size for name, size in level_bytes.items() if name in self.byte_joules}
        limit = self.limit_watts.value * seconds if self.limit_watts else float("inf")
        share = min(1.0, limit / sum(parts.values()))
        return {name: joules * share for name, joules in parts.items()}
