#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much accuracy Winograd's transforms cost in f32: errors of F(2x2, 3x3) and F(4x4, 3x3) beside those of direct sums.

    winograd_simulated.py [--tiles 64] [--filters 16] [--seed 1] > lab/data/simulated/winograd-error.md; python update_pages.py

Tiles of random inputs and filters in [-1, 1) are convolved in f32, sums over channels in order, by the matrices of
native/cuda/conv/winograd/winograd.h and unfused4.cuh, and by F(4x4)'s usual points, and compared with f64. Errors are in units of
2^-24 (|input| * |filters|), the scale of the check's bound; then the largest one over the root mean square of the outputs. `growth` is
the largest factor by which |A|^T [(|G| |g| |G|^T) .* (|B|^T |d| |B|)] |A| exceeds the first scale, so what rounding could cost at worst:
the check allows 10 times the bound of a plain sum for F(2x2) and 80 for F(4x4). Each product is rounded before it is added, which a
kernel's FMA does not do.

Worked number: in f64 the two ways agree, within 2e-15 for F(2x2) and 2e-14 for F(4x4) of sums over 5 channels.
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
A, B = 11 / 16, 23 / 16  # points of F(4x4)
F4 = (
    np.array(
        [
            [A**2 * B**2, 0, -(A**2) - B**2, 0, 1, 0],
            [0, -A * B**2, -(B**2), A, 1, 0],
            [0, -(B**2), B**2 / A, 1, -1 / A, 0],
            [0, -B * A**2, -(A**2), B, 1, 0],
            [0, -(A**2), A**2 / B, 1, -1 / B, 0],
            [0, A**2 * B**2, 0, -(A**2) - B**2, 0, 1],
        ]
    ),
    np.array([[1, 0, 0], [1, A, A**2], [1, -A, A**2], [1, B, B**2], [1, -B, B**2], [0, 0, 1]]),
    np.array([[1, 1, -A, 1, -B, 0], [0, A, A**2, B, B**2, 0], [0, A**2, -(A**3), B**2, -(B**3), 0], [0, A**3, A**4, B**3, B**4, 1]])
    / np.array([A**2 * B**2, *[2 * A**2 * (A**2 - B**2)] * 2, *[2 * B**2 * (B**2 - A**2)] * 2, 1]),
)
USUAL = (
    np.array(
        [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]],
        float,
    ),
    np.array([[1, 0, 0], [1, 1, 1], [1, -1, 1], [1, 2, 4], [1, -2, 4], [0, 0, 1]], float),
    np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]) / np.array([4, -6, -6, 24, 24, 1]),
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
    print("| outputs | channels | direct: mean, max | Winograd: mean, max | max over rms: direct | Winograd | growth |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, matrices, edge in (("2x2", F2, 2), ("4x4", F4, 4), ("4x4 by 0, 1, -1, 2, -2", USUAL, 4)):
        for channels in (64, 128, 256, 512):
            d = random.uniform(-1, 1, (arguments.tiles, channels, edge + 2, edge + 2)).astype(np.float32)
            g = random.uniform(-1, 1, (arguments.filters, channels, 3, 3)).astype(np.float32)
            right = direct(d.astype(float), g.astype(float), edge)
            scale = direct(np.abs(d).astype(float), np.abs(g).astype(float), edge)
            largest = winograd(np.abs(d).astype(float), np.abs(g).astype(float), tuple(np.abs(matrix) for matrix in matrices))
            errors = [np.abs(got - right) for got in (direct(d, g, edge), winograd(d, g, matrices))]
            cells = [f"{(error / scale).mean() * 2**24:.2f}, {(error / scale).max() * 2**24:.1f}" for error in errors]
            cells += [f"{error.max() / np.sqrt(np.mean(right**2)):.1e}" for error in errors]
            print(f"| {name} | {channels} | {' | '.join(cells)} | {(largest / scale).max():.0f} |")


if __name__ == "__main__":
    main()
