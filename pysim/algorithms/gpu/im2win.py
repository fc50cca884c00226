# SPDX-License-Identifier: Apache-2.0
"""im2win: products of tiles whose windows are slices of a tensor N C P R W. For each row of outputs it keeps the kernel_h input rows that
the row reads, column by column (arXiv 2306.14316, equation 2, extended by a stride). Fused rows gather the same slices from the input.

Worked number: conv:mb1ic64ih56oc64kh3ph1 keeps 64 x 56 rows of 58 x 3 elements in whole vectors, 176: 2,523,136 bytes.
"""

from functools import lru_cache

import msgspec

from pysim.algorithms.convolution import Rows, order_in_memory, order_of
from pysim.algorithms.gpu.direct import Direct
from pysim.algorithms.gpu.implicit import list_refuses
from pysim.cachemodel.gpu.copy_kernels import Pass
from pysim.cachemodel.gpu.launches import ALIGN, Variant, round_up
from pysim.cachemodel.gpu.mainloop import VECTOR_BYTES
from pysim.cachemodel.gpu.product_columns import Gather, gathered, in_vectors
from pysim.cachemodel.gpu.windows import Windows
from pysim.caches import lazy
from pysim.machine.gpu import Gpu
from pysim.record.cost import Reason
from pysim.registry.cuda import Attributes, cuda_limits

# Instructions of a gathered element, as in `implicit`; those of a vector of the tensor are assumed
GATHER_TENSOR, GATHER_FUSED = 4.0, 8.0
LARGEST_INT = (1 << 31) - 1


@lru_cache(maxsize=64)
def _of_tensor(windows: Windows) -> Windows:
    """Windows read from a tensor, the same object for all kernels."""
    return msgspec.structs.replace(windows, tensor=True)


class Im2win(Direct):
    """A convolution by slices of rows; the row without tiles is a direct convolution on the tensor."""

    @property
    def read(self) -> Windows:
        return _of_tensor(self.windows) if self.row.keeps_tensor else self.windows

    @property
    def order(self) -> str | None:
        """A tensor's windows have a column after the other."""
        if not self.tiles.rows:
            return None
        if not self.row.keeps_tensor:
            return order_in_memory(self.w, self.layout)
        return order_of(self.w, *(("columns", "rows", "channels") if self.layout == "nhwc" else ("channels", "columns", "rows")))

    @lazy
    def tensor_elements(self) -> int:
        """Elements of the tensor: for each row of outputs kernel_h rows, column by column, in whole vectors."""
        w, channels_last = self.w, self.windows.channels_last
        columns = (w.out_w - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1
        line = round_up(columns * w.kernel_h * (w.group_channels if channels_last else 1), VECTOR_BYTES // self.size)
        lines = w.batch * w.out_h * w.groups * (1 if channels_last else w.group_channels)
        return line * lines if line < LARGEST_INT and lines < LARGEST_INT // line else LARGEST_INT + 1

    @property
    def buffers(self) -> dict[str, int]:
        """Filters in the tensor's order, in whole vectors, and the tensor."""
        if not self.row.keeps_tensor:
            return {}
        filters = self.w.filters * round_up(self.k * self.size, VECTOR_BYTES)
        return {"filters": round_up(filters, ALIGN), "tensor": self.tensor_elements * self.size}

    def refusal(self) -> Reason | None:
        if not self.row.keeps_tensor:
            return list_refuses(self.w, self.layout)
        if self.row.tiles.rows and self.w.taps > (taps := cuda_limits()["TENSOR_TAPS"]):
            return Reason("shape", f"it takes kernels of up to {taps} taps")
        if self.tensor_elements > LARGEST_INT:
            return Reason("size", "it takes windows whose tensor has up to 2^31 - 1 elements")
        return None

    def variant(self, gpu: Gpu, known: dict[str, Attributes], prologue: bool = False) -> Variant:
        w, tiles, tensor, vector = self.w, self.tiles, self.row.keeps_tensor, VECTOR_BYTES // self.size
        if not tiles.rows:
            return msgspec.structs.replace(super().variant(gpu, known), passes=self.passes(gpu))
        by_vectors = in_vectors(w, self.layout)
        if tensor and not self.windows.channels_last:
            by_vectors = w.dilation_w == 1 and w.stride_w * w.kernel_h % vector == w.taps % vector == 0
        by_vectors, contiguous = by_vectors and tiles.vectors, self.windows.channels_last or tensor
        instructions, lines = GATHER_TENSOR if tensor else GATHER_FUSED, 1 if contiguous else w.stride_w
        gather = Gather(instructions, by_vectors, contiguous or not by_vectors, lines, not tiles.vectors)
        return self.tiled(gpu, known, gathered(gpu, self.row, tiles, gather), self.passes(gpu))

    def passes(self, gpu: Gpu) -> tuple[Pass, ...]:
        """Filters and tensor; a thread writes a vector of the tensor."""
        filters, instructions = self.w.filter_elements, gpu.model.passes.element_instructions.value
        read = {"filters": (filters * self.size, filters), "tensor": (self.windows.bytes, self.tensor_elements / 2)}
        return tuple(Pass(name, read[name][0], written, read[name][1] * instructions) for name, written in self.buffers.items())


ALGORITHM = Rows("im2win", Im2win, "tiles of filters x windows, each window a slice of a tensor of rows (arXiv 2306.14316)")
