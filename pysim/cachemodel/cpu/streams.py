# SPDX-License-Identifier: Apache-2.0
"""What kernels cost that read operands as they lie, from their in-core terms and what each level misses of each operand.

    transfer = sum over suppliers X of  read_X / read_rate_X + written_X / write_rate_X
    cycles   = max(compute, transfer) + (1 - overlap) min(compute, transfer)

Worked number: 64 MiB from a memory of 8.7 bytes a cycle are 7.7 million cycles; at an overlap of 0.8 a million cycles of multiply-adds
beside them add 0.2 million.
"""

from collections.abc import Collection, Mapping, Sequence

from pysim.machine.cpu import Level, Machine, Memory
from pysim.record.cost import Cost


def missing(level: Level, distance: float) -> float:
    """Share of lines that miss a level when touched again after `distance` bytes: sets differ by up to one line from their mean."""
    return min(1.0, max(0.0, (distance / (level.sets * level.line_bytes) - (level.ways - 1)) / 2))


def total(machine: Machine, terms: Mapping[str, float], moved: Sequence[Mapping[str, float]], written: Collection[str]) -> Cost:
    """The cost of in-core `terms`, cycles, and of the bytes of each operand that miss each level, L1 first; those of `written` operands are
    read and written back."""
    core, all_terms = machine.core, dict(terms)
    levels: dict[str, dict[str, float]] = {}
    suppliers: list[tuple[str, Level | Memory]] = [*((level.name, level) for level in machine.levels[1:]), ("memory", machine.memory)]
    further: Sequence[Mapping[str, float]] = [*moved[1:], dict.fromkeys(moved[0], 0.0)]
    for above, (name, place), own, beyond in zip(machine.levels, suppliers, moved, further, strict=True):
        served = {operand: max(0.0, size - beyond[operand]) for operand, size in own.items()}
        back = sum(served[operand] for operand in written)
        all_terms[name] = sum(served.values()) / place.read_bytes_per_cycle.value + back / place.write_bytes_per_cycle.value
        both = {operand: size * (1 + (operand in written)) for operand, size in own.items()}
        size = sum(both.values())
        levels[name] = {
            "lines": size / above.line_bytes,
            "bytes": size,
            "cycles": all_terms[name],
            "writeback_lines": sum(own[operand] for operand in written) / above.line_bytes,
            **both,
        }
    compute, transfer = sum(terms.values()), sum(all_terms[name] for name in levels)
    lesser, greater = (levels, terms) if compute >= transfer else (terms, levels)
    cycles = max(compute, transfer) + (1 - core.overlap.value) * min(compute, transfer)
    hidden = {name: core.overlap.value * all_terms[name] for name in lesser}
    return Cost(cycles, cycles / core.frequency_hz.value, max(greater, key=all_terms.__getitem__), levels, all_terms, hidden)
