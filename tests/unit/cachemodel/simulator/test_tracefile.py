# SPDX-License-Identifier: Apache-2.0
"""Trace files become the accesses that they say, whatever packs them, and a line that says none is refused by its number."""

import bz2
import gzip
import lzma
import os
import shutil
import subprocess
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pysim.cachemodel.simulator.hierarchy import Cache, Hierarchy
from pysim.cachemodel.simulator.tracefile import read
from pysim.errors import ProblemError

PACKERS = {"plain": lambda data: data, "gzip": gzip.compress, "xz": lzma.compress, "bzip2": bz2.compress}
DIN = b"2 0\n0 1000\n0 0x70f60888 a comment\n2 2cb5\n1\t70f60892\n\n# a remark\n1 7fffffffff\n"
TEXT = b"r 4096 8\nW 0x1008 4\r\nR 0 64\n"
LACKEY = b"""==123== Lackey, an example Valgrind tool
==123==
I  04000c60,3
 L 1ffeffe7e0,8
 S 1ffeffe7d8,4
 M 0421c7cc,4
I  04000c63,5
==123== done
"""


def write(path, data, pack="plain"):
    path.write_bytes(PACKERS[pack](data))
    return path


def rows(path, *args, **how):
    """(address, bytes, store) of every access."""
    return [
        (int(address), int(size), bool(store))
        for chunk in read(path, *args, **how)
        for address, size, store in zip(chunk.addresses, chunk.sizes, chunk.is_write, strict=True)
    ]


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize(
    ("data", "accesses"),
    [
        (DIN, [(0x1000, 4, False), (0x70F60888, 4, False), (0x70F60890, 4, True), (0x7FFFFFFFFC, 4, True)]),
        (TEXT, [(4096, 8, False), (4104, 4, True), (0, 64, False)]),
        (LACKEY, [(0x1FFEFFE7E0, 8, False), (0x1FFEFFE7D8, 4, True), (0x421C7CC, 4, False), (0x421C7CC, 4, True)]),
    ],
    ids=["din", "text", "lackey"],
)
def test_every_format_is_read_packed_or_not(tmp_path, data, accesses, pack):
    assert rows(write(tmp_path / "trace", data, pack)) == accesses


def test_instruction_fetches_are_loads_where_requested(tmp_path):
    assert rows(write(tmp_path / "din", DIN), instructions=True, word_bytes=8)[:2] == [(0, 8, False), (0x1000, 8, False)]
    lackey = rows(write(tmp_path / "lackey", LACKEY), instructions=True)
    assert lackey[0] == (0x4000C60, 3, False)
    assert len(lackey) == 6


def test_the_format_may_be_named_where_the_first_line_fits_two(tmp_path):
    """`0 10` is din; named text, it is refused."""
    path = write(tmp_path / "trace", b"0 10\n")
    assert rows(path) == rows(path, "din") == [(16, 4, False)]
    with pytest.raises(ProblemError, match="it should be r or w, an address and a size"):
        rows(path, "text")


@settings(deadline=None, database=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, (1 << 56) - (1 << 31) - 1), st.integers(1, (1 << 31) - 1), st.booleans())), st.integers(1, 9))
def test_text_that_is_written_is_read_back_in_chunks_of_the_requested_size(tmp_path, accesses, chunk):
    text = "".join(f"{'w' if store else 'r'} {address:#x} {size}\n" for address, size, store in accesses)
    path = write(tmp_path / "trace.gz", text.encode(), "gzip")
    assert rows(path, chunk=chunk) == accesses
    sizes = [len(piece.addresses) for piece in read(path, chunk=chunk)]
    assert all(size == chunk for size in sizes[:-1])
    assert sum(sizes) == len(accesses)


def din_line(address, size, store, fetch):
    return f"{2 if fetch else int(store)} {address:x}", (address // 4 * 4, 4, store and not fetch)


def text_line(address, size, store, fetch):
    return f"{'w' if store else 'r'} {address} {size}", (address, size, store)


def lackey_line(address, size, store, fetch):
    return f"{'I ' if fetch else ' S' if store else ' L'} {address:08x},{size}", (address, size, store and not fetch)


@settings(deadline=None, database=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 1 << 43), st.integers(1, 999), st.booleans(), st.booleans()), min_size=1),
    st.sampled_from([din_line, text_line, lackey_line]),
    st.booleans(),
)
def test_lines_as_programs_write_them_are_read_like_all_others(tmp_path, drawn, line, instructions):
    """Blocks of such lines are read at once; a blank at the end of one line has each line of its block looked at."""
    lines, accesses = zip(*(line(*access) for access in drawn), strict=True)
    expected = [access for access, (*_, fetch) in zip(accesses, drawn, strict=True) if instructions or not fetch or line is text_line]
    for text in ("\n".join(lines) + "\n", "\n".join(lines), "\n".join(lines) + " \n", "\r\n".join(lines) + "\r\n"):
        assert rows(write(tmp_path / "trace", text.encode()), instructions=instructions) == expected


def test_a_file_is_simulated_as_its_accesses_are(tmp_path):
    path = write(tmp_path / "trace.xz", b"".join(b"r %d 8\nw %d 4\n" % (8 * k, 4 * k + 65536) for k in range(5000)), "xz")
    hierarchy = Hierarchy([Cache("L1", 16, 4, 64)])
    result = hierarchy.run(read(path, chunk=777))
    accesses = rows(path)
    assert result.accesses == len(accesses) == 10_000
    assert result.to_dict() == hierarchy.simulate(*(np.array(column) for column in zip(*accesses, strict=True))).to_dict()


