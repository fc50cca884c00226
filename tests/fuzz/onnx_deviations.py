# SPDX-License-Identifier: Apache-2.0
"""Where ONNX Runtime 1.32 itself does not follow ONNX's text (https://onnx.ai/onnx/operators/), by operator, each with its reason.

These hold for what `onnx_peer` generates, and are asked only where the results differ."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Attributes = Mapping[str, Any]
Inputs = Sequence[Any]


class Deviation(NamedTuple):
    reason: str
    holds: Callable[[Attributes, Inputs, int], bool]  # (attributes, inputs, opset)


def _states_no_threshold(given: Attributes, inputs: Inputs, opset: int) -> bool:
    """A ThresholdedRelu that the alphas do not reach."""
    names = [name.decode() for name in given.get("activations", ())]
    taking = [name for name in names if name in ("LeakyRelu", "ThresholdedRelu", "Affine", "ScaledTanh", "HardSigmoid", "Elu")]
    return "ThresholdedRelu" in taking[len(given.get("activation_alpha", ())) :]


def _parts(given: Attributes, inputs: Inputs, opset: int) -> bool:
    """Scales that lead to no whole sizes."""
    x, scales = inputs[0], inputs[2] if len(inputs) > 2 else None
    if scales is None or not scales.size or given.get("coordinate_transformation_mode") != b"align_corners":
        return False
    axes = given.get("axes", range(x.ndim))
    return any(np.float32(x.shape[axis]) * scale % 1 for axis, scale in zip(axes, scales, strict=True))


def _shapes(inputs: Inputs) -> list[tuple[int, ...]]:
    return [one.shape for one in inputs if one is not None]


_RECURRENT = (
    Deviation("a ThresholdedRelu without an alpha has 0, not the operator's default, 1", _states_no_threshold),
    Deviation("Softplus and what is made of it overflow", lambda given, inputs, opset: b"Softplus" in given.get("activations", ())),
)
DEVIATIONS: dict[str, tuple[Deviation, ...]] = {
    "Col2Im": (Deviation("dilations of blocks of one and three axes count as strides", lambda given, inputs, opset: (
        len(inputs[1]) != 2 and max(given.get("dilations", [1])) > 1)),),
    "Dropout": (Deviation("in inference the mask is empty before opset 12, later, as in the text, full",
                          lambda given, inputs, opset: opset < 12),),
    "GRU": _RECURRENT, "LSTM": _RECURRENT, "RNN": _RECURRENT,
    "MaxPool": (Deviation("padding by auto_pad leaves out dilations", lambda given, inputs, opset: (
        max(given.get("dilations", [1])) > 1 and given.get("auto_pad", b"").startswith(b"SAME"))),),
    "MeanVarianceNormalization": (Deviation("it takes the root of a difference of squares, below 0 where an axis is constant", (
        lambda given, inputs, opset: 1 in inputs[0].shape)),),
    "Resize": (Deviation("align_corners by scales to no whole size: it rounds the length, ONNX's tests do not", _parts),
               Deviation("nearest pixels of opset 10 are rounded up where the result is smaller; PyTorch rounds down",
                         lambda given, inputs, opset: opset == 10 and given.get("mode", b"nearest") == b"nearest"),
               Deviation("where the outer axes keep their sizes, they are not cropped", lambda given, inputs, opset: (
                   given.get("mode") != b"nearest" and given.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
                   and max(inputs[0].shape[:2]) > 1))),
    "ReduceLogSumExp": (Deviation("whole numbers are rounded before they are added", lambda given, inputs, opset: (
        inputs[0].dtype.kind in "iu")),),
    "Shrink": (Deviation("whole numbers are shrunk as float32", lambda given, inputs, opset: inputs[0].dtype.kind in "iu"),),
    "Sign": (Deviation("the sign of NaN in float16 is 0", lambda given, inputs, opset: bool(np.isnan(inputs[0]).any())),),
}  # fmt: skip
