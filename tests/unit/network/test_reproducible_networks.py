# SPDX-License-Identifier: Apache-2.0
"""Networks of accuracy reproducible have the same bits on any CPU, for any batch, threads and place of the input in memory.

PYSIM_GRAPHS=500 tries so many random networks.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from command_line import document, invoke, own_files  # noqa: F401
from graphs import random_model
from native_library import native

from pysim.calibration import host
from pysim.errors import OperandError, PlanError
from pysim.network.execution import Network
from pysim.network.fingerprint import digest, parting, random_inputs
from pysim.onnx import reading

SEEDS = range(int(os.environ["PYSIM_GRAPHS"])) if "PYSIM_GRAPHS" in os.environ else (5, 28)  # networks without other operators
pytestmark = native


def network_of(seed, batch=1, threads=1):
    return Network(reading.graph_of(random_model(seed, batch), "a model"), host.runnable("host"), threads, "reproducible")


def elsewhere(x):
    """The same numbers, at an address that is no multiple of 16, in every second element."""
    to = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)[..., 1::2]
    to[...] = x
    return to


def digests():
    """Of the networks that no operator excludes: the fingerprint of one image, whatever the batch, the threads and the input's place."""
    found = {}
    for seed in SEEDS:
        try:
            models = [network_of(seed), network_of(seed, 3, 2)]
        except PlanError:
            continue
        (name, x) = next(iter(random_inputs(models[1].inputs).items()))
        one, two = (model(**{name: elsewhere(x[: model.inputs[name].shape[0]])}) for model in models)
        results = [y if isinstance(y, tuple) else (y,) for y in (one, two, models[0](x[:1]))]
        for of in zip(*results, strict=True):
            assert len({digest(y[:1]) for y in of}) == 1, f"network {seed}"
        found[seed] = models[0].fingerprint(x[:1])
    return found


def on(target, tmp_path):
    """`digests` with vectors of no wider target."""
    told = {"PYSIM_MAX_TARGET": target, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code = "import json, test_reproducible_networks as test; print(json.dumps(test.digests()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | told, cwd=os.path.dirname(__file__), text=True, capture_output=True, check=True
    )  # fmt: skip
    return {int(seed): layers for seed, layers in json.loads(done.stdout).items()}


def test_bits_depend_on_neither_cpu_nor_batch_nor_threads_nor_addresses(tmp_path):
    ours = digests()
    assert len(ours) >= len(SEEDS) / 8
    for target in ("portable", "avx2"):
        theirs = on(target, tmp_path)
        assert theirs.keys() == ours.keys()
        for seed, layers in ours.items():
            assert parting(layers, theirs[seed]) is None, f"network {seed} on {target}"


def test_what_no_contract_covers_is_refused_by_name():
    refused = []
    for seed in range(10):
        try:
            network_of(seed)
        except PlanError as error:
            refused.append(str(error))
    assert refused and all("accuracy reproducible takes convolutions" in one for one in refused)
    assert any(one.startswith(("Gelu", "Sigmoid", "Tanh", "Conv")) for one in refused)


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
    kept.write_text("{}")
    assert "is no fingerprint; expected the document" in invoke("run", str(model), "--against", str(kept)).output


def test_layers_of_other_models_and_contracts_part():
    one, other = {"node": "a", "op": "Conv", "contract": "chain, 3 channels", "digests": ["x"]}, {"contract": "chain, 4 channels"}
    assert parting([one], [one]) is None
    assert "its contract is chain, 3 channels, the other's chain, 4 channels" in str(parting([one], [one | other]))
    assert "the models or their fusion differ" in str(parting([one], [one | {"node": "b"}]))
    assert parting([one], [one, one]) == "one has 1 layers, the other 2"
    with pytest.raises(OperandError, match="layer 0 of the other fingerprint has no op, node or digests"):
        parting([one], [{}])
