# SPDX-License-Identifier: Apache-2.0
"""Importing pysim costs little and drags nothing in that a plan for a machine file does not need."""

import subprocess
import sys

import pytest

HEAVY = {"scipy", "matplotlib", "networkx", "onnx", "cffi", "torch", "onnxruntime"}
IMPORT = """
import sys, time
start = time.process_time()
import pysim
print(time.process_time() - start, *sorted({name.partition(".")[0] for name in sys.modules}))
"""
PUBLIC = IMPORT.replace("import pysim", "from pysim import conv2d, gemm, prepare, plan, plans, compare")
HELP = "from pysim.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"


def child(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_import_takes_less_than_150_ms_of_cpu_time():
    assert min(float(child(IMPORT)[0]) for _ in range(5)) < 0.150


@pytest.mark.parametrize("code", [IMPORT, PUBLIC], ids=["import pysim", "every public name"])
def test_import_loads_no_heavy_package(code):
    assert HEAVY & set(child(code)[1:]) == set()


def test_planning_loads_no_heavy_package_and_no_native_library():
    code = f"import sys, pysim\npysim.plan('gemm:64x64x64', 'zen4')\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    assert child(code) == []


def test_help_takes_less_than_300_ms_of_cpu_time_and_loads_no_numpy():
    code = f"import time\nstart = time.process_time()\n{HELP}\nimport sys\nprint(time.process_time() - start, 'numpy' in sys.modules)"
    answers = [child(code)[-2:] for _ in range(5)]
    assert min(float(seconds) for seconds, _ in answers) < 0.300
    assert {numpy for _, numpy in answers} == {"False"}
