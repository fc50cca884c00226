# SPDX-License-Identifier: Apache-2.0
"""Convolutions of an image that is upsampled to its nearest pixels first, as convolutions of the image itself.

    y = conv(upsampled(x), w)   ->   y = transposed conv(x, w summed over the taps that read one pixel)

The large image is neither written nor read, and taps that read the same pixel are one multiplication (`layers.conv_forms`). Sums of 16-bit
weights are rounded to that type once, like weights that a norm is folded into.

Worked number: a decoder's 256 -> 256 channels, 3x3, behind an upsampling to 64x64, batch 16, float16: 34 GFLOP in place of 77, and 34 MB
less are written and read; 88 us are predicted on an H200 in place of 125.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import fx
from torch.nn import functional

from pysim.machine.gpu import Gpu
from pysim.network.graph import Node
from pysim.torch.capture.between import is_fused, is_static
from pysim.torch.capture.effects import Effects, written_by
from pysim.torch.layers.compiler_seconds import fused_seconds
from pysim.torch.layers.conv_forms import Geometry
from pysim.torch.layers.fused_layer import FusedLayer

_ARGUMENTS = ("input", "size", "scale_factor", "mode")
_MODES = ("nearest", "nearest-exact")


def factors_of(node: fx.Node) -> tuple[int, ...]:
    """By how much an operator repeats the pixels of its input along each axis; () if it does something else."""
    given = dict(zip(_ARGUMENTS, node.args, strict=False)) | node.kwargs
    if node.op != "call_function" or node.target is not functional.interpolate or given.get("mode", "nearest") not in _MODES:
        return ()
    small: Any
    large: Any
    small, large = (one.meta.get("example_value") if isinstance(one, fx.Node) else None for one in (given.get("input"), node))
    if not (is_static(small) and is_static(large)) or small.dtype is not large.dtype or not small.numel():
        return ()
    sizes = [*zip(small.shape[2:], large.shape[2:], strict=True)]
    scales = given.get("scale_factor")
    factors = tuple(after // before for before, after in sizes)
    named = factors if scales is None else (scales,) * len(sizes) if isinstance(scales, int | float) else tuple(scales)
    repeats = all(before * by == after and _repeats(after, by) for (before, after), by in zip(sizes, factors, strict=True))
    return factors if repeats and named == factors else ()


def _repeats(size: int, by: int) -> bool:
    """Whether PyTorch's places, floor(i / by) and floor((i + 1/2) / by) by a float32 factor, are those of repeated pixels."""
    at = np.arange(size, dtype=np.float32)
    scale = np.float32(1 / by)
    return all(np.array_equal(np.floor(places * scale), np.arange(size) // by) for places in (at, at + np.float32(0.5)))


def of_small_image(
    node: Node, layer: FusedLayer, kernel: Sequence[int], places: dict[str, fx.Node], effects: Effects
) -> tuple[Node, FusedLayer] | None:
    """The node and the layer that read the image itself; None if the layer reads no upsampled image or cannot. `kernel`: the taps along
    each axis. `effects`: of the graph, in which nothing may write to either image before the layer has read it."""
    upsampling, order = places[node.inputs[0]], {one: at for at, one in enumerate(places.values())}
    factors = factors_of(upsampling) if layer.kind == "Conv" and "add" not in layer.replaced else ()
    geometry = Geometry.of_upsampled(layer.geometry, factors, kernel) if factors else None
    if geometry is None or layer.input_op is not None or layer.accuracy in ("ieee", "reproducible"):  # weights are rounded once more
        return None
    small, first, last = upsampling.all_input_nodes[0], order[upsampling], order[places[node.name]]
    read = effects.aliases[small] | effects.aliases[upsampling]
    between = [one for one in places.values() if first < order[one] < last]
    if any(effects.aliases[to] & read for one in between for to in written_by(one)) or not effects.may_move(upsampling):
        return None
    made = FusedLayer(layer.name, "Conv", geometry, layer.activation, layer.epsilon, scaled=layer.scaled, times=layer.times)
    made.accuracy, made.in_cuda_graph, made.only_compiled = layer.accuracy, layer.in_cuda_graph, True
    return node._replace(inputs=(small.name, *node.inputs[1:])), made


def upsampling_seconds(upsampling: fx.Node, on: Gpu) -> tuple[float, float]:
    """What the compiler takes to write the large image, if only one layer reads it, and to write the small one, if it would have computed
    that only where it writes the large one."""
    small: Any = upsampling.all_input_nodes[0]
    sizes = [one.meta["example_value"].numel() for one in (small, upsampling)]
    each = small.meta["example_value"].element_size()
    alone = len(upsampling.users) == 1
    only_here = alone and len(small.users) == 1 and is_fused(small)
    written = fused_seconds(sizes[1], sum(sizes) * each, on) if alone else 0.0
    return written, fused_seconds(sizes[0], 2 * sizes[0] * each, on) if only_here else 0.0
