# SPDX-License-Identifier: Apache-2.0
"""Layouts are the functions they claim; tile files are read or refused; what `fix` proposes is best and proven."""

import sys
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pysim.cachemodel import SharedMemory
from pysim.cachemodel.shared_memory import patterns, tilefile
from pysim.cachemodel.shared_memory.expression import evaluate
from pysim.cachemodel.shared_memory.fix import Proof, fix, option, prove
from pysim.cachemodel.shared_memory.layout import (
    Layout,
    Padding,
    Rotation,
    Swizzle,
    cosize,
    describe,
    expression,
    offsets,
    row_major,
)
from pysim.cachemodel.shared_memory.tile import Access, Tile, addresses, tally
from pysim.errors import OperandError, ProblemError

HOPPER = SharedMemory()
LANE = np.arange(32)
TRANSPOSE = tilefile.__doc__.split("lane.\n", 1)[1].split("An expression", 1)[0]  # the worked example of the docstring

shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)
swizzles = st.integers(0, 4).flatmap(
    lambda bits: st.builds(Swizzle, st.just(bits), st.integers(0, 4), st.integers(bits, 6) | st.integers(bits, 6).map(lambda shift: -shift))
)
rotations = st.builds(Rotation, st.integers(1, 40), st.integers(0, 40), st.integers(1, 5), st.integers(0, 4))
paddings = st.builds(Padding, st.integers(1, 40), st.integers(0, 9))
maps = st.lists(swizzles | rotations | paddings, max_size=3).map(tuple)


@st.composite
def layouts(draw):
    shape = draw(shapes)
    stride = draw(st.lists(st.integers(0, 20), min_size=len(shape), max_size=len(shape)))
    return Layout(shape, tuple(stride), draw(maps))


# ---- layouts ----


@given(shapes)
def test_row_major_is_ordered(shape):
    assert (offsets(row_major(shape)).ravel() == np.arange(np.prod(shape))).all()


@given(layouts())
def test_a_layout_is_the_sum_of_coordinates_times_strides_and_then_its_functions(layout):
    table = offsets(layout)
    for coordinate in product(*map(range, layout.shape)):
        index = sum(one * stride for one, stride in zip(coordinate, layout.stride, strict=True))
        for function in layout.maps:
            index = function(index)
        assert layout(*coordinate) == index == table[coordinate]
    assert cosize(layout) == table.max() + 1 <= layout.span()


@given(shapes, maps)
def test_padding_swizzle_and_rotation_never_put_two_elements_in_one_place(shape, functions):
    table = offsets(row_major(shape, *functions))
    assert len(np.unique(table)) == table.size


@given(swizzles)
def test_a_swizzle_is_its_own_inverse_and_permutes_its_blocks(swizzle):
    index = np.arange(1 << 12)
    assert (swizzle(swizzle(index)) == index).all()
    block = swizzle.span(1)
    assert (swizzle(index) // block == index // block).all()


@given(rotations)
def test_a_rotation_permutes_each_segment(rotation):
    index = np.arange(rotation.length * 12)
    moved = rotation(index)
    assert (moved // rotation.length == index // rotation.length).all()
    assert (np.sort(moved) == index).all()


def test_the_functions_have_their_published_values():
    assert Swizzle(3, 4, 3)(0x380) == 0x380 ^ 0x70  # 128-byte mode: chunk ^= (address >> 7) & 7
    assert Swizzle(2, 4, 3)(0x180 + 0x10) == 0x180 + 0x20
    assert Swizzle(1, 4, 3)(0x80) == 0x90
    assert Swizzle(2, 0, -3)(0b00011) == 0b11011
    assert Padding(32, 1)(32 * 31) == 33 * 31
    assert [Rotation(4, 1)(index) for index in range(8)] == [0, 1, 2, 3, 5, 6, 7, 4]
    assert Rotation(32, 4, every=2, period=4)(32 * 9 + 1) == 32 * 9 + 1  # segment 9: turn 9 // 2 % 4 = 0
    assert describe(row_major((32, 32), Padding(32, 1))) == "(32,32):(32,1), padding(32,1)"


@given(swizzles | rotations | paddings)
def test_the_expression_of_a_function_computes_it(function):
    index = np.arange(1000)
    value = evaluate(function.expression("i").replace("/", "//"), {"i": index})
    assert (np.broadcast_to(value, index.shape) == function(index)).all()
    assert expression((), "i") == "i"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Swizzle(3, 0, 2), "shift is 2; it should be at least bits = 3"),
        (lambda: Swizzle(-1, 0, 2), "bits is -1"),
        (lambda: Padding(0, 1), "every is 0"),
        (lambda: Padding(4, 1.5), "extra is 1.5"),
        (lambda: Rotation(0, 1), "length is 0"),
        (lambda: Layout((2, 3), (1,)), "one stride per mode"),
        (lambda: Layout((), ()), "a mode"),
        (lambda: Layout((0,), (1,)), "sizes"),
        (lambda: Layout((2,), (-1,)), "strides"),
        (lambda: Layout((1 << 20, 1 << 20), (1, 1)), "is the most"),
        (lambda: row_major((4, 4))(4, 0), "coordinate of mode 0 is 4; it should be from 0 to 3"),
        (lambda: row_major((4, 4))(1, 2, 3), "3 coordinates were given"),
    ],
)
def test_a_wrong_layout_or_coordinate_is_refused(make, message):
    with pytest.raises(OperandError, match=message):
        make()


