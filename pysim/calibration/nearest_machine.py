# SPDX-License-Identifier: Apache-2.0
"""The shipped machine that a CPU is, or the most similar one: the source of all numbers that detection does not measure."""

from typing import NamedTuple

from pysim.calibration.linux import Cpu
from pysim.machine.cpu import Machine
from pysim.machine.load import load

AMD, INTEL, ARM, APPLE = "AuthenticAMD", "GenuineIntel", "0x41", "0x61"
# Shipped machines by vendor, family and models, as Linux reports CPUID, or MIDR's implementer and part
MICROARCHITECTURES: tuple[tuple[str, str, int, tuple[range, ...]], ...] = (
    ("zen3", AMD, 25, (range(0x10), range(0x20, 0x60))),  # Milan, Vermeer, Rembrandt, Cezanne
    ("zen4", AMD, 25, (range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0))),  # Genoa, client parts, Bergamo
    ("zen5", AMD, 26, (range(0x20), range(0x40, 0x50), range(0x70, 0x80))),  # Turin, clients; model 0x20 has half-width vector units
    ("xeon-4208", INTEL, 6, (range(0x55, 0x56),)),
    ("sapphire-rapids", INTEL, 6, (range(0x8F, 0x90),)),
    ("emerald-rapids", INTEL, 6, (range(0xCF, 0xD0),)),
    ("granite-rapids", INTEL, 6, (range(0xAD, 0xAF),)),
    ("graviton4", ARM, 0, (range(0xD4F, 0xD50),)),  # Neoverse V2
    ("apple-m1-pro", APPLE, 0, (range(0x22, 0x26), range(0x28, 0x2A))),  # all of the M1 family
)
_MOST_SIMILAR = {AMD: "zen5", INTEL: "sapphire-rapids", ARM: "graviton4", APPLE: "apple-m1-pro"}  # for other models of a vendor


class Relative(NamedTuple):
    """A shipped machine to take unmeasured numbers from; `same`: it is the same microarchitecture."""

    machine: Machine
    same: bool


def relative(cpu: Cpu) -> Relative:
    """The shipped machine that this CPU is, or the most similar one."""
    for name, vendor, family, models in MICROARCHITECTURES:
        if (cpu.vendor, cpu.family) == (vendor, family) and any(cpu.model in some for some in models):
            return Relative(load(name), True)
    if cpu.name.upper().startswith("POWER"):
        return Relative(load("power10-e1050"), cpu.name.upper().startswith("POWER10"))
    if cpu.vendor == AMD and cpu.family < 26:
        return Relative(load("zen3" if cpu.family < 25 else "zen4"), False)
    return Relative(load(_MOST_SIMILAR.get(cpu.vendor, "zen4")), False)
