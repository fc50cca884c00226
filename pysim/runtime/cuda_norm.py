# SPDX-License-Identifier: Apache-2.0
"""Norms and max pools as one pass over channels-last memory (`pysim_cuda_norm`, `pysim_cuda_group_norm`, native/cuda/norm;
`pysim_cuda_pool`, native/cuda/pool)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pysim.arguments import activation
from pysim.registry.cuda import cuda_limits, epilogues
from pysim.runtime import cuda

DTYPES = ("f32", "f16", "bf16")


class Norm(NamedTuple):
    """y = f(scale (x - center) + shift), where x is the concatenation of `parts` along its channels. `by_rows`: center and scale are the
    mean and 1 / standard deviation of each row. `relu`: f is max(., 0). Parameters are device addresses of one f32 value per channel, or
    0."""

    dtype: str
    result: str
    rows: int
    parts: tuple[int, ...]  # their channels
    center: int = 0
    scale: int = 0
    shift: int = 0
    relu: bool = False
    by_rows: bool = False
    epsilon: float = 0.0
    image_rows: int = 0  # rows (pixels) of an image if each image has its own scale, else 0

    @property
    def supported(self) -> bool:
        """Whether a kernel supports these types and sizes."""
        limits = cuda_limits()
        types = self.dtype in DTYPES and self.result in DTYPES and (self.dtype == self.result or "f32" in (self.dtype, self.result))
        channels = limits["NORM_ROW"] if self.by_rows else limits["NORM_CHANNELS"]
        return types and len(self.parts) <= _max_parts() and 0 < sum(self.parts) <= channels and 0 < self.rows <= limits["NORM_ROWS"]


def _max_parts() -> int:
    return int(cuda.library()[1].PYSIM_CUDA_PARTS)


class NormLaunch:
    """A norm as the library's struct."""

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
        self._pointers = ffi.typeof("void *[]")

    def run(self, parts: Sequence[int], result: int, stream: int) -> None:
        """Launches it on a stream; parts and result are addresses."""
        ffi, lib = cuda.library()
        addresses = ffi.new(self._pointers, [ffi.cast("void *", one) for one in parts])
        cuda.check(lib.pysim_cuda_normalize(self.norm, addresses, ffi.cast("void *", result), ffi.cast("void *", stream)))


class GroupNorm(NamedTuple):
    """y = f((x - mean) / sqrt(variance + epsilon) scale + shift + residual), where mean and variance are those of each group of channels of
    each of `images` images. `parameters`: the type of scale and shift, f32 or that of the images. `activation`: f, as plans have it."""

    dtype: str
    images: int
    pixels: int
    channels: int
    groups: int
    epsilon: float
    parameters: str = "f32"
    activation: Any = None

    @property
    def supported(self) -> bool:
        """Whether the current device has a kernel for these types and sizes."""
        if self.dtype not in DTYPES or self.parameters not in ("f32", self.dtype):
            return False
        return bool(cuda.library()[1].pysim_cuda_normalizes_groups(_group_struct(self, 0, 0, 0)) == 0)

    def run(self, x: int, result: int, scale: int, shift: int, residual: int, stream: int) -> None:
        """Launches it on a stream; all are addresses, and 0 where there is no scale, shift or residual. Raises PysimError."""
        ffi, lib = cuda.library()
        struct = _group_struct(self, scale, shift, residual)
        cuda.check(lib.pysim_cuda_normalize_groups(struct, ffi.cast("void *", x), ffi.cast("void *", result), ffi.cast("void *", stream)))


def _group_struct(of: GroupNorm, scale: int, shift: int, residual: int) -> Any:
    ffi, _ = cuda.library()
    number, low, high = activation(of.activation, epilogues())
    types = {"dtype": cuda.dtype_code(of.dtype), "parameters": cuda.dtype_code(of.parameters)}
    sizes = {name: getattr(of, name) for name in ("images", "pixels", "channels", "groups", "epsilon")}
    pointers = {"scale": scale, "shift": shift, "residual": residual}
    addresses = {name: ffi.cast("void *", at) for name, at in pointers.items()}
    return ffi.new("pysim_cuda_group_norm *", types | sizes | addresses | {"activation": number, "low": low, "high": high})


class MaxPool(NamedTuple):
    """Of `batch` images; pairs are of rows and columns. `pads`: before the first row and column."""

    dtype: str
    batch: int
    channels: int
    size: tuple[int, int]
    out: tuple[int, int]
    windows: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]

    @property
    def supported(self) -> bool:
        """Whether a kernel supports this type and these sizes."""
        most, images = cuda_limits()["CONV_TENSOR"], self.batch * self.channels
        sizes = [images * one[0] * one[1] for one in (self.size, self.out)]
        return self.dtype in DTYPES and min(sizes) > 0 and max(sizes) <= most

    def run(self, x: int, y: int, stream: int) -> None:
        """Launches it on a stream; x and y are addresses."""
        ffi, lib = cuda.library()
        cuda.check(
            lib.pysim_cuda_max_pool(_pool_struct(ffi, self), ffi.cast("void *", x), ffi.cast("void *", y), ffi.cast("void *", stream))
        )


@lru_cache(maxsize=256)
def _pool_struct(ffi: Any, of: MaxPool) -> Any:
    pairs = {name: getattr(of, name) for name in ("out", "windows", "strides", "pads", "dilations")}
    about = {"dtype": cuda.dtype_code(of.dtype), "batch": of.batch, "channels": of.channels, "in": of.size}
    return ffi.new("pysim_cuda_pool *", about | pairs)
