# SPDX-License-Identifier: Apache-2.0
"""A network that was saved computes the same bits in another process, without planning; a file that does not fit is refused."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")

from graphs import random_model  # noqa: E402
from graphs_attention import random_attention  # noqa: E402
from onnx_models import given, several  # noqa: E402

import pysim  # noqa: E402
from pysim.errors import OperandError, ProblemError  # noqa: E402
from pysim.network import saved  # noqa: E402
from pysim.planner.table import Table  # noqa: E402


def written(folder, proto, **options):
    onnx.save(proto, str(folder / "model.onnx"))
    network = pysim.load(folder / "model.onnx", **options)
    network.save(folder / "model.pysim")
    return network


@pytest.mark.parametrize("proto", [*map(random_model, range(6)), *map(random_attention, range(2))], ids=range(8))
def test_a_saved_network_computes_the_same_bits(proto, tmp_path, monkeypatch):
    network, x = written(tmp_path, proto), given(proto)
    monkeypatch.setattr(Table, "of", None)  # nothing is planned
    again = pysim.load(tmp_path / "model.pysim")
    for one, other in zip(several(network(x)), several(again(x)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.inputs == network.inputs and again.outputs == network.outputs
    assert [layer.to_dict() for layer in again.plan.layers] == [layer.to_dict() for layer in network.plan.layers]
    assert again.plan.predicted_seconds == network.plan.predicted_seconds


def test_arrays_of_a_file_begin_on_cache_lines(tmp_path):
    written(tmp_path, random_model(0))
    path = tmp_path / "model.pysim"
    with saved.FileIO(path) as file, zipfile.ZipFile(path) as archive:
        arrays = saved._Arrays(archive, saved._read(file, path.stat().st_size))
        assert len(arrays) > 2 and all(arrays.view(name).ctypes.data % 64 == 0 for name in arrays)


def test_a_plan_of_a_saved_network_knows_its_alternatives(tmp_path):
    network = written(tmp_path, random_model(0))
    again = pysim.load(tmp_path / "model.pysim")
    for one, other in zip(network.plan.layers, again.plan.layers, strict=True):
        if one.plan is not None:
            assert other.plan.considered[0].schedule == one.plan.schedule
    assert again.plan.explain() == network.plan.explain()


def test_another_process_needs_neither_onnx_nor_the_planner(tmp_path):
    proto = random_model(1)
    network = written(tmp_path, proto)
    x = given(proto)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy as np, pysim\n"
        "folder = sys.argv[1]\n"
        "y = pysim.load(folder + '/model.pysim')(np.load(folder + '/x.npy'))\n"
        "np.savez(folder + '/y.npz', *(y if isinstance(y, tuple) else [y]))\n"
        "assert not {'onnx', 'networkx'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    with np.load(tmp_path / "y.npz") as found:
        for one, other in zip(found.values(), several(network(x)), strict=True):
            np.testing.assert_array_equal(one, other)


def rewrite(path, arrays, **options):
    with path.open("wb") as file:
        np.savez(file, **arrays, **options)


def changed(path, **fields):
    """The file with these fields of its document."""
    with np.load(path) as arrays:
        found = dict(arrays)
    document = json.loads(found["network"].tobytes()) | fields
    found["network"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
    rewrite(path, found)


@pytest.mark.parametrize("fields", [{"library": "0"}, {"machine": "zen9"}, {"pysim": "0.0.1"}, {"format": 99}, {"threads": 7}])
def test_a_file_of_another_build_machine_or_version_is_refused(fields, tmp_path):
    written(tmp_path, random_model(0))
    changed(tmp_path / "model.pysim", **fields)
    with pytest.raises(ProblemError, match="save it again"):
        pysim.load(tmp_path / "model.pysim")


def test_damaged_files_are_refused(tmp_path):
    written(tmp_path, random_model(0))
    path = tmp_path / "model.pysim"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:2000] + bytes(64) + whole[2064:], whole[:4]):
        path.write_bytes(content)
        with pytest.raises(ProblemError):
            pysim.load(path)


def test_prepared_weights_of_the_wrong_size_are_refused(tmp_path):
    """They would be read beyond their end."""
    written(tmp_path, random_model(0))
    path = tmp_path / "model.pysim"
    with np.load(path) as arrays:
        found = dict(arrays)
    layer = next(one for one in json.loads(found["network"].tobytes())["layers"] if "weights" in one)
    found[layer["weights"]["array"]] = found[layer["weights"]["array"]][:-4]
    rewrite(path, found)
    with pytest.raises(OperandError, match="bytes"):
        pysim.load(path)


def test_files_hold_no_objects(tmp_path):
    """Which NumPy would execute."""
    path = tmp_path / "model.pysim"
    rewrite(path, {"network": np.array([print], object)}, allow_pickle=True)
    with pytest.raises(ProblemError):
        pysim.load(path)


def test_options_of_the_models_file_are_refused(tmp_path):
    written(tmp_path, random_model(0))
    with pytest.raises(OperandError, match="model's file"):
        pysim.load(tmp_path / "model.pysim", batch=2)


def test_what_a_file_cannot_hold_is_named(tmp_path):
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Det", ["m"], ["y"], name="the determinant")],
        "graph",
        [onnx.helper.make_tensor_value_info("m", onnx.TensorProto.FLOAT, [2, 3, 3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    with pytest.raises(ProblemError, match="the determinant"):
        written(tmp_path, model)


def test_saving_leaves_a_file_as_it_was_where_it_fails(tmp_path, monkeypatch):
    network, path = written(tmp_path, random_model(0)), tmp_path / "model.pysim"
    before = path.read_bytes()

    def fails(archive, *rest):
        archive.fp.write(b"PK\3\4 half")
        raise OSError("no space")

    monkeypatch.setattr(saved, "_write", fails)
    with pytest.raises(ProblemError, match="cannot be written"):
        network.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("path", "why"), [(None, "path is None; expected the path of a file"), ("model.onnx", "such as .*model.pysim")])
def test_the_file_of_a_model_is_not_overwritten(path, why, tmp_path):
    network = written(tmp_path, random_model(0))
    before = (tmp_path / "model.onnx").read_bytes()
    with pytest.raises(OperandError, match=why):
        network.save(path and tmp_path / path)
    assert (tmp_path / "model.onnx").read_bytes() == before
