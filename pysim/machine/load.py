# SPDX-License-Identifier: Apache-2.0
"""Machines as data: one TOML file per machine, checked when read (`write` writes them).

A number is `{ value, kind, source[, error] }`: `kind` says how it is known, `source` is a key of the file's
`[sources]` table, and the loader rejects a number without one. `static`: computed by a scheduling model of the core from
compiled instructions, not measured. Geometry is exact integers (sets, ways, line), with its own `kind` and `source`;
sizes are computed from it, never stated. A GPU's file may say `like = "h200"`, a shipped GPU: constants missing from its own
[model] are then that GPU's, as assumed. The key's suffix names the unit. Rates are per cycle of the core's clock.

Worked number: 64 sets x 8 ways x 64 bytes = 32,768 bytes of L1; two 64-byte loads a cycle at 3.66 GHz = 468 GB/s.
"""

import itertools
import math
import operator
import re
import tomllib
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, get_args

import msgspec

from pysim.errors import MachineError, choose, nearest, quoted
from pysim.machine.cpu import Core, Csa, Level, Machine, Memory, OfType, Unit
from pysim.machine.energy import Energy
from pysim.machine.gpu import Gpu, GpuDirect, GpuFamily, GpuModel, GpuPasses, SharedRule
from pysim.machine.quantity import SCHEMA, Count, Kind, Number, Source, assumed, check_range, facts, quantities
from pysim.problem.dtypes import GEMM_DTYPES
from pysim.registry.cpu import cpu_kernels
from pysim.registry.cuda import ConvKernel, GemmKernel, conv_kernels, gemm_kernels

SHIPPED = Path(__file__).parent / "data"
_MAX_FILE_BYTES = 1 << 20
_STRUCTS = (Source, Number, Count, Level, Memory, OfType, Unit, Csa, Core, Machine, GpuFamily, GpuPasses, GpuDirect, GpuModel, Gpu, Energy)


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def names() -> list[str]:
    """The names of the shipped machines."""
    return list(_names())


def load(name: str | Path, detect: Callable[[], Machine] | None = None) -> Machine:
    """A CPU by its shipped name or by the path of a .toml file; "host" is the machine that `detect` finds.

    Raises MachineError for an unknown name, an invalid file, and a GPU.
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


def load_any(name: str | Path | Machine | Gpu) -> Machine | Gpu:
    """A CPU or GPU by its shipped name or by the path of a .toml file; a machine is returned unchanged."""
    if isinstance(name, Machine | Gpu):
        return name
    if not isinstance(name, str | Path):
        raise MachineError(f"machine is {quoted(name)}; expected a name, the path of a .toml file, or a machine")
    text = str(name)
    if isinstance(name, Path) or text.endswith(".toml") or "/" in text:
        return _load_file(Path(name))
    if text not in _names():
        options = choose(text, [*names(), "host"])
        raise MachineError(f"no machine is named {quoted(text)}; {options}, or give the path of a .toml file")
    return _load_shipped(text)


@cache
def _load_shipped(name: str) -> Machine | Gpu:
    return _load_file(SHIPPED / f"{name}.toml")


def _load_file(path: Path) -> Machine | Gpu:
    if path.suffix != ".toml":
        raise MachineError(f"{path} is not a machine file: its name should end in .toml")
    try:
        if path.is_dir():
            raise MachineError(f"{path} is a folder, and a machine is one .toml file")
        if not path.is_file():
            raise MachineError(f"there is no machine file {path}; shipped machines: {', '.join(names())}")
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise MachineError(f"{path} is larger than {_MAX_FILE_BYTES} bytes, so it is not a machine file")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise MachineError(f"{path} cannot be read as UTF-8 text: {error}") from None
    machine = loads(text, str(path))
    if machine.name != path.stem:
        raise MachineError(f'{path}: name: "{machine.name}" is not the file\'s name, "{path.stem}"; make them equal')
    return machine


@lru_cache(maxsize=16)
def loads(text: str, where: str = "machine text") -> Machine | Gpu:
    """The machine that a TOML text describes; `where` names the text in errors. Raises only MachineError.

    Cached: a text takes 2 ms, and a plan names its machine each time."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise MachineError(f"{where}: not TOML: {error or 'nested too deeply'}") from None
    return from_document(document, where)


