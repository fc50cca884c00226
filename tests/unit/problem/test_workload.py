# SPDX-License-Identifier: Apache-2.0
"""Problem text is benchdnn's grammar, and equal problems are equal values; `test_sets` has lists of problems."""

import contextlib
import re
import time

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pysim.errors import ProblemError
from pysim.problem.conv import Conv
from pysim.problem.dtypes import CONV_DTYPES
from pysim.problem.fields import INT64_MAX
from pysim.problem.gemm import LAYOUTS, Gemm
from pysim.problem.text import parse, resolve


def conv(**changes: object) -> Conv:
    return Conv(**({"channels": 3, "height": 8, "width": 8, "filters": 4, "kernel_h": 3, "kernel_w": 3} | changes))


def window_starts(size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    """Outputs counted one by one: starts at which the whole dilated kernel lies inside the padded input."""
    taps = [tap * dilation for tap in range(kernel)]
    padded = range(-before, size + after)
    return sum(all(start + tap in padded for tap in taps) for start in padded if (start + before) % stride == 0)


small = st.integers(1, 9)
positive = (st.integers(1, 30), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
axes = st.tuples(*positive, st.integers(0, 6), st.integers(0, 6))  # size, kernel, stride, dilation, before, after


@st.composite
def convs(draw: st.DrawFn) -> Conv:
    rows = draw(axes)
    columns = draw(st.one_of(st.just(rows), axes))
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    for size, kernel, _, dilation, before, after in (rows, columns):
        assume(size + before + after >= (kernel - 1) * dilation + 1)
    return Conv(
        **dict(zip(("height", "kernel_h", "stride_h", "dilation_h", "pad_top", "pad_bottom"), rows, strict=True)),
        **dict(zip(("width", "kernel_w", "stride_w", "dilation_w", "pad_left", "pad_right"), columns, strict=True)),
        batch=draw(small),
        channels=groups * draw(small),
        filters=groups * draw(small),
        groups=groups,
        dtype=draw(st.sampled_from(sorted(CONV_DTYPES))),
    )


gemms = st.builds(
    Gemm,
    m=small,
    n=small,
    k=small,
    trans_a=st.booleans(),
    trans_b=st.booleans(),
    dtype=st.sampled_from(sorted(CONV_DTYPES)),
)


def test_the_worked_number_holds():
    layer = parse("conv:mb1ic64ih56oc64oh56kh3ph1")
    assert isinstance(layer, Conv)
    assert (layer.windows, layer.flops) == (3136, 231_211_008)
    assert layer.text == "conv:mb1ic64ih56oc64kh3ph1"


@given(convs() | gemms)
def test_canonical_text_reads_back_as_the_same_problem(problem):
    assert parse(problem.text) == problem


@given(convs() | gemms)
def test_equal_problems_have_equal_text_and_hash(problem):
    again = type(problem)(**msgspec.structs.asdict(problem))
    assert again == problem
    assert hash(again) == hash(problem)
    assert again.text == problem.text


@given(axes)
def test_outputs_are_the_windows_that_fit(axis):
    size, kernel, stride, dilation, before, after = axis
    expected = window_starts(*axis)
    sizes = {"height": size, "kernel_h": kernel, "stride_h": stride, "dilation_h": dilation}
    pads = {"pad_top": before, "pad_bottom": after}
    if expected == 0:
        with pytest.raises(ProblemError, match="no rows"):
            conv(**sizes, **pads)
    else:
        assert conv(**sizes, **pads).out_h == expected


@given(axes)
def test_padding_that_no_window_reads_makes_no_other_problem(axis):
    size, kernel, stride, dilation, before, after = axis
    assume(window_starts(*axis))
    sizes = {"width": size, "kernel_w": kernel, "stride_w": stride, "dilation_w": dilation, "pad_left": before}
    problem = conv(**sizes, pad_right=after)
    for other in range(8):
        same_output = window_starts(size, kernel, stride, dilation, before, other) == problem.out_w
        if same_output:
            assert conv(**sizes, pad_right=other) == problem


@given(axes, st.integers(1, 30))
def test_the_requested_output_is_the_output_given_or_refused_with_one_that_is_right(axis, out):
    size, kernel, stride, dilation, before, _ = axis
    text = f"conv:ic1ih{size}oc1oh{{}}kh{kernel}sh{stride}dh{dilation - 1}ph{before}"
    least = window_starts(size, kernel, stride, dilation, before, 0)
    if out >= least:
        problem = parse(text.format(out))
        assert isinstance(problem, Conv)
        assert (problem.out_h, problem.out_w, problem.pad_top) == (out, out, before)
        fewer = problem.pad_bottom - 1
        symmetric = problem.pad_bottom == before
        assert symmetric or fewer < 0 or window_starts(size, kernel, stride, dilation, before, fewer) < out
    else:
        with pytest.raises(ProblemError, match=f"oh{out} cannot be") as caught:
            parse(text.format(out))
        right = re.search(r"expected e\.g\. oh(\d+)", str(caught.value))
        assert right
        assert parse(text.format(right[1])).out_h == int(right[1])


@pytest.mark.parametrize(
    ("text", "pads"),
    [
        ("conv:ic64ih56oc64oh56kh3ph1", (1, 1, 1, 1)),
        ("conv:ic64ih56oc64oh56kh3", (1, 1, 1, 1)),  # benchdnn: without ph, half of what oh needs
        ("conv:ic3ih224oc64oh112kh7sh2ph3", (3, 3, 3, 3)),
        ("conv:ic3ih224oc64oh112kh7sh2ph2", (2, 2, 3, 3)),  # TensorFlow's SAME
        ("conv:ic3ih224oc64oh112kh7sh2", (2, 2, 3, 3)),
        ("conv:ic3ih224oc64oh112kh7sh2ph3pw2", (3, 2, 3, 2)),  # ow is then not oh's copy
        ("conv:ic3ih224oc64oh112ow112kh7sh2ph3pw2", (3, 2, 3, 3)),
        ("conv:ic3ih8oc4oh8kh3ph2", (2, 2, 0, 0)),  # less at the end than at the beginning
        ("conv:ic3ih8iw4oc4oh8kh3ph1", (1, 1, 1, 1)),
        ("conv:ic3ih8oc4ow9kh3ph1", (1, 1, 1, 2)),
        ("conv:ic3ih8oc4kh3pw1", (0, 1, 0, 1)),
        ("conv:ic3ih8iw8oc4kh3kw3ph1", (1, 0, 1, 0)),  # benchdnn: a width with iw and kw copies nothing
        ("conv:ic3ih8iw4oc4kh3ph1", (1, 1, 1, 1)),  # benchdnn refuses this; here kw and pw are the height's
    ],
)
def test_padding_follows_from_the_output(text, pads):
    c = parse(text)
    assert isinstance(c, Conv)
    assert (c.pad_top, c.pad_left, c.pad_bottom, c.pad_right) == pads


def test_the_width_is_the_heights_where_it_is_not_given():
    c = parse("conv:g2mb3ic4ih9oc6kh3sh2dh1ph2")
    assert c == Conv(
        batch=3,
        channels=4,
        height=9,
        width=9,
        filters=6,
        kernel_h=3,
        kernel_w=3,
        stride_h=2,
        stride_w=2,
        dilation_h=2,
        dilation_w=2,
        pad_top=2,
        pad_left=2,
        pad_bottom=2,
        pad_right=2,
        groups=2,
    )
    wide = parse("conv:iw7kw1sw1dw0pw0g2mb3ic4ih9oc6kh3sh2dh1ph2")
    assert wide == msgspec.structs.replace(c, width=7, kernel_w=1, stride_w=1, dilation_w=1, pad_left=0, pad_right=0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("conv:mb1ic3oc64ih224oh112kh7sh2dh0ph3", "conv:ic3ih224oc64kh7sh2ph3"),
        ("conv:mb1_ic3oc64_ih224oh112kh7sh2dh0ph3", "conv:ic3ih224oc64kh7sh2ph3"),
        ("conv:ic3ih227iw227_oc96oh55ow55_kh11kw11_sh4sw4ph0pw0", "conv:ic3ih227oc96kh11sh4"),
        ('conv:ic3ih9oc4kh3_n"conv:1 ü"', "conv:ic3ih9oc4kh3"),
        ('conv:ic3ih9oc4kh3:f16n"x"', 'conv:ic3ih9oc4kh3n"y":f16'),
        ("conv:ic3ih9oc4kh3nconv1/7x7*4", "conv:ic3ih9oc4kh3"),  # the label as a shell leaves it, without quotes
        ("conv:ic03ih9oc4kh3:f32", " conv:ic3ih9oc4kh3\n"),
        ("gemm:5x6x7:tn:f16", "gemm:5x6x7:f16:tn"),
        ("gemm:5x6x7:nn:f32", 'gemm:5x6x7_n"x"'),
    ],
)
def test_texts_of_one_problem_give_one_value(one, other):
    assert parse(one) == parse(other)


def test_a_gemm_text_is_m_n_k_then_what_is_transposed():
    assert parse("gemm:512x2048x1024:tn:s8") == Gemm(m=512, n=2048, k=1024, trans_a=True, trans_b=False, dtype="s8")
    assert parse("gemm:512x2048x1024").flops == 2 * 512 * 2048 * 1024
    assert {parse(f"gemm:1x2x3:{layout}").layout for layout in LAYOUTS} == set(LAYOUTS)


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("cnv:ic3", 1, 'begins with "conv:", "deconv:" or "gemm:"'),
        ("", 1, 'begins with "conv:", "deconv:" or "gemm:"'),
        ("resnet50:mb4", 1, "a built-in set has several problems, and one is expected here"),
        ("dir/model.onnx", 1, "a model, which pysim.load runs, has several problems, and one is expected here"),
        ("gemm:8x8x8:Float16", 12, "'Float16' is not a suffix; did you mean \"f16\"?"),
        ("conv:ic3ih8oc4kh3:int8", 19, "'int8' is not a suffix; did you mean \"s8\"?"),
        ("conv:mb1ic64ih56xx3", 17, "'xx' is not a field"),
        ("conv:mb1icc64ih56oc64kh3", 9, "'icc' is not a field; did you mean \"ic\"?"),
        ("conv:ic64id3ih56oc64kh3", 24, '"kd" (kernel_d) is missing'),
        ("conv:ic64iw9oc64", 17, '"kw" (kernel_w) is missing'),
        ("conv:ic64ih56oc64kh3ic3", 21, '"ic" stands twice'),
        ("conv:ic64ih56oc64kh", 20, '"kh" has no number'),
        ("conv:ic64ih56oc64kh3ph-1", 23, '"ph" has no number'),
        ("conv:ic64ih56oc64", 18, '"kh" (kernel_h) is missing'),
        ("conv:ih56oc64kh3", 17, '"ic" (channels) is missing'),
        ("conv:", 6, '"ic" (channels) is missing'),
        ("conv:ic64,ih56oc64kh3", 10, "',' stands where a field should begin"),
        ("conv:ic64ih56oc64kh3sh0", 21, "'sh0' is too small; expected e.g. sh1"),
        ("conv:mb0ic64ih56oc64kh3", 6, "'mb0' is too small"),
        ("conv:ic64ih56oc64oh50kh3ph1", 18, "oh50 cannot be: even without padding at the end it is 55"),
        ("conv:ic64ih9999999999999999999oc64kh3", 10, "is too large"),
        ("conv:ic64ih56oc64kh3:fp16", 22, "'fp16' is not a suffix; did you mean \"f16\"?"),
        ("conv:ic64ih56oc64kh3:nt", 22, "a convolution has no layout"),
        ("conv:ic64ih56oc64kh3:f16:f32", 26, 'a second dtype "f32" after "f16"'),
        ("gemm:1x2x3:nt:tn", 15, 'a second layout "tn" after "nt"'),
        ('gemm:1x2x3n"a":tt:', 19, "'' is not a suffix"),
        ("gemm:1x2", 6, "three sizes, MxNxK, not 2"),
        ("gemm:1x2x3x4", 6, "three sizes, MxNxK, not 4"),
        ("gemm:1xx2", 8, "'' is not a size"),
        ("gemm:16x0x2", 9, "'0' is too small"),
        ("gemm:16x8:9x4", 11, "two matrices are MxK:KxN, with one K"),
        ("gemm:2x16x8:2x8x4", 13, "no batch"),
        ("gemm:16x²x4", 9, "is not a size"),
    ],
)
def test_malformed_text_is_refused_with_its_place_and_a_right_example(text, position, says):
    with pytest.raises(ProblemError) as caught:
        parse(text)
    message = str(caught.value)
    assert f"character {position}:" in message
    assert says in message
    assert "expected e.g. " in message
    for example in re.findall(r"(?:conv|gemm):[a-z0-9:]+$", message):
        parse(example)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("conv:g3ic64ih56oc64kh3", "groups (g) is 3; it should divide 64 channels (ic) and 64 filters (oc)"),
        ("conv:ic64ih2oc64kh3", "no rows: the dilated kernel has 3, the padded input only 2"),
        ("conv:ic64ih9iw2oc64kh3", "no columns: the dilated kernel has 3, the padded input only 2"),
        ("conv:ic1ih4000000000oc1kh1", "the padded input in bytes would be 6.40e+19"),
        ("conv:ic1ih1oc1oh4000000000kh1", "the padded input in bytes"),
        ("conv:ic1ih4294967296iw2147483648oc1kh1:s8", "the padded input in bytes would be 9.22e+18"),
        ("conv:ic10000000000ih1oc10000000000kh1", "the filters in bytes"),
        ("conv:ic1ih1000000iw1000000oc10000000kh1:s8", "the output in bytes"),
        ("conv:ic3ih30000000oc1kh400:s8", "the im2col matrix in bytes"),
        ("conv:ic1000000ih1000oc10000000kh1:s8", "the FLOP count would be 2.00e+19"),
        ("gemm:4000000000x4000000000x1", "the C in bytes"),
        ("gemm:2000000x2000000x2000000", "the FLOP count would be 1.60e+19"),
    ],
)
def test_problems_that_cannot_be_are_refused(text, says):
    with pytest.raises(ProblemError) as caught:
        parse(text)
    assert says in str(caught.value)


