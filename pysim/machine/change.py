# SPDX-License-Identifier: Apache-2.0
"""Machines with other numbers, for what-if questions: `levels.L2.ways=16`, `core.frequency_hz=3e9`, `levels.L2.size_bytes=2MiB`.

A path names keys of the machine's file from the outside in; an entry of a list is found by its name or target (`levels.L2`,
`core.units.avx512`). A changed number is an assumed one, so plans list it. `size_bytes` of a level is no number of the file: it changes the
ways and leaves the sets. The result is checked like a file.

Worked number: zen4's L2 has 2,048 sets of 8 ways of 64 bytes, 1 MiB; `levels.L2.size_bytes=2MiB` gives it 16 ways.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pysim.errors import MachineError, choose, quoted
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.load import from_document

Value = int | float | bool | str
SOURCE = "what_if"
_NAMES = ("name", "target", "cpus")  # the key that tells the entries of a list apart


def changed(machine: Machine | Gpu, values: Mapping[str, Value]) -> Machine | Gpu:
    """The machine with these numbers, named after them; MachineError for a path that it does not have or a value out of range."""
    if not values:
        return machine
    document = msgspec.json.decode(msgspec.json.encode(machine))
    for path, value in values.items():
        _set(document, path, value)
    told = ", ".join(f"{path}={value}" for path, value in values.items())
    document["name"] = f"{machine.name} with {told}"
    document["sources"] = {**document["sources"], SOURCE: {"title": "what if", "note": f"asked for, not known of any machine: {told}"}}
    return from_document(document, document["name"])


def _set(document: Any, path: str, value: Value) -> None:
    *parents, key = path.split(".")
    at: Any = document
    for part in parents:
        at = _entry(at, part, path)
    if key == "size_bytes" and isinstance(at, dict) and {"sets", "ways", "line_bytes"} <= at.keys():
        way = at["sets"] * at["line_bytes"]
        if not isinstance(value, int | float) or value % way or value < way:
            raise MachineError(f"{path}={value}: a way has {way:,} bytes; expected a multiple of it, or change sets as well")
        key, value = "ways", int(value // way)
    old = _entry(at, key, path)
    if isinstance(value, str) and isinstance(old.get("value") if isinstance(old, dict) else old, int | float):
        raise MachineError(f"{path}={value}: expected a number, e.g. 16, 3e9 or 2MiB")
    if isinstance(old, dict) and "value" in old:
        at[key] = {"value": value, "kind": "assumed", "source": SOURCE}
    elif isinstance(old, dict | list):
        raise MachineError(f"{path} is a table, not a number; {choose('', list(_keys(old)))}")
    else:
        at[key] = value
        if "kind" in at and "source" in at:  # those of a level's geometry
            at |= {"kind": "assumed", "source": SOURCE}


def _keys(table: Any) -> Iterator[str]:
    """The names of a table's entries that may be part of a path."""
    if isinstance(table, dict):
        yield from (key for key, value in table.items() if value is not None)
    elif isinstance(table, list):
        yield from (str(one[name]) for one in table for name in _NAMES if isinstance(one, dict) and name in one)


def _entry(table: Any, key: str, path: str) -> Any:
    if isinstance(table, list):
        for one in table:
            if any(str(one.get(name)) == key for name in _NAMES):
                return one
    elif isinstance(table, dict) and table.get(key) is not None:
        return table[key]
    raise MachineError(f"{path}: there is no {quoted(key)}; {choose(key, list(_keys(table)))}")
