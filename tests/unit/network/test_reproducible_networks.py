# SPDX-License-Identifier: Apache-2.0
"""Networks of accuracy reproducible have the same bits on any CPU, for any batch, threads and place of the input in memory.

PYSIM_GRAPHS=500 tries so many random networks of images and so many with attention.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from command_line import cache, document, invoke, own_files  # noqa: F401
from graphs import random_model
from graphs_attention import random_attention
from native_library import native
from onnx import helper, numpy_helper

import pysim
from pysim.calibration import host
from pysim.errors import OperandError, PlanError
from pysim.network.execution import Network
from pysim.network.fingerprint import digest, parting, random_inputs
from pysim.onnx import reading


def volumes(seed, batch=1):
    """Convolutions of volumes: one that is computed by slices of its depth where that is fastest, and one along the depth alone."""
    random, shapes = np.random.default_rng(seed), [(12, 5, 3, 3, 3), (20, 12, 3, 1, 1)]
    weights = [numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), f"w{at}") for at, shape in enumerate(shapes)]
    nodes = [helper.make_node("Conv", ["x", "w0"], ["v"], "one", pads=[1] * 6), helper.make_node("Conv", ["v", "w1"], ["y"], "other")]
    x, y = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", (batch, 5, 6, 9, 11)), ("y", (batch, 20, 4, 9, 11))))
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights))


MANY = range(int(os.environ.get("PYSIM_GRAPHS", "0")))
SEEDS = [(random_model, seed) for seed in MANY or (5,)] + [(random_attention, seed) for seed in MANY or (1, 4)]
SEEDS.append((volumes, 1))
pytestmark = native


def network_of(model, batch=1, threads=1):
    random, seed = model
    return Network(reading.graph_of(random(seed, batch), "a model"), host.runnable("host"), threads, "reproducible")


def elsewhere(x):
    """The same numbers, at an address that is no multiple of 16, in every second element."""
    to = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)[..., 1::2]
    to[...] = x
    return to


def saved_and_loaded(folder):
    """A network without a layer that has a plan, as `save` and `load` leave it: only the network knows its accuracy."""
    x, y = (helper.make_tensor_value_info(name, 1, (4, 100)) for name in "xy")
    nodes = [helper.make_node("Erf", ["x"], ["e"], "one"), helper.make_node("Softmax", ["e"], ["y"], "other")]
    graph = reading.graph_of(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)]), "")
    Network(graph, host.runnable("host"), 1, "reproducible").save(folder / "model")
    return pysim.load(folder / "model")


def digests(folder):
    """Of the networks that no operator excludes: the fingerprint of one image, whatever the batch, the threads and the input's place."""
    kept = saved_and_loaded(folder)
    found = {-1: kept.fingerprint(**random_inputs(kept.inputs))}
    for at, model in enumerate(SEEDS):
        try:
            models = [network_of(model), network_of(model, 3, 2)]
        except PlanError:
            continue
        (name, x) = next(iter(random_inputs(models[1].inputs).items()))
        one, two = (model(**{name: elsewhere(x[: model.inputs[name].shape[0]])}) for model in models)
        results = [y if isinstance(y, tuple) else (y,) for y in (one, two, models[0](x[:1]))]
        for of in zip(*results, strict=True):
            assert len({digest(y[:1]) for y in of}) == 1, f"network {at}"
        found[at] = models[0].fingerprint(x[:1])
    return found


