# SPDX-License-Identifier: Apache-2.0
"""The paper's comparison on the model: the committed data are what the tool computes, and say what the documents say."""

import json
from functools import cache
from typing import Any

import pytest
from checkout import ROOT, tool

from pysim.machine.load import load
from pysim.problem.conv import Conv
from pysim.problem.text import distinct, parse, resolve

DATA = ROOT / "lab" / "data" / "simulated/paper-comparison.json"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="needs the data files of a checkout")


@cache
def found() -> dict[str, Any]:
    return json.loads(DATA.read_text())["machines"]


@pytest.mark.parametrize("name", ["xeon-4208", "power10-e1050"])
@pytest.mark.parametrize("problem", ["conv:mb1ic64ih56oc64kh3ph1", "conv:mb1ic256ih14oc1024kh1", "conv:mb1ic3ih224oc64kh7sh2ph3"])
def test_the_data_are_what_the_tool_computes(name: str, problem: str) -> None:
    workload = parse(problem)
    assert isinstance(workload, Conv)
    kept = next(one for one in found()[name]["layers"] if one["problem"] == workload.text)
    now = tool("paper_comparison").of_layer(workload, load(name))
    assert now["csa"] == kept["csa"] and now["csa_choice"] == kept["csa_choice"]
    assert now["sconv_seconds"] == pytest.approx(kept["sconv_seconds"], rel=0.02)
    for baseline, one in now["baseline"].items():
        assert one["seconds"] == pytest.approx(kept["baseline"][baseline]["seconds"], rel=0.02)


def test_all_393_convolutions_of_the_paper_are_in_it() -> None:
    layers = [layer for name in tool("paper_comparison").NETWORKS for layer in resolve([name])]
    assert sum(layer.count for layer in layers) == 393
    for one in found().values():
        assert one["all"]["layers"] == 393 == sum(network["layers"] for network in one["networks"].values())
        assert len(one["layers"]) == len(distinct(layers))


def test_the_slicing_analysis_keeps_inputs_on_power10_and_weights_on_x86_as_the_paper_does() -> None:
    assert found()["power10-e1050"]["all"]["csa"]["input_stationary"] == 393
    assert found()["xeon-4208"]["all"]["csa"]["weight_stationary"] == 393


def test_a_baseline_that_does_more_is_never_quicker_and_pointwise_layers_need_no_im2col() -> None:
    for one in found().values():
        for layer in one["layers"]:
            seconds = [layer["baseline"][name]["seconds"] for name in tool("paper_comparison").BASELINES]
            assert seconds[0] <= seconds[1] * (1 + 1e-9) and seconds[1] <= seconds[2] * (1 + 1e-9), layer["problem"]
            assert not layer["pointwise"] or seconds[1] == seconds[2]


def test_the_mean_speed_ups_are_within_a_tenth_of_table_2() -> None:
    for name, paper in (("xeon-4208", 1.19), ("power10-e1050", 1.30)):
        assert found()[name]["geometric_mean"]["caffe"] == pytest.approx(paper, abs=0.1)


def test_the_page_and_its_figures_show_the_committed_data() -> None:
    pytest.importorskip("matplotlib")
    import sconv_figures as figures

    assert figures.table() in (ROOT / "docs" / "cost-model.md").read_text()
    assert sum(sum(network.values()) for network in figures.counts().values()) == 393
    for file in figures.FIGURES:
        picture = (ROOT / "docs" / file).read_text()
        titles = figures.MISSES.values() if "misses" in file else (one.title for one in figures.machines())
        assert all(title in picture for title in titles)
