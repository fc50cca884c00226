# SPDX-License-Identifier: Apache-2.0
"""Tiles described in a small TOML or JSON file: shape, element, and accesses as expressions of the lane.

    name = "transpose"
    shape = [32, 32]              # the last dimension is contiguous
    element_bytes = 4
    warps = 32                    # default 1
    constants = { half = 16 }     # optional, for the expressions

    [[access]]
    name = "store rows"
    store = true                  # default false: a load
    index = ["warp", "lane"]      # one expression per dimension, or a single one for the row-major number

    [[access]]
    name = "load columns"
    width = 4                     # bytes per lane, 4, 8 or 16; default: one element
    index = ["lane", "warp"]
    active = "lane < 2 * half"    # optional: which lanes take part
    loop = { k = 1 }              # optional: further variables, each from 0 up to below its bound
    times = 1                     # optional: how often the kernel runs it

    [[layout]]                    # optional: what lies between index and memory now, in elements
    kind = "padding"              # or "swizzle": bits, base, shift; or "rotation": length, step, every, period
    every = 32
    extra = 1

An expression (see `expression`) knows lane (0..31), warp, thread = 32 * warp + lane, the constants and the loop
variables. An access stands for one instruction of every warp for every value of its loop variables. The element that
the index names is the first of the `width` bytes.

Worked number: the file above has 64 instructions and costs 64 wavefronts, the minimum; without its [[layout]] 1,056.
"""

import re
import tomllib
from math import prod
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from pysim.cachemodel.shared_memory.banks import LANES, WIDTHS, Integers, Mask, checked
from pysim.cachemodel.shared_memory.expression import evaluate
from pysim.cachemodel.shared_memory.layout import Padding, Rotation, Swizzle, row_major
from pysim.cachemodel.shared_memory.tile import MOST_BYTES, Access, Tile, addresses
from pysim.errors import OperandError, ProblemError, nearest, printable
from pysim.file_io import read_text

_MAX_FILE_BYTES = 1 << 20
_MOST_INSTRUCTIONS = 1 << 16
_MOST_WORK = 1 << 23  # instructions times characters of their expressions: 128 characters where there are most instructions

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z_0-9]*$")]


class _Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    index: str | Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    name: Text | None = None
    store: bool = False
    width: int | None = None
    active: str | None = None
    loop: dict[Name, Size] = {}
    times: Size = 1


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shape: Annotated[tuple[Size, ...], msgspec.Meta(min_length=1, max_length=8)]
    element_bytes: Annotated[int, msgspec.Meta(ge=1, le=16)]
    access: Annotated[tuple[_Access, ...], msgspec.Meta(min_length=1, max_length=64)]
    name: Text | None = None
    about: str = ""
    warps: Annotated[int, msgspec.Meta(ge=1, le=32)] = 1
    constants: dict[Name, Annotated[int, msgspec.Meta(ge=-(1 << 31), le=1 << 31)]] = {}
    layout: Annotated[tuple[Padding | Swizzle | Rotation, ...], msgspec.Meta(max_length=8)] = ()


def load(path: Path) -> Tile:
    """The tile that a .toml or .json file describes. Raises only ProblemError, naming the file and the place in it."""
    return loads(read_text(path, _MAX_FILE_BYTES), printable(str(path)), json=path.suffix == ".json")


def loads(text: str, where: str = "tile text", json: bool = False) -> Tile:
    """The tile that a text describes; `where` names the text in errors."""
    try:
        document = msgspec.json.decode(text) if json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        fault = str(error).removeprefix("JSON is malformed: ") or "nested too deeply"
        raise ProblemError(f"{where}: not {'JSON' if json else 'TOML'}: {fault}") from None
    try:
        file = msgspec.convert(document, _File)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise ProblemError(f"{where}: {_explain(str(error))}") from None
    except OperandError as error:
        raise ProblemError(f"{where}: layout: {error}") from None
    try:
        _check_size(file)
        accesses = tuple(_build(access, number, file) for number, access in enumerate(file.access))
        tile = Tile(
            name=file.name or Path(where).stem,
            about=file.about,
            source=where,
            shape=file.shape,
            element_bytes=file.element_bytes,
            accesses=accesses,
            maps=file.layout,
        )
        for access in accesses:
            _check_alignment(tile, access)
        return tile
    except (OperandError, ProblemError) as error:
        raise ProblemError(f"{where}: {error}") from None


