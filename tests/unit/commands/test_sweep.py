# SPDX-License-Identifier: Apache-2.0
"""`pysim sweep`: every combination once, stopped and resumed, on workers of this computer and of a scheduler."""

import json
import os
import subprocess
import sys
import time
import types

import msgspec
import pytest
from command_line import cache, document, invoke, own_files, refused  # noqa: F401

from pysim import planner
from pysim.errors import ProblemError
from pysim.machine.change import changed
from pysim.machine.load import load_any
from pysim.sweep import results
from pysim.sweep.spec import Spec, Task, read, tasks_of

pytestmark = pytest.mark.usefixtures("own_files")
PROBLEMS = ["conv:mb1ic8ih10oc8kh3ph1", "gemm:32x48x16", "gemm:8x8x8"]


def spec(tmp_path, **fields):
    path = tmp_path / "sweep.toml"
    tables = {key: value for key, value in fields.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items() if key not in tables]
    lines += [
        line for key, table in tables.items() for line in (f"[{key}]", *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in table.items()))
    ]
    path.write_text("\n".join(lines))
    return path


def no_models(model):
    raise AssertionError(model)


def test_every_combination_is_one_task_and_equals_its_plan(tmp_path):
    path = spec(tmp_path, problems=PROBLEMS, machines=["zen4", "zen5"], threads=[1, 2], set={"levels.L2.ways": [8, 16]})
    found = document("sweep", str(path))["results"]
    assert len(found) == len({msgspec.json.encode(one["task"]) for one in found}) == 3 * 2 * 2 * 2
    for one in found:
        task = msgspec.convert(one["task"], Task)
        plan = planner.plan(task.problem, changed(load_any(task.machine), task.changes), threads=task.threads)
        assert (one["result"]["seconds"], one["result"]["plan"]) == (plan.seconds, plan.name)


def test_a_stopped_sweep_does_the_rest_alone(tmp_path):
    path = spec(tmp_path, problems=PROBLEMS, machines=["zen4", "zen5"])
    whole = document("sweep", str(path))["results"]
    file = path.with_suffix(".jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4]) + lines[4][:30])  # killed while it wrote
    result = invoke("sweep", str(path), "--json")
    assert f"{file} has 4 of 6 results" in result.stderr
    assert json.loads(result.stdout)["results"] == whole and len(file.read_bytes().splitlines()) == 6


def test_results_of_another_version_and_failures_are_computed_again(tmp_path):
    wanted = tasks_of(Spec(problems=tuple(PROBLEMS), machines=("zen4",)), no_models)
    found = [
        results.Result(task=wanted[0], result={"seconds": 1.0}),
        results.Result(task=wanted[1], result={"seconds": 1.0}, pysim="0"),
        results.Result(task=wanted[2], result={"error": "no"}),
    ]
    assert results.missing(wanted, found) == wanted[1:]


def test_what_a_machine_cannot_do_is_told_and_costs_nothing_else(tmp_path):
    path = spec(tmp_path, problems=PROBLEMS, machines=["zen4", "h200"], set={"levels.L2.ways": [16]})
    result = invoke("sweep", str(path), "--json")
    assert result.exit_code == 1
    failed = {one["task"]["machine"]: one["result"].get("error", "") for one in json.loads(result.stdout)["results"]}
    assert 'no "levels"' in failed["h200"] and not failed["zen4"]


def test_misses_are_simulated(tmp_path):
    path = spec(tmp_path, problems=["gemm:64x64x64"], machines=["zen4"], how="simulate")
    (one,) = document("sweep", str(path))["results"]
    (case,) = document("cache", "gemm:64x64x64", "-m", "zen4")["caches"]
    assert one["result"]["levels"] == case["levels"] and one["result"]["levels"]["L1"]["simulated_misses"] > 0


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"problems": []}, "problems is empty"),
        ({"problems": PROBLEMS, "machines": []}, "machines is empty"),
        ({"problems": PROBLEMS, "how": "guess"}, 'how: "guess" is not a choice; there are: predict, simulate, measure'),
        ({"problems": PROBLEMS, "accuracy": ["strickt"]}, 'accuracy: "strickt" is not a choice; did you mean "strict"?'),
        ({"problems": PROBLEMS, "machnes": ["zen4"]}, 'unknown field `machnes`; did you mean "machines"?'),
        ({"machines": ["zen4"]}, "problems"),
        ({"problems": ["conv:ic0"]}, "conv:ic0"),
    ],
)
def test_a_specification_that_is_wrong_is_refused_with_the_place(tmp_path, fields, told):
    assert told in refused(2, "sweep", str(spec(tmp_path, **fields)))
    assert not (tmp_path / "sweep.jsonl").exists()


