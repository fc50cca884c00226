# SPDX-License-Identifier: Apache-2.0
"""Lists of problems are read as they are written, and the sets are the networks they name."""

import itertools
import string
from pathlib import Path

import msgspec
import pytest
from checkout import tool

from pysim.errors import ProblemError
from pysim.problem.text import SHIPPED, Layer, ModelFile, distinct, parse, resolve, sets

SEVERAL_AXES = ("r3d18", "slowfast", "unet3d", "wav2vec2", "encodec", "dcgan")
NETWORKS = ("resnet18", "resnet50", "resnet152", "vgg16", "googlenet", "inception_v2", "squeezenet")


def test_a_list_is_read_with_its_labels_and_without_its_comments(tmp_path):
    path = tmp_path / "shapes"
    path.write_text(
        "# Resnet50\n"
        'g1mb50ic3ih224oc64oh112kh7sh2ph3n"resnet_50:conv1"\n'
        "\n"
        'mb50ic64ih56oc64oh56kh3ph1n"resnet_50:res2a_branch2b*3"   # taken from benchdnn\n'
        '512x2048:2048x1024_n"a # b"\n'
        "512x1024x2048:tt# no label\n"
        "conv:ic3ih9oc4kh3:f16\r\n"
    )
    assert resolve([f"@{path}"]) == [
        Layer(parse("conv:mb50ic3ih224oc64kh7sh2ph3"), "resnet_50:conv1"),
        Layer(parse("conv:mb50ic64ih56oc64kh3ph1"), "resnet_50:res2a_branch2b*3"),
        Layer(parse("gemm:512x1024x2048"), "a # b"),
        Layer(parse("gemm:512x1024x2048:tt")),
        Layer(parse("conv:ic3ih9oc4kh3:f16")),
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"conv:ic3ih9oc4kh3\n--dir=FWD_B\n", "line 2: '--dir=FWD_B': character 1: a problem begins with"),
        (b"# nothing\n", "holds no problem"),
        (b"resnet50:mb32\n", "line 1: 'resnet50:mb32' is a built-in set; a list has problems alone"),
        (b"", "holds no problem"),
        (b"\xff\xfe", "cannot be read as UTF-8 text"),
        (b"conv:ic3ih9 oc4kh3\n", "line 1: 'conv:ic3ih9 oc4kh3': character 12: ' ' stands where"),
        (b'2x512x2048:2x2048x1024n"batched"\n', "line 1: '2x512x2048"),
    ],
)
def test_a_bad_list_is_refused_with_its_line(tmp_path, content, says):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(ProblemError) as caught:
        resolve([f"@{path}"])
    assert says in str(caught.value)
    assert "bad.txt" in str(caught.value)


@pytest.mark.parametrize("name", ["@/no/such/list", "@", "@.", "@\0", "@" + "x" * 5000])
def test_a_list_that_is_no_file_is_refused(name):
    with pytest.raises(ProblemError, match=r"names no file|there is no file|cannot be read"):
        resolve([name])


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("resnet5", 'did you mean "resnet50"?'),
        ("ResNet-50", 'did you mean "resnet50"?'),
        ("nothing_like_it", "there are: cutlass, dcgan"),
        ("mb1ic64ih56oc64kh3ph1", 'did you mean "conv:mb1ic64ih56oc64kh3ph1"?'),
        ("512x64:64x8", 'did you mean "gemm:512x8x64"?'),
        ("model.onnx", "no reader of .onnx models"),
    ],
)
def test_an_unknown_word_is_refused_with_what_may_be_meant(word, says):
    with pytest.raises(ProblemError) as caught:
        resolve([word])
    assert says in str(caught.value)


def test_words_are_resolved_in_order_and_models_by_the_reader_given():
    seen = []

    def read_model(model: ModelFile) -> list[Layer]:
        seen.append(model)
        return [Layer(parse("gemm:1x2x3"), "fc")]

    layers = resolve(['conv:ic3ih9oc4kh3n"first"', "some/model.onnx", "mec"], read_model)
    assert [layer.label for layer in layers[:3]] == ["first", "fc", "cv1"]
    assert seen == [ModelFile(Path("some/model.onnx"), None)]
    assert len(layers) == 14


def test_one_word_needs_no_list():
    assert resolve("mec") == resolve(["mec"])


def test_distinct_adds_counts_and_keeps_the_first_label():
    a, b = parse("gemm:1x2x3"), parse("gemm:3x2x1")
    layers = [Layer(a, "x"), Layer(b, "y", 2), Layer(a, "z", 3)]
    assert distinct(layers) == [Layer(a, "x", 4), Layer(b, "y", 2)]
    assert distinct([]) == []


@pytest.mark.parametrize(
    ("name", "count", "kinds", "gigamacs"),
    [  # multiply-adds of the convolutions at 224 x 224, as the papers or their usual re-counts give them
        ("resnet18", 20, 11, 1.81),
        ("resnet50", 53, 23, 4.09),
        ("resnet152", 155, 23, 11.51),
        ("vgg16", 13, 9, 15.35),
        ("googlenet", 57, 49, 1.43),
        ("inception_v2", 69, 38, 2.02),
        ("squeezenet", 26, 18, 0.35),
        ("r3d18", 20, 11, 40.70),  # torchvision's documentation, with its last product
    ],
)
def test_the_networks_have_their_known_layers_and_work(name, count, kinds, gigamacs):
    layers = resolve([name])
    assert (len(layers), len(distinct(layers))) == (count, kinds)
    assert sum(layer.workload.flops for layer in layers) / 2e9 == pytest.approx(gigamacs, abs=0.01)
    assert all(layer.label and layer.count == 1 for layer in layers)


