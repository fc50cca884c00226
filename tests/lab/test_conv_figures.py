# SPDX-License-Identifier: Apache-2.0
"""The pictures of measured convolutions: what they compute, and that what they draw can be read, on data written as the benchmark does."""

import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise
from pathlib import Path

import conv_data as data
import conv_figures as figures
import msgspec
import pytest
from conv_data import Candidate, Header, Line
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib")

from pysim.errors import MachineError, StoreError
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.peers.cudnn import ALGORITHMS
from pysim.problem.conv import Conv
from pysim.problem.text import parse

NAMES = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "FFT", "FFT_TILING", "WINOGRAD_NONFUSED")
SVG = "{http://www.w3.org/2000/svg}"


def h200() -> Gpu:
    found = load_any("h200")
    assert isinstance(found, Gpu)
    return found


def made_up(layer: data.Layer, name: str, dtype: str, number: int) -> Line:
    """Times near a roof, each algorithm at a factor of its own; a third of the layers refuses FFT, one result is wrong."""
    w, found = layer.workload, {}
    assert isinstance(w, Conv)
    for index, algorithm in enumerate(ALGORITHMS):
        one = Candidate(who="cudnn", algorithm=algorithm)
        if algorithm not in NAMES or (algorithm == "FFT" and number % 3 == 0):
            one = msgspec.structs.replace(one, refused="no")
        elif algorithm == "GEMM" and number == 1:
            one = msgspec.structs.replace(one, wrong="3 elements")
        else:
            one = msgspec.structs.replace(one, seconds=w.flops / 50e12 * (0.6 + 0.3 * index) * (1 + 0.1 * (number % 4)), workspace_bytes=0)
        found[f"cudnn {algorithm}"] = one
    found["torch"] = Candidate(who="torch", seconds=w.flops / 40e12)
    for index, family in enumerate(("implicit", "im2win", "winograd")):
        found[f"pysim {family}"] = Candidate(who="pysim", algorithm=family, seconds=w.flops / 55e12 * (1 + 0.2 * index), workspace_bytes=0)
    return Line(set=name, label=layer.label, problem=data.text_of(w, dtype), dtype=dtype, planned="pysim implicit", candidates=found)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "made-up.jsonl"
    data.write(out, Header(device="NVIDIA H200", driver="13.0", versions={}, command="made up", date="", note="not measured"))
    for dtype in ("f32", "f16"):
        for name in data.SETS:
            for number, layer in enumerate(data.problems(name)):
                data.write(out, made_up(layer, name, dtype, number))
    return out


def draw(monkeypatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["conv_figures.py", *map(str, arguments)])
    figures.main()


def texts(svg: Path) -> list[str]:
    """Words of a picture in order; lines of one text are several."""
    return ["".join(element.itertext()).strip() for element in ElementTree.parse(svg).iter(f"{SVG}text")]


# What is computed


def test_the_worked_intensity_and_roofs_are_those_of_the_head_of_the_file():
    w = parse("conv:mb32ic64ih56oc64kh3ph1")
    assert isinstance(w, Conv)
    assert figures.intensity(w) == w.flops / (4 * (2 * 32 * 64 * 56 * 56 + 64 * 64 * 9)) and round(figures.intensity(w)) == 144
    compute, memory = figures.roofs(h200(), "f32")
    assert (round(compute / 1e12, 1), round(memory / 1e12, 1), round(compute / memory, 1)) == (63.8, 4.8, 13.3)
    assert figures.roofs(h200(), "f16")[0] == pytest.approx(808.8e12, rel=1e-3)


def test_a_type_of_half_the_bytes_has_twice_the_intensity_and_groups_read_fewer_filters():
    full, half, grouped = (parse(f"conv:{text}") for text in ("mb2ic8ih5oc8kh3", "mb2ic8ih5oc8kh3:f16", "g4mb2ic8ih5oc8kh3"))
    assert figures.intensity(half) == 2 * figures.intensity(full)
    assert figures.intensity(grouped) == grouped.flops / (4 * (2 * 8 * 25 + 8 * 2 * 9 + 2 * 8 * 9))


def test_a_machine_without_the_multiplier_is_refused():
    volta = load_any("v100")
    assert isinstance(volta, Gpu)
    with pytest.raises(MachineError, match="v100 has no multiply-adds of tensor_tf32"):
        figures.roofs(volta, "tf32")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0.001, 0.2))
def test_spread_names_keep_their_order_their_distance_and_the_picture(wanted, gap):
    places = figures.spread(sorted(wanted), gap)
    least = min(gap, 1 / max(1, len(places) - 1))
    assert all(after - before >= least - 1e-9 for before, after in pairwise(places))
    assert min(places) >= -1e-9 and max(places) <= 1 + 1e-9


