# SPDX-License-Identifier: Apache-2.0
"""Generated nodes of every operator and attribute (`onnx_peer`) are equal to ONNX Runtime, or refused by operator and node."""

from collections import Counter

import pytest
from limits import SHARE
from onnx_peer import case_of, verdict

FEWEST = 3000  # nodes of a plain run


@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")  # onnx's definitions let NumPy warn
def test_generated_nodes_are_equal_to_onnxruntime_or_refused_by_name():
    came = Counter()
    for seed in range(max(FEWEST, round(50_000 * SHARE))):
        case = case_of(seed)
        what, why = verdict(case)
        assert what not in ("wrong", "unnamed"), f"seed {seed}: {case.how}: {why}"
        came[what] += 1
    assert came["equal"] >= 0.7 * came.total()
