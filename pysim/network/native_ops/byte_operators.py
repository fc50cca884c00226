# SPDX-License-Identifier: Apache-2.0
"""Operators on bytes and on weights of a few bits bound to their arrays (`pysim.runtime.integer_steps`); their meanings are in
`pysim.network.integers`."""

from collections.abc import Sequence

import numpy as np

from pysim.network.graph import Array
from pysim.network.native_ops.arrays import Attributes, Bind
from pysim.runtime.integer_steps import (
    FewBits,
    byte_means_step,
    byte_pair_step,
    byte_pool_step,
    byte_products_step,
    byte_softmax_step,
    dequantize_step,
    few_bits_step,
    quantize_step,
    sums_step,
    table_step,
)
from pysim.runtime.operators import Window
from pysim.runtime.steps import Step


def _quantize(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    return quantize_step(out, inputs[0], attributes["of"])


def _dequantize(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    return dequantize_step(out, inputs[0], attributes["of"])


def _table(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    return table_step(out, inputs[0], attributes["table"])


def _pair(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step | None:
    if attributes.get("blocks", (1, 1))[1] > 1:  # channels last
        out, *inputs = (one.reshape(one.shape[0], *one.shape[2:], one.shape[1]) for one in (out, *inputs))
    return byte_pair_step(out, inputs[0], inputs[1], attributes["of"], attributes["multiply"], attributes["low"], attributes["high"])


def _pair_by_numpy(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    """Of operands with more axes than the native one takes."""
    a, b, y = attributes["of"]
    left, right = a.numbers(inputs[0]), b.numbers(inputs[1])
    np.clip(y.quantized(left * right if attributes["multiply"] else left + right), attributes["low"], attributes["high"], out=out)


def _pool(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    (x,), window = inputs, Window.of(attributes).of_image
    if x.ndim == 3:
        x, out = x[:, :, None], out[:, :, None]
    block = attributes.get("blocks", (1, 1))[0]
    return byte_pool_step(out, x, window, attributes["largest"], attributes["of"], bool(attributes["count_include_pad"]), block)


def _quantize_affine(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    return sums_step(out, inputs[0], attributes["sums"], attributes["inner"], whole=False)


def _means(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    return byte_means_step(out, inputs[0], attributes["of"], attributes.get("blocks", (1, 1))[0])


def _few_bits(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    x, panels, *bias = inputs
    weights = FewBits(panels, attributes["columns"], attributes["block"], attributes["has_zeros"])
    return few_bits_step(out, x, weights, bias[0] if bias else None, attributes["rounds"])


def _products(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    return byte_products_step(out, inputs[0], inputs[1], attributes["of"], attributes["scale"])


def _softmax(out: Array, inputs: Sequence[Array], attributes: Attributes) -> Step:
    return byte_softmax_step(out, inputs[0], attributes["of"])


def take(out: Array, inputs: Sequence[Array], attributes: Attributes) -> None:
    """Rows of arrays of any type."""
    np.take(inputs[0], inputs[1], attributes["axis"], out=out, mode="wrap")


NATIVE: dict[str, Bind] = {
    "Dequantize": _dequantize, "FewBits": _few_bits, "IntegerMeans": _means, "IntegerPair": _pair, "IntegerPool": _pool,
    "IntegerProducts": _products, "IntegerSoftmax": _softmax,
    "Quantize": _quantize, "QuantizeAffine": _quantize_affine, "Table": _table,
}  # fmt: skip
BY_NUMPY = {"IntegerPair": _pair_by_numpy, "Take": take}
