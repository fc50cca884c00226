# SPDX-License-Identifier: Apache-2.0
"""Runs of other days: a plan that became slower is told from a computer that did."""

import json
import os
from functools import partial

import msgspec
import numpy as np
import pytest
from command_line import SMALL, cache, document, invoke, native, ok, own_files, refused  # noqa: F401

from pysim import planner
from pysim.calibration import host
from pysim.comparison.bench import bench_of
from pysim.comparison.history import Change, baseline, change_of, compared, runs_of, together
from pysim.comparison.peer_timings import checked
from pysim.errors import MissingError
from pysim.measure.store import Store
from pysim.peers import earlier
from pysim.record.measurement import Measurement

pytestmark = pytest.mark.usefixtures("own_files")
VERSION = {"version": "OpenBLAS 0.3.30"}


def measurements(seed, slower=1.0, load=0.0, rounds=60, run="", peer=VERSION, problem=SMALL, clock="3e9"):
    """Samples of a plan of 700 us and of a peer in turns: the clock wanders, others have the CPU in a share `load` of the rounds."""
    rng = np.random.default_rng(seed)
    slow = rng.uniform(0.8, 1.25)
    shared = slow * (1 + 0.03 * np.abs(rng.standard_normal(rounds))) * np.where(rng.random(rounds) < load, 2.0, 1.0)
    placed = 1 + 0.004 * rng.standard_normal()  # buffers lie elsewhere in each run
    ours, theirs = (shared * (1 + 0.01 * np.abs(rng.standard_normal(rounds))) * seconds for seconds in (700e-6 * slower * placed, 1e-3))
    same = {"problem": problem, "machine": "zen4", "state": "hot", "time": f"2026-11-{seed % 28 + 1:02}", "run": run or str(seed)}
    found = [
        Measurement(
            kernel="k", schedule="{}", samples=tuple(ours), environment={"threads": "1", "clock_hz": str(float(clock) / slow)}, **same
        )
    ]
    if peer is not None:
        found.append(Measurement(kernel="im2col_openblas", schedule="", samples=tuple(theirs), environment=peer, **same))
    return found


def run(*args, **fields):
    """A series of one run."""
    (found,) = runs_of(measurements(*args, **fields))
    return (found,)


def series(seed, count, **fields):
    return tuple(run(100 * seed + turn, **fields)[0] for turn in range(count))


def test_a_regression_of_five_percent_is_found_and_none_where_there_is_none():
    before = series(10, 3, load=0.5)
    assert [change_of(before, series(seed, 10, slower=1.05, load=0.5)).verdict for seed in range(10)] == ["slower"] * 10
    assert [change_of(before, series(seed, 2, load=0.5)).verdict for seed in range(20)] == ["same"] * 20
    assert [change_of(before, series(seed, 10, slower=1 / 1.06, load=0.5)).verdict for seed in range(10)] == ["faster"] * 10


def beside(seed, slower=1.0, noise=0.03, rounds=60, library="one", problem=SMALL):
    """A run timed in turns with the baseline's library: what disturbs it takes up to four times as long, in either of both."""
    rng = np.random.default_rng(seed)

    def seconds():
        disturbed = np.where(rng.random(rounds) < 0.5, rng.exponential(1.0, rounds), 0.0)
        return 1e-3 * (1 + noise * np.abs(rng.standard_normal(rounds)) + disturbed)

    same = {"problem": problem, "machine": "zen4", "state": "hot", "time": "2026-11-29", "run": f"{problem} {seed}"}
    kept = {"threads": "1", "library": "one", "plan": "sconv"}
    ours = Measurement(kernel="k", schedule="{}", samples=tuple(slower * seconds()), environment=kept, **same)
    version = {"version": earlier.version_of(library, "k", "sconv")}
    theirs = Measurement(kernel=earlier.NAME, schedule="", samples=tuple(seconds()), environment=version, **same)
    return runs_of([ours, theirs])[0]


def test_beside_the_library_of_the_baseline_its_computer_does_not_matter():
    before = tuple(run(seed, load=0.5)[0] for seed in range(3))
    before = tuple(one._replace(ours=beside(0).ours) for one in before)
    slower = [change_of(before, tuple(beside(10 * seed + turn, 1.05) for turn in range(6)), 3) for seed in range(10)]
    assert {one.verdict for one in slower} == {"slower"} and {one.against for one in slower} == {earlier.NAME}
    assert not any(one.doubtful for one in slower)  # so that no more runs are made
    equal = [change_of(before, tuple(beside(1000 + 10 * seed + turn) for turn in range(6)), 3) for seed in range(20)]
    assert {one.verdict for one in equal} == {"same"} and not any(one.doubtful for one in equal)
    other = change_of(before, (beside(1, library="two"),))
    assert other is None or other.against != earlier.NAME


