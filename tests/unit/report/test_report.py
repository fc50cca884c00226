# SPDX-License-Identifier: Apache-2.0
"""`pysim report`: every number is the plan's or the document's, whatever the format."""

import csv
import json

import pytest
from command_line import SMALL, cache, document, native, ok, own_files, refused  # noqa: F401

from pysim import planner
from pysim.explain.text import explain
from pysim.record.measurement import Comparison

pytestmark = pytest.mark.usefixtures("own_files")
PRODUCT = "gemm:64x48x32"


def test_rows_are_the_plans():
    rows = document("report", SMALL, PRODUCT, "-m", "zen4", "-m", "h200")["rows"]
    assert [(row["problem"], row["machine"]) for row in rows] == [(one, on) for on in ("zen4", "h200") for one in (SMALL, PRODUCT)]
    for row in rows:
        plan = planner.plan(row["problem"], row["machine"])
        assert (row["predicted_seconds"], row["plan"], row["explanation"]) == (plan.seconds, plan.name, explain(plan))
        assert sum(row["terms"].values()) == pytest.approx(plan.seconds)
        assert 0 <= row["peak_share"] <= 1.001 and row["intensity"] > 0
        assert row["repeat"] == f"pysim plan {row['problem']} -m {row['machine']} --explain"


def test_comma_separated_values_and_markdown_have_every_row():
    text = ok("report", SMALL, PRODUCT, "-m", "zen4", "--format", "csv")
    found = [*csv.DictReader(text.splitlines())]
    assert [one["problem"] for one in found] == [SMALL, PRODUCT]
    assert float(found[0]["predicted"]) == planner.plan(SMALL, "zen4").seconds
    text = ok("report", SMALL, PRODUCT, "-m", "zen4")
    assert text.startswith(f"# {SMALL}, {PRODUCT}") and "would help" in text and text.count("\n| ") == 3


def comparison(plan, seconds):
    fields = {"label": "", "plan": plan.to_dict(), "correct": True, "machine": plan.machine, "errors": {"pysim": 2e-7}}
    return Comparison(
        problem=plan.problem, measured_seconds=seconds, predicted_seconds=plan.seconds, peers={"onednn": 2 * seconds}, **fields
    )


def test_a_document_of_measurements_is_a_report(tmp_path):
    import msgspec

    ours = comparison(planner.plan(SMALL, "zen4"), 1e-4)
    file = tmp_path / "today.json"
    file.write_bytes(msgspec.json.encode({"schema": 1, "comparisons": [ours]}))
    (row,) = document("report", str(file))["rows"]
    assert (row["measured_seconds"], row["max_error"], row["peers"]) == (1e-4, 2e-7, {"onednn": 2e-4})
    assert row["explanation"] == explain(planner.plan(SMALL, "zen4"))
    assert "2.00x" in ok("report", str(file)) and "other processes" not in ok("report", str(file))
    file.write_bytes(msgspec.json.encode({"schema": 1, "comparisons": [msgspec.structs.replace(ours, taken=0.4)]}))
    assert "too long where other processes had a CPU: for up to 40% of the time on 1 of 1 rows" in ok("report", str(file))


def test_a_machine_that_is_not_known_here_is_reported_as_it_is(tmp_path):
    plan = planner.plan(SMALL, "zen4").to_dict() | {"machine": "a machine of long ago", "label": "", "count": 3}
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"schema": 1, "plans": [plan]}))
    (row,) = document("report", str(file))["rows"]
    assert (row["predicted_seconds"], row["count"]) == (plan["cost"]["seconds"], 3) and "not explained here" in row["explanation"]


def test_the_results_of_a_sweep_are_a_report(tmp_path):
    spec = tmp_path / "sweep.toml"
    spec.write_text(f'problems = ["{SMALL}"]\nmachines = ["zen4", "h200"]\n[set]\n"levels.L2.ways" = [8, 16]\n')
    document("sweep", str(spec), code=1)
    rows = document("report", str(tmp_path / "sweep.jsonl"))["rows"]
    assert [row["machine"] for row in rows] == [f"{on}, levels.L2.ways={ways}" for on in ("zen4", "h200") for ways in (8, 16)]
    assert rows[0]["predicted_seconds"] and 'no "levels"' in rows[2]["reason"]


@native
def test_a_problem_without_a_plan_has_its_reason():
    rows = document("report", SMALL + ":tf32", "-m", "zen4")["rows"]
    assert rows[0]["reason"] and not rows[0]["predicted_seconds"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ('{"schema": 1, "machines": []}', "no document"),
        ("[]", "no document"),
        ('{"schema": 1, "plans": []}', "nothing to report"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content, told):
    file = tmp_path / "other.json"
    file.write_text(content)
    assert told in refused(2, "report", str(file))
    assert "cannot be read" in refused(2, "report", str(tmp_path / "nowhere.json"))
