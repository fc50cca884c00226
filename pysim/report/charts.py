# SPDX-License-Identifier: Apache-2.0
"""Charts of a report as Vega-Lite specifications (https://vega.github.io/vega-lite/docs/)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pysim.machine.cpu import Machine
from pysim.machine.gpu import Gpu
from pysim.report.rows import Row

_MOST_BARS, _STEP = 60, 18  # pixels of a bar
Spec = dict[str, Any]


class Chart(NamedTuple):
    """A chart; `told` says in words what it shows, for those who do not see it."""

    title: str
    told: str
    spec: Spec


def charts_of(rows: Sequence[Row], machines: dict[str, Machine | Gpu]) -> list[Chart]:
    planned = [row for row in rows if row.predicted_seconds]
    names = list(dict.fromkeys(row.machine for row in planned))
    charts = [_terms(name, [row for row in planned if row.machine == name]) for name in names[:6] if any(row.terms for row in planned)]
    charts += [_roofline(name, [row for row in planned if row.machine == name], machines[name]) for name in names if name in machines]
    charts += [_traffic(name, [row for row in planned if row.machine == name]) for name in names if name in machines]
    if any(row.measured_seconds for row in planned):
        charts.append(_predicted([row for row in planned if row.measured_seconds]))
    if any(row.peers and row.measured_seconds for row in planned):
        charts.append(_peers([row for row in planned if row.peers and row.measured_seconds]))
    return charts


def _chart(title: str, told: str, values: list[dict[str, Any]], **spec: Any) -> Chart:
    return Chart(title, told, {"description": told, "data": {"values": values}, "width": "container", **spec})


def _quantity(field: str, title: str, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, **more}


def _named(field: str, title: str | None = None, **more: Any) -> Spec:
    return {"field": field, "type": "nominal", "title": title, **more}


_LOG = {"scale": {"type": "log", "nice": False}}


def _terms(machine: str, rows: Sequence[Row]) -> Chart:
    """Where the time goes: the terms of the slowest layers."""
    slowest = sorted(rows, key=lambda row: -row.count * (row.predicted_seconds or 0))[:_MOST_BARS]
    values = [
        {"problem": row.problem, "term": term, "ms": row.count * seconds * 1e3, "layers": row.count}
        for row in slowest
        for term, seconds in row.terms.items()
    ]
    first = slowest[0]
    told = f"Predicted time of each layer on {machine} by term, all occurrences. The longest is {first.problem}, bound by {first.bound_by}."
    encoding = {
        "y": _named("problem", sort={"op": "sum", "field": "ms", "order": "descending"}, axis={"labelLimit": 320}),
        "x": _quantity("ms", "predicted milliseconds, all occurrences"),
        "color": _named("term", "term"),
        "tooltip": [_named("problem"), _named("term"), _quantity("ms", "ms", format=".4g"), _quantity("layers", "occurrences")],
    }
    return _chart(f"Where the time goes: {machine}", told, values, mark="bar", encoding=encoding, height=_STEP * len(slowest))


def _roofline(machine: str, rows: Sequence[Row], on: Machine | Gpu) -> Chart:
    """FLOP/s over FLOP per byte, below the peak of the definition's multiply-adds and the bandwidth of memory."""
    rows = [row for row in rows if row.intensity]
    peak = max(
        (row.flops / row.predicted_seconds / row.peak_share / 1e9 for row in rows if row.peak_share and row.predicted_seconds), default=1
    )
    bandwidth = (on.memory_bytes_per_second.value if isinstance(on, Gpu) else on.memory.read_bytes_per_cycle.value * on.clock_hz) / 1e9
    low, high = min(row.intensity for row in rows) / 2, max(row.intensity for row in rows) * 2
    ridge = peak / bandwidth
    corners = sorted({low, min(max(ridge, low), high), high})
    roof = [{"intensity": one, "rate": min(peak, one * bandwidth)} for one in corners]
    points = [
        {"problem": row.problem, "algorithm": row.algorithm, "intensity": row.intensity, "rate": row.flops / (seconds or 1) / 1e9, "of": of}
        for row in rows
        for of, seconds in (("predicted", row.predicted_seconds), ("measured", row.measured_seconds))
        if seconds
    ]
    told = (
        f"Roofline of {machine}: peak {peak:,.0f} GFLOP/s (of the fastest algorithm's arithmetic), memory {bandwidth:,.0f} GB/s, "
        f"ridge at {ridge:.1f} FLOP per byte. Layers whose operands stay in caches may lie above the slope."
    )
    x, y = _quantity("intensity", "FLOP per byte of operands and result", **_LOG), _quantity("rate", "GFLOP/s", **_LOG)
    tooltip = [
        _named("problem"),
        _named("algorithm"),
        _quantity("rate", "GFLOP/s", format=",.1f"),
        _quantity("intensity", "FLOP/byte", format=".3g"),
    ]
    layers = [
        {"data": {"values": roof}, "mark": {"type": "line", "strokeDash": [4, 3]}, "encoding": {"x": x, "y": y}},
        {"mark": {"type": "point", "filled": True, "size": 50}, "encoding": {"x": x, "y": y, "color": _named("of"), "tooltip": tooltip}},
    ]
    return _chart(f"Roofline: {machine}", told, points, layer=layers, height=320)