def test_layers_that_each_say_little_say_more_together():
    problems = [f"gemm:{n}x8x8" for n in range(8, 24)]
    before = [(beside(at, problem=problem),) for at, problem in enumerate(problems)]
    for slower, verdict in ((1.045, "slower"), (1.0, "same")):
        rows = compared(before, [(beside(100 + at, slower, noise=0.1, problem=problem),) for at, problem in enumerate(problems)])
        alone, every = [one.change for one in rows], together(rows, before)
        assert any(one.verdict in ("same", "undecided") for one in alone) and every.verdict == verdict
        assert max(one.high / one.low for one in alone) > 1.03 > every.high / every.low


def test_a_kept_library_that_is_damaged_or_gone_is_refused(tmp_path, monkeypatch):
    (tmp_path / "other.so").write_bytes(b"no library")
    monkeypatch.setattr("pysim.runtime.cpu.library_path", lambda: tmp_path / "other.so")
    name = earlier.keep(tmp_path / "kept")
    path = tmp_path / "kept" / f"{name}.so"
    monkeypatch.undo()
    with pytest.raises(MissingError, match="cannot be opened"):
        earlier.Library.of(path.parent, name)
    path.write_bytes(b"something else")
    with pytest.raises(MissingError, match="damaged"):
        earlier.Library.of(path.parent, name)
    path.unlink()
    with pytest.raises(MissingError, match="cannot be opened"):
        earlier.Library.of(path.parent, name)


def test_the_oldest_kept_libraries_make_room(tmp_path, monkeypatch):
    for at in range(earlier.MOST_KEPT + 2):
        (tmp_path / "lib.so").write_bytes(bytes([at]))
        monkeypatch.setattr("pysim.runtime.cpu.library_path", lambda: tmp_path / "lib.so")
        name = earlier.keep(tmp_path / "kept")
        assert earlier.keep(tmp_path / "kept") == name
        os.utime(tmp_path / "kept" / f"{name}.so", (at, at))
    assert len([*(tmp_path / "kept").iterdir()]) == 2 * earlier.MOST_KEPT and (tmp_path / "kept" / f"{name}.so").exists()


def test_others_that_used_more_of_the_cpus_widen_the_interval_towards_no_change():
    before, after = series(1, 3), series(2, 6, slower=1.06)
    busier = tuple(
        one._replace(ours=msgspec.structs.replace(one.ours, environment={**one.ours.environment, "taken": "0.6"})) for one in after
    )
    quiet, busy = change_of(before, after), change_of(before, busier)
    assert (quiet.verdict, busy.verdict) == ("slower", "undecided")
    assert busy.low < 0.93 * quiet.low and (busy.value, busy.high) == (quiet.value, quiet.high)


def test_a_peer_of_another_version_says_nothing():
    before, after = run(1), run(2, slower=1.2, peer={"version": "OpenBLAS 0.4"}, clock="0")
    assert change_of(before, after) is None
    (one,) = compared([before], [after])
    assert one.before is before[0] and one.change is None


def test_without_a_peer_cycles_are_compared():
    before, after = run(1, peer=None), run(1, peer=None, slower=1.3)
    change = change_of(before, after)
    assert change.against == "clock" and change.value == pytest.approx(1.3) and change.verdict == "slower"


def test_runs_of_other_settings_are_no_baseline():
    (one,) = compared([run(1)], [run(2, problem="gemm:8x8x8")])
    assert one.before is None and one.change is None


def test_runs_of_one_series_narrow_the_interval_and_average_what_memory_does():
    (before, *more), after = (run(seed)[0] for seed in range(3)), run(9)
    one, three = change_of((before,), after), change_of((before, *more), after)
    assert three.high - three.low < 0.95 * (one.high - one.low)


def test_rounds_that_others_disturbed_do_not_count():
    rng = np.random.default_rng(5)
    ours, peer = (1e-3 * (1 + 0.002 * rng.standard_normal(90)) for _ in range(2))
    ours[30:] *= rng.uniform(1.0, 3.0, 60)  # of other processes, only beside the plan
    same = {"problem": SMALL, "machine": "zen4", "state": "hot", "time": "2026-11-28", "run": "7"}
    plan = Measurement(kernel="k", schedule="{}", samples=tuple(ours), environment={"threads": "1"}, **same)
    other = Measurement(kernel="im2col_openblas", schedule="", samples=tuple(peer), environment=VERSION, **same)
    change = change_of(tuple(runs_of([plan, other])), tuple(runs_of([plan, other])))
    assert change.value == 1 and change.high < 1.04