def test_the_seven_networks_have_the_393_convolutions_of_the_sconv_paper():
    assert len(resolve(NETWORKS)) == 393


def test_the_sets_are_those_that_are_promised():
    assert sets() == sorted((*NETWORKS, "mec", "opencnn", "cutlass", *SEVERAL_AXES))


def test_the_mec_layers_have_the_work_and_memory_of_the_im2win_table():
    # GMAC at batch 128 (layer 4 with 64 channels), outputs P, and MB of im2col at batch 128
    work = [13.49, 13.99, 14.84, 305.22, 31.46, 15.10, 10.90, 114.19, 13.76, 12.76, 10.87, 7.55]
    sides = [55, 56, 111, 109, 20, 10, 222, 110, 54, 26, 12, 5]
    columns = [536, 556, 884, 18193, 469, 112, 650, 3403, 820, 380, 162, 56]
    for layer, gigamacs, side, megabytes in zip(resolve(["mec"]), work, sides, columns, strict=True):
        c = layer.workload
        assert 128 * c.flops / 2e9 == pytest.approx(gigamacs, abs=0.006)
        assert (c.batch, c.out_h, c.out_w) == (1, side, side)
        im2col = 128 * 4 * c.channels * c.kernel_h * c.kernel_w * c.windows
        assert min(abs(im2col / unit - megabytes) for unit in (1e6, 1 << 20)) < 1


def test_the_opencnn_layers_are_four_3x3_at_four_batches():
    layers = [layer.workload for layer in resolve(["opencnn"])]
    assert {(c.batch, c.height, c.channels) for c in layers} == {
        (batch, *shape) for batch in (32, 64, 96, 128) for shape in ((56, 64), (28, 128), (14, 256), (7, 512))
    }
    assert all((c.out_h, c.filters, c.kernel_h) == (c.height, c.channels, 3) for c in layers)


def test_the_cutlass_products_are_one_size_in_four_layouts():
    layers = [layer.workload for layer in resolve(["cutlass"])]
    assert [g.layout for g in layers] == ["nn", "nt", "tn", "tt"]
    assert {(g.m, g.n, g.k, g.dtype) for g in layers} == {(10240, 4096, 4096, "f32")}


@pytest.mark.parametrize("name", ["resnet18", "resnet152", "vgg16"])
def test_the_layers_of_a_network_follow_each_other(name):
    layers = resolve([name])
    for before, layer in itertools.pairwise(layers):
        if layer.label.endswith("branch1") or before.label.endswith("branch1"):
            continue  # a projection stands beside its block, so it follows the block's input
        c, previous = layer.workload, before.workload
        assert c.channels == previous.filters
        assert c.height in (previous.out_h, previous.out_h // 2)


def test_the_shipped_sets_are_what_the_script_writes():
    pytest.importorskip("onnx")
    texts = tool("extract_workloads").files()
    assert sorted((*texts, *SEVERAL_AXES)) == sets()
    for name, text in texts.items():
        assert (SHIPPED / f"{name}.txt").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", ["unet3d", "slowfast", "dcgan"])
def test_the_shipped_sets_are_what_pytorchs_modules_run(name):
    pytest.importorskip("torch")
    assert (SHIPPED / f"{name}.txt").read_text(encoding="utf-8") == tool("extract_torch_workloads").text_of_set(name)


def test_a_set_may_be_of_another_batch_and_type():
    plain, changed = resolve(["resnet50"]), resolve(["resnet50:mb32:f16"])
    assert [(one.label, one.count) for one in changed] == [(one.label, one.count) for one in plain]
    for one, was in zip(changed, plain, strict=True):
        assert one.workload == msgspec.structs.replace(was.workload, batch=32, dtype="f16")
    assert {one.workload.dtype for one in resolve(["cutlass:f16"])} == {"f16"}


@pytest.mark.parametrize(
    ("word", "message"),
    [("resnet50:mb0", "mb0"), ("vgg16:f17", "nor a type"), ("cutlass:mb3", "gemm:MxNxK"), ("resnet50:", "neither a batch")],
)
def test_what_a_set_cannot_be_is_refused(word, message):
    with pytest.raises(ProblemError, match=message):
        resolve([word])


def test_labels_of_the_sets_are_plain_words():
    allowed = set(string.ascii_letters + string.digits + "_/")
    for layer in resolve(sets()):
        assert set(layer.label) <= allowed


def test_a_list_may_begin_with_a_byte_order_mark_and_end_its_lines_as_elsewhere(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbfgemm:5x6x7\r\n# more\r\nconv:ic3ih9oc4kh3\r\n")
    assert [layer.workload for layer in resolve([f"@{path}"])] == [parse("gemm:5x6x7"), parse("conv:ic3ih9oc4kh3")]


def test_a_device_and_a_file_too_large_are_no_list(tmp_path):
    with pytest.raises(ProblemError, match="device"):
        resolve(["@/dev/zero"])
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ProblemError, match="too large"):
        resolve([f"@{tmp_path}/huge.txt"])
