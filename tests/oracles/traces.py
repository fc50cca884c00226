# SPDX-License-Identifier: Apache-2.0
"""Traces and hierarchies drawn from a number, the same on every machine and every version of every library (splitmix64)."""

import numpy as np
import numpy.typing as npt


def draws(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` numbers of 64 random bits."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def trace(seed: int, count: int, span: int, longest: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """`count` accesses below `span` bytes of up to `longest` bytes, a third stores; a half stay near the one before."""
    bits = draws(seed, count)
    far = (bits >> np.uint64(32)) % np.uint64(span)
    near = (bits >> np.uint64(20)) % np.uint64(64)
    addresses = np.empty(count, np.int64)
    at = 0
    for k in range(count):
        at = int(far[k]) if bits[k] & np.uint64(1) else (at + int(near[k])) % span
        addresses[k] = at
    sizes = 1 + ((bits >> np.uint64(8)) % np.uint64(longest)).astype(np.int32)
    return addresses, sizes, (bits >> np.uint64(4)) % np.uint64(3) == 0


def geometry(seed: int) -> list[tuple[int, int, int]]:
    """1 to 4 levels of (sets 1..64, ways 1..16, line bytes 8..128): any number of sets, lines that do not shrink outward."""
    bits = [int(b) for b in draws(seed, 16)]
    line, levels = 8 << bits[0] % 3, []
    for k in range(1 + bits[1] % 4):
        line = min(128, line << bits[4 * k + 2 & 15] % 2)
        levels.append((1 + bits[3 * k + 3 & 15] % 64, 1 + bits[3 * k + 4 & 15] % 16, line))
    return levels
