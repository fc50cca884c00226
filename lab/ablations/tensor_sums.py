#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What sums of bf16 thirds on mma.sync lose (native/cuda/mainloop/mma/split.cuh), simulated, over sequential multiply-adds of FP32.

    lab/ablations/tensor_sums.py [--seeds 12]

An instruction's products are exact; they and the accumulator are cut below EXTRA bits under the last bit of the largest of them, added, and
the sum is cut to 24 bits (Fasi et al., Numerical behavior of NVIDIA tensor cores, PeerJ CS 7, 2021: no rounding, two bits on Hopper). Ways:

    thirds    of sixteen k the product of the first thirds and the five smaller ones, each from zero, added to the sum in FP32: as it is
    remnant   the product of the first thirds once more onto its negative, which leaves what was cut off, and the smaller ones onto that

Printed of each fill and k: largest error over the rms of results / largest over |A||B| / rms over |A||B|, each over that of multiply-adds.
"""

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]

SIDE, STEP, EXTRA = 64, 16, 2
SMALLER = ((2, 0), (0, 2), (1, 1), (0, 1), (1, 0))
KS, FILLS = (8, 16, 64, 128, 512), ("log", "[-1,1)", "[0,1)")


def thirds(x: Floats) -> list[Floats]:
    """Three numbers of bf16, to nearest, of each of f32."""
    found, rest = [], x
    for _ in range(3):
        bits = rest.view(np.uint32)
        found.append(((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32))
        rest = rest - found[-1]
    return [one.astype(np.float64) for one in found]


def cut(x: Floats, largest: Floats, bits: int) -> Floats:
    """x truncated `bits` bits below the leading bit of `largest`."""
    unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))) - bits)
    return np.trunc(x / unit) * unit


def instruction(sums: Floats, products: Floats) -> Floats:
    """What mma.sync makes of an accumulator and products [m][n][k]."""
    every = np.concatenate([products, sums[..., None].astype(np.float64)], -1)
    found = cut(every, np.abs(every).max(-1, keepdims=True), 23 + EXTRA).sum(-1)
    return cut(found, np.abs(found), 23).astype(np.float32)


def by_thirds(a: Floats, b: Floats, remnant: bool) -> Floats:
    left, right, zero = thirds(a), thirds(b), np.zeros((a.shape[0], b.shape[1]), np.float32)
    total = zero
    for k in range(0, a.shape[1], STEP):
        at = slice(k, k + STEP)
        large = instruction(zero, left[0][:, None, at] * right[0].T[None, :, at])
        rest = instruction(-large, left[0][:, None, at] * right[0].T[None, :, at]) if remnant else zero
        for i, j in SMALLER:
            rest = instruction(rest, left[i][:, None, at] * right[j].T[None, :, at])
        total = total + (large + rest)
    return total


def multiply_adds(a: Floats, b: Floats) -> Floats:
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = (total + a[:, k, None].astype(np.float64) * b[None, k]).astype(np.float32)
    return total


def filled(draw: np.random.Generator, fill: str, shape: tuple[int, int]) -> Floats:
    uniform = draw.random(shape)
    if fill == "log":
        return (10 ** (36 * uniform - 18) * draw.choice([-1.0, 1.0], shape)).astype(np.float32)
    return (uniform if fill == "[0,1)" else 2 * uniform - 1).astype(np.float32)


def errors(got: Floats, a: Floats, b: Floats) -> Floats:
    want, scale = a.astype(np.longdouble) @ b.astype(np.longdouble), np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    off = np.abs(got - want).astype(np.float64)
    return np.array([off.max() / np.sqrt(np.mean(want.astype(np.float64) ** 2)), (off / scale).max(), np.sqrt(np.mean((off / scale) ** 2))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    options = parser.parse_args()
    for fill in FILLS:
        for k in KS:
            found = []
            for seed in range(options.seeds):
                draw = np.random.default_rng([seed, k])
                a, b = filled(draw, fill, (SIDE, k)), filled(draw, fill, (k, SIDE))
                found.append([errors(of, a, b) for of in (multiply_adds(a, b), by_thirds(a, b, False), by_thirds(a, b, True))])
            base, *ways = np.mean(found, axis=0)
            pairs = zip(("thirds", "remnant"), (way / base for way in ways), strict=True)
            columns = "   ".join(f"{name} {' / '.join(f'{x:.2f}' for x in over)}" for name, over in pairs)
            print(f"{fill:<7} k {k:>4}   {columns}", flush=True)


if __name__ == "__main__":
    main()
