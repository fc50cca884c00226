# SPDX-License-Identifier: Apache-2.0
"""Every command's JSON document follows docs/documents.schema.json."""

import json

import pytest
from checkout import ROOT
from command_line import SMALL, cache, document, native, own_files  # noqa: F401
from json_schema import errors

from pysim.cli import COMMANDS

SCHEMA = json.loads((ROOT / "docs" / "documents.schema.json").read_text())
GEMM = "gemm:64x48x32"
QUICK = ("--seconds", "0")
FORECASTS = [
    ("plan", SMALL, GEMM, "-m", "zen4"),
    ("plan", SMALL, "-m", "zen4", "--top", "3", "--accuracy", "strict"),
    ("plan", SMALL, "-m", "power10-e1050", "--model", "csa", "--micro-kernel", "4x16"),
    ("plan", SMALL, GEMM, "-m", "h200", "--layout", "nhwc", "--memory-limit", "1MiB"),
    ("banks", "--list"),
    ("banks", "transpose-32x32", "--fix"),
    ("machines",),
    ("machines", "list"),
    ("machines", "show", "h200"),
    ("machines", "diff", "zen4", "zen5", SMALL),
    ("machines", "diff", "zen4", "graviton4", SMALL),
    ("kernels",),
    ("kernels", "--cuda"),
    ("report", SMALL, "-m", "zen4"),
]
NATIVE = [
    ("run", SMALL, GEMM),
    ("compare", SMALL, *QUICK),
    ("compare", SMALL, "--cold", *QUICK),
    ("search", SMALL, "--budget", "0.3", "--top", "2"),
    ("plan", SMALL, "--pinned"),
    ("history",),
    ("cache", SMALL, "-m", "zen4"),
    ("cache", SMALL, "-m", "zen4", "--stationary", "input", "--sweep", "k2"),
    ("machines", "detect"),
    ("doctor",),
]

pytestmark = pytest.mark.usefixtures("own_files")


def check(found: dict) -> None:
    assert not list(errors(found, SCHEMA, SCHEMA))


@pytest.mark.parametrize("words", FORECASTS, ids=" ".join)
def test_a_document_follows_the_schema(words):
    check(document(*words))


@native
@pytest.mark.parametrize("words", NATIVE, ids=" ".join)
def test_a_document_of_what_ran_here_follows_the_schema(words):
    check(document(*words))


@native
def test_the_documents_of_a_trace_and_of_a_model_follow_the_schema(tmp_path):
    trace = tmp_path / "trace.din"
    trace.write_text("0 1000\n1 2000\n")
    check(document("cache", "-m", "zen4", "--trace", str(trace)))
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    x, y = helper.make_tensor_value_info("x", 1, (1, 8, 9, 9)), helper.make_tensor_value_info("y", 1, (1, 8, 7, 7))
    w = helper.make_tensor("w", 1, (8, 8, 3, 3), [0.5] * 576)
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "model", [x], [y], [w])
    file = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(file))
    found = document("compare", str(file), *QUICK)
    assert len(found["models"]) == 1
    check(found)


def test_the_document_of_a_sweep_follows_the_schema(tmp_path):
    spec = tmp_path / "sweep.toml"
    spec.write_text(f'problems = ["{SMALL}"]\nmachines = ["zen4"]\n')
    check(document("sweep", str(spec)))


@native
def test_the_document_of_changes_follows_the_schema():
    document("compare", SMALL, "--save", "now", *QUICK)
    for words in ((), (SMALL,), ("--baseline", "now")):
        check(document("history", *words))


def test_every_command_has_a_document_here():
    assert {words[0] for words in FORECASTS + NATIVE} | {"sweep", "completion"} == {*COMMANDS}


def test_the_check_finds_what_is_missing_unknown_or_of_another_type():
    (found,) = document("plan", SMALL, "-m", "zen4")["plans"]
    good = {"schema": 1, "plans": [found]}
    for bad in (
        {"schema": 2, "plans": [found]},
        {"schema": 1, "plans": [{**found, "threads": True}]},
        {"schema": 1, "plans": [{name: value for name, value in found.items() if name != "error"}]},
        {"schema": 1, "plan": [found]},
        {"schema": 1, "plans": [{**found, "cost": {"cycles": 1}}]},
    ):
        assert list(errors(bad, SCHEMA, SCHEMA)) and not list(errors(good, SCHEMA, SCHEMA))
