# SPDX-License-Identifier: Apache-2.0
"""`pysim banks`: shared-memory wavefronts of a layout, lane by lane, and the layout that would take fewer."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import numpy as np

from pysim.cachemodel.shared_memory import patterns, tilefile
from pysim.cachemodel.shared_memory.banks import LANES, SharedMemory, rules
from pysim.cachemodel.shared_memory.fix import Fixes, Option, fix
from pysim.cachemodel.shared_memory.layout import Layout, cosize, describe, name
from pysim.cachemodel.shared_memory.tile import MOST_BYTES, Access, Tally, Tile, addresses, tally
from pysim.commands.common import Choice, Column, OutputFile, document, json_option, put, put_table
from pysim.errors import OperandError, ProblemError
from pysim.explain.bankmap import Picture, picture, svg, text
from pysim.file_io import written

_LANE_LAYOUT = re.compile(r"\(?([0-9]+(?:,[0-9]+)*)\)?:\(?([0-9]+(?:,[0-9]+)*)\)?")
_PIPED_COLUMNS = 120


TALLIES: list[Column[Tally]] = [
    Column("access", lambda one: one.access, left=True),
    Column("instruction", lambda one: one.instruction, left=True),
    Column("count", lambda one: f"{one.instructions:,}"),
    Column("wavefronts", lambda one: f"{one.wavefronts:,}"),
    Column("minimum", lambda one: f"{one.minimum:,}"),
    Column("conflicts", lambda one: f"{one.conflicts:,}"),
]


class Report(NamedTuple):
    """A tile, the cost of its accesses, and the search's result if requested."""

    tile: Tile
    tallies: tuple[Tally, ...]
    fixes: Fixes | None


@click.command()
@click.argument("layouts", metavar="LAYOUT|FILE...", nargs=-1)
@click.option(
    "--width",
    type=Choice(["4", "8", "16"]),
    help="Bytes per lane of a lane layout (default 16). For other layouts: show only accesses of this width.",
)
@click.option("--store", is_flag=True, help="Treat a lane layout as a store, not a load. For other layouts: show only stores.")
@click.option("--fix", "fixing", is_flag=True, help="Search paddings, swizzles and rotations for the fewest wavefronts.")
@click.option("--rule", default="hopper", show_default=True, help="The GPU generation whose bank rule applies (see --list).")
@click.option("--svg", "picture_file", type=OutputFile(".svg"), help="Also draw the bank maps into this SVG file.")
@click.option("--list", "listing", is_flag=True, help="List the built-in layouts and the bank rules.")
@json_option
def banks(
    layouts: tuple[str, ...],
    width: str | None,
    store: bool,
    fixing: bool,
    rule: str,
    picture_file: Path | None,
    listing: bool,
    as_json: bool,
) -> None:
    """Shared-memory wavefronts per instruction, with the lane -> bank map of the most
    expensive one.

    A LAYOUT is a built-in name (see --list; * and ? match), or a map from lanes to places of --width bytes in CuTe's notation.
    A FILE is a .toml or .json description of a tile and its accesses (see pysim/cachemodel/shared_memory/tilefile.py).

    \b
    Examples
      pysim banks --list
      pysim banks opencnn-optsts64 --store
      pysim banks transpose-32x32 --fix --svg transpose.svg
      pysim banks 8,4:4,33 --width 4
      pysim banks tile.toml --fix --json
    """
    memory = SharedMemory(rule=rule)
    if listing:
        if layouts or width or store or fixing or picture_file:
            raise click.UsageError(
                "--list shows the built-in layouts and rules; it cannot be combined with a LAYOUT or with --width, --store, --fix or --svg"
            )
        _list(memory, as_json)
        return
    if not layouts:
        raise ProblemError("no layout is given; `pysim banks --list` names the built-in ones")
    tiles = [tile for target in layouts for tile in _tiles(target, int(width) if width else None, store)]
    reports = [Report(tile, tally(tile, memory), fix(tile, memory) if fixing else None) for tile in tiles]
    if picture_file is not None:
        _draw(picture_file, reports, memory)
    if as_json:
        document(banks=[_document(one, memory) for one in reports])
        return
    for number, one in enumerate(reports):
        if number:
            put("")
        _report(one, memory)


def _tiles(target: str, width: int | None, store: bool) -> list[Tile]:
    """The tiles of an argument, with the accesses of that width and kind."""
    if match := _LANE_LAYOUT.fullmatch(target):
        return [_lane_layout(target, match, width or 16, store)]
    is_file = target.endswith((".toml", ".json")) or "/" in target
    tiles = [tilefile.load(Path(target))] if is_file else patterns.matching(target)
    chosen = []
    for tile in tiles:
        accesses = tuple(one for one in tile.accesses if (not store or one.store) and width in (None, one.width))
        if accesses:
            chosen.append(msgspec.structs.replace(tile, accesses=accesses))
    if not chosen:
        there = sorted({access.instruction for tile in tiles for access in tile.accesses})
        wanted = f"{'store' if store else 'access'}{f' of {width} bytes per lane' if width else ''}"
        raise ProblemError(f"{target} has no {wanted}; it has {', '.join(there)}")
    return chosen


