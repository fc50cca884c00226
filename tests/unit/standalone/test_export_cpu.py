# SPDX-License-Identifier: Apache-2.0
"""An exported plan compiles with cc alone, passes its own test, and computes the library's bits."""

import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
from checkout import ROOT

import pysim
from pysim.errors import PlanError
from pysim.problem.conv import Conv
from pysim.registry.cpu import algorithms, cpu_kernel
from pysim.runtime.cpu import NUMPY_DTYPES, available_kernels
from pysim.runtime.cpu_launch import Launch
from pysim.standalone.sources import FLAGS, GROUPS, sources_of

# algorithm -> an odd problem, a kernel that compiles quickly, and other terms of the request
PLANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sconv": ("conv:ic19ih13oc23kh3ph1", "f32_win_16x6__avx2", {}),
    "gemm": ("gemm:37x53x41", "f32_win_8x4__portable", {}),
    "im2col": ("conv:ic5ih13iw11oc7kh3sh2ph1", "f32_win_8x4__portable", {}),
    "winograd": ("conv:ic17ih13oc19kh3ph1", "f32_win_8x4__portable", {}),
    "depthwise": ("conv:g13ic13ih17oc13kh3ph1", "f32_rows_64x1__portable", {}),
    "skinny": ("gemm:3x53x41:nt", "f32_dot_8x4__portable", {}),
    "integer_winograd": ("conv:ic17ih13oc19kh3ph1:s8", "s8_pairs_16x6__avx2", {}),
    "polyphase": ("conv:ic3ih23oc17kh5sh2ph2", "f32_phases_24x4__portable", {}),
    "unpacked": ("gemm:37x53x41:f64", "f64_win_8x6__avx2", {}),
    "panels": ("gemm:37x53x41", "f32_win_8x4__portable", {"prepared": True}),
    "direct_nchwc": ("conv:ic16ih13iw11oc32kh3ph1", "f32_nchwc_4x4__portable", {"layout": "nchw4c"}),
    "grouped": ("conv:g4ic24ih13iw11oc24kh3ph1", "f32_grouped_10x4__portable", {"layout": "nchw4c"}),
    "blocked": ("conv:ic32ih13iw11oc16kh3ph1", "f32_nchwc_4x4__portable", {}),
    "strassen": ("gemm:37x54x42", "f32_win_8x4__portable", {"prepared": True}),
    "strassen_1x1": ("conv:ic32ih13iw11oc16kh1", "f32_nchwc_4x4__portable", {"layout": "nchw4c"}),
}


# In plain C, which has no instruction that rounds once, the level changes no bit; vectors take contracted multiply-adds from -O1 on.
QUICKLY = "CFLAGS=-std=gnu11 -O{} -w"


def built(folder: Path, *arguments: str) -> None:
    made = subprocess.run(["make", "-j2", "-s", "-C", str(folder), *arguments], capture_output=True, text=True)
    assert made.returncode == 0 and "warning" not in made.stderr, made.stdout + made.stderr


def test_every_algorithm_of_the_registry_is_exported() -> None:
    of_matrix_units, in_networks = "split_panels", "channels_last"  # neither is exported: only networks plan bytes with channels last
    assert {one.name for one in algorithms()} == PLANS.keys() | {of_matrix_units, in_networks}


@pytest.mark.parametrize("algorithm", PLANS)
def test_an_export_has_the_bits_of_the_library(algorithm: str, tmp_path: Path) -> None:
    problem, kernel, terms = PLANS[algorithm]
    known = kernel in available_kernels()
    if not known and algorithm == "integer_winograd":
        pytest.skip("the CPU has no AVX2")
    plan = pysim.plan(problem, "host", algorithm=algorithm, micro_kernel=kernel if known else None, **terms)
    pysim.export(plan, tmp_path / "plan")
    quickly = QUICKLY.format(0 if kernel.endswith("portable") else 1)
    built(tmp_path / "plan", "test", *[quickly] * (algorithm != "sconv"))  # one of them as it is written
    launch, random = Launch.of(plan), np.random.default_rng(7)
    w = plan.workload
    filters = (
        (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w) if isinstance(w, Conv) else (w.n, w.k) if w.trans_b else (w.k, w.n)
    )
    size = 40 if w.dtype == "s8" else 1
    first, second = ((size * random.standard_normal(shape)).astype(NUMPY_DTYPES[w.dtype]) for shape in (launch.shapes[0], filters))
    bias = (size * random.standard_normal(w.filters if isinstance(w, Conv) else w.n)).astype(np.int32 if w.dtype == "s8" else first.dtype)
    for name, array in (("x", first), ("w", second), ("b", bias)):
        array.tofile(tmp_path / name)
    subprocess.run([tmp_path / "plan" / "plan", "run", "x", "w", "y", "b"], cwd=tmp_path, check=True)
    want = launch.run_prepared(first, launch.prepare(second), launch.epilogue(bias, None), None)
    got = np.fromfile(tmp_path / "y", want.dtype).reshape(want.shape)
    assert np.array_equal(got, want)


