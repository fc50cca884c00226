# SPDX-License-Identifier: Apache-2.0
"""Numbers with their origin, their permitted ranges, and iteration over all numbers of a machine.

`kind` says how a number is known, `source` is a key of the file's `[sources]` table. `static`: computed by a scheduling model of
the core from compiled instructions, not measured. The key's suffix names the unit.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from pysim.errors import MachineError

SCHEMA = 1
# costs that a fit may find to be zero
_MAY_BE_ZERO = (
    "overlap", "call_cycles", "pack_call_cycles", "pack_cycles", "pack_line_cycles", "store_run_cycles",
    "fork_join_cycles", "fork_join_thread_cycles", "written_line_cycles",
    "prefetch_line_cycles", "crowded_line_cycles", "transform_cycles", "tile_row_cycles",
    "launch_seconds", "pass_seconds", "clear_seconds", "block_cycles", "step_cycles", "hidden",
)  # fmt: skip
# Permitted ranges of a machine's numbers, wider than any real machine's, by suffix of the key; the longest matching suffix applies.
# Within them no prediction overflows, divides by zero, or is zero.
_RANGES: dict[str, tuple[float, float]] = {
    "_hz": (1e6, 1e11),
    "_watts": (1e-3, 1e6),
    "_joules": (1e-18, 1.0),
    "_seconds": (1e-12, 1.0),
    "_bytes": (1, 1 << 44),
    "_pages": (1, 1 << 24),
    "_cycles": (1e-3, 1e7),
    "_per_cycle": (1e-3, 1e6),
    "_bytes_per_second": (1e6, 1e15),
    "_per_sm": (1, 1 << 24),
    "_per_block": (1, 1 << 24),
    "_banks": (1, 1024),
    "line_bytes": (1, 1 << 16),
    "vector_bytes": (1, 1 << 16),
    "sets": (1, 1 << 24),
    "ways": (1, 1 << 16),
    "windows": (1, 1 << 16),
    "filters": (1, 1 << 16),
    "cores": (1, 1 << 16),
    "cpus": (1, 1 << 16),
    "sms": (1, 1 << 16),
    "gpcs": (1, 1 << 16),
    "prefetch_streams": (1, 1 << 16),
    "_instructions": (1e-3, 1e6),
    "_at_once": (1, 1 << 16),
    "efficiency": (1e-2, 10.0),
    "overlap": (1e-3, 1.0),
    "hidden": (1e-3, 1.0),
    "alpha": (1e-3, 1.0),
    "_share": (1e-3, 1.0),
    "schema": (SCHEMA, SCHEMA),
}

Kind = Literal["datasheet", "manual", "measured", "fitted", "static", "assumed"]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 48)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where numbers come from: a document (url, section), a measurement (command, file, versions), a reason (note)."""

    title: Text
    url: Text | None = None
    section: Text | None = None
    command: Text | None = None
    file: Text | None = None
    versions: Text | None = None
    note: Text | None = None


class Number(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A quantity with its origin; `error` is the half-width of its uncertainty, in the same unit."""

    value: float
    kind: Kind
    source: Text
    error: float | None = None


class Count(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole number with its origin."""

    value: Positive
    kind: Kind
    source: Text


def items(table: Any) -> list[tuple[str, Any]]:
    """Keys and values of a table."""
    if isinstance(table, dict):
        return list(table.items())
    return [(field, getattr(table, field)) for field in table.__struct_fields__]


def assumed(value: Any, source: str) -> Any:
    """A copy in which every number is assumed, from `source`; for constants borrowed from another machine."""
    if isinstance(value, Number | Count):
        return msgspec.structs.replace(value, kind="assumed", source=source, **({"error": None} if isinstance(value, Number) else {}))
    if isinstance(value, dict):
        return {key: assumed(child, source) for key, child in value.items()}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **{key: assumed(child, source) for key, child in items(value)})
    return value


def facts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a machine that has a kind and a source, with its path; geometry has the path of its table."""
    if isinstance(value, msgspec.Struct) and {"kind", "source"} <= set(value.__struct_fields__):
        yield path, value
    if isinstance(value, msgspec.Struct | dict):
        children = items(value)
    elif isinstance(value, tuple):
        children = [(_name(item), item) for item in value]
    else:
        return
    for name, child in children:
        yield from facts(child, f"{path}.{name}" if path else name)


def _name(item: Any) -> str:
    """The name of a table in an array; a unit's is its target."""
    return str(getattr(item, "target", None) or item.name)


def with_sources(machine: Any, sources: dict[str, Source]) -> Any:
    """The machine with those of these sources that its numbers name."""
    used = {getattr(machine, "source", None), *(fact.source for _, fact in facts(machine))}
    return msgspec.structs.replace(machine, sources={key: one for key, one in sources.items() if key in used})


def quantities(value: Any, path: str = "", key: str = "") -> Iterator[tuple[str, str, float]]:
    """Every number of a machine: its path, the key that says its unit, its value."""
    if isinstance(value, Number | Count):
        yield path, key, value.value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, key, value
    elif isinstance(value, msgspec.Struct | dict):
        for name, child in items(value):
            by_pipe = isinstance(value, dict) and isinstance(child, Number | Count)  # the table's name has the unit's suffix
            yield from quantities(child, f"{path}.{name}" if path else name, key if by_pipe else name)
    elif isinstance(value, tuple):
        for child in value:
            yield from quantities(child, f"{path}.{_name(child)}", key)


def check_range(value: float, key: str, what: str) -> None:
    """MachineError for a value outside the key's range; `what` says where it is in the file."""
    least, most = _RANGES[max((end for end in _RANGES if key.endswith(end)), key=len)]
    may_be_zero = key in _MAY_BE_ZERO
    if not (least <= value <= most or (may_be_zero and value == 0)):
        right = f"lie in {least:g} to {most:g}" + ", or be 0" * may_be_zero
        raise MachineError(f"{what}: value is {value}; it should {right}")