def from_document(document: dict[str, Any], where: str) -> Machine | Gpu:
    """The machine that a parsed TOML document describes. Raises only MachineError."""
    if document.get("kind") == "gpu" and "like" in document:
        document = _completed(document, where)
    try:
        machine = msgspec.convert(document, Machine | Gpu)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise MachineError(f"{where}: {_explain(str(error))}") from None
    _check(machine, where)
    return machine


def _completed(document: dict[str, Any], where: str) -> dict[str, Any]:
    """A GPU's document, with constants that its [model] lacks from the shipped GPU that it is `like`."""
    name, own = document["like"], document.get("model", {})
    if not isinstance(name, str) or name not in _names() or not isinstance(other := _load_shipped(name), Gpu):
        gpus = [gpu for gpu in names() if gpu != document.get("name") and isinstance(load_any(gpu), Gpu)]
        raise MachineError(f"{where}: like: no shipped GPU is named {quoted(name)}; {choose(str(name), gpus)}")
    if not isinstance(own, dict) or not isinstance(document.get("sources", {}), dict):
        return document  # the conversion reports it
    source = {"title": f"Constants of {other.description}", "note": f"those of {name}, until they are fitted on this machine"}
    completed = {key: value for key, value in document.items() if key != "like"}
    completed["model"] = _merged(msgspec.to_builtins(assumed(other.model, "like")), own)
    completed["sources"] = {"like": source, **document.get("sources", {})}
    return completed


