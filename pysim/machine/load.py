# SPDX-License-Identifier: Apache-2.0
"""Machines as data: one TOML file per machine, checked when read, written back by `to_toml`.

A number is `{ value, kind, source[, error] }`: `kind` says how it is known, `source` is a key of the file's
`[sources]` table, and the loader refuses a number without one. `static` is what a scheduling model of the core makes of
compiled instructions: worked out, not measured. Geometry is exact integers (sets, ways, line), so a size
is computed, never stated; the `kind` and `source` beside them are theirs. Units stand in the key's suffix. Rates are
per cycle of the core's clock.

Worked number: 64 sets x 8 ways x 64 bytes = 32,768 bytes of L1; two 64-byte loads a cycle at 3.66 GHz = 468 GB/s.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from pysim.errors import MachineError, choose, nearest

SCHEMA = 1
SHIPPED = Path(__file__).parent / "data"
_MAX_FILE_BYTES = 1 << 20
# costs that a fit may find to be nothing
_MAY_BE_ZERO = (
    "overlap", "call_cycles", "pack_call_cycles", "pack_cycles", "pack_line_cycles", "store_run_cycles",
    "launch_seconds", "pass_seconds", "clear_seconds", "block_cycles", "step_cycles", "hidden",
)  # fmt: skip
_AT_MOST_ONE = ("overlap", "hidden", "copy_share", "l2_share", "repeat_share", "rate_share")

Kind = Literal["datasheet", "manual", "measured", "fitted", "static", "assumed"]
Policy = Literal["lru", "plru", "fifo", "random"]
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


class Level(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cache level; latency and bandwidth are those of a hit here as the core sees it (L2: a line from L2 into L1).

    `kind` and `source` are those of the geometry. `shared` says that other cores use this level too.
    """

    name: Text
    sets: Positive
    ways: Positive
    line_bytes: Positive
    kind: Kind
    source: Text
    shared: bool = False
    policy: Policy = "lru"
    latency_cycles: Number
    read_bytes_per_cycle: Number
    write_bytes_per_cycle: Number

    @property
    def size_bytes(self) -> int:
        return self.sets * self.ways * self.line_bytes


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies behind the last level, as one core sees it."""

    latency_cycles: Number
    read_bytes_per_cycle: Number
    write_bytes_per_cycle: Number


class OfType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a unit does with one element type, its `name`, where that differs: what a loop needs besides is in the rate."""

    name: Text
    fma_per_cycle: Number


class Unit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One instruction set of the core. A load and a store cover one vector of `vector_bytes`.

    A multiply-add is what the kernel registry counts as one: `lane_windows` x `lane_filters` outputs (a vector; a 4x4
    update of `mma`; a single FP32 output of `portable`, which the compiler vectorises as it can).
    """

    target: Text
    vector_bytes: Positive
    kind: Kind
    source: Text
    fma_per_cycle: Number
    fma_latency_cycles: Number
    loads_per_cycle: Number
    stores_per_cycle: Number
    types: tuple[OfType, ...] = ()

    def rate(self, dtype: str) -> float:
        """Multiply-adds a cycle with elements of `dtype`."""
        own = next((one.fma_per_cycle for one in self.types if one.name == dtype), self.fma_per_cycle)
        return own.value


class Csa(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine as the convolution slicing analysis of SConv (arXiv 2303.04739, section 4) sees it.

    `windows` x `filters` is its micro-kernel, `alpha` the share of each cache that tiles may fill.
    """

    windows: Positive
    filters: Positive
    line_bytes: Positive
    l1_bytes: Positive
    l2_bytes: Positive
    l3_bytes: Positive
    alpha: Share
    kind: Kind
    source: Text
    l2_latency_cycles: Number
    l3_latency_cycles: Number
    memory_latency_cycles: Number


