# SPDX-License-Identifier: Apache-2.0
"""An exported plan of a GPU compiles with nvcc alone; compiled for the CPU it passes its own test."""

import re
import subprocess
from pathlib import Path
from shutil import which

import pytest
from checkout import ROOT

import pysim
from pysim.registry.cuda import gemm_kernels
from pysim.standalone.cuda_sources import cuda_sources_of

EMULATED = ROOT / "native" / "cuda" / "emulated"
FLAGS = ("-std=c++17", "-O0", "-march=native", "-w", "-pthread", "-DPYSIM_EMULATED", f"-I{EMULATED}", "-Inative/cuda", "-Inative", "-I.")


@pytest.mark.skipif(not which("g++"), reason="no C++ compiler")
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_product_with_an_epilogue_passes_its_test_in_emulation(dtype: str, tmp_path: Path) -> None:
    """Also of results of two bytes, which have activations of their own."""
    row = next(one.name for one in gemm_kernels() if one.dtype == dtype and one.mainloop in ("simt", "wmma") and not one.below)
    plan = pysim.plan(f"gemm:37x53x41:{dtype}", "rtx-2080ti", micro_kernel=row)
    pysim.export(plan, tmp_path / "plan", epilogue="x > 0 ? x * tanh(x) : sigmoid(x) - 0.5")
    folder, objects = tmp_path / "plan", []
    units = re.findall(r"build/(\S+)\.o: OWN = (\S+)", (folder / "Makefile").read_text())
    for path in [*sorted(folder.rglob("*.cu")), EMULATED / "block.cpp", EMULATED / "runtime.cpp"]:
        name = str(path.relative_to(folder).with_suffix("")) if folder in path.parents else path.stem
        objects.append(f"{name.replace('/', '_')}.o")
        command = ["g++", *FLAGS, *[flag for unit, flag in units if unit == name], "-x", "c++", "-c", str(path), "-o", objects[-1]]
        subprocess.run(command, cwd=folder, check=True)
    subprocess.run(["g++", "-pthread", *objects, "-o", "plan"], cwd=folder, check=True)
    made = subprocess.run(["./plan", "test"], cwd=folder, capture_output=True, text=True)
    assert made.returncode == 0 and made.stdout.count("passed") == 3, made.stdout + made.stderr


@pytest.mark.skipif(not which("nvcc"), reason="no nvcc")
def test_the_kernel_of_a_gpu_compiles_with_nvcc(tmp_path: Path) -> None:
    pysim.export("gemm:37x53x41", tmp_path, "h100", epilogue="x * tanh(x)")
    made = subprocess.run(["make", "-C", str(tmp_path), "build/native/cuda/gemm/simt/simt.o"], capture_output=True, text=True)
    assert made.returncode == 0 and "warning" not in made.stderr, made.stderr


@pytest.mark.parametrize("machine", ["h200", "a100"])
def test_every_algorithm_of_a_gpu_has_its_sources(machine: str) -> None:
    """One row is left in each table of a family that the plan uses, and one unit that may define it."""
    problems = ["conv:mb4ic64ih28oc64kh3ph1", "conv:mb4ic64ih28oc256kh1", "conv:mb4g64ic64ih28oc64kh3ph1", "gemm:512x512x512"]
    seen = set()
    for problem in [one + dtype for one in problems for dtype in ("", ":f16")]:
        for considered in pysim.plans(problem, machine, 60):
            family = re.sub(r"[\d_].*", "", considered.kernel.split("_", 1)[1])
            if family in seen:
                continue
            seen.add(family)
            sources = cuda_sources_of(considered, None)
            rows = [text for path, text in sources.files.items() if path.endswith("rows.inc")]
            assert len(re.findall(r"^PYSIM_CUDA_ROW", sources.files[f"{sources.kernel.rpartition('/')[0]}/rows.inc"], re.MULTILINE)) == 1
            assert len(rows) <= 2 and {f"cuda/{unit.path}" for unit in sources.units} < sources.files.keys()
            assert not any("norm" in path or "network" in path for path in sources.files), "what networks alone call"
    assert len(seen) > 4