def _merged(table: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A table, recursively updated with the entries of `own`."""
    both = {key: _merged(table[key], value) for key, value in own.items() if isinstance(value, dict) and isinstance(table.get(key), dict)}
    return {**table, **own, **both}


def _explain(message: str) -> str:
    """msgspec's "what - at `$.path`" as "path: what", with a suggestion."""
    what, _, at = message.partition(" - at `")
    path = at.rstrip("`").removeprefix("$").removeprefix(".") or "top level"
    hint = ""
    if match := re.search(r"unknown field `([^`]*)`", what):
        known = {field for struct in _STRUCTS for field in struct.__struct_fields__}
        close = nearest(match.group(1), known - {match.group(1)})  # a key of the other kind of machine
        hint = f'; did you mean "{close}"?' if close else ""
    elif re.search(r"Expected `object`|required field `(kind|source|value)`", what) and path != "top level":
        hint = '; a number is written { value = 1.5, kind = "datasheet", source = "a key of [sources]" }'
    elif path == "schema":
        hint = f"; this version reads schema = {SCHEMA}"
    elif "field `kind`" in what or path == "kind":
        hint = '; the first lines say kind = "cpu" or kind = "gpu"'
    elif path.endswith(".kind"):
        hint = f"; there are: {', '.join(get_args(Kind))}"
    elif path == "capability":
        what, hint = what.partition(" matching")[0], '; it is written "9.0"'
    elif path == "shared_rule":
        hint = f"; there are: {', '.join(get_args(SharedRule))}"
    return f"{path}: {what}{hint}"


def _check(machine: Machine | Gpu, where: str) -> None:
    """Rules beyond types: sources exist and are not empty, values are within range, names are unique."""
    for key, source in machine.sources.items():
        if all(getattr(source, field) is None for field in Source.__struct_fields__ if field != "title"):
            others = "url, section, command, file, versions or note"
            raise MachineError(f"{where}: sources.{key}: a title alone is not a source; add a {others}")
    if isinstance(machine, Gpu):
        _check_gpu(machine, where)
    else:
        _check_cpu(machine, where)
    for path, fact in facts(machine):
        _check_source(fact.source, path, machine, where)
        if isinstance(fact, Number) and fact.error is not None and not (math.isfinite(fact.error) and fact.error >= 0):
            raise MachineError(f"{where}: {path}: error is {fact.error}; it should be finite and at least 0")
    for path, key, value in quantities(machine):
        check_range(value, key, f"{where}: {path}")


def _check_gpu(gpu: Gpu, where: str) -> None:
    """Keys of pipes, families and cluster sizes are ones that the model looks up; no limit exceeds the resources."""
    rows: list[GemmKernel | ConvKernel] = [*gemm_kernels(), *conv_kernels()]
    pipes = {row.pipe for row in rows} | {f"{row.pipe}_f32" for row in rows if row.pipe.startswith("tensor_")}
    for table, known, what in (
        ("fma_per_cycle", pipes, "kernel multiplies on a pipe"),
        ("sustained_hz", gpu.fma_per_cycle, "pipe of fma_per_cycle is"),
        ("model.families", {name for row in rows for name in row.families}, "kernel is of a family"),
    ):
        for name in operator.attrgetter(table)(gpu):
            if name not in known:
                raise MachineError(f"{where}: {table}: no {what} named {quoted(name)}; {choose(name, sorted(known))}")
    if (gpu.gpcs is None) != (gpu.gpc_bytes_per_second is None):
        raise MachineError(f"{where}: gpcs and gpc_bytes_per_second: give both or neither")
    for blocks in gpu.clusters_at_once:
        if not re.fullmatch("[1-9][0-9]?", blocks):
            raise MachineError(f"{where}: clusters_at_once: a key is how many blocks a cluster has, such as 4, not {quoted(blocks)}")
    sizes = ("shared_bytes_per_block", "shared_bytes_per_sm", "l1_bytes")
    for part, whole in itertools.pairwise(sizes):
        of_part, of_whole = getattr(gpu, part).value, getattr(gpu, whole).value
        if of_part > of_whole:
            raise MachineError(f"{where}: {part}: value is {of_part:,}, more than {whole}, {of_whole:,}, which it is a part of")


def _check_cpu(machine: Machine, where: str) -> None:
    """Levels are valid caches, nearest first; units are targets of kernels; `together` is in ascending order of CPUs."""
    _check_source(machine.source, "source", machine, where)
    _check_unique([level.name for level in machine.levels], f"{where}: levels: name")
    for level in machine.levels:
        at = f"{where}: levels.{level.name}"
        if level.line_bytes & (level.line_bytes - 1):
            raise MachineError(f"{at}: line_bytes is {level.line_bytes}; it should be a power of two")
        if level.starts_cold:
            raise MachineError(f"{at}: starts_cold is computed for plans of several threads; leave it out of the file")
        if level.cores is not None and not (level.shared and level.cores <= machine.cores):
            right = f"at most the machine's {machine.cores} that share it, and shared = true"
            raise MachineError(f"{at}: cores is {level.cores}, shared is {str(level.shared).lower()}; expected {right}")
    for inner, outer in itertools.pairwise(machine.levels):
        if inner.size_bytes > outer.size_bytes:
            sizes = f"{inner.size_bytes:,} bytes (sets x ways x line_bytes) are more than the {outer.size_bytes:,} of {outer.name}"
            raise MachineError(f"{where}: levels.{inner.name}: its {sizes}; levels stand nearest first, none larger than the next")
        if inner.line_bytes > outer.line_bytes:
            right = f"no more than the {outer.line_bytes} of {outer.name}"
            raise MachineError(f"{where}: levels.{inner.name}: line_bytes is {inner.line_bytes}; it should be {right}")
    for of, teams in (("core", machine.core.together), *((f"core.units.{unit.target}", unit.together) for unit in machine.core.units)):
        for fewer, more in itertools.pairwise(one.cpus for one in teams):
            if fewer >= more:
                raise MachineError(f"{where}: {of}.together: cpus is {more} behind {fewer}; the numbers of CPUs should grow")
    _check_unique([unit.target for unit in machine.core.units], f"{where}: core.units: target")
    targets = sorted({kernel.target for kernel in cpu_kernels()})
    for unit in machine.core.units:
        if unit.target not in targets:
            raise MachineError(f"{where}: core.units: no kernel has the target {quoted(unit.target)}; {choose(unit.target, targets)}")
        _check_unique([one.name for one in unit.types], f"{where}: core.units.{unit.target}.types: name")
        for one in unit.types:
            if one.name not in GEMM_DTYPES:
                known = choose(one.name, GEMM_DTYPES)
                raise MachineError(f"{where}: core.units.{unit.target}.types: no element type is named {quoted(one.name)}; {known}")


def _check_source(source: str, path: str, machine: Machine | Gpu, where: str) -> None:
    if source not in machine.sources:
        options = choose(source, list(machine.sources))
        raise MachineError(f"{where}: {path}: source {quoted(source)} is not in [sources]; {options}")


def _check_unique(values: list[str], what: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise MachineError(f'{what} "{value}" stands twice; each may stand once')
