# SPDX-License-Identifier: Apache-2.0
"""Machines written as TOML."""

from pathlib import Path
from typing import Any

import msgspec

from pysim.errors import MachineError
from pysim.file_io import check_writable, written
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.machine.quantity import Count, Number, items


def to_toml(machine: Machine | Gpu) -> str:
    """The machine as TOML text; `load.loads` of it gives an equal machine."""
    import tomlkit

    document = tomlkit.document()
    document["kind"] = "gpu" if isinstance(machine, Gpu) else "cpu"
    for key, value in _ordered(machine):
        document[key] = value
    return tomlkit.dumps(document)


def check_place(path: Path, replace: bool = False) -> None:
    """MachineError if no machine file can be written at `path`, or an existing one must be kept."""
    if path.suffix != ".toml":
        raise MachineError(f"{path}: the name of a machine file ends in .toml")
    check_writable(path, MachineError)
    if path.exists() and not (replace and path.is_file()):
        raise MachineError(f"{path} is there already and is kept; give another name, or --force to replace a file")


def save(machine: Machine | Gpu, path: Path, replace: bool = False) -> None:
    """Writes a machine file atomically; MachineError if it cannot, or if a file exists and `replace` is false."""
    check_place(path, replace)
    with written(path, MachineError, replace) as partial:
        partial.write_text(to_toml(machine), encoding="utf-8")


def _ordered(table: Any) -> list[tuple[str, Any]]:
    """A table's items as tomlkit has them, values before tables: TOML cannot return to a table once another begins."""
    made = [(key, _item(value)) for key, value in items(table) if value not in (None, ()) and key != "starts_cold"]  # only in a core's view
    return sorted(made, key=lambda item: _is_table(item[1]))


def _item(value: Any) -> Any:
    import tomlkit

    if isinstance(value, Number | Count):
        inline = tomlkit.inline_table()
        inline.update({key: item for key, item in items(value) if item is not None})
        return inline
    if isinstance(value, tuple):
        array = tomlkit.aot()
        for child in value:
            array.append(_item(child))
        return array
    if isinstance(value, msgspec.Struct | dict):
        table = tomlkit.table()
        for key, child in _ordered(value):
            table.append(key, child)
        return table
    return value


def _is_table(value: Any) -> bool:
    from tomlkit.items import AoT, Table

    return isinstance(value, AoT | Table)
