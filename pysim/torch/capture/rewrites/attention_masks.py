# SPDX-License-Identifier: Apache-2.0
"""Masks of attention as the kernels of PyTorch's attention read them: with rows that are contiguous.

Where a mask says the same for all keys of a query, or was transposed, its rows are not contiguous. PyTorch then multiplies the queries and
keys of 16-bit types in float32, stores the products, and multiplies their softmax by the values in float32: four layers of BERT, 16 x 128
tokens in float16, took 41 us each for that on an H200, where a kernel of attention takes 6 to 14.
"""

from typing import Any

from torch import fx
from torch.nn import functional

from pysim.torch.capture.between import is_static
from pysim.torch.capture.effects import Effects
from pysim.torch.precision import HALF


def with_contiguous_rows(graph: fx.Graph, effects: Effects) -> None:
    """Copies the masks of attention in 16-bit types whose rows are not contiguous. One that several read is copied once, as nothing writes
    to it."""
    made = dict[fx.Node, fx.Node]()
    for node in graph.find_nodes(op="call_function", target=functional.scaled_dot_product_attention):
        mask, query = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None), node.args[0] if node.args else None
        if not isinstance(mask, fx.Node) or not isinstance(query, fx.Node):
            continue
        if effects.aliases[mask] & effects.written:
            continue
        of, example = query.meta.get("example_value"), mask.meta.get("example_value")
        if not is_static(of) or not is_static(example) or of.dtype not in HALF or has_contiguous_rows(example):
            continue
        if mask not in made:
            with graph.inserting_before(node):
                made[mask] = graph.call_method("contiguous", (mask,))
                made[mask].meta["example_value"] = example.contiguous()
        node.replace_input_with(mask, made[mask])


def has_contiguous_rows(mask: Any) -> bool:
    return bool(mask.dim() and (mask.shape[-1] == 1 or mask.stride(-1) == 1))
