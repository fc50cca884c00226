# SPDX-License-Identifier: Apache-2.0
"""Where ONNX Runtime 1.32 itself does not follow ONNX's text (https://onnx.ai/onnx/operators/), by operator, each with its reason."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Deviation(NamedTuple):
    reason: str
    holds: Callable[[Mapping[str, Any], Sequence[Any], int], bool]  # (attributes, inputs, opset)


DEVIATIONS: dict[str, tuple[Deviation, ...]] = {}