# What is drawn


@pytest.mark.parametrize("name", data.SETS)
def test_the_roofline_has_both_roofs_every_layer_and_every_kind(file, name, tmp_path, monkeypatch):
    draw(monkeypatch, "roofline", file, "-o", tmp_path / "a.svg", "--set", name)
    found = texts(tmp_path / "a.svg")
    kinds = {"cuDNN GEMM-class", "cuDNN FFT", "cuDNN Winograd", "PyTorch", "pysim implicit", "pysim im2win", "pysim winograd"}
    assert kinds | {"63.8 TFLOP/s", "4.8 TB/s"} <= set(found)
    assert {layer.label.partition("_N")[0] for layer in data.problems(name)} <= set(found)


def test_the_heat_map_has_a_cell_for_each_time_and_says_which_never_ran(file, tmp_path, monkeypatch):
    draw(monkeypatch, "heat", file, "-o", tmp_path / "a.svg", "--against", "winograd")
    found = texts(tmp_path / "a.svg")
    cells = [one for one in found if re.fullmatch(r"\d+\.\d\d?", one) and one not in ("0.125", "0.25", "0.5")]
    refused, wrong = 6, 1
    assert len(cells) == 16 * 7 - refused - wrong and found.count("wrong") == wrong
    assert {"Conv2, N = 32", "Conv5, N = 128", "NONFUSED", "torch"} <= set(found)
    assert any("never" not in one and "cudnn DIRECT, cudnn WINOGRAD" in one for one in found)
    assert f"{(55 / 40) / 1.4:.2f}" in cells  # PyTorch's time over Winograd's


BASES = {"pysim": "pysim's fastest", "planned": "what pysim planned", "cudnn": "cuDNN's fastest"}


@pytest.mark.parametrize(("against", "title"), BASES.items())
def test_the_heat_map_divides_by_the_chosen_algorithm(file, against, title, tmp_path, monkeypatch):
    draw(monkeypatch, "heat", file, "-o", tmp_path / "a.svg", "--set", "resnet50", "--dtype", "f16", "--against", against)
    assert f"ResNet-50, batch 32, f16: seconds over those of {title}" in texts(tmp_path / "a.svg")


@pytest.mark.parametrize("name", data.SETS)
@pytest.mark.parametrize("picture", ["roofline", "heat"])
def test_no_two_texts_of_a_picture_overlap(file, picture, name, tmp_path, monkeypatch):
    boxes: list[tuple[str, object]] = []

    def measured(figure, out):
        from matplotlib.text import Text

        figure.canvas.draw()
        frame = figure.bbox
        for text in figure.findobj(Text):
            if text.get_visible() and text.get_text().strip():
                box = text.get_window_extent()
                if not math.isclose(box.width, 0) and box.overlaps(frame):
                    boxes.append((text.get_text(), box))
                    assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1, text.get_text()

    monkeypatch.setattr(figures, "save", measured)
    draw(monkeypatch, picture, file, "-o", tmp_path / "a.svg", "--set", name)
    assert len(boxes) > 20
    for (one, box), (other, another) in combinations(boxes, 2):
        across = min(box.x1, another.x1) - max(box.x0, another.x0)
        up = min(box.y1, another.y1) - max(box.y0, another.y0)
        assert across <= 1 or up <= 1, f"{one!r} and {other!r}"


def test_the_same_data_give_the_same_file(file, tmp_path, monkeypatch):
    for picture in ("roofline", "heat"):
        for name in ("a.svg", "b.svg"):
            draw(monkeypatch, picture, file, "-o", tmp_path / name)
        assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_what_was_not_measured_is_not_drawn(file, tmp_path, monkeypatch):
    with pytest.raises(StoreError, match="nothing of opencnn in bf16 was timed"):
        draw(monkeypatch, "heat", file, "-o", tmp_path / "a.svg", "--dtype", "bf16")
    with pytest.raises(StoreError, match="nothing of 'direct' was timed"):
        draw(monkeypatch, "heat", file, "-o", tmp_path / "a.svg", "--against", "direct")
    with pytest.raises(MachineError, match="zen4 is not a GPU"):
        draw(monkeypatch, "roofline", file, "-o", tmp_path / "a.svg", "-m", "zen4")
    with pytest.raises(StoreError, match="cannot be written"):
        draw(monkeypatch, "heat", file, "-o", tmp_path / "none" / "a.svg")
    assert not list(tmp_path.iterdir())
