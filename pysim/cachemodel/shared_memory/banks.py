# SPDX-License-Identifier: Apache-2.0
"""Shared-memory banks: how many wavefronts one load or store instruction of a warp takes.

The rule, as measured on Hopper (`bank_rules.toml` has the rules and sources of every generation): the warp is split into
groups of 32, 16 or 8 lanes for accesses of 4, 8 or 16 bytes, so that a group moves at most one row of banks (128 bytes).
A group takes as many wavefronts as its fullest bank has distinct words; lanes that access the same word share it, and a
group without an active lane takes none. Loads only: if every active lane T has the address of lane T ^ 1, or every one
that of T ^ 2, groups are twice as large (an inactive lane agrees with any).

`minimum` is the cost of the same lanes without conflicts: one wavefront for each group with an active lane. `conflicts` = total - minimum
is what the counters l1tex__data_bank_conflicts_* show.

Worked number: 16-byte loads of consecutive addresses: 4 groups x 1 = 4 wavefronts, minimum 4, 0 conflicts. 4-byte loads
down a column of a 32 x 32 float tile: one group, 32 words in one bank = 32 wavefronts, minimum 1, 31 conflicts.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from pysim.arguments import flag
from pysim.errors import MachineError, OperandError, choose, quoted
from pysim.machine.quantity import Kind, Source

LANES = 32
WIDTHS = (4, 8, 16)
_LARGEST_ADDRESS = 1 << 48
_CHUNK = 1 << 14  # instructions counted at once: bounds the temporaries to some 50 MB

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Grouping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lane masks for which groups double; `source` is a key of the file's sources."""

    pair_masks: tuple[int, ...]
    kind: Kind
    source: str


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shared memory of one GPU generation; `kind` and `source` are those of the banks and of the groups' base size."""

    capability: str
    banks: int
    bank_bytes: int
    kind: Kind
    source: str
    loads: Grouping
    stores: Grouping


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of `bank_rules.toml`."""

    schema: Literal[1]
    rules: dict[str, Rule]
    sources: dict[str, Source]


@cache
def rules() -> Rules:
    """Every generation's rule, with the sources."""
    return msgspec.convert(tomllib.loads((Path(__file__).parent / "bank_rules.toml").read_text()), Rules)


class Wavefronts(msgspec.Struct, frozen=True):
    """The cost of one instruction: total, minimum, and by group of lanes in lane order."""

    total: int
    minimum: int
    per_group: tuple[int, ...]

    @property
    def conflicts(self) -> int:
        """Wavefronts above the minimum."""
        return self.total - self.minimum


class Counts(msgspec.Struct, frozen=True, eq=False):
    """The cost of many instructions: int64 arrays, one element per instruction."""

    total: Integers
    minimum: Integers

    @property
    def conflicts(self) -> Integers:
        """Wavefronts above the minimum."""
        return self.total - self.minimum


