# SPDX-License-Identifier: Apache-2.0
"""Trace files as chunks of accesses that `Hierarchy.run` takes: din, text and valgrind lackey, plain or compressed.

    din      `0 1000` load, `1 1004` store, `2 2cb5` instruction fetch; the address is hexadecimal, what follows is ignored. A
             reference is the aligned word that holds the address.
    text     `r 4096 8`, `w 0x1008 4`: load or store, byte address (decimal, or hexadecimal after 0x), size in bytes.
    lackey   `valgrind --tool=lackey --trace-mem=yes`: ` L 1ffeffe7e0,8`, ` S addr,size`, ` M addr,size` (a load, then a store of
             the same bytes), `I  addr,size` (an instruction). Valgrind's own lines (`==1234== …`) are skipped.

Blank lines and lines that start with # are skipped. Instruction fetches count only where asked for, as loads. gzip, xz and bzip2
are told by their first bytes, the format by the first line. Memory is that of one chunk, however long the file.
"""

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from pysim.cachemodel.simulator.hierarchy import Chunk
from pysim.errors import ProblemError, choose

Form = Literal["din", "text", "lackey"]
Access = tuple[int, int, bool]  # address, bytes, store
_Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.bool_]]

CHUNK = 1 << 20
_BLOCK = 1 << 20  # bytes read at a time, and the longest line
_END = 1 << 56
_FIRST = {
    "din": re.compile(rb"[0-9]\s+(0[xX])?[0-9a-fA-F]+(\s|$)"),
    "text": re.compile(rb"[rRwW]\s"),
    "lackey": re.compile(rb"(I | L| S| M) "),
}
_ENDS = {"din": b" \n", "text": b"  \n", "lackey": b"  ,\n"}  # what ends the fields of a line, as programs write it
_DIGIT = np.full(256, 99, np.int64)
_DIGIT[list(b"0123456789abcdef")] = np.arange(16)
_DIGIT[list(b"ABCDEF")] = np.arange(10, 16)
_ENDS_FIELD = np.isin(np.arange(256), list(b" ,\n"))
_EXAMPLE = {"din": '"0 1000"', "text": '"r 4096 8"', "lackey": '" L 1ffeffe7e0,8"'}


def read(
    path: str | Path, form: Form | None = None, *, chunk: int = CHUNK, instructions: bool = False, word_bytes: int = 4
) -> Iterator[Chunk]:
    """The accesses of a trace file, `chunk` at a time (the last chunk may be shorter).

    `word_bytes`, a power of two, is the size of a din reference. Raises ProblemError, with file and line, for a file or a line
    that cannot be read.
    """
    if form is not None and form not in get_args(Form):
        raise ProblemError(f'{path}: no trace format is named "{form}"; {choose(str(form), list(get_args(Form)))}')
    if chunk < 1 or word_bytes < 1 or word_bytes & (word_bytes - 1):
        raise ProblemError(f"chunk is {chunk} and word_bytes {word_bytes}; a chunk has at least 1 access, a word 1, 2, 4 .. bytes")
    return _chunks(Path(path), form, chunk, instructions, word_bytes)


def _chunks(path: Path, form: str | None, chunk: int, instructions: bool, word_bytes: int) -> Iterator[Chunk]:
    waiting: list[_Columns] = []
    for number, block in _blocks(path):
        form = form or _tell(path, number, block)
        if form is None:
            continue
        columns = _usual(block, form, instructions, word_bytes) or _each(path, number, block, form, instructions, word_bytes)
        waiting.append(columns)
        if sum(len(part[0]) for part in waiting) >= chunk:
            whole = _join(waiting)
            end = len(whole[0]) // chunk * chunk
            yield from (Chunk(*(column[at : at + chunk] for column in whole)) for at in range(0, end, chunk))
            waiting = [(whole[0][end:], whole[1][end:], whole[2][end:])]
    if waiting and len((rest := _join(waiting))[0]):
        yield Chunk(*rest)


def _join(parts: list[_Columns]) -> _Columns:
    addresses, sizes, stores = zip(*parts, strict=True)
    return np.concatenate(addresses), np.concatenate(sizes), np.concatenate(stores)


