# SPDX-License-Identifier: Apache-2.0
"""Attention on one core of this CPU, alone with hot caches, beside its prediction: python lab/benchmarks/attention.py

Least of the calls in SECONDS. The last line fits RESULT_CYCLES and PACKED_CYCLES of `pysim/network/operator_seconds.py` to what the
multiply-adds and the softmax leave over.
"""

import time
from typing import Any

import numpy as np

from pysim.calibration import host
from pysim.network import operator_seconds
from pysim.network.graph import Graph, Node, Tensor
from pysim.runtime.attention import attention_step

SECONDS = 0.3
# batch, heads, rows, keys, size of queries, width of values
SHAPES = (
    (1, 6, 1500, 1500, 64, 64), (1, 3, 197, 197, 64, 64), (1, 8, 128, 128, 64, 64), (1, 1, 3136, 49, 32, 32), (1, 5, 196, 49, 32, 32),
    (64, 3, 49, 49, 32, 32), (1, 4, 196, 196, 16, 32), (1, 6, 257, 257, 64, 64),
)  # fmt: skip


def least_seconds(shape: tuple[int, ...]) -> float:
    batch, heads, rows, keys, size, width = shape
    random = np.random.default_rng(0)

    def split(count: int, each: int) -> Any:
        """Heads beside each other in rows, as a product makes them."""
        return random.standard_normal((batch, count, heads, each)).astype(np.float32).transpose(0, 2, 1, 3)

    q, k, v, out = split(rows, size), split(keys, size), split(keys, width), split(rows, width)
    step = attention_step(out, q, k.transpose(0, 1, 3, 2), v, None, size**-0.5)
    assert step is not None
    step()
    found, end = [], time.perf_counter() + SECONDS
    while not found or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return min(found)


def predicted_cycles(shape: tuple[int, ...]) -> float:
    batch, heads, rows, keys, size, width = shape
    sizes = {"q": (rows, size), "k": (size, keys), "v": (keys, width), "y": (rows, width)}
    tensors = {name: Tensor((batch, heads, *own), np.dtype(np.float32)) for name, own in sizes.items()}
    node = Node("Attention", "attention", ("q", "k", "v"), ("y",), {"orders": (None, None, None)})
    return operator_seconds._passing_cycles(node, Graph((node,), ("q", "k", "v"), ("y",), tensors), host.runnable("host"))


def main() -> None:
    hertz = host.runnable("host").core.frequency_hz.value
    cycles, terms, prices = [], [], (operator_seconds.RESULT_CYCLES, operator_seconds.PACKED_CYCLES)
    for shape in SHAPES:
        cycles.append(least_seconds(shape) * hertz)
        of = predicted_cycles(shape)
        operator_seconds.RESULT_CYCLES, operator_seconds.PACKED_CYCLES = 0.0, 0.0
        plain = predicted_cycles(shape)
        operator_seconds.RESULT_CYCLES = 1.0
        results = predicted_cycles(shape) - plain
        operator_seconds.RESULT_CYCLES, operator_seconds.PACKED_CYCLES = 0.0, 1.0
        terms.append((plain, results, predicted_cycles(shape) - plain))
        operator_seconds.RESULT_CYCLES, operator_seconds.PACKED_CYCLES = prices
        print(f"{shape!s:<32} {cycles[-1] / hertz * 1e6:9.1f} us, predicted {of / hertz * 1e6:9.1f}, {of / cycles[-1]:.3f}", flush=True)
    plain, *others = np.array(terms).T / cycles
    print("fitted:", np.linalg.lstsq(np.array(others).T, 1 - plain, rcond=None)[0].round(2))


if __name__ == "__main__":
    main()
