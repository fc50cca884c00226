# SPDX-License-Identifier: Apache-2.0
"""The expected time on a GPU of PyTorch's attention, which the compiler calls as it stands; nothing is timed.

    seconds = launch + scores cycles / (multiprocessors x frequency)        x MASKED, with a mask

`scores`: of all heads, queries and keys each rounded up to whole tiles. Fitted to 36 calls on an H200 (PyTorch 2.11, heads of 32 to 64
channels, 49 to 4096 keys, batch 1 to 256; lab/notebook/gpu-model.md). Median errors without and with a mask: 16-bit types, cuDNN's kernel,
9 and 16 %; FP32 and TF32, products on CUDA cores, 10 and 12 %. Heads of 36 channels in float16 take 4 and 12 times as long.

PyTorch's attention in FP32 with a mask whose rows are not contiguous is two products and, between them, a softmax of stored scores:

    seconds = 2 (launch + bytes / bandwidth / share) + scores cycles / (multiprocessors x frequency) + four copies of operands and result

Where TF32 is allowed the products take 0.9 to 1.2 times that in 14 calls; the softmax took 0.63 to 1.2 cycles a score in two networks.

Worked number: 16 images, 12 heads, 197 tokens, float16: 192 x 256 x 256 scores take 7.6 us on an H200, 14.6 with the
launch (15.2 measured).
"""

import math
from collections.abc import Sequence

from pysim.machine.gpu import Gpu
from pysim.torch.layers.compiler_seconds import fused_seconds

# By bytes of an element: launch, cycles of a multiprocessor for each score, tile, and factor with a mask
_PRICES = {2: (7.0e-6, 0.14, 128, 2.2), 4: (8.0e-6, 1.85, 64, 1.25)}

# The kernel of PyTorch's compiler for flexible attention, in TF32: launch; cycles of a multiprocessor for a tile of so many queries and
# keys of 64 channels. On an H200 seven calls of 49 to 512 keys, 32 and 64 channels, batch 1 to 256, are within 12 % (10.8 to 129 us)
_FLEXIBLE = (3.0e-6, 2475, 128, 32)

_PRODUCT, _SHARES, _SOFTMAX = 2.0e-6, (0.36, 0.68), 0.9  # shares: of rows that are not, and that are whole vectors
_VECTOR = 4  # FP32 numbers of 16 bytes


def attention_seconds(queries: Sequence[int], keys: int, element_bytes: int, masked: bool, on: Gpu) -> float:
    """`queries`: the shape of the queries, heads before tokens and channels."""
    launch, cycles, tile, more = _PRICES[2 if element_bytes == 2 else 4]
    scores = math.prod(queries[:-2]) * tile * -(-queries[-2] // tile) * tile * -(-keys // tile) / on.sms.value
    if element_bytes == 4:  # one block multiplies a tile of queries by all keys; batch 1, 12 heads, 197 tokens: 29 us, 14 without this
        scores = max(scores, tile * tile * -(-keys // tile))
    return (launch + scores * cycles / on.frequency_hz.value) * (more if masked else 1.0)


def tensor_core_seconds(queries: Sequence[int], keys: int, on: Gpu) -> float:
    """The same of FP32 operands by the compiler's kernel for flexible attention, in TF32, and a pass over its results."""
    *batch, tokens, channels = queries
    launch, cycles, rows, columns = _FLEXIBLE
    tiles = -(-math.prod(batch) * -(-tokens // rows) // on.sms.value) * -(-keys // columns)
    results = math.prod(queries)
    return float(launch + tiles * cycles * channels / 64 / on.frequency_hz.value + fused_seconds(results, 8 * results, on))


def products_seconds(queries: Sequence[int], keys: int, on: Gpu) -> float:
    """The same of FP32 operands as two products in TF32, with the compiler's softmax and copies."""
    *batch, tokens, channels = queries
    heads = math.prod(batch)
    scores, operand = heads * tokens * keys, 4 * heads * channels * max(tokens, keys)
    each = _PRODUCT + (2 * operand + 4 * scores) / on.memory_bytes_per_second.value / _SHARES[keys % _VECTOR == 0]
    softmax = scores * _SOFTMAX / (on.sms.value * on.frequency_hz.value)
    return 2 * each + softmax + 4 * fused_seconds(operand // 4, 2 * operand, on)
