# SPDX-License-Identifier: Apache-2.0
"""Convolutions of sequences and volumes, and transposed ones, as text and as values."""

import random

import msgspec
import pytest

from pysim.errors import ProblemError
from pysim.problem.conv import DEPTH_FIELDS, Conv
from pysim.problem.text import parse, resolve


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("conv:ic64id8oc64kd3pd1", "conv:ic64id8ih8iw8oc64kd3kh3kw3pd1ph1pw1"),
        ("conv:ic64id8oc64od4kd3sd2", "conv:ic64id8ih8iw8oc64od4oh4ow4kd3kh3kw3sd2sh2sw2pd0ph0pw0"),
        ("conv:ic3id5ih9oc4kd1kh3", "conv:ic3id5ih9iw9oc4kd1kh3kw3"),
        ("conv:ic8iw5oc8ow5kw3pw1", "conv:ic8ih1iw5oc8kh1kw3ph0pw1"),
        ("conv:ic8iw5oc8kw3dw1pw2", "conv:ic8ih1iw5oc8kh1kw3sh1sw1ph0pw2dh0dw1"),
        ("conv:ic8id1ih5oc8kd1kh3sd2sh1", "conv:ic8ih5oc8kh3"),  # a depth of one element is an image
        ("conv:ic4id6ih6iw6oc4od6oh6ow6kd3kh3kw3", "conv:ic4id6oc4kd3pd1"),
        ("deconv:ic8iw5oc8kw3pw2", "conv:ic8iw5oc8kw3pw0"),  # a full correlation, cut down to the inner one
        ("deconv:ic64ih16oc32oh32kh4sh2ph1", "conv:ic64ih16oc128oh17kh2ph1"),
        ("deconv:ic4id3ih4iw5oc2kd3kh3kw3sd2sh2sw2", "conv:ic4id3ih4iw5oc16kd2kh2kw2pd1ph1pw1"),
    ],
)
def test_fields_that_are_left_out_follow_from_the_others(text, same):
    assert parse(text) == parse(same)


def test_every_problem_is_read_from_its_own_text():
    draw = random.Random(3)
    for _ in range(2000):
        cubic = draw.random() < 0.3
        axes = [[draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 3), draw.randint(0, 3), draw.randint(0, 3)] for _ in "dhw"]
        axes = axes[:1] * 3 if cubic else axes
        if cubic and draw.random() < 0.5:
            axes = [axes[0], axes[0], [*axes[0][:4], draw.randint(0, 3)]]
        (kd, sd, dd, pf, pk), (kh, sh, dh, pt, pb), (kw, sw, dw, pl, pr) = axes
        sizes = [9] * 3 if cubic else [draw.randint(1, 9) + d * (k - 1) for k, _, d, *_ in axes]
        w = Conv(
            channels=4, filters=6, groups=draw.choice([1, 2]), depth=sizes[0], height=sizes[1], width=sizes[2],
            kernel_d=kd, kernel_h=kh, kernel_w=kw, stride_d=sd, stride_h=sh, stride_w=sw, dilation_d=dd, dilation_h=dh,
            dilation_w=dw, pad_front=pf, pad_top=pt, pad_left=pl, pad_back=pk, pad_bottom=pb, pad_right=pr,
        )  # fmt: skip
        assert parse(w.text) == w, w.text
        assert msgspec.json.decode(msgspec.json.encode(w), type=Conv) == w


def test_an_image_is_a_volume_of_depth_one_and_old_documents_of_images_are_read():
    w = parse("conv:g2ic4ih7iw9oc6kh3kw5ph1pw2")
    assert not w.is_volume
    assert {w.sizes[name] for name in DEPTH_FIELDS} == {0}
    assert (w.input_shape, w.filter_shape, w.output_shape) == ((1, 4, 7, 9), (6, 2, 3, 5), (1, 6, 7, 9))
    assert msgspec.json.decode(b'{"channels":4,"height":7,"width":9,"filters":6,"kernel_h":3,"kernel_w":5,"pad_top":1,"pad_left":2,'
                               b'"pad_bottom":1,"pad_right":2,"groups":2}', type=Conv) == w  # fmt: skip
    volume = parse("conv:ic4id8oc6kd3pd1")
    assert volume.input_shape == (1, 4, 8, 8, 8)
    assert (volume.windows, volume.taps, volume.flops) == (512, 27, 2 * 6 * 512 * 4 * 27)


def test_a_kernel_along_the_depth_alone_is_one_of_images_of_whole_slices():
    assert parse("conv:g2ic4id8ih5iw6oc6kd3kh1kw1sd2sh1sw1pd1ph0pw0dd1dh0dw0").folded == parse(
        "conv:g2ic4ih8iw30oc6kh3kw1sh2sw1ph1pw0dh1dw0"
    )
    for text in ("conv:ic4id8oc6kd3pd1", "conv:ic4id8ih5oc6kd1kh3", "conv:ic4id8ih5oc6kd1kh1sd1sh2", "conv:ic4ih8oc6kh1"):
        assert parse(text).folded is parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("deconv:ic8ih5oc8oh50kh3", "cannot have 50 outputs"),
        ("conv:ic8id5oc8od1kd3pd1", "od1 cannot be"),
        ("conv:ic8id5oc8kd9", "the output has no slices"),
    ],
)
def test_what_cannot_be_is_refused(text, says):
    with pytest.raises(ProblemError, match=says):
        parse(text)


def test_a_transposed_convolution_keeps_its_text_as_a_label():
    (layer,) = resolve(["deconv:ic8ih5oc8kh3sh2"])
    assert layer.label == "deconv:ic8ih5oc8kh3sh2"
