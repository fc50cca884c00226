# SPDX-License-Identifier: Apache-2.0
"""The data files of the convolution benchmark, and the figures that are made of them."""

import json

import conv_data as data
import pytest
from checkout import ROOT
from conv_data import Candidate, Header, Line
from problems import conv

from pysim.errors import ProblemError, StoreError

HEADER = Header(device="NVIDIA H200", driver="13.0", versions={}, command="", date="")


def line(name: str, label: str, dtype: str = "f32", planned: str = "", text: str = "", **candidates: Candidate) -> Line:
    """A line of a problem that its label alone has."""
    text = text or f"conv:mb{1 + sum(map(ord, label))}ic3ih5oc4kh3"
    return Line(set=name, label=label, problem=data.text_of(conv(text), dtype), dtype=dtype, planned=planned, candidates=candidates)


def ours(seconds: float, algorithm: str = "im2win", form: str = "full", space: int = 0) -> Candidate:
    return Candidate(who="pysim", algorithm=algorithm, form=form, seconds=seconds, workspace_bytes=space)


def theirs(seconds: float, algorithm: str = "GEMM", space: int = 0) -> Candidate:
    return Candidate(who="cudnn", algorithm=algorithm, seconds=seconds, workspace_bytes=space)


def torch(seconds: float) -> Candidate:
    return Candidate(who="torch", seconds=seconds)


def test_the_sets_are_the_acceptance_tables():
    sizes = {name: data.problems(name) for name in data.SETS}
    assert {name: len(layers) for name, layers in sizes.items()} == {"opencnn": 16, "im2win": 12, "resnet50": 23}
    assert {layer.workload.batch for layer in sizes["opencnn"]} == {32, 64, 96, 128}
    assert {layer.workload.batch for layer in sizes["im2win"]} == {128} and {layer.workload.batch for layer in sizes["resnet50"]} == {32}
    assert all(layer.workload.pad_top == 0 for layer in sizes["im2win"])
    cv4 = next(layer.workload for layer in sizes["im2win"] if layer.label == "cv4")
    assert cv4.channels == 64 and cv4.flops == 2 * 128 * 64 * 109 * 109 * 64 * 49
    with pytest.raises(ProblemError, match="no set 'resnet'"):
        data.problems("resnet")


def test_a_file_gives_back_what_was_written_and_forgives_its_last_line_alone(tmp_path):
    out, one = tmp_path / "a.jsonl", line("im2win", "cv1", a=ours(1e-3), b=Candidate(who="cudnn", algorithm="FFT", refused="no"))
    tf32 = line("im2win", "cv1", "tf32", a=ours(1e-3))
    for record in (HEADER, one, tf32):
        data.write(out, record)
    assert data.read(out) == [HEADER, one, tf32]
    assert tf32.problem == one.problem + ":tf32" and tf32.workload == one.workload
    out.write_bytes(out.read_bytes() + b'{"kind":"pro')
    assert data.lines_of([out]) == [one, tf32]
    out.write_bytes(b"{}\n" + out.read_bytes())
    with pytest.raises(StoreError, match="line 1 is not a record"):
        data.read(out)


def test_a_later_file_replaces_candidates_by_name(tmp_path):
    for name, one in (("a", line("im2win", "cv1", x=ours(2.0), y=ours(3.0))), ("b", line("im2win", "cv1", x=ours(1.0)))):
        data.write(tmp_path / name, one)
    merged = data.lines_of([tmp_path / "a", tmp_path / "b"])
    assert [{name: one.seconds for name, one in found.candidates.items()} for found in merged] == [{"x": 1.0, "y": 3.0}]


def known_answers() -> list[Line]:
    """im2win 2 and 8 times as fast as the best GEMM-class; Winograd 1.5 of all and 3 of those without workspace; regrets 1 and 4."""
    mib = 1 << 20
    cv4 = next(layer for layer in data.problems("im2win") if layer.label == "cv4")
    return [
        line("im2win", "cv1", planned="b", a=ours(1.0, space=mib), b=ours(4.0, form="fused"), c=theirs(2.0), d=theirs(0.5, "FFT", 2 * mib)),
        line("im2win", "cv4", planned="a", text=cv4.workload.text, a=ours(0.01), c=theirs(0.08, "IMPLICIT_GEMM"), e=theirs(0.09)),
        line(
            "opencnn",
            "Conv2_N32",
            a=ours(2.0, "winograd"),
            b=ours(1.0, "winograd", "staged", mib),
            c=theirs(3.0, "FFT", mib),
            d=theirs(6.0),
        ),
        line("resnet50", "conv1", planned="a", a=ours(1.0, "implicit"), b=torch(1.44)),
        line("resnet50", "res2", planned="a", a=ours(1.0, "implicit"), b=torch(1.0)),
        line("resnet50", "conv1", "f16", planned="a", a=ours(2.0, "implicit"), b=torch(1.0)),
        line("resnet50", "res2", "f16", planned="a", a=ours(2.0, "implicit"), b=torch(1.0)),
    ]