def _check_size(file: _File) -> None:
    instructions = [file.warps * prod(access.loop.values()) for access in file.access]
    work = sum(count * _characters(access) for count, access in zip(instructions, file.access, strict=True))
    for what, count, most in (
        ("access: instructions", sum(instructions), _MOST_INSTRUCTIONS),
        ("access: instructions times characters of their expressions", work, _MOST_WORK),
        ("shape: bytes", prod(file.shape) * file.element_bytes, MOST_BYTES),
        ("layout: bytes", row_major(file.shape, *file.layout).span() * file.element_bytes, MOST_BYTES),
    ):
        if count > most:
            raise ProblemError(f"{what}: {count} are too many; {most} are allowed")


def _characters(access: _Access) -> int:
    return len(access.active or "") + sum(map(len, [access.index] if isinstance(access.index, str) else access.index))


def _build(access: _Access, number: int, file: _File) -> Access:
    """The access's instructions, all of them: warps by loop variables, by 32 lanes."""
    path = f"access[{number}]"
    count = file.warps * prod(access.loop.values())
    width = file.element_bytes if access.width is None else access.width
    if width not in WIDTHS:
        source = "element_bytes, the default" if access.width is None else "given"
        raise ProblemError(f"{path}.width: {width} ({source}); it should be 4, 8 or 16 bytes per lane")
    names = _names(access, path, file)
    active = np.ones((count, LANES), np.bool_)
    if access.active is not None:
        active &= _evaluate(access.active, f"{path}.active", names) != 0
    index = np.where(active, _index(access.index, path, file.shape, names, active), 0)
    title = access.name or f"access {number + 1}"
    return Access(title, index, width, access.store, None if access.active is None else active, access.times)


def _names(access: _Access, path: str, file: _File) -> dict[str, Integers]:
    """What the expressions may use; every variable broadcasts to (instructions, 32)."""
    warp, *loops = (grid.reshape(-1, 1) for grid in np.indices((file.warps, *access.loop.values()), dtype=np.int64))
    lane = np.arange(LANES, dtype=np.int64)[None]
    names: dict[str, Integers] = {"lane": lane, "warp": warp, "thread": 32 * warp + lane}
    constants = {name: np.asarray(value, np.int64) for name, value in file.constants.items()}
    for name, value in [*constants.items(), *zip(access.loop, loops, strict=True)]:
        if name in names:
            raise ProblemError(f'{path}: the name "{name}" has a value already; choose another one')
        names[name] = value
    return names


def _index(index: str | tuple[str, ...], path: str, shape: tuple[int, ...], names: dict[str, Integers], active: Mask) -> Integers:
    """The row-major number of the first element, from one expression or one per dimension."""
    if isinstance(index, str):
        return _evaluate(index, f"{path}.index", names)
    if len(index) != len(shape):
        raise ProblemError(f"{path}.index has {len(index)} expressions; the shape has {len(shape)} dimensions")
    number: Integers = np.zeros(active.shape, np.int64)
    for dimension, (text, size) in enumerate(zip(index, shape, strict=True)):
        value = np.broadcast_to(_evaluate(text, f"{path}.index[{dimension}]", names), active.shape)
        bad = active & ((value < 0) | (value >= size))
        if bad.any():
            row, lane = np.argwhere(bad)[0]
            raise ProblemError(
                f"{path}.index[{dimension}]: {text} is {value[row, lane]} in lane {lane} of instruction {row}; "
                f"it should be from 0 to {size - 1}"
            )
        number = number * size + np.where(active, value, 0)
    return number


def _check_alignment(tile: Tile, access: Access) -> None:
    try:
        checked(addresses(tile, access), access.width, access.active)
    except OperandError as error:
        raise ProblemError(f"{access.name}: {error}") from None


def _evaluate(text: str, path: str, names: dict[str, Integers]) -> Integers:
    try:
        return evaluate(text, names)
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from None


def _explain(message: str) -> str:
    """msgspec's "what - at `$.path`" as "path: what", with the nearest field's name."""
    what, _, at = message.partition(" - at `")
    path = at.rstrip("`").removeprefix("$").removeprefix(".") or "top level"
    hint = ""
    if match := re.search(r"unknown field `([^`]*)`", what):
        structs = (_File, _Access, Padding, Swizzle, Rotation)
        known = {field for struct in structs for field in struct.__struct_fields__}
        close = nearest(match.group(1), sorted(known))
        hint = f'; did you mean "{close}"?' if close else ""
    elif "field `kind`" in what or path.endswith(".kind"):
        hint = '; a layout is kind = "padding", "swizzle" or "rotation"'
    return f"{path}: {what}{hint}"