def test_the_largest_counts_that_fit_in_int64_are_taken():
    assert Gemm(m=1, n=1, k=INT64_MAX // 2, dtype="s8").flops == INT64_MAX - 1
    with pytest.raises(ProblemError, match="FLOP"):
        Gemm(m=1, n=1, k=INT64_MAX // 2 + 1, dtype="s8")


def test_numpy_sizes_become_integers_that_do_not_wrap():
    big = Gemm(m=np.int32(50_000), n=np.int32(50_000), k=np.int8(1))
    assert big.flops == 5_000_000_000
    assert type(big.m) is int


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("channels", 0, "channels is 0; it should be at least 1"),
        ("pad_left", -1, "pad_left is -1; it should be at least 0"),
        ("height", 8.0, "height is a value of type float; it should be a whole number"),
        ("width", None, "width is a value of type NoneType"),
        pytest.param("filters", 10**5000, "filters is beyond int64", id="more digits than int prints"),
        pytest.param("filters", -(10**5000), "filters is beyond int64", id="as many, negative"),
        ("dtype", "float32", "dtype is 'float32'; did you mean \"f32\"?"),
        ("dtype", ["f32"], "dtype is a value of type list"),
    ],
)
def test_a_field_that_holds_nonsense_is_refused_by_name(field, value, says):
    with pytest.raises(ProblemError) as caught:
        conv(**{field: value})
    assert says in str(caught.value)


