# SPDX-License-Identifier: Apache-2.0
"""Random graphs of any operator are equal to ONNX Runtime, or refused with a sentence. As a program,

    python tests/fuzz/networks/test_fuzz_onnx_walks.py FIRST COUNT FILE

tries so many seeds and writes what came of each as a line of JSON before the next one begins."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.append(str(Path(__file__).parents[2] / "support"))
from limits import SHARE
from onnx_nodes import walked
from onnx_walk import differs, read_by, session

from pysim.calibration import host
from pysim.errors import PysimError
from pysim.network.execution import Network
from pysim.onnx import reading

FEWEST = 20  # walks of a plain run


def results(content, given):
    """What a model makes here, or the sentence that refuses it."""
    try:
        model = Network(reading.graph_of(onnx.ModelProto.FromString(content), "a walk"), host.runnable("host"))
        found = model(*[given[name] for name in model.inputs])
    except PysimError as error:
        return str(error)
    return found if isinstance(found, tuple) else (found,)


def one_by_one(walk):
    """What each node by itself gives otherwise than ONNX Runtime: of a graph in which a small difference may change numbers later."""
    for node in (node for node in walk.nodes if node.op_type != "Constant"):
        arrays = {name: walk.values[name] for name in read_by(node)}
        content = walk.proto([node], arrays, list(node.output)).SerializeToString()
        found = results(content, {name: array for name, array in arrays.items() if name not in walk.constants})
        for name, y in zip(node.output, found if isinstance(found, tuple) else (), strict=False):
            if fault := differs(np.asarray(y), walk.values[name], node.op_type in ("QuantizeLinear", "QLinearConv")):
                return f"{node.op_type} {name}: {fault}"
    return ""


def verdict(seed):
    """("equal" | "refused" | "wrong", why)."""
    walk = walked(seed)
    proto, given, outputs = walk.model()
    content = proto.SerializeToString()
    found = results(content, given)
    if isinstance(found, str):
        return "refused", found
    for name, y in zip(outputs, found, strict=True):
        if fault := differs(np.asarray(y), walk.values[name], name in walk.sharp):
            few = name in walk.sharp or not differs(np.asarray(y), walk.values[name], sharp=True)  # what a small number divides
            fault = one_by_one(walk) if few else f"{name}: {fault}"
            return ("wrong", fault) if fault else ("equal", "node by node")
    try:
        session(content).run(None, given)
    except Exception as error:  # ONNX Runtime's shape inference of a whole graph rejects some that it runs node by node
        return "equal", f"node by node: {str(error)[:200]}"
    return "equal", ""


@pytest.mark.timeout(0)
def test_random_graphs_are_equal_to_onnxruntime_or_refused_in_a_sentence():
    came = Counter()
    for seed in range(max(FEWEST, round(5000 * SHARE))):
        what, why = verdict(seed)
        assert what in ("equal", "refused"), f"seed {seed}: {why}"
        came[what] += 1
    assert came["equal"] >= 0.8 * came.total()


def main(first, count, path):
    with Path(path).open("a") as file:
        for seed in range(int(first), int(first) + int(count)):
            print(json.dumps([seed, "begun", ""]), file=file, flush=True)
            print(json.dumps([seed, *verdict(seed)]), file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
