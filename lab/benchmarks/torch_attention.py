# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention on this CPU over its products at the peak: python lab/benchmarks/torch_attention.py

One thread; the least of ROUNDS calls, milliseconds. ATTENTION of `pysim/torch/layers/expected_cpu.py` is the least of the last column.
"""

import time

import torch

from pysim.calibration import host
from pysim.torch.layers.expected_cpu import peak_flops

ROUNDS = 30
# batch, heads, rows, keys, size
SHAPES = (
    (1, 6, 1500, 1500, 64), (1, 3, 197, 197, 64), (1, 8, 128, 128, 64), (1, 12, 128, 128, 64), (1, 1, 3136, 49, 32), (64, 3, 49, 49, 32),
    (16, 6, 49, 49, 32), (1, 5, 196, 49, 32), (1, 4, 64, 64, 36), (1, 6, 257, 257, 64), (4, 12, 64, 64, 64),
)  # fmt: skip


def least_seconds(batch: int, heads: int, rows: int, keys: int, size: int) -> float:
    q, k, v = (torch.randn(batch, heads, many, size) for many in (rows, keys, keys))
    spent = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
        spent.append(time.perf_counter() - start)
    return min(spent)


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    peak = peak_flops("f32", host.runnable("host"))
    for batch, heads, rows, keys, size in SHAPES:
        seconds, flops = least_seconds(batch, heads, rows, keys, size), 4 * batch * heads * rows * keys * size
        print(f"{batch:3d} {heads:3d} {rows:5d} {keys:5d} {size:3d}  {seconds * 1e3:8.3f} ms  {seconds * peak / flops:5.2f}")


if __name__ == "__main__":
    main()
