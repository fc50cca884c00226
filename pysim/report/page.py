# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML page that needs nothing beside it; Vega draws its charts, embedded by vl-convert. Also as Markdown and CSV."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from pysim import __version__
from pysim.calibration import host
from pysim.errors import MissingError, PysimError, printable
from pysim.explain.advice import advice, verdict, would_help
from pysim.explain.energy import joules_text
from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.measure.cpu_load import LOADED
from pysim.measure.store import now
from pysim.record.description import bytes_text, seconds_text
from pysim.report.charts import charts_of
from pysim.report.rows import Found, Row

_PAGE = Path(__file__).parent / "page.html"
Cell = tuple[str, Any]  # the text, and the value to sort by


class Column(NamedTuple):
    title: str
    cell: Callable[[Row], Cell]
    left: bool = False


def _seconds(value: float | None) -> Cell:
    return (seconds_text(value), value) if value else ("-", "")


def _columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that any row fills."""
    peers = dict.fromkeys(peer for row in rows for peer in row.peers)

    def ratio(peer: str) -> Column:
        def cell(row: Row) -> Cell:
            value = row.peers[peer] / row.measured_seconds if peer in row.peers and row.measured_seconds else None
            return (f"{value:.2f}x", value) if value else ("-", "")

        return Column(peer, cell)

    measured = [
        Column("measured", lambda row: _seconds(row.measured_seconds)),
        *(ratio(peer) for peer in peers),
    ]
    return [
        Column("problem", lambda row: (row.problem, row.problem), left=True),
        Column("machine", lambda row: (row.machine, row.machine), left=True),
        Column("x", lambda row: (str(row.count), row.count)),
        Column("predicted", lambda row: _seconds(row.predicted_seconds)),
        *(measured if any(row.measured_seconds for row in rows) else []),
        Column("GFLOP/s", _rate),
        Column("of peak", lambda row: (f"{row.peak_share:.0%}", row.peak_share) if row.peak_share else ("-", "")),
        Column("bound by", lambda row: (row.bound_by, row.bound_by), left=True),
        Column("algorithm", lambda row: (row.algorithm or row.reason, row.algorithm), left=True),
        Column("kernel", lambda row: (row.kernel, row.kernel), left=True),
        *([Column("energy", _energy)] if any(row.energy_joules for row in rows) else []),
        Column("max error", lambda row: (f"{row.max_error:.1e}", row.max_error) if row.max_error is not None else ("-", "")),
        Column("workspace", lambda row: (bytes_text(row.workspace_bytes), row.workspace_bytes)),
    ]


def _energy(row: Row) -> Cell:
    return (joules_text(row.energy_joules), row.energy_joules) if row.energy_joules else ("-", "")


def _rate(row: Row) -> Cell:
    seconds = row.measured_seconds or row.predicted_seconds
    return (f"{row.flops / seconds / 1e9:,.1f}", row.flops / seconds) if seconds else ("-", "")


def summary_of(found: Found) -> Iterator[str]:
    """The report in sentences: for each machine its time, what takes it and what would help; then what failed."""
    rows = found.rows
    for machine in dict.fromkeys(row.machine for row in rows):
        here = [row for row in rows if row.machine == machine and row.predicted_seconds]
        if not here:
            continue
        total = sum(row.count * (row.predicted_seconds or 0) for row in here)
        layers = sum(row.count for row in here)
        told = f"{machine}: {seconds_text(total)} predicted for {layers:,} {'layer' if layers == 1 else 'layers'}"
        if timed := [row for row in here if row.measured_seconds]:
            measured = sum(row.count * (row.measured_seconds or 0) for row in timed)
            told += f", {seconds_text(measured)} measured" + (f" for {len(timed)} of {len(here)} rows" if len(timed) < len(here) else "")
            if busy := [row.taken for row in timed if row.taken > LOADED]:
                share = f"for up to {max(busy):.0%} of the time on {len(busy)} of {len(timed)} rows"
                told += f", too long where other processes had a CPU: {share}"
        if plans := found.plans.get(machine):
            told += f". Predicted: {verdict(plans)}; {would_help(advice(plans))}"
        yield f"{told}."
    for network in found.networks:
        peers = "".join(f", {name} {seconds_text(seconds)}" for name, seconds in network.get("peers", {}).items())
        if network.get("measured_seconds"):
            yield f"{network['model']} as a whole: {seconds_text(network['measured_seconds'])} measured{peers}."
    for row in rows:
        if row.reason:
            yield f"{row.problem} on {row.machine}: {row.reason}"


def vega() -> Any:
    """vl-convert, which embeds Vega; MissingError without it."""
    try:
        return import_module("vl_convert")
    except ImportError:
        raise MissingError("a report in HTML needs vl-convert: pip install vl-convert-python") from None


def html(found: Found, title: str) -> str:
    rows = found.rows
    charts = charts_of(rows, dict(_machines(rows)))
    schema = f"https://vega.github.io/schema/vega-lite/v{vega().get_vegalite_versions()[-1].partition('.')[0]}.json"
    figures = "".join(
        f'<figure><h3>{escape(chart.title)}</h3><div class="chart" id="chart-{at}" role="img" aria-label="{escape(chart.told)}"></div>'
        f"<figcaption>{escape(chart.told)}</figcaption></figure>"
        for at, chart in enumerate(charts)
    )
    parts = {
        "TITLE": escape(title),
        "MADE": escape(f"pysim {__version__}, {now()[:16].replace('T', ' ')} UTC. Times are predicted unless they are called measured."),
        "SUMMARY": f"<ul>{''.join(f'<li>{escape(printable(one))}</li>' for one in summary_of(found))}</ul>",
        "MACHINES": "".join(f"<option>{escape(one)}</option>" for one in dict.fromkeys(row.machine for row in rows)),
        "TABLE": _table(rows),
        "NETWORKS": _networks(found.networks),
        "CHARTS": figures,
        "PLANS": "".join(_details(at, row) for at, row in enumerate(rows)),
        "SPECS": json.dumps([{"$schema": schema, **chart.spec} for chart in charts]).replace("</", "<\\/"),
        "VEGA": vega().javascript_bundle(),
    }
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _PAGE.read_text(encoding="utf-8"))


def _machines(rows: Sequence[Row]) -> Iterator[tuple[str, Machine | Gpu]]:
    for name in dict.fromkeys(row.machine for row in rows if row.traffic):
        try:
            yield name, host.any_machine(name)
        except PysimError:
            continue


def _table(rows: Sequence[Row]) -> str:
    columns = _columns(rows)
    left = ("", ' class="left"')
    heads = "".join(f'<th scope="col"{left[one.left]}><button type="button">{escape(one.title)}</button></th>' for one in columns)
    lines = []
    for number, row in enumerate(rows):
        cells = []
        for column in columns:
            text, value = column.cell(row)
            shown = escape(printable(text))
            if column.title == "problem" and row.explanation:
                shown = f'<a class="plan" href="#plan-{number}">{shown}</a>'
            cells.append(f'<td{left[column.left]} data-value="{escape(str(value))}">{shown}</td>')
        lines.append(f'<tr data-machine="{escape(row.machine)}">{"".join(cells)}</tr>')
    return f'<table id="table"><thead><tr>{heads}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _details(number: int, row: Row) -> str:
    if not row.explanation:
        return ""
    head = f"{escape(row.problem)} on {escape(row.machine)}: {escape(row.algorithm)}"
    repeat = f"<p>Again: <code>{escape(row.repeat)}</code></p>" if row.repeat else ""
    return f'<details id="plan-{number}"><summary>{head}</summary>{repeat}<pre tabindex="0">{escape(row.explanation)}</pre></details>'


def _networks(networks: Sequence[dict[str, Any]]) -> str:
    """Whole networks that were measured: their times, and their layers with layouts and plans."""
    if not networks:
        return ""
    parts = []
    for one in networks:
        layers = "".join(
            f"<tr><td class='left'>{escape(str(layer.get('op', '')))}</td><td class='left'>{escape(str(layer.get('node', '')))}</td>"
            f"<td>{seconds_text(layer.get('predicted_seconds') or 0)}</td>"
            f"<td class='left'>{escape(str(layer.get('plan') or '-'))}</td></tr>"
            for layer in one.get("layers", ())
        )
        head = (
            "<thead><tr><th class='left'>operator</th><th class='left'>node</th><th>predicted</th><th class='left'>plan</th></tr></thead>"
        )
        table = f"<div class='scroll' tabindex='0'><table>{head}<tbody>{layers}</tbody></table></div>" if layers else ""
        parts.append(f"<h3>{escape(str(one.get('model', '')))}</h3>{table}")
    return f'<section aria-labelledby="networks"><h2 id="networks">Networks</h2>{"".join(parts)}</section>'


def markdown(found: Found, title: str) -> str:
    columns = _columns(found.rows)
    lines = [f"# {title}", "", *(f"- {printable(one)}" for one in summary_of(found)), ""]
    lines.append(f"| {' | '.join(column.title for column in columns)} |")
    lines.append(f"|{'|'.join('---' if column.left else '--:' for column in columns)}|")
    lines += [f"| {' | '.join(printable(column.cell(row)[0]).replace('|', '/') for column in columns)} |" for row in found.rows]
    return "\n".join(lines) + "\n"


def comma_separated(found: Found) -> str:
    """One line a row; numbers in seconds and bytes as they are."""
    columns, text = _columns(found.rows), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.title for column in columns])
    writer.writerows([column.cell(row)[1] for column in columns] for row in found.rows)
    return text.getvalue()