def test_a_transposition_is_true_or_false():
    with pytest.raises(ProblemError, match="trans_b is 'no'; it should be True or False"):
        Gemm(m=1, n=1, k=1, trans_b="no")


@pytest.mark.parametrize(
    ("changes", "pointwise"),
    [({}, True), ({"stride_h": 2}, False), ({"pad_left": 1}, False), ({"kernel_w": 2}, False), ({"width": 9}, True)],
)
def test_pointwise_is_one_by_one_with_stride_one_and_no_padding(changes, pointwise):
    assert conv(**({"kernel_h": 1, "kernel_w": 1} | changes)).pointwise is pointwise


pieces = ["conv:", "gemm:", "ic3", "ih8", "oc4", "kh3", 'n"a"', ":f16", "2x3", "²", '"', "\n", " #"]
grammar = st.lists(st.sampled_from([*"gmbicohwkspdnxft:_0123456789", *pieces])).map("".join)
texts = st.one_of(st.text(), grammar, grammar.map("conv:ic3ih8oc4kh3".__add__), grammar.map("gemm:1x2x3".__add__))


@settings(max_examples=400)
@given(texts)
def test_any_text_is_a_problem_or_a_problem_error(text):
    with contextlib.suppress(ProblemError):
        assert isinstance(parse(text), Conv | Gemm)


