# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few filters as products with the filters' taps, where PyTorch's compiler sums what they give.

    parts[t F + f] = sum over c of w[f, c, t] x[c]      for each pixel of x, tap t and filter f of F: a 1x1 convolution, in FP32
    y[f]           = sum over t of parts[t F + f], each read where tap t lies from the output, + bias

A kernel for the convolution itself reads each pixel once for each tap; a product reads it once. Sums are those of the convolution in
another order, and infinities and NaN reach the same outputs.

Worked number: 64 -> 3 channels, 3x3, 192x192, batch 16 in TF32: 189 us are predicted of the convolution on an H200, 59 of the product with
32 columns (27, and 5 of zeros, so that rows are whole vectors), 27 of the sum.
"""

from typing import Any

import torch
from torch.nn import functional

from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.text import Workload
from pysim.problem.windows import conv_of
from pysim.record.plan import Plan
from pysim.torch.layers.compiler_seconds import fused_seconds, own_seconds
from pysim.torch.layers.fused_layer import FusedLayer, Parameters

_VECTOR = 8  # columns: 16 bytes of 16-bit weights, 32 of FP32 results


class TapLayer(FusedLayer):
    """A convolution of images with neither norm, number, residual nor activation."""

    only_compiled = True

    @classmethod
    def of(cls, layer: FusedLayer) -> "TapLayer | None":
        """None if it is no such convolution, or of one tap."""
        geometry = layer.geometry
        bare = layer.kind == "Conv" and not layer.replaced and layer.input_op is None and not layer.reproducible
        if not bare or not geometry.is_plain or len(geometry.stride) != 2 or geometry.groups > 1:
            return None
        made = cls(layer.name, layer.kind, geometry, None, None)
        made.accuracy, made.in_cuda_graph = layer.accuracy, layer.in_cuda_graph
        return made

    def problem_of(self, x: Any, w: Any, dtype: str) -> Workload | None:
        """The product, as a 1x1 convolution."""
        if x.dim() != 4 or w[0, 0].numel() == 1:
            return None
        columns = -(-w.shape[0] * w[0, 0].numel() // _VECTOR) * _VECTOR
        return conv_of(x.shape, (columns, w.shape[1], 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, dtype)

    def gpu_operands(
        self, plan: Plan, key: Any, parameters: Parameters, form: Any, out: Any, by_filter: bool = False
    ) -> tuple[Any, Any, Any]:
        w, problem = parameters[0], plan.workload
        assert isinstance(problem, Conv)

        def compute() -> Any:
            taps = w.detach().permute(2, 3, 0, 1).reshape(-1, w.shape[1], 1, 1)
            return torch.cat([taps, taps.new_zeros(problem.filters - len(taps), *taps.shape[1:])])

        matrix = self.derived.get("taps", (w,), compute)
        return super().gpu_operands(plan, key, (matrix, *[None] * (len(parameters) - 1)), form, out, by_filter)

    def seconds(self, plan: Plan, taps: int, results: int, on: Gpu) -> float:
        """The product, whose results are FP32, and the sum of so many parts for each of so many results."""
        problem = plan.workload
        assert isinstance(problem, Conv)
        parts, size = problem.output_elements, SIZES[problem.dtype]
        more = parts * (SIZES["f32"] - size) / on.memory_bytes_per_second.value
        return own_seconds(plan, on, False) + more + fused_seconds(taps * results, parts * SIZES["f32"] + results * size, on)


def summed(parts: Any, bias: Any, filters: int, kernel: tuple[int, int], geometry: tuple[Any, ...], dtype: Any) -> Any:
    """The convolution's result from the parts; `geometry`: its stride, padding and dilation."""
    stride, padding, dilation = geometry
    around = functional.pad(parts, (padding[1], padding[1], padding[0], padding[0]))
    total: Any = bias if bias is None else bias.reshape(1, -1, 1, 1)
    for at in range(kernel[0] * kernel[1]):
        part = around.narrow(1, at * filters, filters)
        for axis, tap in enumerate(divmod(at, kernel[1])):
            first, size = tap * dilation[axis], around.shape[2 + axis] - dilation[axis] * (kernel[axis] - 1)
            part = part.narrow(2 + axis, first, size)
        part = part[:, :, :: stride[0], :: stride[1]]
        total = part if total is None else total + part
    return total.to(dtype)