def test_the_last_run_of_a_name_counts(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        for seed in (1, 2):
            store.add_run(measurements(seed))
            store.mark("monday", str(seed))
        assert [[one.ours.run for one in series] for series in baseline(store, "monday")] == [["2"]] and baseline(store, "tuesday") == []
        assert [(name, count) for name, count, _ in store.marks()] == [("monday", 2)]
        assert len(store.find()) == 4


def test_history_shows_what_the_store_knows(tmp_path, monkeypatch):
    with Store() as store:
        for seed, slower in ((1, 1.0), (2, 1.3)):
            store.add_run(measurements(seed, slower=slower))
        store.mark("monday", "1")
    every = document("history")
    assert every["runs"] == [{"problem": SMALL, "machine": "zen4", "runs": 2, "last": "2026-11-03"}]
    assert every["baselines"][0]["name"] == "monday"
    first, last = document("history", SMALL)["changes"]
    assert (first["change"], first["verdict"], last["verdict"]) == (1.0, "same", "slower") and 1.25 < last["change"] < 1.35
    (only,) = document("history", SMALL, "--baseline", "monday")["changes"]
    assert only["verdict"] == "slower" and "slower" in ok("history", "--baseline", "monday")
    assert "there is monday" in refused(2, "history", "--baseline", "mondy")
    assert "no measurement" in refused(2, "history", "gemm:8x8x8")


@native
def test_a_comparison_is_saved_resumed_and_compared_with(monkeypatch):
    quick = ("--seconds", "0", "--json")
    for name, value in {"RUNS": 2, "FEWEST_RUNS": 1, "MOST_RUNS": 1, "MOST_UNDECIDED": 1, "SAMPLES": 5}.items():
        monkeypatch.setattr(f"pysim.commands.history.{name}", value)
    one, both = (SMALL,), (SMALL, "gemm:64x48x32")
    ok("compare", *one, "--save", "monday", *quick)
    again = invoke("compare", *both, "--save", "monday", "--resume", *quick)
    assert '"monday" has 1 of 2 layers' in again.stderr
    assert [found["problem"] for found in json.loads(again.stdout)["comparisons"]] == [both[1]]
    assert "both" in invoke("compare", *both, "--resume").stderr
    assert {one["problem"] for one in document("history", "--baseline", "monday")["changes"]} == {*both}
    with Store() as store:
        assert [count for _, count, _ in store.marks()] == [4]  # two runs of each
        assert [len(series) for series in baseline(store, "monday")] == [2, 2]
    told = json.loads(invoke("compare", *both, "--baseline", "monday", *quick).stdout)
    assert all(found["ratios"][earlier.NAME]["value"] > 0 for found in told["comparisons"])  # beside the library that was kept
    monkeypatch.setattr("pysim.comparison.history.change_of", lambda before, after, layers: change_of(run(1), run(2, slower=1.3)))
    told = invoke("compare", *one, "--baseline", "monday", "--seconds", "0")
    assert told.exit_code == 1 and 'since "monday": 1 plan slower of 1' in told.output
    unsure, measured = Change(1.04, 0.99, 1.09, earlier.NAME), []
    monkeypatch.setattr("pysim.comparison.history.change_of", lambda before, after, layers: measured.append(after) or unsure)
    monkeypatch.setattr("pysim.commands.history.MOST_UNDECIDED", 3)
    told = invoke("compare", *one, "--baseline", "monday", *quick)
    assert told.exit_code == 4 and "undecided since monday" in told.stderr and max(map(len, measured)) == 3
    assert "0 plans slower of 1, 1 undecided" in invoke("compare", *one, "--baseline", "monday", "--seconds", "0").output


@native
def test_the_plan_of_a_baseline_computes_the_same_on_its_library_whatever_the_problem(tmp_path):
    machine, name = host.machine("host"), earlier.keep(tmp_path)
    for text in ("conv:mb1ic8ih10oc8kh3ph1", "conv:mb1ic16ih9oc24kh1", "conv:mb1g8ic8ih9oc8kh3ph1", "gemm:24x16x32:nt", "gemm:5x7x9:f64"):
        plan = planner.plan(text, machine)
        peer = earlier.Earlier({plan.problem: (plan, name)}, tmp_path)
        bench = bench_of(plan, machine, 1, 0)
        verdict, _ = checked(bench, partial(peer.make, plan.workload))
        assert verdict.passed, verdict.reason
        operands = bench.operands(exact=False)
        ours, theirs = bench.result(bench.make(plan, operands), operands).copy(), bench.result(peer.make(plan.workload, operands), operands)
        assert ours.tobytes() == theirs.tobytes()
    with pytest.raises(MissingError, match="has no plan"):
        peer.make(planner.plan("gemm:8x8x8", machine).workload, operands)
    library = earlier.Library.of(tmp_path, name)
    with pytest.raises(MissingError, match="has no"):
        library._replace(tables=[one for one in library.tables if one != plan.kernel]).row(plan.kernel)


def test_a_change_that_a_peer_does_not_show_is_none():
    def steady(ours, peer, name):
        spread = 1 + 0.01 * np.random.default_rng(len(name)).standard_normal(40)  # of the peer alone
        same = {"problem": SMALL, "machine": "zen4", "state": "hot", "time": "2026-11-28", "run": name}
        plan = Measurement(kernel="k", schedule="{}", samples=(ours,) * 40, environment={"threads": "1", "clock_hz": "3e9"}, **same)
        return runs_of([plan, Measurement(kernel="im2col", schedule="", samples=tuple(peer * spread), environment=VERSION, **same)])

    before, busier, slower = (
        (*steady(ours, peer, "1"), *steady(ours, peer, "22")) for ours, peer in [(1e-3, 2e-3), (1.06e-3, 2.12e-3), (1.06e-3, 2e-3)]
    )
    assert change_of(before, busier).verdict == "same" and change_of(before, slower).verdict == "slower"