def test_the_flags_of_an_instruction_set_are_those_of_the_library() -> None:
    text = (ROOT / "meson.build").read_text()
    for target in ("avx2", "avx512"):
        listed = re.search(rf"^  {target} = \[(.*)\]", text, re.MULTILINE)
        assert listed and re.findall(r"'([^']+)'", listed[1]) == FLAGS[target].split()
    groups = re.findall(r"^ +'(\w+)_(\w+)': \[(avx\w+)(?: \+ \['(-\S+)'\])?, \[([^]]*)\](?:, '\w+\.c')?\],", text, re.MULTILINE)
    listed_groups = {(target, dtype): f"{FLAGS[base]} {own} {defines}" for target, dtype, base, own, defines in groups}
    more = {("avx2_bounded", "s8"): f"{GROUPS['avx2', 's8']} -DBOUNDED"}
    more |= {("avx512vnni_pairs", "s8"): f"{GROUPS['avx512vnni', 's8']} -DPAIRS"}
    assert {key: re.sub("[', ]+", " ", flags).strip() for key, flags in listed_groups.items()} == GROUPS | more


@pytest.mark.parametrize("machine", ["zen4", "power10-e1050"])
def test_every_kernel_that_a_machine_runs_can_be_exported(machine: str) -> None:
    """Its definition is in one of the sources, and the tables keep that row alone."""
    problems = ["conv:ic16ih13oc16kh3ph1", "conv:g16ic16ih13oc16kh3ph1", "conv:ic16ih13oc16kh3sh2ph1", "gemm:2x48x48", "gemm:2x48x48:nt"]
    seen = set()
    for problem in [one + dtype for one in problems for dtype in ("", ":f64", ":s8", ":bf16")]:
        for considered in pysim.plans(problem, machine, 400):
            if considered.kernel in seen:
                continue
            seen.add(considered.kernel)
            sources = sources_of(considered, False)
            row = cpu_kernel(considered.kernel)
            assert row and sources.files[sources.kernel].count(row.name) <= 1
            units = {unit.path for unit in sources.units}
            assert sources.kernel in units and units < sources.files.keys()
            kept = {line for text in sources.files.values() for line in re.findall(r"^PYSIM_[A-Z]+\((target.*)\)", text, re.MULTILINE)}
            names = {"{dtype}_{form}_{windows}x{filters}__{target}".format(**dict(re.findall(r"(\w+)\((\w+)\)", line))) for line in kept}
            assert row.name in names and len(names) <= 2 + (row.form == "nchwc")  # and the row of a last panel
    assert len(seen) > 3


def test_an_epilogue_is_applied_in_the_stores(tmp_path: Path) -> None:
    """To whole tiles, to edges, and to each type; the exported test compares it with the expression in double."""
    text = "x > 0 ? x * tanh(log(1 + exp(-fabsf(x)))) : max(min(0.5f * x, 3), -1.) / sqrt(1 + x*x) + sigmoid(x)"
    plan = pysim.plan("conv:ic5ih13iw11oc7kh3ph1", "host", algorithm="sconv", micro_kernel="f32_win_8x4__portable")
    pysim.export(plan, tmp_path, epilogue=text)
    built(tmp_path, "test", QUICKLY.format(0))
    assert text in (tmp_path / "plan.h").read_text() and "tanh" in (tmp_path / "README.md").read_text()


def test_an_algorithm_with_loops_of_its_own_takes_no_epilogue(tmp_path: Path) -> None:
    problem, kernel, terms = PLANS["strassen"]
    plan = pysim.plan(problem, "host", algorithm="strassen", micro_kernel=kernel if kernel in available_kernels() else None, **terms)
    with pytest.raises(PlanError, match="without an epilogue"):
        pysim.export(plan, tmp_path, epilogue="max(x, 0)")


@pytest.mark.skipif(not (which("powerpc64le-linux-gnu-gcc") and which("qemu-ppc64le")), reason="no compiler or emulator of POWER10")
def test_a_plan_for_power10_runs_in_its_emulator(tmp_path: Path) -> None:
    pysim.export("gemm:19x37x23:s8", tmp_path, "power10-e1050")
    built(tmp_path, "test", "CC=powerpc64le-linux-gnu-gcc", "LDFLAGS=-static", "RUN=qemu-ppc64le -cpu power10", QUICKLY.format(0))


@pytest.mark.parametrize("shape", ["mb1ic64ih14oc64kh3ph1", "mb1g32ic32ih14oc32kh3ph1", "mb1ic64ih14oc64kh1"])
def test_plans_of_bf16_in_blocks_are_refused(tmp_path: Path, shape: str) -> None:
    with pytest.raises(PlanError, match="plans of bf16 in nchw16c are not exported"):
        pysim.export(f"conv:{shape}:bf16", tmp_path / "plan", "zen4", layout="nchw16c")
