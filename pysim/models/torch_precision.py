# SPDX-License-Identifier: Apache-2.0
"""In which types the layers of a PyTorch model may be multiplied: those that PyTorch's own operators would take here.

    float32           f32, and on a GPU tf32 beside it, where the program allows TF32 (torch.backends) or asks for accuracy "tf32"
    float64           f64
    float16, bfloat16 f16, bf16, on a GPU; and so any of float32, float16, bfloat16 under autocast to it

Under accuracy "ieee" TF32 is left out whatever the program allows. A result has the type that PyTorch's has: that of its operands.
"""

from typing import Any, Literal, NamedTuple

import torch

from pysim.record.accuracy import ACCURACIES, Accuracy

ModelAccuracy = Literal["standard", "strict", "ieee", "tf32"]
MODEL_ACCURACIES: tuple[ModelAccuracy, ...] = (*ACCURACIES, "tf32")
TENSORS = {"f32": torch.float32, "tf32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
HALF = (torch.float16, torch.bfloat16)

# Of PyTorch 2.9 and later, whose older settings cannot be read once the newer ones were set
_precision = getattr(torch._C, "_get_fp32_precision_getter", None)


def tf32(kind: str) -> bool:
    """Whether PyTorch may multiply float32 as TF32 on a GPU, as the program has set it."""
    if _precision is not None:
        return bool(_precision("cuda", "matmul" if kind == "Linear" else "conv") == "tf32")
    return bool(torch.backends.cuda.matmul.allow_tf32 if kind == "Linear" else torch.backends.cudnn.allow_tf32)


class Settings(NamedTuple):
    """What the program has set that types on a GPU follow; `cast` is autocast's type, None without it."""

    conv: bool
    linear: bool
    cast: Any


def settings() -> Settings:
    cast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return Settings(tf32("Conv"), tf32("Linear"), cast)


def types_of(x: Any, w: Any, kind: str, accuracy: ModelAccuracy, told: Settings) -> tuple[str, ...]:
    """The types that a layer of `kind` may be multiplied as here, the fastest first; none where no kernel takes its operands."""
    if not x.is_cuda:
        return (NAMES[x.dtype],) if x.dtype == w.dtype and x.dtype in NAMES and x.dtype not in HALF else ()
    if told.cast is not None and {x.dtype, w.dtype} <= {torch.float32, *HALF}:
        return (NAMES[told.cast],) if told.cast in HALF else ()
    if x.dtype != w.dtype or x.dtype not in NAMES:
        return ()
    allowed = accuracy == "tf32" or (accuracy != "ieee" and (told.linear if kind == "Linear" else told.conv))
    return ("tf32", "f32") if x.dtype == torch.float32 and allowed else (NAMES[x.dtype],)


def planned(accuracy: ModelAccuracy) -> Accuracy:
    """What plans of each type are asked for."""
    return "strict" if accuracy == "tf32" else accuracy
