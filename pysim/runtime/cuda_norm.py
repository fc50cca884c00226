# SPDX-License-Identifier: Apache-2.0
"""Norms between products as one pass over memory (`pysim_cuda_norm`, native/cuda/norm): of rows of channels, which lie last."""

from collections.abc import Sequence
from typing import NamedTuple

from pysim.registry.cuda import cuda_limits
from pysim.runtime import cuda

DTYPES = ("f32", "f16", "bf16")


class Norm(NamedTuple):
    """y = f(scale (x - center) + shift) by channels of a concatenation's `parts`, or `by_rows`, each of its own mean and variance; f is
    max(., 0) with `relu`. Parameters are device pointers of an f32 value a channel, or 0."""

    dtype: str
    result: str
    rows: int
    parts: tuple[int, ...]  # channels of each
    center: int = 0
    scale: int = 0
    shift: int = 0
    relu: bool = False
    by_rows: bool = False
    epsilon: float = 0.0
    image_rows: int = 0  # of an image, where each has a scale of its own

    @property
    def taken(self) -> bool:
        """Whether the library takes it, as far as types and sizes tell."""
        most = cuda_limits()
        types = self.dtype in DTYPES and self.result in DTYPES and (self.dtype == self.result or "f32" in (self.dtype, self.result))
        channels = most["NORM_ROW"] if self.by_rows else most["NORM_CHANNELS"]
        return types and len(self.parts) <= _most_parts() and 0 < sum(self.parts) <= channels and 0 < self.rows <= most["NORM_ROWS"]


def _most_parts() -> int:
    return int(cuda.library()[1].PYSIM_CUDA_PARTS)


class NormLaunch:
    """What runs of one norm have in common."""

    def __init__(self, norm: Norm) -> None:
        ffi, lib = cuda.library()
        kind = lib.PYSIM_NORM_ROWS if norm.by_rows else lib.PYSIM_NORM_CHANNELS
        pointers = {name: ffi.cast("void *", getattr(norm, name)) for name in ("center", "scale", "shift")}
        types = {"dtype": cuda.dtype_code(norm.dtype), "out_dtype": cuda.dtype_code(norm.result)}
        sizes = {
            "rows": norm.rows,
            "parts": len(norm.parts),
            "channels": norm.parts,
            "relu": norm.relu,
            "epsilon": norm.epsilon,
            "image_rows": norm.image_rows,
        }
        self.norm = ffi.new("pysim_cuda_norm *", {"kind": kind, **types, **sizes, **pointers})
        self._at = ffi.typeof("void *[]")

    def run(self, parts: Sequence[int], result: int, stream: int) -> None:
        """Puts it on a stream: parts and result by pointer."""
        ffi, lib = cuda.library()
        at = ffi.new(self._at, [ffi.cast("void *", one) for one in parts])
        cuda.check(lib.pysim_cuda_normalize(self.norm, at, ffi.cast("void *", result), ffi.cast("void *", stream)))
