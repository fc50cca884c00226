# SPDX-License-Identifier: Apache-2.0
"""Networks for Perfetto and Netron; values as notebooks show them."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest
from command_line import SMALL, cache, native, ok, own_files, refused  # noqa: F401

import pysim
from pysim.cachemodel import Cache, Hierarchy
from pysim.record.measurement import Comparison

pytestmark = pytest.mark.usefixtures("own_files")
LAYERS = [
    {
        "node": "first",
        "op": "Conv",
        "problem": SMALL,
        "fused": ["relu"],
        "predicted_seconds": 2e-4,
        "measured_seconds": 3e-4,
        "plan": "sconv",
    },
    {"node": "y", "op": "GlobalAveragePool", "fused": [], "predicted_seconds": 1e-6, "measured_seconds": 2e-6},
]


@pytest.fixture
def today(tmp_path, monkeypatch):
    """A document of a measured network, in a folder with its model."""
    helper, numpy_helper = (getattr(pytest.importorskip("onnx"), name) for name in ("helper", "numpy_helper"))
    x, y = (helper.make_tensor_value_info(name, 1, [1, 4, 8, 8][: 4 if name == "x" else 2] + [1, 1] * (name == "y")) for name in "xy")
    weights = numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("GlobalAveragePool", ["b"], ["y"]),
    ]
    monkeypatch.chdir(tmp_path)
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weights]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    pytest.importorskip("onnx").save(model, "a.onnx")
    network = {"model": "a.onnx:mb1", "machine": "host", "measured_seconds": 3e-4, "layers": LAYERS}
    (tmp_path / "today.json").write_text(json.dumps({"schema": 1, "models": [network]}))
    return tmp_path


def test_a_trace_has_every_layer_in_turn_and_its_terms_inside_it(today):
    ok("report", "today.json", SMALL, "-m", "zen4", "--format", "perfetto", "-o", "trace.json")
    events = json.loads((today / "trace.json").read_text())["traceEvents"]
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["ph"] == "M"}
    assert names == {
        (1, 0): "a.onnx:mb1 on host", (1, 1): "measured", (1, 2): "predicted", (2, 0): "layers on zen4", (2, 2): "predicted",
    }  # fmt: skip
    measured, predicted = ([one for one in events if one["ph"] == "X" and (one["pid"], one["tid"]) == (1, at)] for at in (1, 2))
    assert [one["name"] for one in measured] == [one["name"] for one in predicted] == ["Conv first", "GlobalAveragePool y"]
    assert [(one["ts"], one["dur"]) for one in measured] == [(0.0, pytest.approx(300)), (pytest.approx(300), pytest.approx(2))]
    assert measured[0]["args"] == {"node": "first", "problem": SMALL, "fused": ["relu"]}
    whole, *terms = (one for one in events if one["ph"] == "X" and one["pid"] == 2)
    plan = pysim.plan(SMALL, machine="zen4")
    assert (whole["name"], whole["dur"]) == (SMALL, pytest.approx(plan.seconds * 1e6))
    assert {one["name"] for one in terms} == {name for name, cycles in plan.cost.counted.items() if cycles}
    assert sum(one["dur"] for one in terms) == pytest.approx(whole["dur"])


def test_a_copy_of_the_model_for_netron_carries_plan_and_times_and_computes_the_same(today):
    onnx = pytest.importorskip("onnx")
    ok("report", "today.json", "-o", "times.onnx")
    ok("report", "today.json", "-o", "times.onnx")  # again, as it is
    found = onnx.load("times.onnx")
    onnx.checker.check_model(found)
    told = [{one.key: one.value for one in node.metadata_props} for node in found.graph.node]
    assert told == [
        {
            "pysim.problem": SMALL, "pysim.plan": "sconv", "pysim.predicted": "200.000 us", "pysim.measured": "300.000 us",
            "pysim.fused": "relu",
        },
        {"pysim.fused into": "first"},
        {"pysim.predicted": "1.000 us", "pysim.measured": "2.000 us"},
    ]  # fmt: skip
    for node in found.graph.node:
        del node.metadata_props[:]
    before = onnx.load("a.onnx")
    assert found.graph == before.graph
    assert "copy of one model" in refused(2, "report", "today.json", "--format", "netron")
    assert "copy of one model" in refused(2, "report", SMALL, "-m", "zen4", "-o", "times.onnx")
    (today / "a.onnx").unlink()
    assert "a.onnx cannot be read" in refused(2, "report", "today.json", "-o", "times.onnx")


class Tags(HTMLParser):
    """The elements of a text of HTML, each of which is closed, and its words."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.seen, self.words = list[str](), set[str](), ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


@native
def test_notebooks_show_plans_comparisons_simulations_and_models(today):
    plan = pysim.plan(SMALL, machine="zen4")
    levels = [Cache(name="<L1>", sets=2, ways=1, line_bytes=64)]
    simulated = Hierarchy(levels).simulate(np.arange(4, dtype=np.int64) * 64, np.full(4, 4, np.int32), np.zeros(4, bool))
    compared = Comparison(
        problem=SMALL, label="", plan=None, correct=True, machine="<host>", measured_seconds=1e-3, predicted_seconds=2e-3,
        peers={"<onednn>": 3e-3}, errors={"pysim": 1e-7},
    )  # fmt: skip
    wrong = Comparison(problem=SMALL, label="", plan=None, correct=False, reason="a & b differ")
    slicing = pysim.plan("conv:mb1ic64ih56oc64kh3ph1", machine="power10-e1050", model="csa")
    model = pysim.load("a.onnx")
    for one, words in (
        (plan, [SMALL, "zen4", plan.algorithm, plan.explain(), "100.0%" if len(plan.cost.counted) == 1 else "%"]),
        (slicing, ["slicing", "cold", slicing.explain()] if "slicing" in slicing.explain() else ["cold", slicing.explain()]),
        (simulated, ["4 accesses", "<L1>", "100.00%"]),
        (compared, ["<host>", "result right", "2.000 ms", "<onednn>", "3.00x", "1.0e-07"]),
        (wrong, ["a & b differ"]),
        (model, ["host", model.plan.explain(), "GlobalAveragePool"]),
        (model.plan, ["Conv"]),
    ):
        found = Tags(one._repr_html_())
        assert {"div", "table", "td"} <= found.seen or one is wrong
        assert not found.seen - {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre"}
        for word in words:
            assert word in found.words
        assert "color" not in one._repr_html_(), "the notebook's own, light or dark"
