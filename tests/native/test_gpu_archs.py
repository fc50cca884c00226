# SPDX-License-Identifier: Apache-2.0
"""What the CUDA library is built for: -Dgpu_archs=auto, which rows a device finds in a build, and that sources compile for older GPUs."""

import shutil
import subprocess

import pytest
from checkout import ROOT
from gpu_archs import archs

NVCC = "compute_75\ncompute_80\ncompute_86\ncompute_90\ncompute_100\n"  # `nvcc --list-gpu-arch`
ASK = """
#include "abi/code.cu"
#include <cstdio>
int main(int, char **arguments) { return pysim::is_built(atoi(arguments[1]), atoi(arguments[2]), atoi(arguments[3])); }
"""


def test_a_build_is_for_the_gpus_that_are_here_each_once_and_for_hopper_where_none_is(capsys):
    assert archs("9.0\n9.0\n", NVCC) == ["90a"]
    assert archs("8.6\n7.5\n8.6\n", NVCC) == ["75", "86"]
    assert archs("", NVCC) == archs("Failed to initialize NVML\n", NVCC) == ["90a"]
    assert archs("7.0\n8.0\n", NVCC) == ["80"]
    assert "does not compile for a GPU of capability 7.0" in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ compiles what asks")
@pytest.mark.parametrize(
    ("built", "device", "has", "lacks"),
    [
        ("90a", 90, [(50, 0), (90, 0), (90, 1)], []),
        ("90a", 100, [], [(50, 0)]),
        ("90a", 80, [], [(50, 0)]),
        ("ptx80", 90, [(50, 0), (80, 0)], [(90, 0), (90, 1)]),
        ("ptx80", 75, [], [(50, 0)]),
        ("90a:ptx80", 90, [(80, 0), (90, 0), (90, 1)], []),
        ("90a:ptx80", 120, [(80, 0)], [(90, 0)]),
        ("75:86", 86, [(80, 0)], [(90, 0)]),
        ("75:80", 89, [(80, 0)], []),
        ("75", 86, [], [(50, 0)]),
        ("86", 80, [], [(50, 0)]),
    ],
)
def test_a_device_finds_the_rows_that_the_code_it_runs_was_compiled_with(tmp_path, built, device, has, lacks):
    """As the driver takes code: of its major number, not above its minor; else PTX; of an `a`, on that capability alone."""
    (tmp_path / "ask.cpp").write_text(ASK)
    emulated = ["-DPYSIM_EMULATED", f'-DPYSIM_GPU_ARCHS="{built}"', "-I", ROOT / "native/cuda/emulated", "-I", ROOT / "native/cuda"]
    options = [*emulated, "-I", ROOT / "native", "-std=c++17", "-ffunction-sections", "-Wl,--gc-sections"]
    subprocess.run(["g++", *options, tmp_path / "ask.cpp", "-o", tmp_path / "ask"], check=True)

    def requested(rows: list[tuple[int, int]]) -> list[int]:
        return [subprocess.run([tmp_path / "ask", str(device), *map(str, row)], check=False).returncode for row in rows]

    assert requested(has) == [1] * len(has) and requested(lacks) == [0] * len(lacks)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
@pytest.mark.parametrize(
    ("source", "capability", "instruction"),
    [
        ("gemm/mma", 80, "mma.sync"),
        ("gemm/mma", 75, ""),
        ("conv/winograd/fused4", 80, "cp.async"),
        ("gemm/wgmma_tf32x3", 80, ""),
    ],
)
def test_what_needs_no_hopper_compiles_for_older_gpus_and_what_needs_more_is_left_out(tmp_path, source, capability, instruction):
    """PTX, at the level that is quickest to compile: what instructions there are does not depend on it."""
    flags = ("-O3", "-Ofc=max", "-std=c++17", f"-arch=compute_{capability}", "-I", ROOT / "native/cuda", "-I", ROOT / "native")
    subprocess.run(["nvcc", *flags, "-ptx", ROOT / f"native/cuda/{source}.cu", "-o", tmp_path / "out.ptx"], check=True)
    text = (tmp_path / "out.ptx").read_text()
    assert not any(name in text for name in ("wgmma", "setmaxnreg", "cp.async.bulk", "mbarrier"))
    assert (instruction in text) if instruction else not any(name in text for name in ("mma.sync", "cp.async"))