def _usual(block: bytes, form: str, instructions: bool, word_bytes: int) -> _Columns | None:
    """The accesses of a block in which every line is as programs write it; None where one is not."""
    text, ends = np.frombuffer(block, np.uint8), np.frombuffer(_ENDS[form], np.uint8)
    at: npt.NDArray[np.intp] = np.flatnonzero(_ENDS_FIELD[text])
    if block[-1:] != b"\n" or len(at) % len(ends) or not (text[at].reshape(-1, len(ends)) == ends).all():
        return None
    at = at.reshape(-1, len(ends))
    lines = np.append(0, at[:-1, -1] + 1)  # where they start
    label = text[lines]
    sizes = np.full(len(lines), word_bytes, np.int64)
    if form == "lackey":
        label = np.where(label == ord(" "), text[lines + 1], label)  # " L " or "I  "
        good = (at[:, 1] == lines + 2) & ((at[:, 0] == lines) != (label == ord("I")))
        addresses, good = _numbers(text, at[:, 1] + 1, at[:, 2], 16, good)
        sizes, good = _numbers(text, at[:, 2] + 1, at[:, 3], 10, good)
        kinds = b"LSMI"
    elif form == "text":
        addresses, good = _numbers(text, at[:, 0] + 1, at[:, 1], 10, at[:, 0] == lines + 1)
        sizes, good = _numbers(text, at[:, 1] + 1, at[:, 2], 10, good)
        kinds = b"rw"
    else:
        addresses, good = _numbers(text, at[:, 0] + 1, at[:, 1], 16, at[:, 0] == lines + 1)
        addresses, kinds = addresses & -word_bytes, b"012"
    if not (good & np.isin(label, list(kinds)) & (sizes >= 1) & (sizes < 1 << 31)).all():
        return None
    counts = np.where(np.isin(label, list(b"I2")), int(instructions), 1 + (label == ord("M")))
    each = np.repeat(np.arange(len(lines)), counts)
    stores = np.isin(label, list(b"1wS"))[each]
    stores[1:] |= each[1:] == each[:-1]  # the second access of a line is its store
    return addresses[each], sizes[each].astype(np.int32), stores


