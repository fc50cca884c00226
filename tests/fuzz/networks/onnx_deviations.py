# SPDX-License-Identifier: Apache-2.0
"""Where ONNX Runtime 1.32 itself does not follow ONNX's text (https://onnx.ai/onnx/operators/), by operator, each with its reason and with
what is right (`onnx_text`).

They are asked only where a result differs from ONNX Runtime's; it must then be equal to what is right."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx_text
from onnx_text import Node

from pysim.runtime import cpu


class Deviation(NamedTuple):
    reason: str
    holds: Callable[[Node], bool]
    right: Callable[[Node], list[Any]]


def _states_no_threshold(node: Node) -> bool:
    """A ThresholdedRelu that the alphas do not reach."""
    names = [name.decode() for name in node.attributes.get("activations", ())]
    taking = [name for name in names if name in ("LeakyRelu", "ThresholdedRelu", "Affine", "ScaledTanh", "HardSigmoid", "Elu")]
    return "ThresholdedRelu" in taking[len(node.attributes.get("activation_alpha", ())) :]


def _clipped_cell(node: Node) -> bool:
    return node.op == "LSTM" and "clip" in node.attributes


def _rule(node: Node) -> bytes:
    return bytes(node.attributes.get("coordinate_transformation_mode", b"half_pixel"))


def _parts(node: Node) -> bool:
    """align_corners by scales that lead to no whole sizes."""
    x, scales = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    if scales is None or not scales.size or _rule(node) != b"align_corners":
        return False
    axes = node.attributes.get("axes", range(x.ndim))
    return any(np.float32(x.shape[axis]) * scale % 1 for axis, scale in zip(axes, scales, strict=True))


def _same_padding(node: Node) -> bool:
    return bool(node.attributes.get("auto_pad", b"").startswith(b"SAME"))


def _dilated(node: Node) -> bool:
    return max(node.attributes.get("dilations", [1])) > 1


def _pairs_saturate(node: Node) -> bool:
    """Without VNNI ONNX Runtime adds pairs of u8 x s8 products in 16 bits."""
    return not any("vnni" in name for name in cpu.available_kernels())


def _wide_strides(node: Node) -> bool:
    kernel = node.attributes["kernel_shape"]
    return any(stride > size for stride, size in zip(node.attributes.get("strides", [1] * len(kernel)), kernel, strict=True))


_RECURRENT = (
    Deviation("clip does not bound c before h = o tanh(c)", _clipped_cell, onnx_text.recurrent),
    Deviation("a ThresholdedRelu without an alpha has 0, not the operator's default, 1", _states_no_threshold, onnx_text.recurrent),
    Deviation("Softplus and what is made of it overflow", lambda node: b"Softplus" in node.attributes.get("activations", ()),
              onnx_text.recurrent),
)  # fmt: skip
_SUMS = (Deviation("sums of pairs of u8 x s8 products saturate in 16 bits", _pairs_saturate, onnx_text.reference),)
_POOLS = (
    Deviation("padding by auto_pad leaves out dilations", lambda node: _same_padding(node) and _dilated(node), onnx_text.pool),
    Deviation("auto_pad pads by negative numbers where the stride is larger than the window",
              lambda node: _same_padding(node) and _wide_strides(node), onnx_text.pool),
)  # fmt: skip
DEVIATIONS: dict[str, tuple[Deviation, ...]] = {
    **dict.fromkeys(("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"), _SUMS),
    "AveragePool": _POOLS, "LpPool": _POOLS, "MaxPool": _POOLS,
    "Celu": (Deviation("it subtracts 1 from e^x, and so loses the digits of small numbers", lambda node: True, onnx_text.celu),),
    "Clip": (Deviation("halves of opset 11 keep infinities where a bound is left out, those of later opsets do not",
                       lambda node: node.opset == 11 and node.inputs[0].dtype == np.float16, onnx_text.clipped),),
    "Col2Im": (Deviation("dilations of blocks of one and three axes count as strides",
                         lambda node: len(node.inputs[1]) != 2 and _dilated(node), onnx_text.folded),),
    "Dropout": (Deviation("in inference the mask is empty before opset 12, later, as in the text, full",
                          lambda node: node.opset < 12, onnx_text.kept),),
    "GRU": _RECURRENT, "LSTM": _RECURRENT, "RNN": _RECURRENT,
    "GroupNormalization": (Deviation("until opset 20 the variance is a difference of squares, of halves in halves",
                                     lambda node: node.opset < 21, onnx_text.of_groups),),
    "MeanVarianceNormalization": (Deviation("it takes the root of a difference of squares, below 0 where an axis is constant",
                                            lambda node: 1 in node.inputs[0].shape, onnx_text.normalised),),
    "Resize": (Deviation("align_corners by scales to no whole size: it rounds the length, ONNX's tests do not", _parts,
                         onnx_text.resized),
               Deviation("the middle of half_pixel_symmetric is rounded, so that its nearest pixel may be another one",
                         lambda node: _rule(node) == b"half_pixel_symmetric" and node.attributes.get("mode", b"nearest") == b"nearest",
                         onnx_text.symmetric),
               Deviation("axes that keep their sizes are not cropped", lambda node: _rule(node) == b"tf_crop_and_resize",
                         onnx_text.reference),
               Deviation("antialiasing has coordinates of its own, half_pixel's, whatever the rule",
                         lambda node: bool(node.attributes.get("antialias")) and _rule(node) != b"half_pixel", onnx_text.reference)),
    "ReduceLogSumExp": (Deviation("whole numbers are rounded before they are added", lambda node: node.inputs[0].dtype.kind in "iu",
                                  onnx_text.log_sum_exp),),
    "Shrink": (Deviation("whole numbers are shrunk as float32", lambda node: node.inputs[0].dtype.kind in "iu", onnx_text.shrunk),),
    "Sigmoid": (Deviation("far below 0 it has few digits, by a formula whose error is absolute", lambda node: True, onnx_text.sigmoid),),
    "Sign": (Deviation("the sign of NaN in float16 is 0", lambda node: bool(np.isnan(node.inputs[0]).any()), onnx_text.signs),),
    "Softplus": (Deviation("e^x overflows from opset 18 on", lambda node: node.opset >= 18, onnx_text.softplus),),
}  # fmt: skip