def on(target, tmp_path):
    """`digests` with vectors of no wider target."""
    told = {"PYSIM_MAX_TARGET": target, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code = "import json, pathlib, sys, test_reproducible_networks as test; print(json.dumps(test.digests(pathlib.Path(sys.argv[1]))))"
    command, here = [sys.executable, "-c", code, str(tmp_path)], os.path.dirname(__file__)
    done = subprocess.run(command, env=os.environ | told, cwd=here, text=True, capture_output=True, check=True)
    return {int(at): layers for at, layers in json.loads(done.stdout).items()}


def test_bits_depend_on_neither_cpu_nor_batch_nor_threads_nor_addresses(tmp_path):
    ours = digests(tmp_path)
    assert len(ours) > len(SEEDS) / 2
    for target in ("portable", "avx2"):
        theirs = on(target, tmp_path)
        assert theirs.keys() == ours.keys()
        for at, layers in ours.items():
            assert parting(layers, theirs[at]) is None, f"network {at} on {target}"


@pytest.mark.parametrize(
    ("op", "dtype", "shape", "reason"),
    [
        ("LogSoftmax", np.float32, (2, 8), "its bits may depend on the CPU"),
        ("Sin", np.float32, (2, 8), "its bits may depend on the CPU"),
        ("Softmax", np.float64, (2, 8), "its exponentials, Softmax, are the C library's but for float32"),
    ],
)
def test_what_no_contract_covers_is_refused_by_name(op, dtype, shape, reason):
    (x, y) = (helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape) for name in "xy")
    y.type.tensor_type.ClearField("shape")
    graph = reading.graph_of(helper.make_model(helper.make_graph([helper.make_node(op, ["x"], ["y"], "one")], "g", [x], [y])), "a model")
    with pytest.raises(PlanError, match=f'{op} "one": {reason}; accuracy reproducible takes convolutions'):
        Network(graph, host.runnable("host"), 1, "reproducible")


def test_the_last_digest_is_that_of_the_result():
    x, y = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", (1, 8, 5, 5)), ("y", (1, 8))))
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["p"], "one"), helper.make_node("Flatten", ["p"], ["y"], "other")]
    graph = reading.graph_of(helper.make_model(helper.make_graph(nodes, "g", [x], [y])), "a model")
    model = Network(graph, host.runnable("host"), 1, "reproducible")
    given = random_inputs(model.inputs)
    assert model.fingerprint(**given)[-1]["digests"] == [digest(model(**given))]


def test_a_fingerprint_says_at_which_layer_another_parts(tmp_path, own_files):  # noqa: F811
    model = tmp_path / "model.onnx"
    model.write_bytes(random_model(5).SerializeToString())
    words = ("run", str(model), "--fingerprint", "--accuracy", "reproducible")
    mine, kept = document(*words), tmp_path / "mine.json"
    kept.write_text(json.dumps(mine))
    assert mine["fingerprint"]["layers"] == document(*words)["fingerprint"]["layers"]
    assert f"the same bits as {kept}" in invoke("run", str(model), "--against", str(kept)).output
    mine["fingerprint"]["layers"][1]["digests"] = ["0" * 16]
    kept.write_text(json.dumps(mine))
    done = invoke("run", str(model), "--against", str(kept))
    assert done.exit_code == 1 and "at layer 1, " in done.output and "0000000000000000" in done.output
    theirs = tmp_path / "theirs.json"
    theirs.write_text(json.dumps(document(*words)))
    done = invoke("compare", str(kept), str(theirs))
    assert done.exit_code == 1 and f"parts from {theirs} at layer 1, " in done.output
    assert f"the same bits as {theirs} in all" in invoke("compare", str(theirs), str(theirs)).output
    kept.write_text("{}")
    assert "is no fingerprint" in invoke("compare", str(theirs), str(kept)).output
    assert "is no fingerprint; expected the document" in invoke("run", str(model), "--against", str(kept)).output


def test_layers_of_other_models_and_contracts_part():
    one, other = {"node": "a", "op": "Conv", "contract": "chain, 3 channels", "digests": ["x"]}, {"contract": "chain, 4 channels"}
    assert parting([one], [one]) is None
    assert "its contract is chain, 3 channels, the other's chain, 4 channels" in str(parting([one], [one | other]))
    assert "the models or their fusion differ" in str(parting([one], [one | {"node": "b"}]))
    assert parting([one], [one, one]) == "one has 1 layers, the other 2"
    with pytest.raises(OperandError, match="layer 0 of the other fingerprint has no op, node or digests"):
        parting([one], [{}])
