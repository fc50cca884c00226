# SPDX-License-Identifier: Apache-2.0
"""What nvcc makes of native/cuda/mainloop/tensor/mma_f64.cuh: whether a stage is given back only when what was read from it has been used.

The assembler may move products, which are on registers alone, to below the arrival that gives the stage back; a load without a reader above
the arrival may still be under way when the copy engine fills the stage.
"""

import re
import shutil
import subprocess

import pytest
from checkout import ROOT
from cuda_loop import functions

WIDTH = {"32": 1, "64": 2, "128": 4}  # registers of a load
OPERANDS = (8, 4)  # registers of A and B in a product of 16x8x8

pytestmark = pytest.mark.skipif(not all(map(shutil.which, ("nvcc", "cuobjdump", "nvdisasm"))), reason="needs nvcc, cuobjdump and nvdisasm")


def rows() -> list[str]:
    """The template arguments of each f64 row of mma: tile, warp and stages."""
    text = (ROOT / "native/cuda/gemm/mma.inc").read_text()
    found = re.findall(r"^PYSIM_CUDA_ROW\(dtype = f64, block = \{(.*?)\}, warp = \{(.*?)\}, stages = (\d+)", text, re.M)
    return [", ".join(row) for row in found]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> dict[str, list[tuple[int, str]]]:
    folder = tmp_path_factory.mktemp("f64")
    instances = "".join(f"template struct pysim::f64_mma::Kernel<{row}>;\n" for row in rows())
    (folder / "f64.cu").write_text('#include "mainloop/tensor/mma_f64.cuh"\n' + instances)
    flags = ("-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-I", ROOT / "native/cuda", "-I", ROOT / "native")
    subprocess.run(["nvcc", *flags, "-c", folder / "f64.cu", "-o", folder / "f64.o"], check=True)
    return functions(subprocess.run(["cuobjdump", "-sass", folder / "f64.o"], check=True, capture_output=True, text=True).stdout)


def read_by(text: str) -> set[int]:
    """Registers that an instruction reads."""
    registers = [int(x) for x in re.findall(r"\bR(\d+)", text)]
    if text.startswith("DMMA"):
        return {first + i for first, count in zip(registers[1:3], OPERANDS, strict=True) for i in range(count)}
    return set(registers[1:])


def unused(body: list[tuple[int, str]]) -> list[str]:
    """Loads of a stage whose registers nothing reads before the stage is given back."""
    arrival = next(i for i, (_, text) in enumerate(body) if text.startswith("SYNCS.ARRIVE.TRANS64.A1T0"))
    targets = (re.match(r"BRA 0x([0-9a-f]+)", text) for _, text in body[arrival:])
    head = next(int(target[1], 16) for target in targets if target and int(target[1], 16) < body[arrival][0])
    first = next(i for i, (address, _) in enumerate(body) if address >= head)
    waits = (i for i in range(first, arrival) if "PHASECHK" in body[i][1])
    last = next(waits, arrival)  # what follows a wait for the next stage reads that one
    late = []
    for i in range(first, last):
        if load := re.match(r"LDS(?:\.U)?(?:\.(64|128))? R(\d+)", body[i][1]):
            to = {int(load[2]) + j for j in range(WIDTH[load[1] or "32"])}
            if not any(to & read_by(text) for _, text in body[i + 1 : arrival]):
                late.append(body[i][1])
    return late


def test_no_load_of_a_stage_is_under_way_when_the_stage_is_given_back(kernels):
    assert len(kernels) == 4 * len(rows())
    assert {name: late for name, body in kernels.items() if (late := unused(body))} == {}