def test_the_figures_of_known_times_are_the_known_ones():
    found = {one.what: (None if one.value is None else round(one.value, 9), one.met) for one in data.figures(known_answers())}
    gemm = "im2win with its transform, against cuDNN's GEMM-class algorithms"
    free = "fused Winograd without workspace, against cuDNN without any"
    assert found[f"{gemm}: geometric mean"] == (4.0, True) and found[f"{gemm}: worst layer"] == (2.0, True)
    assert found["fused Winograd, against all of cuDNN: geometric mean"] == (1.5, True)
    assert found[f"{free}: geometric mean"] == (3.0, True)
    assert found["ResNet-50, planned, against PyTorch, f32: geometric mean"] == (1.2, False)
    assert found["ResNet-50, planned, against PyTorch, f32: worst layer"] == (1.0, True)
    assert found["cv4, TFLOP/s of the direct method"] == (round(2 * 128 * 64 * 109**2 * 64 * 49 / 0.01 / 1e12, 9), True)
    assert found["planner's regret, f32: geometric mean"] == (4.0, False) and found["planner's regret, f32: worst"] == (4.0, False)
    assert found["ResNet-50, planned, against PyTorch, f16: geometric mean"] == (0.5, False)
    assert found["ResNet-50, planned, against PyTorch, bf16: geometric mean"] == (None, None)
    assert found["fused Winograd without workspace, against all of cuDNN: geometric mean"] == (1.5, True)
    assert found["fused Winograd, share of layers on which it ran without workspace"] == (1.0, True)
    assert found["im2win fused, share of layers on which it ran without workspace"] == (1.0, True)
    assert found["im2win with its tensor, share of layers with less memory than cuDNN's fastest"] == (0.5, False)


def test_the_summary_says_what_is_met_missed_and_not_measured(tmp_path):
    for one in known_answers():
        data.write(tmp_path / "a.jsonl", one)
    data.write(tmp_path / "a.jsonl", line("opencnn", "Conv3_N32", a=Candidate(who="pysim", wrong="3 of 4 elements")))
    text = data.summary([tmp_path / "a.jsonl"])
    rows = {row[:82].rstrip(): row[82:].split() for row in text.splitlines() if len(row) > 82}
    assert rows["ResNet-50, planned, against PyTorch, f32: geometric mean"][:5] == ["1.20", "at", "least", "1.3", "MISS"]
    assert rows["cv4, TFLOP/s of the direct method"][:5] == ["61.04", "at", "least", "35", "met"]
    assert rows["ResNet-50, planned, against PyTorch, tf32: geometric mean"][:2] == ["no", "data"]
    assert "wrong: Conv3_N32 f32 a: 3 of 4 elements" in text and "staged" in text


MEASURED = [ROOT / "lab" / "data" / "h200" / f"conv-{name}.jsonl" for name in ("f32", "networks", "f16", "tf32")]


def test_the_measured_data_are_whole_and_say_where_they_are_from():
    for path in MEASURED:
        header = data.read(path)[0]
        assert isinstance(header, Header) and "H200" in header.device and "9.19" in header.versions["cudnn"]
    lines = data.lines_of(MEASURED)
    wanted = {(name, "f32") for name in (*data.SETS, *data.NETWORKS)} | {("resnet50", "f16"), ("resnet50", "tf32")}
    assert {(one.set, one.dtype) for one in lines} == wanted
    for name, dtype in wanted:
        assert len([one for one in lines if (one.set, one.dtype) == (name, dtype)]) == len(data.problems(name))
    ours = [one for line in lines for one in line.candidates.values() if one.who == data.OURS]
    assert not any(one.wrong for one in ours)


def test_the_measured_figures_keep_their_bars():
    missed = {one.what for one in data.figures(data.lines_of(MEASURED)) if one.met is False}
    # cuDNN's fastest needs no memory on 4 layers and little on 4
    assert missed <= {"im2win with its tensor, share of layers with less memory than cuDNN's fastest"}


def test_the_model_chooses_well_among_the_measured_launches():
    """What lab/fits/fit_conv.py reports of the constants as they are; the bars are those of the planner's regret."""
    import fit_conv

    from pysim.machine.load import load_any
    from pysim.registry.cuda import gemm_attributes

    gpu = load_any("h200")
    cases = fit_conv.read(gpu, MEASURED[:2])
    found = fit_conv.report(cases, gpu, gemm_attributes(gpu.capability_number))
    assert found["problems"] == 111 and found["launches"] > 2500
    kept = json.loads((ROOT / "lab" / "data" / "h200/conv-fit.json").read_text())
    for family, constants in kept["constants"].items():
        now = {name: getattr(gpu.model.families[family], name).value for name in constants}
        assert now == pytest.approx(constants, rel=1e-3), "the report is of other constants"
    assert found["regret_mean"] <= 1.05 and found["regret_worst"] <= 1.25 and found["tau"] >= 0.7 and found["median_error"] <= 0.12
