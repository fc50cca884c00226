# SPDX-License-Identifier: Apache-2.0
"""Which shipped machine a CPU is, or is nearest to: what was not measured of it is taken from there."""

from typing import NamedTuple

from pysim.calibration.linux import Cpu
from pysim.machine.cpu import Machine
from pysim.machine.load import load

AMD, INTEL, ARM, APPLE = "AuthenticAMD", "GenuineIntel", "0x41", "0x61"
# Shipped machines by vendor, family and models: CPUID's, or MIDR's implementer and part, as Linux has them
MICROARCHITECTURES: tuple[tuple[str, str, int, tuple[range, ...]], ...] = (
    ("zen4", AMD, 25, (range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0))),  # Genoa, client parts, Bergamo
    ("zen5", AMD, 26, (range(0x20), range(0x40, 0x50), range(0x70, 0x80))),  # Turin, clients; 0x20 halves the vectors
    ("xeon-4208", INTEL, 6, (range(0x55, 0x56),)),
    ("sapphire-rapids", INTEL, 6, (range(0x8F, 0x90),)),
    ("emerald-rapids", INTEL, 6, (range(0xCF, 0xD0),)),
    ("granite-rapids", INTEL, 6, (range(0xAD, 0xAF),)),
    ("graviton4", ARM, 0, (range(0xD4F, 0xD50),)),  # Neoverse V2
    ("apple-m1-pro", APPLE, 0, (range(0x22, 0x26), range(0x28, 0x2A))),  # all of the M1 family
)
_NEAREST = {AMD: "zen5", INTEL: "sapphire-rapids", ARM: "graviton4", APPLE: "apple-m1-pro"}  # of a vendor's other parts


class Relative(NamedTuple):
    """A shipped machine to take unmeasured numbers from; `same` when it is the same microarchitecture."""

    machine: Machine
    same: bool


def relative(cpu: Cpu) -> Relative:
    """The shipped machine that this CPU is, or the nearest one."""
    for name, vendor, family, models in MICROARCHITECTURES:
        if (cpu.vendor, cpu.family) == (vendor, family) and any(cpu.model in some for some in models):
            return Relative(load(name), True)
    if cpu.name.upper().startswith("POWER"):
        return Relative(load("power10-e1050"), cpu.name.upper().startswith("POWER10"))
    older = cpu.vendor == AMD and cpu.family < 26
    return Relative(load("zen4" if older else _NEAREST.get(cpu.vendor, "zen4")), False)
