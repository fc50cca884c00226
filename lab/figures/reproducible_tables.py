# SPDX-License-Identifier: Apache-2.0
"""Networks under accuracy reproducible on a GPU, from what lab/benchmarks/cuda/reproducible.py measured: a table, and what it says."""

import sys
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
import records
from rooms import DATA

FILE = "h200/reproducible-models.jsonl"
TYPES = {"f32": "FP32", "f16": "FP16"}
TODAY = "today"


def rows() -> list[dict[str, Any]]:
    return records.lines(DATA / FILE)[1:]


def prices(row: dict[str, Any]) -> dict[str, float]:
    """By batch, the time over that of strict."""
    return {batch: own / strict for batch, (own, strict, _) in (row.get("prices") or {}).items()}


def table() -> str:
    """A line for each network, those of today's contracts first."""
    every = sorted(rows(), key=lambda row: (row["state"] != TODAY, row["model"], row["dtype"]))
    batches = [*prices(next(row for row in every if row.get("prices")))]
    lines = [f"| network | images | differ | {' | '.join(batches)} |", "|---|--:|--:|" + "--:|" * len(batches)]
    for row in every:
        name = f"{row['model']}, {TYPES[row['dtype']]}" + ("" if row["state"] == TODAY else ", earlier build")
        times = [f"{price:.2f}" for price in prices(row).values()] or [""] * len(batches)
        lines.append(f"| {name} | {row['images']:,} | {row['differing']} | {' | '.join(times)} |")
    return "\n".join(lines) + "\n"


def said() -> str:
    """Means of what the present contracts cost, and how far predictions are off."""
    timed = [row for row in rows() if row["state"] == TODAY and row.get("prices")]
    every = {(row["model"], batch): price for row in timed for batch, price in prices(row).items()}
    errors = [abs(np.log(told / (own / strict))) for row in timed for own, strict, told in row["prices"].values()]
    (model, batch), most = max(every.items(), key=lambda one: one[1])
    return (
        f"By today's contracts {len(timed)} networks take {mean(every.values()):.2f} times as long as under strict in the mean of all "
        f"batches, {most:.2f} at most ({model}, batch {batch}); predictions are off by {np.median(errors):.1%} in the median and "
        f"{np.quantile(errors, 0.9):.0%} at the 90th percentile.\n"
    )