@pytest.mark.parametrize("notes", ["my notes\n", "my notes", '{"task":1}\n', "[1, 2]\nmore"])
def test_a_file_of_other_lines_is_left_as_it_is(tmp_path, notes):
    path = spec(tmp_path, problems=PROBLEMS, machines=["zen4"])
    path.with_suffix(".jsonl").write_text(notes)
    for command in (("sweep", str(path)), ("report", str(path.with_suffix(".jsonl")))):
        assert "sweep" in refused(2, *command)
        assert path.with_suffix(".jsonl").read_text() == notes
    with pytest.raises(ProblemError):
        read(tmp_path / "nowhere.toml")


def test_reading_leaves_a_line_that_is_being_written(tmp_path):
    path = spec(tmp_path, problems=PROBLEMS, machines=["zen4"])
    document("sweep", str(path))
    file = path.with_suffix(".jsonl")
    file.write_bytes(file.read_bytes()[:-20])
    before = file.read_bytes()
    assert len(document("report", str(file))["rows"]) == len(PROBLEMS) - 1 and file.read_bytes() == before


def test_workers_compute_the_same_and_one_that_dies_costs_its_task(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="distributed is not installed")
    wanted = tasks_of(Spec(problems=tuple(PROBLEMS), machines=("zen4", "zen5")), no_models)
    alone = [*results.computed(wanted, tmp_path / "alone.jsonl")]
    shared = [*results.computed(wanted, tmp_path / "shared.jsonl", workers=2)]
    assert sorted(one.task.key for one in shared) == sorted(one.task.key for one in alone)
    assert {one.task.key: one.result for one in shared} == {one.task.key: one.result for one in alone}
    fatal = wanted[-1]  # which is given out with others, and then alone
    run_all = lambda some: os._exit(1) if fatal in some else (1e-6, [{"seconds": 1.0}] * len(some))  # noqa: E731
    monkeypatch.setattr(results, "tasks", types.SimpleNamespace(run_all=run_all))
    found = {one.task.key: one for one in results.computed(wanted, tmp_path / "dead.jsonl", workers=1)}
    assert found[fatal.key].result == {"error": "its worker died"} and len(found) == len(wanted)
    assert sum(one.failed for one in results.read(tmp_path / "dead.jsonl")) == 1


def test_a_scheduler_and_workers_started_by_command_line_share_the_tasks(tmp_path):
    pytest.importorskip("distributed", reason="distributed is not installed")
    path, address = spec(tmp_path, problems=PROBLEMS, machines=["zen4"]), tmp_path / "scheduler.json"
    started = [[sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(address)]]
    started += [[sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(address), "--no-dashboard", "--no-nanny"]] * 2
    running = [subprocess.Popen(one, stderr=subprocess.DEVNULL, cwd=tmp_path) for one in started]
    try:
        deadline = time.monotonic() + 250
        while not (address.exists() and address.read_text().strip()):
            assert running[0].poll() is None and time.monotonic() < deadline, "the scheduler did not start"
            time.sleep(0.1)
        found = document("sweep", str(path), "--dask", json.loads(address.read_text())["address"])["results"]
    finally:
        for one in running:
            one.terminate()
            one.wait()
    assert [one["result"] for one in found] == [
        one.result for one in results.computed(tasks_of(read(path), no_models), tmp_path / "x.jsonl")
    ]


def test_no_scheduler_is_a_sentence(tmp_path):
    pytest.importorskip("distributed", reason="distributed is not installed")
    path = spec(tmp_path, problems=PROBLEMS, machines=["zen4"])
    assert "no Dask scheduler" in refused(2, "sweep", str(path), "--dask", "tcp://127.0.0.1:9")
