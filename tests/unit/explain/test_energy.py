# SPDX-License-Identifier: Apache-2.0
"""The energy of plans: the equation's terms, the board's limit, and machines that say nothing about it."""

import json
import sys

import pytest
from checkout import ROOT
from command_line import invoke

import pysim
from pysim.explain.energy import counts_of, energy_of
from pysim.machine.change import changed
from pysim.machine.load import load_any
from pysim.machine.write import to_toml

CONV = "conv:mb1ic64ih56oc64kh3ph1"


def test_each_part_is_its_count_times_the_machines_number() -> None:
    plan = pysim.plan("gemm:512x2048x1024", "zen4", threads=2)
    parts, energy = energy_of(plan), plan.on.energy
    assert parts and energy and plan.seconds
    assert parts["static"] == pytest.approx(2 * plan.seconds * energy.static_watts.value)
    assert parts["multiply-adds"] == pytest.approx(plan.workload.flops * energy.flop_joules["f32"].value)
    assert parts["memory"] == pytest.approx(plan.cost.levels["memory"]["bytes"] * energy.byte_joules["memory"].value)


def test_flops_that_a_transform_saves_take_no_energy() -> None:
    plan = pysim.plan(CONV, "zen4")
    assert counts_of(plan)[1] == pytest.approx(plan.workload.flops / 4)  # F(4x4, 3x3)


@pytest.mark.parametrize("problem", ["gemm:8192x8192x8192:f16", "gemm:4096x4096x4096", "gemm:1x8192x8192:f16"])
def test_a_board_keeps_to_its_limit(problem: str) -> None:
    plan = pysim.plan(problem, "h200")
    watts = sum((energy_of(plan) or {}).values()) / (plan.seconds or 1)
    assert 75 < watts <= 700.001


def test_energy_is_in_explanations_documents_reports_and_what_if() -> None:
    assert "energy " in invoke("plan", CONV, "-m", "zen4", "--explain").stdout
    (parts,) = (one["energy_joules"] for one in json.loads(invoke("plan", CONV, "-m", "zen4", "--json").stdout)["plans"])
    doubled = changed(load_any("zen4"), {"energy.static_watts": 7.5})
    assert energy_of(pysim.plan(CONV, doubled))["static"] == pytest.approx(2 * parts["static"])
    (row,) = json.loads(invoke("report", CONV, "-m", "zen4", "--format", "json").stdout)["rows"]
    assert row["energy_joules"] == pytest.approx(sum(parts.values()))


def test_a_machine_without_energy_states_none() -> None:
    assert "energy" not in invoke("plan", CONV, "-m", "zen5", "--explain").stdout
    assert [one["energy_joules"] for one in json.loads(invoke("plan", CONV, "-m", "zen5", "--json").stdout)["plans"]] == [None]
    assert energy_of(pysim.plan("gemm:64x64x64:f64", "zen4")) is None  # a type that the file lacks


def test_energies_survive_being_written() -> None:
    from pysim.machine.load import loads

    for name in ("zen4", "h200"):
        assert loads(to_toml(load_any(name))).energy == load_any(name).energy


def test_a_fit_finds_the_energies_that_made_its_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "fits"))
    import fit_energy

    true = {"static": 4.0, "f32": 1e-12, "L2": 2e-12, "memory": 1.5e-10}
    counts = [
        {"static": 2.0, "f32": 2e11 * a, "L2": 1e11 * b, "memory": 2e10 * c} for a, b, c in [(1, 1, 0), (0.1, 1, 1), (0.5, 0, 1), (1, 0, 0)]
    ]
    rows = [{"joules": sum(true[name] * size for name, size in one.items()), "counted": one} for one in counts]
    assert fit_energy.fitted(rows) == pytest.approx(true)
    monkeypatch.setattr(fit_energy, "RAPL", ROOT / "docs")
    monkeypatch.setattr(sys, "argv", ["fit_energy.py", "-m", "host"])
    with pytest.raises(SystemExit, match="no RAPL"):
        fit_energy.main()