# ---- expressions and files ----

numbers = st.integers(0, 50).map(str) | st.sampled_from(["lane", "warp", "k"])
expressions = st.recursive(
    numbers,
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "^", "&", "|", "<", "<=", ">", ">=", "==", "!="]), inner).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=8,
)


@given(expressions, st.integers(0, 31), st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_expressions_mean_what_they_mean_in_python(text, lane, warp):
    names = {"lane": lane, "warp": warp, "k": 3}
    try:
        expected = int(eval(text, {"__builtins__": {}}, dict(names)))
    except ZeroDivisionError:
        with pytest.raises(ProblemError, match="by zero"):
            evaluate(text, {name: np.int64(value) for name, value in names.items()})
        return
    assert evaluate(text, {name: np.int64(value) for name, value in names.items()}) == expected


def test_expressions_work_on_arrays_and_with_words():
    names = {"lane": LANE}
    assert (evaluate("lane << 2 | lane >> 3", names) == (LANE << 2 | LANE >> 3)).all()
    assert (evaluate("-lane + +1", names) == 1 - LANE).all()
    assert (evaluate("lane < 4 or not lane < 30 and lane != 31", names) == ((LANE < 4) | (LANE == 30))).all()


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "lane.__class__",
        "lane[0]",
        "[lane]",
        "lambda: 1",
        "lane if lane else 1",
        "2 ** 99",
        "lane / 2",
        "~lane",
        "True",
        "1.5",
        "'x'",
        "lane < 2 < 3",
        "(k := 1)",
        "lan",
        "",
        "(",
        "lane +",
        "a b",
        "lane\n+1",
        "lane\x00",
        "lane // 0",
        "lane % (lane - lane)",
        "1 << 63",
        "1 << -1",
        "lane << 60",
        "99999999999999999999 + lane",
        "9" * 900,
        "9007199254740992 * 2",
        "-" * 990 + "1",
        "(" * 400 + "1" + ")" * 400,
        "1" * 1001,
    ],
)
def test_anything_but_integer_arithmetic_is_refused(text):
    """Deep nesting, too, at Python's own limit, which libraries of other tests raise."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        with pytest.raises(ProblemError):
            evaluate(text, {"lane": LANE})
    finally:
        sys.setrecursionlimit(limit)


def test_the_example_of_the_file_format_costs_what_its_docstring_says(tmp_path: Path):
    (tmp_path / "transpose.toml").write_text(TRANSPOSE)
    tile = tilefile.load(tmp_path / "transpose.toml")
    total = [sum(one.wavefronts for one in tally(tile, HOPPER)), sum(one.minimum for one in tally(tile, HOPPER))]
    assert total == [64, 64]
    assert sum(len(access.index) for access in tile.accesses) == 64
    plain = msgspec.structs.replace(tile, maps=())
    assert sum(one.wavefronts for one in tally(plain, HOPPER)) == 1056


def test_json_and_toml_describe_the_same_tile(tmp_path: Path):
    document = {
        "shape": [4, 64],
        "element_bytes": 4,
        "warps": 2,
        "constants": {"pitch": 64},
        "access": [
            {"index": "pitch * k + 4 * (lane % 16)", "width": 16, "loop": {"k": 4}, "active": "lane >= 16", "times": 3},
            {"index": ["lane % 4", "2 * lane // 4 + thread // 32"], "store": True, "name": "store"},
        ],
        "layout": [{"kind": "swizzle", "bits": 2, "base": 2, "shift": 4}],
    }
    (tmp_path / "tile.json").write_bytes(msgspec.json.encode(document))
    tile = tilefile.load(tmp_path / "tile.json")
    first, second = tile.accesses
    assert (tile.name, first.name, second.name) == ("tile", "access 1", "store")
    assert (first.instruction, second.instruction) == ("LDS.128", "STS.32")
    assert first.index.shape == (8, 32)
    assert (first.index[5][16:] == 64 + 4 * (LANE[16:] % 16)).all()
    assert (first.active == (LANE >= 16)).all()
    assert (second.index[1] == LANE % 4 * 64 + LANE // 2 + 1).all()
    assert tally(tile, HOPPER)[0].instructions == 24
    assert tile.maps == (Swizzle(2, 2, 4),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shape = [32, 32]", "shape = [32, 'x']", r"shape\[1\]: Expected `int`"),
        ("shape = [32, 32]", "", "missing required field `shape`"),
        ("shape = [32, 32]", "shape = [32, 0]", "shape"),
        ("shape = [32, 32]", "shape = [4096, 4096]", "shape: bytes: 67108864 are too many"),
        ("shape = [32, 32]", "shape = [16, 32]", r"index\[0\]: lane is 16 in lane 16|warp is 16"),
        ("store = true", "stored = true", 'did you mean "store"'),
        ("width = 4", "width = 3", "it should be 4, 8 or 16"),
        ("width = 4", "width = 16", "elements 0 to 1023|together|no multiple"),
        ("width = 4", "width = 99999999999999999999999", "not TOML|range|width"),
        ("element_bytes = 4", "element_bytes = 2", r"access\[0\].width: 2 \(element_bytes, the default\)"),
        ('index = ["lane", "warp"]', 'index = "lane"', None),
        ('index = ["lane", "warp"]', 'index = ["lane"]', "1 expressions; the shape has 2 dimensions"),
        ('index = ["lane", "warp"]', 'index = ["lane", "wrap"]', r'access\[1\].index\[1\].*did you mean "warp"'),
        ('index = ["lane", "warp"]', "index = []", "index"),
        ("lane < 2 * half", "lane << 99", r"access\[1\].active"),
        ("{ k = 1 }", "{ lane = 1 }", '"lane" has a value already'),
        ("{ k = 1 }", "{ k = 100000 }", "instructions: 3200032 are too many"),
        ("{ k = 1 }", "{ 'a b' = 1 }", "loop"),
        ("half = 16", "half = 1.5", "constants"),
        ('kind = "padding"', 'kind = "pad"', 'kind = "padding", "swizzle" or "rotation"'),
        ('kind = "padding"', "", "kind"),
        ("every = 32", "every = 0", "layout: padding: every is 0"),
        ("extra = 1", "extra = 16000000", "layout: bytes: .* are too many"),
        ("warps = 32", "warps = 33", "warps"),
        ("[[access]]", "[access", "not TOML"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(old, new, message):
    assert old in TRANSPOSE
    text = TRANSPOSE.replace(old, new)
    if message is None:
        tilefile.loads(text, "t.toml")
        return
    with pytest.raises(ProblemError, match=f"t.toml.*({message})"):
        tilefile.loads(text, "t.toml")


def test_a_layout_that_tears_a_lanes_bytes_apart_is_refused():
    text = """shape = [64]\nelement_bytes = 4\naccess = [{ index = "2 * lane", width = 8 }]\n"""
    assert tilefile.loads(text).bytes == 256
    for bad in (
        '[[layout]]\nkind = "padding"\nevery = 3\nextra = 1',
        '[[layout]]\nkind = "swizzle"\nbits = 1\nbase = 0\nshift = 1',
    ):
        with pytest.raises(ProblemError, match="together"):
            tilefile.loads(text + bad)
    with pytest.raises(ProblemError, match="not a multiple of the width"):
        tilefile.loads(text + '[[layout]]\nkind = "padding"\nevery = 4\nextra = 1')
    with pytest.raises(ProblemError, match="not a multiple of the width"):
        tilefile.loads(text.replace("2 * lane", "lane"))


def test_a_missing_or_unreadable_file_is_refused(tmp_path: Path):
    with pytest.raises(ProblemError, match="cannot be read: No such file"):
        tilefile.load(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProblemError, match="UTF-8"):
        tilefile.load(tmp_path / "binary.toml")
    (tmp_path / "list.json").write_text("[" * 100000)
    with pytest.raises(ProblemError, match="not JSON"):
        tilefile.load(tmp_path / "list.json")
    (tmp_path / "text.json").write_text("<svg")
    with pytest.raises(ProblemError, match=r"text.json: not JSON: invalid character \(byte 0\)"):
        tilefile.load(tmp_path / "text.json")
    (tmp_path / "large.toml").write_text("#" * (1 << 20) + "#")
    with pytest.raises(ProblemError, match="is too large"):
        tilefile.load(tmp_path / "large.toml")


@given(st.text(max_size=60), st.integers(0, len(TRANSPOSE)), st.integers(0, 40), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_tile_or_a_problem_error(noise, start, cut, json):
    try:
        tile = tilefile.loads(TRANSPOSE[:start] + noise + TRANSPOSE[start + cut :], json=json)
    except ProblemError:
        return
    assert tile.accesses


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (Access("a", np.zeros((1, 31), np.int64), 4, False), r"shape \(1, 31\)"),
        (Access("a", np.zeros((0, 32), np.int64), 4, False), r"shape \(0, 32\)"),
        (Access("a", np.full((1, 32), 64), 4, False), "from element 64 on; the tile has the elements 0 to 63"),
        (Access("a", np.full((1, 32), 61), 16, False), "16 bytes from element 61"),
        (Access("a", np.full((1, 32), -1), 4, False), "from element -1"),
        (Access("a", np.zeros((1, 32), np.int64), 4, False, np.ones((2, 32), bool)), r"active has the shape \(2, 32\)"),
        (Access("a", np.zeros((1, 32), np.int64), 4, False, None, 0), "times is 0"),
        (Access("a", np.zeros((1, 32), np.int64), 6, False), "width 6 is not a multiple"),
    ],
)
def test_an_access_outside_its_tile_is_refused(access, message):
    with pytest.raises(OperandError, match=message):
        Tile(name="t", about="", source="", shape=(64,), element_bytes=4, accesses=(access,))


# ---- fix ----


def test_fix_finds_a_layout_of_the_same_size_for_the_published_tiles():
    for name in ("transpose-32x32", "tma-128b-unswizzled", "opencnn-optsts64", "opencnn-reference", "im2win-input"):
        tile = patterns.pattern(name)
        found = fix(tile, HOPPER)
        assert found.best.conflicts == 0, name
        assert found.best.bytes == tile.elements * tile.element_bytes, name
        assert found.present.maps == tile.maps
        assert found.best.proof.bijective
        assert found.best.proof.in_bounds


def test_fix_finds_the_published_layouts_themselves():
    assert fix(patterns.pattern("tma-128b-unswizzled"), HOPPER).best.maps == patterns.pattern("tma-128b").maps
    assert fix(patterns.pattern("tma-64b-unswizzled"), HOPPER).best.maps == patterns.pattern("tma-64b").maps
    transpose = fix(patterns.pattern("transpose-32x32"), HOPPER)
    padded = next(one for one in transpose.options if one.kind == "padding")
    assert padded.maps == patterns.pattern("transpose-32x33").maps
    assert (padded.wavefronts, padded.bytes) == (64, 4224)


def test_fix_frees_the_im2win_input_tile_only_by_two_functions():
    found = fix(patterns.pattern("im2win-input"), HOPPER)
    assert found.best.kind == "combined"
    assert (found.best.wavefronts, found.best.minimum, found.best.bytes) == (544, 544, 4096)
    assert min(one.wavefronts for one in found.options if one.kind != "combined") == 640


def test_fix_leaves_a_tile_without_conflicts_as_it_is():
    found = fix(patterns.pattern("opencnn-filters"), HOPPER)
    assert [one.kind for one in found.options] == ["none"]
    assert found.considered == 1


def test_options_are_ranked_by_wavefronts_and_then_memory_and_each_is_proven():
    tile = patterns.pattern("transpose-32x32")
    found = fix(tile, HOPPER)
    keys = [(one.wavefronts, one.bytes) for one in found.options]
    assert keys == sorted(keys)
    for one in found.options:
        table = offsets(row_major(tile.shape, *one.maps)).ravel()
        assert len(set(table.tolist())) == one.proof.elements == 1024
        assert one.proof.lowest == table.min()
        assert one.proof.highest == table.max() < one.proof.span == one.bytes // 4
        assert one.wavefronts == sum(cost.wavefronts for cost in one.tallies)
        assert one == option(tile, one.maps, one.kind, HOPPER)


@st.composite
def tiles(draw):
    """A small tile of floats with one or two accesses along rows, columns or at random."""
    rows, columns = draw(st.sampled_from([(8, 16), (16, 8), (8, 32), (12, 20), (32, 4)]))
    vector = draw(st.sampled_from([1, 2, 4]))
    accesses = []
    for number in range(draw(st.integers(1, 2))):
        row, column, step = draw(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(1, columns)))
        lanes = (row + LANE * draw(st.integers(0, 3))) % rows * columns + (column + LANE * step) % columns
        store = draw(st.booleans())
        accesses.append(Access(f"access {number}", (lanes // vector * vector)[None], 4 * vector, store))
    return Tile(name="t", about="", source="", shape=(rows, columns), element_bytes=4, accesses=tuple(accesses))


@given(tiles())
@settings(max_examples=25, deadline=None)
def test_no_single_padding_or_swizzle_beats_what_fix_finds(tile):
    """Every candidate counted in full, without the search's shortcuts."""
    found = fix(tile, HOPPER)
    best = (found.best.wavefronts, found.best.bytes)
    unit = max(access.width for access in tile.accesses) // 4
    for every in {tile.shape[1], *(unit << power for power in range(8) if unit << power < tile.elements)}:
        for extra in range(unit, 32, unit) if every % unit == 0 else ():
            cost = _cost(tile, Padding(every, extra))
            assert cost >= best
    for bits, base, shift in product(range(1, 6), range(unit.bit_length() - 1, 5), range(1, 8)):
        if bits <= shift and base + bits <= 5:
            assert _cost(tile, Swizzle(bits, base, shift)) >= best
    assert found.best.minimum <= found.best.wavefronts <= found.present.wavefronts