class Core(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core: its clock, its vector units, and the constants of the cost model.

    `call_cycles` is the fixed cost of a micro-kernel call, `pack_call_cycles` of packing one run of windows, `pack_cycles`
    what packing one vector costs beyond its store, `pack_line_cycles` what packing waits for a line that is not in L1,
    `store_run_cycles` what a store waits for an output line from beyond L2 where more than `prefetch_streams` rows of
    outputs are written in turn, and `overlap` the share (0..1) of transfer cycles that hide behind compute.
    """

    name: Text
    frequency_hz: Number
    call_cycles: Number
    pack_call_cycles: Number
    pack_cycles: Number
    pack_line_cycles: Number
    store_run_cycles: Number
    prefetch_streams: Number
    overlap: Number
    units: Annotated[tuple[Unit, ...], msgspec.Meta(min_length=1)]


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="cpu"):
    """A CPU as one core sees it; `source` covers `cores`."""

    schema: Literal[1]
    name: Text
    description: Text
    cores: Positive
    source: Text
    core: Core
    levels: Annotated[tuple[Level, ...], msgspec.Meta(min_length=1)]
    memory: Memory
    csa: Csa | None = None
    sources: dict[str, Source]

    def __hash__(self) -> int:
        return hash((self.name, self.core, self.levels, self.memory, self.csa))

    @property
    def clock_hz(self) -> float:
        """The clock that cycles are counted in."""
        return self.core.frequency_hz.value

    def level(self, name: str) -> Level:
        """The level of that name, or a MachineError that lists the levels."""
        for level in self.levels:
            if level.name == name:
                return level
        raise MachineError(f'{self.name} has no level "{name}"; {choose(name, [level.name for level in self.levels])}')

    def unit(self, target: str) -> Unit | None:
        """What the core does with this registry target, or None where it lacks it."""
        return next((unit for unit in self.core.units if unit.target == target), None)

    def assumed(self) -> list[str]:
        """Paths of the numbers that are of kind assumed, such as `levels.L3.latency_cycles`."""
        return [path for path, value in facts(self) if value.kind == "assumed"]


class GpuFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the GPU cost model for one family of kernels (simt, or of one type: simt_f64).

    `launch_seconds` is what a launch costs between two events, `block_cycles` the start and end of a block's tile beside its latencies,
    `step_cycles` a k step beside its work, `meet_cycles` what a block waits to leave its part of a tile's sum for others, `hidden` the
    share (0..1) of a tile's start and end that other work of the SM hides, `efficiency` the share of its pipes' rate that its
    kernels reach where they were not measured one by one.
    """

    launch_seconds: Number
    block_cycles: Number
    step_cycles: Number
    meet_cycles: Number
    hidden: Number
    efficiency: Number


class GpuPasses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of kernels that move data before or after a convolution: the share of a copy's rate that they reach; instructions of an
    element (its place by divisions, load, store), of one of a copied operand, and of one of a transformed patch of F(4x4)."""

    rate_share: Number
    element_instructions: Number
    copied_instructions: Number
    patch_instructions: Number


class GpuDirect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of direct convolution: instructions of a multiply-add, two loads among them, and loads of a thread that are on their way
    together."""

    product_instructions: Number
    loads_at_once: Number


class GpuModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the GPU cost model (`pysim/cachemodel/gpu/waves.py` has the equations).

    `pass_seconds` is what each re-layout of a call costs beside its copy, `clear_seconds` the memset of flags, `copy_share` the share
    of L2's or memory's rate that a re-layout reaches, `l2_share` that of L2 that operands can fill before they miss, `repeat_share`
    what bytes cost L2 that several blocks ask for at once, after the first; the others are by family of kernels.
    """

    pass_seconds: Number
    clear_seconds: Number
    copy_share: Number
    l2_share: Number
    repeat_share: Number
    passes: GpuPasses
    direct: GpuDirect
    families: Annotated[dict[str, GpuFamily], msgspec.Meta(min_length=1)]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="gpu"):
    """A GPU; `l1_bytes` of an SM include its shared memory, bandwidths are those of the whole chip, `port_bytes_per_cycle` what one SM can
    take from L2, `memory_port_bytes_per_cycle` from memory.

    `fma_per_cycle` is multiply-adds of one SM in one cycle, by pipe: a scalar type, or `tensor_` and the input type. `sustained_hz`
    is the clock that a pipe keeps up under load (power), by pipe, where it is not `frequency_hz`.
    """

    schema: Literal[1]
    name: Text
    description: Text
    capability: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]$")]
    sms: Count
    frequency_hz: Number
    warps_per_sm: Count
    blocks_per_sm: Count
    registers_per_sm: Count
    shared_bytes_per_sm: Count
    shared_bytes_per_block: Count
    shared_banks: Count
    shared_rule: Text
    l1_bytes: Count
    l1_latency_cycles: Number
    l2_bytes: Count
    l2_bytes_per_second: Number
    memory_bytes_per_second: Number
    l2_latency_cycles: Number
    memory_latency_cycles: Number
    port_bytes_per_cycle: Number
    memory_port_bytes_per_cycle: Number
    schedulers_per_sm: Count
    fma_per_cycle: Annotated[dict[str, Number], msgspec.Meta(min_length=1)]
    sustained_hz: dict[str, Number] = {}
    model: GpuModel
    sources: dict[str, Source]

    def __hash__(self) -> int:
        return hash((self.name, self.capability, self.sms, self.frequency_hz, self.l2_bytes))

    @property
    def clock_hz(self) -> float:
        """The clock that cycles are counted in."""
        return self.frequency_hz.value

    @property
    def capability_number(self) -> int:
        """10 major + minor, as the kernel registry counts."""
        major, minor = self.capability.split(".")
        return 10 * int(major) + int(minor)

    def assumed(self) -> list[str]:
        """Paths of the numbers that are of kind assumed."""
        return [path for path, value in facts(self) if value.kind == "assumed"]


_STRUCTS = (Source, Number, Count, Level, Memory, OfType, Unit, Csa, Core, Machine, GpuFamily, GpuPasses, GpuDirect, GpuModel, Gpu)
Fact = Number | Count | Level | Unit | Csa  # whatever carries a kind and a source


def names() -> list[str]:
    """The machines that are shipped, by name."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load(name: str | Path, detect: Callable[[], Machine] | None = None) -> Machine:
    """A CPU by its shipped name or by the path of a .toml file; "host" is whatever `detect` finds.

    Raises MachineError for a name that no machine has, for a file that does not hold, and for a GPU.
    """
    if name == "host":
        if detect is None:
            raise MachineError('the machine "host" is detected, not read from a file: call pysim.calibration.host.detect()')
        return detect()
    machine = load_any(name)
    if isinstance(machine, Gpu):
        cpus = [cpu for cpu in names() if isinstance(load_any(cpu), Machine)]
        raise MachineError(f'"{name}" is a GPU; a CPU is needed here: {", ".join(cpus)} or host')
    return machine


def load_any(name: str | Path) -> Machine | Gpu:
    """A CPU or GPU by its shipped name or by the path of a .toml file."""
    text = str(name)
    if isinstance(name, Path) or text.endswith(".toml") or "/" in text:
        return _load_file(Path(name))
    if text not in names():
        options = choose(text, [*names(), "host"])
        raise MachineError(f'no machine is named "{text}"; {options}, or give the path of a .toml file')
    return _load_shipped(text)


@cache
def _load_shipped(name: str) -> Machine | Gpu:
    return _load_file(SHIPPED / f"{name}.toml")


def _load_file(path: Path) -> Machine | Gpu:
    if path.suffix != ".toml":
        raise MachineError(f"{path} is no machine file: its name should end in .toml")
    try:
        if not path.is_file():
            raise MachineError(f"there is no machine file {path}; shipped machines: {', '.join(names())}")
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise MachineError(f"{path} is larger than {_MAX_FILE_BYTES} bytes, so it is no machine file")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise MachineError(f"{path} cannot be read as UTF-8 text: {error}") from None
    machine = loads(text, str(path))
    if machine.name != path.stem:
        raise MachineError(f'{path}: name: "{machine.name}" is not the file\'s name, "{path.stem}"; make them equal')
    return machine


def loads(text: str, where: str = "machine text") -> Machine | Gpu:
    """The machine that a TOML text describes; `where` names the text in errors. Raises only MachineError."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise MachineError(f"{where}: not TOML: {error or 'nested too deeply'}") from None
    return from_document(document, where)


def from_document(document: dict[str, Any], where: str) -> Machine | Gpu:
    """The machine that a parsed TOML document describes. Raises only MachineError."""
    try:
        machine = msgspec.convert(document, Machine | Gpu)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise MachineError(f"{where}: {_explain(str(error))}") from None
    _check(machine, where)
    return machine


def _explain(message: str) -> str:
    """msgspec's "what - at `$.path`" as "path: what", with what would be right."""
    what, _, at = message.partition(" - at `")
    path = at.rstrip("`").removeprefix("$").removeprefix(".") or "top level"
    hint = ""
    if match := re.search(r"unknown field `([^`]*)`", what):
        known = {field for struct in _STRUCTS for field in struct.__struct_fields__}
        close = nearest(match.group(1), known)
        hint = f'; did you mean "{close}"?' if close else ""
    elif re.search(r"Expected `object`|required field `(kind|source|value)`", what) and path != "top level":
        hint = '; a number is written { value = 1.5, kind = "datasheet", source = "a key of [sources]" }'
    elif path == "schema":
        hint = f"; this version reads schema = {SCHEMA}"
    elif "field `kind`" in what or path == "kind":
        hint = '; the first lines say kind = "cpu" or kind = "gpu"'
    return f"{path}: {what}{hint}"


def facts(value: Any, path: str = "") -> Iterator[tuple[str, Fact]]:
    """Everything in a machine that has a kind and a source, with its path; geometry has the path of its table."""
    if isinstance(value, Fact):
        yield path, value
    if isinstance(value, msgspec.Struct | dict):
        children = _items(value)
    elif isinstance(value, tuple):
        children = [(item.target if isinstance(item, Unit) else item.name, item) for item in value]
    else:
        return
    for name, child in children:
        yield from facts(child, f"{path}.{name}" if path else name)


def _check(machine: Machine | Gpu, where: str) -> None:
    """The rules that no type says: sources exist and say something, values are finite and positive, names unique."""
    for key, source in machine.sources.items():
        if all(getattr(source, field) is None for field in Source.__struct_fields__ if field != "title"):
            others = "url, section, command, file, versions or note"
            raise MachineError(f"{where}: sources.{key}: a title alone is no source; add a {others}")
    if isinstance(machine, Machine):
        _check_source(machine.source, "source", machine, where)
        _check_unique([level.name for level in machine.levels], f"{where}: levels: name")
        _check_unique([unit.target for unit in machine.core.units], f"{where}: core.units: target")
        for unit in machine.core.units:
            _check_unique([one.name for one in unit.types], f"{where}: core.units.{unit.target}.types: name")
    for path, fact in facts(machine):
        _check_source(fact.source, path, machine, where)
        if isinstance(fact, Number):
            _check_number(fact, path, where)


def _check_source(source: str, path: str, machine: Machine | Gpu, where: str) -> None:
    if source not in machine.sources:
        options = choose(source, list(machine.sources))
        raise MachineError(f'{where}: {path}: source "{source}" is not in [sources]; {options}')


def _check_unique(values: list[str], what: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise MachineError(f'{what} "{value}" stands twice; each may stand once')


def _check_number(number: Number, path: str, where: str) -> None:
    field = path.rpartition(".")[2]
    least, most = (0.0 if field in _MAY_BE_ZERO else math.nextafter(0, 1)), (1.0 if field in _AT_MOST_ONE else math.inf)
    if not (math.isfinite(number.value) and least <= number.value <= most):
        right = "at least 0" if field in _MAY_BE_ZERO else "greater than 0"
        right += " and at most 1" if field in _AT_MOST_ONE else ""
        raise MachineError(f"{where}: {path}: value is {number.value}; it should be finite and {right}")
    if number.error is not None and not (math.isfinite(number.error) and number.error >= 0):
        raise MachineError(f"{where}: {path}: error is {number.error}; it should be finite and at least 0")


def to_toml(machine: Machine | Gpu) -> str:
    """The machine as TOML text; `loads` of it gives an equal machine."""
    lines = [f'kind = "{"gpu" if isinstance(machine, Gpu) else "cpu"}"']
    _write_table(machine, (), lines)
    return "\n".join(lines) + "\n"


def _write_table(table: Any, path: tuple[str, ...], lines: list[str]) -> None:
    """Values first, then sub-tables, each under its own header: TOML has no way back to a table that was left."""
    items = [item for item in _items(table) if item[1] is not None]
    for key, value in items:
        if not _is_table(value):
            lines.append(f"{_key(key)} = {_inline(value)}")
    for key, value in items:
        header = ".".join(_key(part) for part in (*path, key))
        for child in value if isinstance(value, tuple) else (value,) if _is_table(value) else ():
            lines.append(f"\n[[{header}]]" if isinstance(value, tuple) else f"\n[{header}]")
            _write_table(child, (*path, key), lines)


def _is_table(value: Any) -> bool:
    return isinstance(value, msgspec.Struct | dict | tuple) and not isinstance(value, Number | Count)


def _items(table: Any) -> list[tuple[str, Any]]:
    if isinstance(table, dict):
        return list(table.items())
    return [(field, getattr(table, field)) for field in table.__struct_fields__]


def _inline(value: Any) -> str:
    if isinstance(value, Number | Count):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in _items(value) if item is not None) + " }"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quote(value) if isinstance(value, str) else repr(value)


def _quote(text: str) -> str:
    """A TOML basic string: JSON's escapes, and DEL, which JSON leaves bare."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _quote(text)