def test_a_long_file_is_read_in_bounded_memory(tmp_path):
    path = write(tmp_path / "trace.gz", b"r 4096 8\nw 8192 4\n" * 200_000, "gzip")
    tracemalloc.start()
    try:
        count = sum(len(chunk.addresses) for chunk in read(path, chunk=1000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 400_000
    assert peak < 16 << 20, f"{peak} bytes for a chunk of 1000 accesses and a block of 1 MiB"


BROKEN = {
    "nothing known": (b"hello\n", ':1: "hello" is not an access of any trace format'),
    "a din label": (b"0 10\n3 10\n", ':2: "3 10" is not a din reference; expected 0 (load), 1 (store) or 2 (instruction)'),
    "a din address": (b"0 10\n0 xyz\n", ':2: "0 xyz": "xyz" is not a hexadecimal address'),
    "a din label alone": (b"0 10\n\n1\n", ':3: "1" is not a din reference'),
    "an underscore": (b"0 10\n0 1_0\n", ':2: "0 1_0": "1_0" is not a hexadecimal address'),
    "a text kind": (b"r 0 1\nx 0 1\n", ':2: "x 0 1" is not an access; it should be r or w'),
    "a text size": (b"r 0 1\nr 0 0\n", ':2: "r 0 0": "0" is not a size; it should be a number of bytes, at least 1'),
    "a negative address": (b"r -8 1\n", ':1: "r -8 1": "-8" is not an address'),
    "a high address": (b"r 0xff00000000000000 1\n", "is not a hexadecimal address below 2^56"),
    "a high decimal": (b"r 99999999999999999 1\n", "address 0x16345785d89ffff is too large"),
    "words missing": (b"r 0 1\nw 4\n", ':2: "w 4" is not an access'),
    "a lackey line": (LACKEY + b" Q 0,4\n", ':9: " Q 0,4" is not a lackey line; it should be I, L, S or M'),
    "a lackey column": (b" L 10,4\n I 10,4\n", ':2: " I 10,4" is not a lackey line'),
    "a lackey load in the first column": (b" L 10,4\nL  10,4\n", ':2: "L  10,4" is not a lackey line'),
    "a lackey size": (b" L 10,4\n L 10,\n", ':2: " L 10,": "" is not a size'),
    "bytes": (b"r 0 1\n\xff\xfe\x00\n", ':2: "\\xff\\xfe\x00" is not an access'),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_line_is_refused_by_file_and_number(tmp_path, data, message):
    path = write(tmp_path / "trace", data)
    with pytest.raises(ProblemError) as error:
        rows(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("pack", ["gzip", "xz", "bzip2"])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_archive_is_refused(tmp_path, pack, damage):
    lines = b"".join(b"r %d 8\n" % (k * k) for k in range(20_000))
    data = bytearray(PACKERS[pack](lines))
    if damage == "cut":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 0xFF
    path = tmp_path / "trace"
    path.write_bytes(bytes(data))
    with pytest.raises(ProblemError, match="trace"):
        rows(path)


def test_files_that_are_none_are_refused(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ProblemError, match="cannot be read"):
            rows(path)
    with pytest.raises(ProblemError, match="a line of more than 1048576 bytes"):
        rows(write(tmp_path / "zeros", bytes(3 << 20)))
    with pytest.raises(ProblemError, match='no trace format is named "dim"; did you mean "din"'):
        read(tmp_path / "missing", "dim")
    with pytest.raises(ProblemError, match="word_bytes 3; a chunk has at least 1 access"):
        read(tmp_path / "missing", word_bytes=3)


def test_an_empty_file_holds_no_access(tmp_path):
    assert rows(write(tmp_path / "trace", b"")) == rows(write(tmp_path / "again", b"# only remarks\n\n")) == []


@settings(deadline=None, database=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.sampled_from([b"", b"0 10\n", b"r 1 1\n", b" L 10,4\n"]))
def test_no_bytes_raise_anything_but_a_problem_error(tmp_path, data, first):
    path = write(tmp_path / "trace", first + data)
    try:
        accesses = rows(path)
    except ProblemError:
        return
    assert all(address >= 0 and size >= 1 for address, size, _ in accesses)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed (apt install valgrind)")
def test_what_valgrind_writes_is_read_to_the_last_line(tmp_path):
    path = tmp_path / "lackey.txt"
    command = ["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-file={path}", "/bin/true"]
    subprocess.run(command, check=True, capture_output=True, timeout=250)
    lines = [line for line in path.read_bytes().split(b"\n") if line and not line.startswith(b"==")]
    expected = sum({b"I ": 0, b" L": 1, b" S": 1, b" M": 2}[line[:2]] for line in lines)
    result = Hierarchy([Cache("L1", 64, 8, 64)]).run(read(path))
    assert result.accesses == expected > 10_000
    assert 0 < result["L1"].misses < expected


def test_a_trace_may_be_a_pipe_of_which_nothing_is_read_twice(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    data = gzip.compress(b"r 4096 8\n")
    writer = threading.Thread(target=lambda: pipe.write_bytes(data), daemon=True)
    writer.start()
    assert rows(pipe) == [(4096, 8, False)]
    writer.join(10)
