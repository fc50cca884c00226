#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much accuracy Winograd's transforms cost in f32: errors of F(2x2, 3x3) and F(4x4, 3x3) beside the definition's own.

    tools/winograd_error.py [--tiles 64] [--filters 16] [--seed 1]

Tiles of random inputs and filters in [-1, 1) are convolved in f32, sums over channels in order, by the matrices of
native/cuda/conv_winograd.h and winograd_staged.cuh, and compared with f64. Errors are in units of 2^-24 (|input| * |filters|), the
scale of the check's bound. `growth` is the largest factor by which |A|^T [(|G| |g| |G|^T) .* (|B|^T |d| |B|)] |A| exceeds that scale,
so what rounding could cost at worst.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating]

F2 = (
    np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], float),
    np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], float),
    np.array([[1, 1, 1, 0], [0, 1, -1, -1]], float),
)
F4 = (
    np.array(
        [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]],
        float,
    ),
    np.array(
        [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
    ),
    np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], float),
)


def winograd(d: Matrix, g: Matrix, matrices: tuple[Matrix, Matrix, Matrix]) -> Matrix:
    """Y[tile][filter] of patches d[tile][channel] and filters g[filter][channel], in their type, channel after channel."""
    b, filters, a = (matrix.astype(d.dtype) for matrix in matrices)
    v = b @ d @ b.T
    u = filters @ g @ filters.T
    sums = np.zeros((len(d), len(g), *v.shape[2:]), d.dtype)
    for channel in range(d.shape[1]):
        sums += v[:, None, channel] * u[None, :, channel]
    return a @ sums @ a.T


def direct(d: Matrix, g: Matrix, edge: int) -> Matrix:
    """The same outputs by the definition."""
    sums = np.zeros((len(d), len(g), edge, edge), d.dtype)
    for channel in range(d.shape[1]):
        for r in range(3):
            for s in range(3):
                sums += d[:, None, channel, r : r + edge, s : s + edge] * g[None, :, channel, r, s, None, None]
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, default=64)
    parser.add_argument("--filters", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    print("| outputs | channels | direct: mean, max | Winograd: mean, max | growth |\n|---|--:|--:|--:|--:|")
    for name, matrices, edge in (("2x2", F2, 2), ("4x4", F4, 4)):
        for channels in (64, 128, 256, 512):
            d = random.uniform(-1, 1, (arguments.tiles, channels, edge + 2, edge + 2)).astype(np.float32)
            g = random.uniform(-1, 1, (arguments.filters, channels, 3, 3)).astype(np.float32)
            right = direct(d.astype(float), g.astype(float), edge)
            scale = direct(np.abs(d).astype(float), np.abs(g).astype(float), edge)
            largest = winograd(np.abs(d).astype(float), np.abs(g).astype(float), tuple(np.abs(matrix) for matrix in matrices))
            errors = [np.abs(got - right) / scale * 2**24 for got in (direct(d, g, edge), winograd(d, g, matrices))]
            cells = " | ".join(f"{error.mean():.2f}, {error.max():.2f}" for error in errors)
            print(f"| {name} | {channels} | {cells} | {(largest / scale).max():.0f} |")


if __name__ == "__main__":
    main()
