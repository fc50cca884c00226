# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose results are shuffled to pixels, with the filters of a pixel as neighbours.

    pixel_shuffle(conv(x, w), r): filter f r^2 + i r + j of a pixel is channel f of its pixel (i, j)

Of an image that is channels last the compiler would read each result r^2 channels from the last one. Of filters in the order (i, j, f) it
moves runs of all channels of a pixel. Those are made where such a run fills a sector of memory.

Worked number: 64 -> 256 channels and a shuffle by 2, float16: runs of 128 bytes, where two bytes of eight were read.
"""

from typing import Any

from torch import fx

from pysim.cachemodel.gpu.windows import SECTOR_BYTES
from pysim.network.graph import Node
from pysim.torch.capture.between import is_static
from pysim.torch.capture.effects import Effects, name_of_operator
from pysim.torch.layers.fused_layer import FusedLayer


def with_shuffle(node: Node, layer: FusedLayer, places: dict[str, fx.Node], effects: Effects) -> tuple[Node, FusedLayer] | None:
    """The node and the layer with the shuffle that alone reads its result; None if there is none, or the layer's filters stay in order."""
    result = places[node.output]
    shuffle = next(iter(result.users)) if len(result.users) == 1 else result
    if name_of_operator(shuffle) != "pixel_shuffle" or shuffle.all_input_nodes != [result] or not effects.may_move(shuffle):
        return None
    examples: Any = [one.meta.get("example_value") for one in (result, shuffle)]
    geometry = layer.geometry
    plain = layer.kind == "Conv" and geometry.is_plain and geometry.groups == 1 and not layer.only_compiled and layer.input_op is None
    if not plain or layer.reproducible or "add" in layer.replaced or not all(is_static(one) and one.dim() == 4 for one in examples):
        return None
    if examples[1].shape[1] * examples[1].element_size() < SECTOR_BYTES:
        return None
    by = examples[1].shape[2] // examples[0].shape[2]
    geometry = geometry._replace(shuffled=by)
    made = FusedLayer(layer.name, "Conv", geometry, layer.activation, layer.epsilon, scaled=layer.scaled, times=layer.times)
    made.accuracy, made.in_cuda_graph, made.alone_seconds = layer.accuracy, layer.in_cuda_graph, layer.alone_seconds
    return node._replace(outputs=(shuffle.name,), absorbed=(*node.absorbed, shuffle.name)), made