def _lane_layout(target: str, match: re.Match[str], width: int, store: bool) -> Tile:
    """A layout from lanes to places of `width` bytes; lanes beyond its size are inactive."""
    try:
        shape, stride = (tuple(map(int, part.split(","))) for part in match.groups())
        layout = Layout(shape, stride)
    except (OperandError, ValueError) as error:
        raise ProblemError(f"{target}: {error}") from None
    if layout.size > LANES:
        raise ProblemError(f"{target} has {layout.size} places; a warp has {LANES} lanes")
    if layout.span() * width > MOST_BYTES:
        raise ProblemError(f"{target} spans {layout.span() * width} bytes; {MOST_BYTES} are allowed")
    lanes = np.arange(LANES)
    place = np.unravel_index(np.minimum(lanes, layout.size - 1), shape, order="F")  # the first mode fastest, as CuTe counts
    index = np.asarray(layout(*place), np.int64)[None]
    active = None if layout.size == LANES else (lanes < layout.size)[None]
    return Tile(
        name=target,
        about=f"lane -> place of {width} bytes",
        source="command line",
        shape=(cosize(layout),),
        element_bytes=width,
        accesses=(Access("lanes", index, width, store, active),),
    )


def _pictures(tile: Tile, tallies: tuple[Tally, ...], memory: SharedMemory, suffix: str = "") -> list[Picture]:
    """The most expensive instruction of each access."""
    drawn = []
    for access, one in zip(tile.accesses, tallies, strict=True):
        active = None if access.active is None else access.active[one.worst]
        place = addresses(tile, access)[one.worst]
        drawn.append(picture(memory, place, access.width, access.store, active, f"{access.name}{suffix}"))
    return drawn


def _draw(path: Path, reports: list[Report], memory: SharedMemory) -> None:
    drawn = []
    for tile, tallies, fixes in reports:
        drawn += _pictures(tile, tallies, memory, f" ({tile.name})")
        if fixes is not None and fixes.best.wavefronts < fixes.present.wavefronts:
            better = msgspec.structs.replace(tile, maps=fixes.best.maps)
            drawn += _pictures(better, fixes.best.tallies, memory, f" ({tile.name} with {_maps(fixes.best)})")
    title = f"{', '.join(one.tile.name for one in reports)}: lanes and banks under the {memory.rule} rule"
    with written(path) as partial:
        partial.write_text(svg(title, drawn), encoding="utf-8", errors="backslashreplace")


def _report(report: Report, memory: SharedMemory) -> None:
    """A tile in text: its accesses, the most expensive instruction of each drawn, and the search's result."""
    tile, tallies, fixes = report
    put((tile.name, "bold"), f": {tile.about}" if tile.about else "")
    put(f"{tile.bytes:,} bytes, {describe(tile.layout)}; {_known(tile, memory)}")
    put_table(TALLIES, tallies)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED_COLUMNS
    for drawn in _pictures(tile, tallies, memory):
        put("")
        for line in text(drawn, columns).splitlines():
            put(line)
    if fixes is not None:
        put("")
        _fix_report(fixes)


def _fix_report(fixes: Fixes) -> None:
    """The present layout and the best of each kind, best first; then the proof of the best."""
    best, proof = fixes.best, fixes.best.proof
    verdict = "no conflicts" if not best.conflicts else f"{best.conflicts:,} above the minimum of {best.minimum:,}"
    put(f"fix: {fixes.considered:,} layouts tried; best: {_maps(best)}, {best.wavefronts:,} wavefronts ({verdict})")
    shown: list[Option] = []
    for one in fixes.options:
        if one.kind not in {other.kind for other in shown}:
            shown.append(one)
    columns: list[Column[Option]] = [
        Column("layout", lambda one: "present: " * (one is fixes.present) + _maps(one), left=True),
        Column("wavefronts", lambda one: f"{one.wavefronts:,}"),
        Column("conflicts", lambda one: f"{one.conflicts:,}"),
        Column("bytes", lambda one: f"{one.bytes:,}"),
        Column("place of element i (row-major)", lambda one: one.expression, left=True),
    ]
    put_table(columns, [fixes.present, *shown])
    distinct = "no two share one" if proof.bijective else "ELEMENTS SHARE A PLACE"
    inside = "within the tile's memory" if proof.in_bounds else "OUTSIDE THE TILE'S MEMORY"
    put(f"proof: {proof.elements:,} elements in {proof.places:,} places ({distinct}),")
    put(f"       places {proof.lowest:,} to {proof.highest:,} of 0 to {proof.span - 1:,} ({inside}),")
    put(f"       {proof.vectors:,} lane accesses contiguous and aligned")


