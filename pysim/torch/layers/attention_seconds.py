# SPDX-License-Identifier: Apache-2.0
"""The expected time on a GPU of PyTorch's attention, which the compiler calls as it stands; nothing is timed.

    seconds = launch + scores cycles / (multiprocessors x frequency)        x MASKED, with a mask

`scores`: of all heads, queries and keys each rounded up to whole tiles. Fitted to 36 calls on an H200 (PyTorch 2.11, heads of 32 to 64
channels, 49 to 4096 keys, batch 1 to 256; lab/notebook/gpu-model.md). Median errors without and with a mask: 16-bit types, cuDNN's kernel,
9 and 16 %; FP32 and TF32, products on CUDA cores, 10 and 12 %. Heads of 36 channels in float16 take 4 and 12 times as long.

Worked number: 16 images, 12 heads, 197 tokens, float16: 192 x 256 x 256 scores take 7.6 us on an H200, 14.6 with the
launch (15.2 measured).
"""

from collections.abc import Sequence

from pysim.machine.gpu import Gpu

# By bytes of an element: launch, cycles of a multiprocessor for each score, tile, and factor with a mask
_PRICES = {2: (7.0e-6, 0.14, 128, 2.2), 4: (8.0e-6, 1.85, 64, 1.25)}


def attention_seconds(queries: Sequence[int], keys: int, element_bytes: int, masked: bool, on: Gpu) -> float:
    """`queries`: the shape of the queries, heads before tokens and channels."""
    launch, cycles, tile, more = _PRICES[2 if element_bytes == 2 else 4]
    scores = float(tile * -(-queries[-2] // tile) * tile * -(-keys // tile))
    for size in queries[:-2]:
        scores *= size
    return (launch + scores * cycles / (on.sms.value * on.frequency_hz.value)) * (more if masked else 1.0)
