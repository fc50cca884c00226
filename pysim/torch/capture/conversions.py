# SPDX-License-Identifier: Apache-2.0
"""Conversions from and to bytes of programs that PyTorch's export quantised (quantized_decomposed) as nodes of a network."""

import math

import numpy as np
from torch import fx

from pysim.runtime.integer_steps import BYTES, Quantity
from pysim.torch.capture.lowering import Arguments, Lowering, Operator, UnknownError


def conversion(op: str) -> Operator:
    """A conversion from or to bytes of one scale and zero."""

    def lower(low: Lowering, node: fx.Node, given: Arguments) -> str:
        x, form = low[given["input"]], node.meta["form"]
        scale, zero, kind = given["scale"], given["zero_point"], np.dtype(str(given["dtype"]).removeprefix("torch."))
        if not isinstance(scale, float) or not isinstance(zero, int) or kind not in BYTES or low.dtype(x) not in (np.float32, kind):
            raise UnknownError("its scale and zero are no numbers, or its values are neither bytes nor float32")
        of = Quantity(scale, zero, kind)
        if (given["quant_min"], given["quant_max"]) != (of.least, of.most) or not 0 < np.float32(scale) < math.inf:
            raise UnknownError(
                f"its range is {given['quant_min']} to {given['quant_max']}, not that of its type, or its scale is not positive"
            )
        return low.add(op, (x,), form.shape, np.dtype(np.float32) if op == "Dequantize" else kind, of=of)

    return lower