def _maps(option: Option) -> str:
    return " then ".join(map(name, option.maps)) or "row-major"


def _known(tile: Tile, memory: SharedMemory) -> str:
    """The rule and the kind of evidence for its parts that this tile uses."""
    kinds = {("stores" if one.store else "loads"): memory.grouping(one.store).kind for one in tile.accesses}
    if len(set(kinds.values())) == 1:
        return f"rule {memory.rule} ({next(iter(kinds.values()))})"
    return f"rule {memory.rule} ({', '.join(f'{what} {kind}' for what, kind in sorted(kinds.items()))})"


def _document(report: Report, memory: SharedMemory) -> dict[str, Any]:
    """A tile as JSON values."""
    tile, tallies, fixes = report
    known = {what: memory.grouping(what == "stores") for what in ("loads", "stores")}
    sources = rules().sources
    return {
        **_summary(tile, tallies),
        "shape": list(tile.shape),
        "element_bytes": tile.element_bytes,
        "layout": describe(tile.layout),
        "maps": msgspec.to_builtins(tile.maps),
        "rule": {
            "name": memory.rule,
            "banks": memory.banks,
            "bank_bytes": memory.bank_bytes,
            **{what: {"kind": row.kind, "source": sources[row.source].title} for what, row in known.items()},
        },
        "assumed": sorted(what for what, row in known.items() if row.kind == "assumed"),
        "accesses": [_access(tile, *pair, memory) for pair in zip(tile.accesses, tallies, strict=True)],
        "fixes": None if fixes is None else _fixes(fixes),
    }


def _summary(tile: Tile, tallies: tuple[Tally, ...]) -> dict[str, Any]:
    wavefronts, minimum = sum(one.wavefronts for one in tallies), sum(one.minimum for one in tallies)
    return {
        "name": tile.name,
        "about": tile.about,
        "source": tile.source,
        "bytes": tile.bytes,
        "wavefronts": wavefronts,
        "minimum": minimum,
        "conflicts": wavefronts - minimum,
    }


def _access(tile: Tile, access: Access, one: Tally, memory: SharedMemory) -> dict[str, Any]:
    """An access's sums, and its most expensive instruction with the addresses that reproduce it."""
    place = addresses(tile, access)[one.worst]
    active = None if access.active is None else access.active[one.worst]
    cost = memory.wavefronts(place, access.width, access.store, active)
    return {
        "name": access.name,
        "instruction": access.instruction,
        "width": access.width,
        "store": access.store,
        "instructions": one.instructions,
        "wavefronts": one.wavefronts,
        "minimum": one.minimum,
        "conflicts": one.conflicts,
        "worst": {
            "addresses": place.tolist(),
            "active": None if active is None else active.tolist(),
            "wavefronts": cost.total,
            "minimum": cost.minimum,
            "conflicts": cost.conflicts,
            "per_group": list(cost.per_group),
        },
    }


def _fixes(fixes: Fixes) -> dict[str, Any]:
    return {
        "considered": fixes.considered,
        "present": _option(fixes.present),
        "options": list(map(_option, fixes.options)),
    }


def _option(one: Option) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "layout": _maps(one),
        "maps": msgspec.to_builtins(one.maps),
        "wavefronts": one.wavefronts,
        "minimum": one.minimum,
        "conflicts": one.conflicts,
        "bytes": one.bytes,
        "expression": one.expression,
        "proof": {
            **msgspec.to_builtins(one.proof),
            "bijective": one.proof.bijective,
            "in_bounds": one.proof.in_bounds,
        },
    }


def _list(memory: SharedMemory, as_json: bool) -> None:
    """Every built-in layout with its cost, and every rule with its evidence."""
    reports = [_summary(tile, tally(tile, memory)) for tile in map(patterns.pattern, patterns.names())]
    if as_json:
        document(banks=reports, rules=msgspec.to_builtins(rules().rules))
        return
    layouts: list[Column[dict[str, Any]]] = [
        Column("layout", lambda one: one["name"], left=True),
        Column("bytes", lambda one: f"{one['bytes']:,}"),
        Column("wavefronts", lambda one: f"{one['wavefronts']:,}"),
        Column("minimum", lambda one: f"{one['minimum']:,}"),
        Column("description", lambda one: one["about"], left=True),
    ]
    put_table(layouts, reports)
    put("")
    known, sources = rules().rules, rules().sources
    columns: list[Column[str]] = [
        Column("rule", str, left=True),
        Column("capability", lambda rule: known[rule].capability, left=True),
        Column("loads", lambda rule: known[rule].loads.kind, left=True),
        Column("stores", lambda rule: known[rule].stores.kind, left=True),
        Column("source", lambda rule: sources[known[rule].loads.source].title, left=True),
    ]
    put_table(columns, known)
