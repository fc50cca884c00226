# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch operators that models keep on a GPU, or kept: python lab/benchmarks/cuda/torch_operators.py [pool] [row]

    pool TYPE N C H K S PYTORCH PYSIM    microseconds of a KxK max pool of stride S, of N channels-last images of C channels and HxH pixels,
                                         by PyTorch's kernel and, with the same bits, by pysim's (pysim.torch.layers.max_pools)
    row TYPE N K US ERROR                microseconds of the product of one row of K elements and a matrix of N rows, and the root mean
                                         square of its error over that of the result

Medians of 9 replays of a CUDA graph of 20 calls; the filters of the calls are different arrays.
"""

import sys
from typing import Any

import torch
from graphs import microseconds
from torch.nn import functional

from pysim.torch.layers.max_pools import max_pool

CALLS, REPLAYS = 20, 9
POOLS = (
    (64, 112, 3, 2), (192, 56, 3, 2), (192, 28, 3, 1), (480, 28, 3, 2), (512, 14, 3, 1), (832, 14, 2, 2), (832, 7, 3, 1), (512, 14, 2, 2),
    (64, 224, 2, 2),
)  # fmt: skip
ROWS = (
    (10, 1280), (1000, 512), (1000, 1024), (1000, 1280), (1000, 2048), (1000, 4096), (768, 768), (768, 3072), (3072, 768), (4096, 4096),
    (4096, 25088),
)  # fmt: skip
MATRIX_BYTES = 15e9  # of the filters of all calls


def pool(dtype: Any, batch: int, channels: int, size: int, kernel: int, stride: int) -> None:
    x = torch.randn(batch, channels, size, size, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    padding = 1 if kernel == 3 and stride == 1 else 0

    def pytorchs(_: int = 0) -> Any:
        return functional.max_pool2d(x, kernel, stride, padding, ceil_mode=True)

    def ours(_: int = 0) -> Any:
        return max_pool(x, kernel, stride, padding, ceil_mode=True)

    assert torch.equal(pytorchs(), ours())
    spent = microseconds({"pytorch": pytorchs, "pysim": ours}, CALLS, REPLAYS)
    print("pool", _name(dtype), batch, channels, size, kernel, stride, f"{spent['pytorch']:.1f} {spent['pysim']:.1f}", flush=True)


def row(filters: int, channels: int) -> None:
    count = max(1, min(CALLS, int(MATRIX_BYTES / (4 * filters * channels))))
    weights = [torch.randn(filters, channels, device="cuda") for _ in range(count)]
    x, bias = torch.randn(1, channels, device="cuda"), torch.randn(filters, device="cuda")
    exact = functional.linear(x.double(), weights[0].double(), bias.double())
    difference = functional.linear(x, weights[0], bias).double() - exact
    error = float(difference.square().mean().sqrt() / exact.square().mean().sqrt())
    spent = microseconds({"row": lambda at: functional.linear(x, weights[at % count], bias)}, CALLS, REPLAYS)["row"]
    print(f"row float32 {filters} {channels} {spent:.1f} {error:.1e}", flush=True)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    wanted = sys.argv[1:] or ["pool", "row"]
    for dtype in (torch.float16, torch.float32) if "pool" in wanted else ():
        for batch in (16, 1):
            for sizes in POOLS:
                pool(dtype, batch, *sizes)
    for filters, channels in ROWS if "row" in wanted else ():
        row(filters, channels)


if __name__ == "__main__":
    main()
