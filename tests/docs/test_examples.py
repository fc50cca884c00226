# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ run as they stand, and say what they promise."""

import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from native_library import native

EXAMPLES = ROOT / "examples"
SAYS = {
    "conv2d": "(1, 128, 56, 56) float32\nthe same: True\n",
    "plan_and_explain": "conv:mb1ic64ih56oc64kh3ph1 on other machines:",
    "onnx_model": "small.onnx: (1, 64, 1, 1)",
    "pytorch_model": "largest difference: ",
    "simulate_cache": "column by column: 262144 loads; misses: L1 262144",
}
NEEDS = {"onnx_model": "onnx", "pytorch_model": "torch"}


def test_each_example_is_known_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SAYS.keys()


@native
@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_says_what_it_promises(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout and not done.stderr
