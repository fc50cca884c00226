# SPDX-License-Identifier: Apache-2.0
"""Max pools of channels-last images (`pysim_cuda_pool`, native/cuda/pool)."""

from functools import lru_cache
from typing import Any, NamedTuple

from pysim.registry.cuda import cuda_limits
from pysim.runtime import cuda

DTYPES = ("f32", "f16", "bf16")


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
        cuda.check(lib.pysim_cuda_max_pool(_struct(self), ffi.cast("void *", x), ffi.cast("void *", y), ffi.cast("void *", stream)))


@lru_cache(maxsize=256)
def _struct(of: MaxPool) -> Any:
    pairs = {name: getattr(of, name) for name in ("out", "windows", "strides", "pads", "dilations")}
    about = {"dtype": cuda.dtype_code(of.dtype), "batch": of.batch, "channels": of.channels, "in": of.size}
    return cuda.library()[0].new("pysim_cuda_pool *", about | pairs)