class SharedMemory(msgspec.Struct, frozen=True):
    """Shared memory of `banks` banks, each `bank_bytes` wide, under the rule of a GPU generation.

    `banks` and `bank_bytes` default to what the generation has; other values are a what-if. Raises MachineError for a
    rule that no generation has, OperandError for a geometry that no warp splits over.
    """

    banks: int = cast("int", None)
    bank_bytes: int = cast("int", None)
    rule: str = "hopper"

    def __post_init__(self) -> None:
        known = rules().rules
        if not isinstance(self.rule, str) or self.rule not in known:
            raise MachineError(f"no shared-memory rule is named {quoted(self.rule)}; {choose(self.rule, known)}")
        for field in ("banks", "bank_bytes"):
            if getattr(self, field) is None:
                msgspec.structs.force_setattr(self, field, getattr(known[self.rule], field))
        if not (isinstance(self.banks, int) and 4 <= self.banks <= 1024 and self.banks.bit_count() == 1):
            raise OperandError(f"banks is {quoted(self.banks)}; it should be a power of two from 4 to 1024")
        if self.bank_bytes not in (4, 8):
            raise OperandError(f"bank_bytes is {quoted(self.bank_bytes)}; it should be 4 or 8")

    def grouping(self, store: bool) -> Grouping:
        """When groups double, for loads or stores, with the kind of evidence."""
        row = rules().rules[self.rule]
        return row.stores if store else row.loads

    def wavefronts(self, addresses: ArrayLike, width: int = 16, store: bool = False, active: ArrayLike | None = None) -> Wavefronts:
        """The wavefronts of one instruction.

        `addresses`: 32 byte offsets, one per lane; `width`: bytes per lane, 4, 8 or 16; `active`: 32 booleans, None for
        all lanes. The address of an inactive lane is ignored. Raises OperandError for another shape or type, and,
        naming the lane, for an address that is negative or no multiple of the width.
        """
        lanes, mask = _one(addresses, width, active)
        groups = self._groups(lanes, mask, width, int(self._lanes_per_group(lanes, mask, width, store)[0]))[0]
        return Wavefronts(int(groups.sum()), int(np.count_nonzero(groups)), tuple(groups.tolist()))

    def count(self, addresses: ArrayLike, width: int = 16, store: bool = False, active: ArrayLike | None = None) -> Counts:
        """The wavefronts of n instructions at once: `addresses` and `active` have the shape (n, 32)."""
        lanes, mask = checked(addresses, width, active)
        total = np.zeros(len(lanes), np.int64)
        minimum = np.zeros(len(lanes), np.int64)
        for start in range(0, len(lanes), _CHUNK):
            some = slice(start, start + _CHUNK)
            sizes = self._lanes_per_group(lanes[some], mask[some], width, store)
            for size in np.unique(sizes):
                rows = start + np.flatnonzero(sizes == size)
                groups = self._groups(lanes[rows], mask[rows], width, int(size))
                total[rows] = groups.sum(axis=1)
                minimum[rows] = np.count_nonzero(groups, axis=1)
        return Counts(total, minimum)

    def _lanes_per_group(self, lanes: Integers, mask: Mask, width: int, store: bool) -> Integers:
        base, store = min(LANES, self.banks * self.bank_bytes // width), flag(store, "store")
        if base == LANES:
            return np.full(len(lanes), LANES)
        paired = np.zeros(len(lanes), np.bool_)
        for pair in self.grouping(store).pair_masks:
            partner = np.arange(LANES) ^ pair
            paired |= ((lanes == lanes[:, partner]) | ~mask | ~mask[:, partner]).all(axis=1)
        return np.where(paired, min(LANES, 2 * base), base)

    def _groups(self, lanes: Integers, mask: Mask, width: int, size: int) -> Integers:
        """Wavefronts by group, shape (n, 32 / size): the most distinct words of one bank in each group."""
        count, words = len(lanes), max(1, width // self.bank_bytes)
        word = lanes[:, :, None] // self.bank_bytes + np.arange(words)
        word = np.where(mask[:, :, None], word, -1).reshape(count * LANES // size, -1)
        word.sort(axis=1)
        first = word >= 0
        first[:, 1:] &= word[:, 1:] != word[:, :-1]
        slots = (word & (self.banks - 1)) + self.banks * np.arange(len(word))[:, None]
        distinct = np.bincount(slots[first], minlength=len(word) * self.banks)
        return distinct.reshape(count, -1, self.banks).max(axis=2)


def _one(addresses: ArrayLike, width: int, active: ArrayLike | None) -> tuple[Integers, Mask]:
    """One instruction as a batch of one."""
    lanes, mask = _array(addresses, "addresses"), None if active is None else _array(active, "active")
    if lanes.shape != (LANES,):
        raise OperandError(f"addresses has the shape {lanes.shape}; it should be ({LANES},): one byte offset per lane")
    if mask is not None and mask.shape != (LANES,):
        raise OperandError(f"active has the shape {mask.shape}; it should be ({LANES},): one boolean per lane")
    return checked(lanes[None], width, None if mask is None else mask[None])


def checked(addresses: ArrayLike, width: int, active: ArrayLike | None) -> tuple[Integers, Mask]:
    """Addresses as int64 and lanes as booleans, both of the shape (n, 32), or an OperandError."""
    if not isinstance(width, int | np.integer) or width not in WIDTHS:
        raise OperandError(f"width is {quoted(width)} bytes per lane; it should be one of {', '.join(map(str, WIDTHS))}")
    lanes, mask = _array(addresses, "addresses"), _array(True if active is None else active, "active")
    if lanes.ndim != 2 or lanes.shape[1] != LANES:
        raise OperandError(f"addresses has the shape {lanes.shape}; it should be (instructions, {LANES})")
    if lanes.dtype.kind not in "iu":
        raise OperandError(f"addresses has the type {lanes.dtype}; they should be integers, byte offsets")
    if active is not None and mask.shape != lanes.shape:
        raise OperandError(f"active has the shape {mask.shape}; it should be that of addresses, {lanes.shape}")
    if mask.dtype.kind != "b" and not (mask.dtype.kind in "iu" and np.isin(mask, (0, 1)).all()):
        raise OperandError(f"active has the type {mask.dtype}; it should be one boolean per lane")
    mask = np.broadcast_to(mask.astype(np.bool_), lanes.shape)
    wrong = mask & ((lanes < 0) | (lanes >= _LARGEST_ADDRESS) | (lanes % width != 0))
    if wrong.any():
        raise OperandError(_what_is_wrong(lanes, width, *np.argwhere(wrong)[0]))
    return np.where(mask, lanes, 0).astype(np.int64), mask


def _array(values: ArrayLike, what: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise OperandError(f"{what} is not an array: {error}") from None


def _what_is_wrong(lanes: NDArray[Any], width: int, row: int, lane: int) -> str:
    address = int(lanes[row, lane])
    where = f"lane {lane}" + (f" of instruction {row}" if len(lanes) > 1 else "")
    if not 0 <= address < _LARGEST_ADDRESS:
        return f"{where} has the address {address}; a byte offset into shared memory is at least 0 and below 2^48"
    near = address // width * width
    return f"{where} has the address {address}, not a multiple of the width {width}; {near} or {near + width} is aligned"


def instruction(width: int, store: bool) -> str:
    """The instruction's name: 16 bytes loaded is "LDS.128"."""
    return f"{'STS' if store else 'LDS'}.{8 * width}"
