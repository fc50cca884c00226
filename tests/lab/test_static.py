# SPDX-License-Identifier: Apache-2.0
"""The static numbers of POWER10 are those of the committed analysis, and the analysis says what it is worth."""

import json
import shutil
import subprocess
from typing import Any

import pytest
from checkout import ROOT, tool

from pysim.machine.load import load
from pysim.machine.quantity import facts
from pysim.registry.cpu import kernels

DATA = ROOT / "lab" / "data" / "power10/static.json"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="needs the data files of a checkout")


def analysis() -> dict[str, Any]:
    return json.loads(DATA.read_text())


def test_every_static_number_of_the_machine_file_is_the_analysis_rounded() -> None:
    on, found = load("power10-e1050"), analysis()["fit"]
    static = {path: fact for path, fact in facts(on) if fact.kind == "static"}
    rates = found["fma_per_cycle"]
    expected = {f"core.{name}": found[name] for name in ("call_cycles", "pack_call_cycles", "pack_cycles")}
    for row in kernels():
        if row.target in ("mma", "portable") and row.form not in ("fused", "chain"):  # which have no rate of their own
            own = "" if row.dtype == "f32" else f"types.{row.dtype}."
            expected[f"core.units.{row.target}.{own}fma_per_cycle"] = rates[row.name]
    assert {path: fact.value for path, fact in static.items()} == pytest.approx(expected, rel=0.01)
    for fact in static.values():
        source = on.sources[fact.source]
        assert source.file == "lab/data/power10/static.json" and "static_cycles.py" in (source.command or "")


def test_the_fp32_loop_is_at_the_ceiling_of_the_matrix_unit() -> None:
    one = analysis()["loops"]["f32_outer_16x8__mma"]
    assert one["fma_per_cycle"] >= 1.9
    assert one["counts"]["lxvp"] == 3 * one["steps"] and one["counts"]["xvf32gerpp"] == 8 * one["steps"]
    assert all(loop["spills"] == 0 for name, loop in analysis()["loops"].items() if name.endswith("__mma"))


def test_vector_based_packing_loads_5_vectors_where_12_are_stored() -> None:
    one = next(p for p in analysis()["packing"]["f32_outer_16x8__mma"] if (p["taps"], p["stride"], p["count"]) == (3, 1, 16))
    assert (one["loads"], one["stores"]) == (5, 12)


def test_a_loop_is_found_in_a_trace_and_its_spills_counted() -> None:
    module = tool("static_cycles")
    addresses = [0, 4, *[8, 12, 16] * 20, 20, 24]
    assert module.loop_of(addresses) == ([8, 12, 16], 20)
    lines = ["stxv 34, 32(1)", "lxvp 32, 0(4)", "lxv 33, -16(1)", "std 31, -8(1)", "xvf32gerpp 0, 33, 34", "plxv 34, 16(1), 0"]
    assert module.spills(lines) == 3
    assert (module.memory(lines, "l"), module.memory(lines, "st")) == (4, 1)


@pytest.mark.skipif(not shutil.which("llvm-mca"), reason="llvm-mca is not installed")
def test_llvms_model_of_power10_knows_the_matrix_unit() -> None:
    module = tool("static_cycles")
    independent = [f"xvf32gerpp {i}, 32, 33" for i in range(8)]
    assert module.cycles(independent, 100) == pytest.approx(4, rel=0.05)  # two a cycle
    assert module.cycles(independent[:1], 100) == pytest.approx(4, rel=0.05)  # four from one update to the next
    listed = subprocess.run(["llvm-mca", *module.LLVM, "-"], input="lxvp 32, 0(4)", capture_output=True, text=True, check=True)
    assert "lxvp" in listed.stdout