def _cost(tile, function):
    moved = msgspec.structs.replace(tile, maps=(function,))
    return sum(one.wavefronts for one in tally(moved, HOPPER)), moved.bytes


class Fold(Padding, tag="fold"):
    """Each row in one place, as no layout may have it."""

    def __call__(self, index):
        return index // self.every


def test_the_proof_fails_where_elements_share_a_place_or_leave_the_memory():
    tile = patterns.pattern("transpose-32x32")
    folded = msgspec.structs.replace(tile, maps=(Fold(32, 0),))
    proof = prove(folded)
    assert (proof.elements, proof.places, proof.bijective) == (1024, 32, False)
    assert not Proof(elements=4, places=4, lowest=0, highest=4, span=4, vectors=0).in_bounds
    assert not Proof(elements=4, places=4, lowest=-1, highest=2, span=4, vectors=0).in_bounds
    torn = msgspec.structs.replace(patterns.pattern("im2win-input"), maps=(Padding(1, 1),))
    with pytest.raises(OperandError, match="together"):
        prove(torn)


def test_addresses_follow_the_layout_and_skip_inactive_lanes():
    access = Access("a", (32 * LANE)[None], 4, False, (LANE < 3)[None])
    tile = Tile(name="t", about="", source="", shape=(32, 32), element_bytes=4, accesses=(access,), maps=(Padding(32, 1),))
    assert addresses(tile, access)[0].tolist() == [0, 132, 264] + [0] * 29


def test_a_tile_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "tile.toml").write_text(TRANSPOSE, encoding="utf-8-sig")
    assert tilefile.load(tmp_path / "tile.toml").shape == (32, 32)


def test_a_tile_file_whose_expressions_would_take_gigabytes_is_refused():
    deep = "+(".join(["thread*0"] * 90) + ")" * 89
    text = f'shape = [32, 32]\nelement_bytes = 4\nwarps = 32\n[[access]]\nindex = "{deep}"\nloop = {{ k = 2048 }}\n'
    with pytest.raises(ProblemError, match="instructions times characters of their expressions"):
        tilefile.loads(text)
