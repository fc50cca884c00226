# SPDX-License-Identifier: Apache-2.0
"""Generated nodes of every operator and attribute (`onnx_peer`) are equal to ONNX Runtime, or refused by operator and node."""

from collections import Counter

import numpy as np
import pytest
from limits import SHARE

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx_peer
from onnx import TensorProto, helper
from onnx_case import Case
from onnx_models import several
from onnx_peer import case_of, verdict

from pysim.network.execution import Network

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


@pytest.mark.filterwarnings("ignore")
def test_what_onnxruntime_computes_differently_hides_no_wrong_result(monkeypatch):
    case = next(one for seed in range(50) if verdict(one := case_of(seed, "LSTM")).what == "deviates")

    def off(*given):
        model = Network(*given)
        return lambda **inputs: tuple(y + np.float32(0.1) for y in several(model(**inputs)))

    monkeypatch.setattr(onnx_peer, "Network", off)
    assert verdict(case).what == "wrong"


def test_a_sum_that_nearly_cancels_is_rounded_by_the_size_of_its_operands(monkeypatch):
    """(2048 + 1) - 2048 is 0 in float16, 2048 - 2048 + 1 is 1: the order decides. Off by 16 is wrong."""
    a, b, c = (np.full(4, one, np.float16) for one in (2048, 1, -2048))
    node = helper.make_node("Sum", ["a", "b", "c"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [4]) for name in "abcy"]
    graph = helper.make_graph([node], "sum", values[:3], values[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    case = Case("Sum", 13, model.SerializeToString(), {"a": a, "b": b, "c": c}, ["y"], "a sum")
    for right, what in ((0, "equal"), (1, "equal"), (16, "wrong")):
        monkeypatch.setattr(onnx_peer, "by_onnxruntime", lambda *_, right=right: [np.full(4, right, np.float16)])
        assert verdict(case).what == what