def _traffic(machine: str, rows: Sequence[Row]) -> Chart:
    """Bytes by level and operand, of all layers together."""
    total: dict[tuple[str, str], float] = {}
    for row in rows:
        for level, operands in row.traffic.items():
            for operand, size in operands.items():
                total[level, operand] = total.get((level, operand), 0.0) + row.count * size
    values = [{"level": level, "operand": operand, "MB": size / 1e6} for (level, operand), size in total.items()]
    told = f"Bytes that each level of {machine} supplies, by operand, all layers together."
    encoding = {
        "y": _named("level", sort=list(dict.fromkeys(level for level, _ in total))),
        "x": _quantity("MB", "megabytes"),
        "color": _named("operand", "operand"),
        "tooltip": [_named("level"), _named("operand"), _quantity("MB", "MB", format=",.1f")],
    }
    return _chart(
        f"Traffic by level: {machine}", told, values, mark="bar", encoding=encoding, height=_STEP * len({level for level, _ in total})
    )


def _predicted(rows: Sequence[Row]) -> Chart:
    """Predicted beside measured times."""
    values = [
        {
            "problem": row.problem,
            "machine": row.machine,
            "predicted": (row.predicted_seconds or 0) * 1e3,
            "measured": (row.measured_seconds or 0) * 1e3,
        }
        for row in rows
    ]
    times = [(row.measured_seconds or 0) * 1e3 for row in rows]
    ends = [{"predicted": one, "measured": one} for one in (min(times) / 1.5, max(times) * 1.5)]
    x, y = _quantity("measured", "measured ms", **_LOG), _quantity("predicted", "predicted ms", **_LOG)
    tooltip = [_named("problem"), _quantity("predicted", "predicted ms", format=".4g"), _quantity("measured", "measured ms", format=".4g")]
    layers = [
        {"data": {"values": ends}, "mark": {"type": "line", "strokeDash": [4, 3]}, "encoding": {"x": x, "y": y}},
        {
            "mark": {"type": "point", "filled": True, "size": 50},
            "encoding": {"x": x, "y": y, "color": _named("machine"), "tooltip": tooltip},
        },
    ]
    told = "Predicted beside measured times; on the dashed line they are equal."
    return _chart("Predicted and measured", told, values, layer=layers, height=320)


def _peers(rows: Sequence[Row]) -> Chart:
    """Times of peers over those of the plan."""
    values = [
        {"problem": row.problem, "peer": peer, "ratio": seconds / (row.measured_seconds or 1)}
        for row in rows
        for peer, seconds in row.peers.items()
    ]
    encoding = {
        "y": _named("problem", sort=None, axis={"labelLimit": 320}),
        "x": _quantity("ratio", "time of the peer over the plan's: above 1 the plan is faster"),
        "color": _named("peer", "peer"),
        "yOffset": {"field": "peer"},
        "tooltip": [_named("problem"), _named("peer"), _quantity("ratio", "ratio", format=".2f")],
    }
    layers = [
        {"mark": "bar", "encoding": encoding},
        {
            "data": {"values": [{"one": 1}]},
            "mark": {"type": "rule", "strokeDash": [4, 3]},
            "encoding": {"x": {"field": "one", "type": "quantitative"}},
        },
    ]
    return _chart("Peers", "Times of other libraries over the plan's, layer by layer.", values, layer=layers, height=_STEP * len(values))