def _numbers(
    text: npt.NDArray[np.uint8], starts: npt.NDArray[np.intp], ends: npt.NDArray[np.intp], base: int, good: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The numbers written at starts..ends, and where they, and all that was looked at before, are good: 1 to 13 digits each."""
    good = good & (ends > starts) & (ends <= starts + 13)
    value = np.zeros(len(starts), np.int64)
    for place in range(13 if good.all() else 0):
        here = starts + place < ends
        if not here.any():
            break
        digit = _DIGIT[text[np.minimum(starts + place, len(text) - 1)]]
        good &= ~here | (digit < base)
        value = np.where(here, value * base + digit, value)
    return value, good


def _each(path: Path, number: int, block: bytes, form: str, instructions: bool, word_bytes: int) -> _Columns:
    """The accesses of a block, line by line; number is that of the first."""
    accesses: list[Access] = []
    for at, line in enumerate(block.split(b"\n"), number):
        if _is_remark(line):
            continue
        try:
            if form == "text":
                accesses.append(_text(line))
            else:
                accesses.extend(_lackey(line, instructions) if form == "lackey" else _din(line, instructions, word_bytes))
        except ValueError as error:
            raise ProblemError(f"{path}:{at}: {error}") from None
    columns = np.array(accesses, np.int64).reshape(-1, 3)
    return columns[:, 0].copy(), columns[:, 1].astype(np.int32), columns[:, 2].astype(bool)


def _is_remark(line: bytes) -> bool:
    return not line.strip() or line[:1] == b"#" or line[:2] in (b"==", b"--")


def _tell(path: Path, number: int, block: bytes) -> str | None:
    """The format of the first line that is no remark; None where all lines are."""
    for at, line in enumerate(block.split(b"\n"), number):
        if _is_remark(line):
            continue
        for name, first in _FIRST.items():
            if first.match(line):
                return name
        shapes = "; ".join(f"{name}: {example}" for name, example in _EXAMPLE.items())
        raise ProblemError(f"{path}:{at}: {_quote(line)} is not an access of any trace format ({shapes})")
    return None


def _din(line: bytes, instructions: bool, word_bytes: int) -> tuple[Access, ...]:
    label, *words = line.split(None, 2)
    if label not in (b"0", b"1", b"2") or not words:
        raise ValueError(f"{_quote(line)} is not a din reference; expected 0 (load), 1 (store) or 2 (instruction), then a hex address")
    address = _hex(words[0], line) & -word_bytes
    return ((address, word_bytes, label == b"1"),) if instructions or label != b"2" else ()


def _text(line: bytes) -> Access:
    words = line.split()
    if len(words) != 3 or words[0] not in (b"r", b"w", b"R", b"W"):
        raise ValueError(f"{_quote(line)} is not an access; it should be r or w, an address and a size, like {_EXAMPLE['text']}")
    address = _hex(words[1], line) if words[1][:2] in (b"0x", b"0X") else _decimal(words[1], line)
    return address, _size(words[2], line), words[0] in (b"w", b"W")


def _lackey(line: bytes, instructions: bool) -> tuple[Access, ...]:
    kind, place = line[:2], line[2:].strip()
    address, comma, size = place.partition(b",")
    if kind not in (b"I ", b" L", b" S", b" M") or not comma:
        raise ValueError(f"{_quote(line)} is not a lackey line; it should be I, L, S or M, then address,size like {_EXAMPLE['lackey']}")
    at, count = _hex(address, line), _size(size, line)
    if kind == b" M":
        return (at, count, False), (at, count, True)
    return ((at, count, kind == b" S"),) if instructions or kind != b"I " else ()


def _hex(word: bytes, line: bytes) -> int:
    digits = word[2:] if word[:2] in (b"0x", b"0X") else word
    if not digits.isalnum() or len(digits) > 16:
        raise ValueError(f"{_quote(line)}: {_quote(word)} is not a hexadecimal address")
    try:
        return _address(int(digits, 16), line)
    except ValueError:
        raise ValueError(f"{_quote(line)}: {_quote(word)} is not a hexadecimal address below 2^56") from None


def _decimal(word: bytes, line: bytes) -> int:
    if not word.isdigit() or len(word) > 18:
        raise ValueError(f"{_quote(line)}: {_quote(word)} is not an address; it should be decimal, or hexadecimal after 0x, below 2^56")
    return _address(int(word), line)


def _address(value: int, line: bytes) -> int:
    if value >= _END - (1 << 31):
        raise ValueError(f"{_quote(line)}: address {value:#x} is too large; it should end below 2^56")
    return value


def _size(word: bytes, line: bytes) -> int:
    if not word.isdigit() or len(word) > 10 or not 1 <= int(word) < 1 << 31:
        raise ValueError(f"{_quote(line)}: {_quote(word)} is not a size; it should be a number of bytes, at least 1 and below 2^31")
    return int(word)


def _quote(line: bytes) -> str:
    text = line.strip(b"\r\n").decode("ascii", "backslashreplace")
    return f'"{text[:60]}…"' if len(text) > 60 else f'"{text}"'


def _unpacked(file: BufferedReader) -> BufferedIOBase:
    """What the file holds; nothing of it is read twice, so that it may be a pipe."""
    start = file.peek(6)
    if start[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file)
    if start[:6] == b"\xfd7zXZ\x00":
        return lzma.LZMAFile(file)
    return bz2.BZ2File(file) if start[:3] == b"BZh" else file


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Whole lines of a file, unpacked, about _BLOCK bytes at a time, with the number of the first; bounded even without line ends."""
    number, rest = 1, b""
    try:
        with path.open("rb") as packed, _unpacked(packed) as file:
            while block := file.read(_BLOCK):
                block = rest + block
                end = block.rfind(b"\n") + 1
                rest = block[end:]
                if end:
                    yield number, block[:end]
                    number += block.count(b"\n")
                if len(rest) > _BLOCK:
                    raise ProblemError(f"{path}:{number}: a line of more than {_BLOCK} bytes; this is not a trace")
    except (OSError, ValueError, EOFError, lzma.LZMAError, zlib.error) as error:
        where = f"{path}:{number}" if number > 1 else str(path)
        raise ProblemError(f"{where}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if rest:
        yield number, rest
