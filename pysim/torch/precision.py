# SPDX-License-Identifier: Apache-2.0
"""The types in which the layers of a PyTorch model may be multiplied: those that PyTorch's own operators would use.

    float32           f32; on a GPU also tf32, if the program allows TF32 (torch.backends) or requests accuracy "tf32"
    float64           f64
    float16, bfloat16 f16, bf16, on a GPU; also float32, float16 and bfloat16 operands under autocast to that type

Accuracy "ieee" excludes TF32 whatever the program allows. The result has the type of its operands, as PyTorch's has.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch

from pysim.problem.conv import Conv
from pysim.problem.text import Workload
from pysim.record.accuracy import ACCURACIES, Accuracy

ModelAccuracy = Literal["standard", "strict", "ieee", "reproducible", "tf32"]
MODEL_ACCURACIES: tuple[ModelAccuracy, ...] = (*ACCURACIES, "tf32")
TENSORS = {"f32": torch.float32, "tf32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
HALF = (torch.float16, torch.bfloat16)
# TF32's rounding does not average out in sums shorter than this, nor where an image has one result of a filter: with the last layer's alone
# DPN-68 has 2.1 times the error, ResNet-34d 1.22 times. PyTorch's library multiplies those in FP32 (H200, batch 16). FP32 may take longer
# by this factor
_SHORT, FP32_COST = 32, 1.3

# PyTorch 2.9 and later, where reading the older settings raises once the newer ones were set
_precision = getattr(torch._C, "_get_fp32_precision_getter", None)


def tf32(kind: str) -> bool:
    """Whether PyTorch may multiply float32 as TF32 on a GPU, as the program has set it."""
    if _precision is not None:
        return bool(_precision("cuda", "matmul" if kind == "Linear" else "conv") == "tf32")
    return bool(torch.backends.cuda.matmul.allow_tf32 if kind == "Linear" else torch.backends.cudnn.allow_tf32)


class Settings(NamedTuple):
    """The settings of the program that decide types on a GPU: TF32 allowed for `conv`, for `linear`; autocast's type, or None."""

    conv: bool
    linear: bool
    cast: Any


def settings() -> Settings:
    cast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return Settings(tf32("Conv"), tf32("Linear"), cast)


def is_plain_float32(tensors: Sequence[Any]) -> bool:
    """Whether PyTorch multiplies these as float32 on a GPU, neither as TF32 nor in a type of 16 bits."""
    now = settings()
    return not (now.conv or now.linear or now.cast is not None or any(one.dtype in HALF for one in tensors))


def types_of(x: Any, w: Any, kind: str, accuracy: ModelAccuracy, current: Settings) -> tuple[str, ...]:
    """The types in which a layer of `kind` may be multiplied, the fastest first; none if no kernel supports its operands."""
    if not x.is_cuda:
        return (NAMES[x.dtype],) if x.dtype == w.dtype and x.dtype in NAMES and x.dtype not in HALF else ()
    if current.cast is not None and {x.dtype, w.dtype} <= {torch.float32, *HALF}:
        return (NAMES[current.cast],) if current.cast in HALF else ()
    if x.dtype != w.dtype or x.dtype not in NAMES:
        return ()
    allowed = accuracy == "tf32" or (accuracy != "ieee" and (current.linear if kind == "Linear" else current.conv))
    return ("tf32", "f32") if x.dtype == torch.float32 and allowed else (NAMES[x.dtype],)


def errors_stay(problem: Workload, axes: int) -> bool:
    """Whether rounding operands to TF32 leaves errors that later sums and means do not make smaller: of short sums, and of layers with one
    result of a filter for an image, gates and those behind a pool. `axes`: of the layer's input."""
    if isinstance(problem, Conv):
        return problem.groups == 1 and (problem.products < _SHORT or problem.windows == 1)
    return axes == 2


def plan_accuracy(accuracy: ModelAccuracy) -> Accuracy:
    """The accuracy requested of plans, for any type."""
    return "strict" if accuracy == "tf32" else accuracy