@settings(max_examples=200)
@given(texts.filter(lambda text: not text.strip().startswith("@")))
def test_any_word_is_a_list_of_layers_or_a_problem_error(word):
    with contextlib.suppress(ProblemError):
        assert resolve([word])


@settings(max_examples=100, deadline=None)
@given(content=st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_file_is_a_list_of_layers_or_a_problem_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("lists") / "list.txt"
    path.write_bytes(content)
    with contextlib.suppress(ProblemError):
        assert resolve([f"@{path}"])


@given(texts.filter(lambda text: not text.isprintable() or not text.isascii()))
def test_messages_are_printable_whatever_the_text(text):
    with pytest.raises(ProblemError) as caught:
        parse(f"conv:{text}\x1b")
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


def test_what_is_not_text_is_refused():
    with pytest.raises(ProblemError, match="not a value of type int"):
        parse(3)


def test_digits_are_ascii():
    for word in ("resnet18:mb٣", "conv:ic3ih9oc٤kh3", "gemm:٥x6x7", "gemm:5x6x7:²"):
        with pytest.raises(ProblemError):
            resolve([word])


def test_a_long_text_is_refused_as_fast_as_it_is_long():
    """100,000 characters at each of which a label could begin: a search that starts again at each takes a minute."""
    start = time.process_time()
    with pytest.raises(ProblemError):
        parse("conv:" + "n" * 100_000 + "!")
    assert time.process_time() - start < 1


def test_a_width_with_a_size_and_a_kernel_of_its_own_copies_nothing():
    """As in benchdnn, whose conv and deconv lines all parse: this is one of them."""
    c = parse("conv:mb1ic16id1ih1iw1oc16od2oh2ow1kd3kh3kw1dd1dh1ph1pd1")
    assert [msgspec.structs.astuple(axis)[1:] for axis in (c.slices, c.rows, c.columns)] == [(3, 1, 2, 1, 4)] * 2 + [(1, 1, 1, 0, 0)]
    assert parse("conv:ic3ih8iw9oc4kh3kw3sh2").columns.stride == 1
    assert parse("conv:ic3ih8oc4kh3sh2").columns.stride == 2
