# SPDX-License-Identifier: Apache-2.0
"""Whatever a trace, a tile file, a layout or a store holds: what it says or a sentence, in bounded time and memory."""

import bz2
import gzip
import lzma
import sqlite3
from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from limits import bounded, inputs

from pysim.cachemodel.shared_memory import tilefile
from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.cachemodel.shared_memory.tile import tally
from pysim.cachemodel.simulator import tracefile
from pysim.commands.banks import _tiles
from pysim.errors import PysimError
from pysim.measure.store import Store
from pysim.record.measurement import Measurement

NUMBERS = [
    "0",
    "1",
    "-1",
    "٣",
    "7",
    "4096",
    "0x1000",
    "1ffeffe7e0",
    "ffffffffffffffff",
    str(1 << 31),
    str(1 << 63),
    "9" * 400,
    "1e9",
    "nan",
]


# Traces

LINES = [
    "0 1000",
    "1 1004",
    "2 2cb5",
    "r 4096 8",
    "w 0x1008 4",
    " L 1ffeffe7e0,8",
    " S 10,4",
    " M 10,4",
    "I  04000,3",
    "==1== valgrind",
    "#",
]
line = st.one_of(
    st.sampled_from(LINES),
    st.builds(" ".join, st.lists(st.sampled_from([*NUMBERS, "r", "w", "0", "L", "\0", "\xff"]), max_size=4)),
    st.text(max_size=20),
)
traces = st.lists(line, max_size=10).map("\n".join).map(lambda text: text.encode("utf-8", "replace"))


@inputs(30_000)
@given(
    data=st.one_of(traces, st.binary(max_size=300)),
    pack=st.sampled_from([bytes, bytes, gzip.compress, lzma.compress, bz2.compress]),
    cut=st.integers(0, 30),
    times=st.sampled_from([1, 1, 1, 300]),
)
def test_any_trace_is_accesses_or_a_sentence(tmp_path_factory, data, pack, cut, times):
    path = tmp_path_factory.getbasetemp() / "trace"
    packed = pack(data * times)
    path.write_bytes(packed[: len(packed) - cut] if cut < 4 else packed)
    found = bounded(lambda: list(tracefile.read(path, chunk=64)))
    assert isinstance(found, PysimError) or all((chunk[1] > 0).all() for chunk in found)


# Tile files

TILE = """
name = "transpose"
shape = [32, 32]
element_bytes = 4
warps = 2
constants = { half = 16 }
[[access]]
name = "store rows"
store = true
index = ["warp", "lane"]
[[access]]
width = 4
index = ["lane", "warp + k"]
active = "lane < 2 * half"
loop = { k = 4 }
times = 3
[[layout]]
kind = "padding"
every = 32
extra = 1
[[layout]]
kind = "swizzle"
bits = 2
base = 3
shift = 5
"""
PIECES = [
    *NUMBERS,
    '"',
    "[",
    "]",
    "{",
    "}",
    "lane",
    "warp",
    "thread",
    "half",
    " // ",
    " ** ",
    " << ",
    " % ",
    "(",
    ")",
    " and ",
    "not ",
    "=",
    "\n",
]
PIECES += [
    "[[access]]\n",
    "[[layout]]\n",
    'kind = "rotation"\nlength = 8\nstep = 1\n',
    "shape",
    "true",
    "\0",
    "\x1b",
    "é",
    '"" ',
    "loop.x = 99999\n",
]


@st.composite
def changed(draw, text=TILE):
    for _ in range(draw(st.integers(0, 5))):
        at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 6))
        text = text[:at] + draw(st.sampled_from(PIECES)) + text[at + length :]
    return text


expressions = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
tiles = st.one_of(
    changed(),
    expressions.map(lambda text: TILE.replace('"lane < 2 * half"', f"'''{text}'''")),
    st.builds(
        lambda text, warps: TILE.replace('"warp + k"', f"'''{text}'''").replace("k = 4", f"k = {warps}"),
        expressions,
        st.integers(0, 40_000),
    ),
    st.text(max_size=60),
)


@inputs(30_000)
@given(text=tiles, mark=st.sampled_from([b"", b"\xef\xbb\xbf"]), name=st.sampled_from(["tile.toml", "tile.json"]))
def test_any_tile_file_is_a_tile_or_a_sentence(tmp_path_factory, text, mark, name):
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(mark + text.encode("utf-8", "replace"))
    tile = bounded(tilefile.load, path)
    if not isinstance(tile, PysimError):
        assert all(one.wavefronts >= one.minimum for one in tally(tile, SharedMemory()))


places = st.lists(
    st.sampled_from([*NUMBERS, ",", ":", "(", ")", "4", "8", "32", "*", "transpose-32x32", ".toml", "\0", "\ud800"]), max_size=9
)


@inputs(14_000)
@given(layout=places.map("".join), width=st.sampled_from([None, 4, 8, 16]), store=st.booleans())
def test_any_layout_of_the_command_is_tiles_or_a_sentence(layout, width, store):
    found = bounded(_tiles, layout, width, store)
    for tile in found if isinstance(found, list) else []:
        assert all(one.wavefronts >= one.minimum for one in bounded(tally, tile, SharedMemory()))


# Stores


@cache
def whole_store(folder):
    """The bytes of a store of two measurements."""
    path = folder / "whole.sqlite"
    fields = {"problem": "gemm:8x8x8", "machine": "zen4", "kernel": "k", "schedule": "s", "state": "hot"}
    with Store(path) as store:
        for run in ("one", "two"):
            store.add(Measurement(**fields, samples=(1e-3, 2e-3), environment={"cpu": "c"}, time="2026-01-01", run=run))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode=DELETE")
    db.close()
    return path.read_bytes()


values = st.one_of(
    st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.binary(max_size=20), st.text('{}[]":1a\0', max_size=20)
)


def read_all(path):
    with Store(path) as store:
        return len(store), store.find()


@inputs(8_000)
@given(cuts=st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255)), max_size=20), end=st.integers(0, 30_000))
def test_any_damaged_store_is_measurements_or_a_sentence(tmp_path_factory, cuts, end):
    data = bytearray(whole_store(tmp_path_factory.getbasetemp()))
    for at, byte in cuts:
        data[at % len(data)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.sqlite"
    path.write_bytes(data[:end])
    bounded(read_all, path)


@inputs(4_000)
@given(column=st.sampled_from(["problem", "samples", "environment", "time", "run"]), value=values)
def test_any_value_in_a_column_is_a_measurement_or_a_sentence(tmp_path_factory, column, value):
    folder = tmp_path_factory.getbasetemp()
    path = folder / "odd.sqlite"
    path.write_bytes(whole_store(folder))
    db = sqlite3.connect(path)
    db.execute("PRAGMA ignore_check_constraints=ON")
    try:
        db.execute(f"UPDATE measurement SET {column} = ? WHERE run = 'two'", (value,))
        db.commit()
    except sqlite3.IntegrityError:
        return
    finally:
        db.close()
    bounded(read_all, path)
