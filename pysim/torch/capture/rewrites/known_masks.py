# SPDX-License-Identifier: Apache-2.0
"""Masks of attention that a graph computes from sizes alone, where they say what PyTorch's attention knows without a mask.

    every key for every query         no mask
    query i sees keys up to i         is_causal=True

transformers makes such masks of `arange` for encoders and decoders without padding. With a mask, PyTorch takes slower kernels: 6 heads of
197 tokens and 64 channels, 16 images, float16, take 31 us on an H200 and 12 without; 16 heads of 256 tokens 37, and 17 with `is_causal`.

In FP32 where TF32 is allowed, a mask whose rows are not contiguous makes PyTorch multiply on tensor cores, which its kernels for attention
do not; it stays where that is expected to be faster (`layers.attention_seconds`).

A mask is computed once, when the graph is captured: it is the same in each call, as no value of the call enters it.
"""

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import functional

from pysim.calibration import host
from pysim.torch.capture.between import is_static
from pysim.torch.capture.effects import Effects, is_pure
from pysim.torch.capture.rewrites.attention_masks import has_contiguous_rows
from pysim.torch.layers.attention_seconds import attention_seconds, products_seconds, tensor_core_seconds
from pysim.torch.precision import tf32

_MOST = 1 << 26  # elements of a mask that is computed: 64 MiB of Booleans
_PLACES = {"query": 0, "key": 1, "attn_mask": 3, "is_causal": 5}  # of arguments


def without_known_masks(graph: fx.Graph, effects: Effects, tensor_cores: bool = False) -> None:
    """`tensor_cores`: attention in FP32 may run there without a mask, too (`tensor_core_attention`)."""
    found = dict[fx.Node, Any]()
    for node in graph.find_nodes(op="call_function", target=functional.scaled_dot_product_attention):
        *_, mask, causal = _given(node)
        if not isinstance(mask, fx.Node) or causal or not is_static(example := mask.meta.get("example_value")) or not _keeps_shape(node):
            continue
        if _multiplies_faster(node, example, tensor_cores):
            continue
        if mask not in found:
            found[mask] = _known(mask, effects) if 0 < example.numel() <= _MOST else None
        if found[mask] is not None:
            _set(node, "attn_mask", None)
            _set(node, "is_causal", found[mask])
    for mask in found:
        _erase_unread(graph, mask)


def _given(node: fx.Node) -> list[Any]:
    return [node.kwargs.get(name, node.args[at] if len(node.args) > at else None) for name, at in _PLACES.items()]


def _multiplies_faster(node: fx.Node, mask: Any, tensor_cores: bool) -> bool:
    """Whether PyTorch's attention with this mask is products in TF32, which are expected to be faster than its kernel without a mask."""
    query, key = (one.meta.get("example_value") if isinstance(one, fx.Node) else None for one in _given(node)[:2])
    if (
        query is None
        or key is None
        or not (is_static(query) and is_static(key))
        or query.dtype is not torch.float32
        or not tf32("Linear")
        or has_contiguous_rows(mask)
    ):
        return False
    about, on = (query.shape, key.shape[-2]), host.gpu_here()
    without = attention_seconds(*about, query.element_size(), False, on)
    return products_seconds(*about, on) < (min(without, tensor_core_seconds(*about, on)) if tensor_cores else without)


def _keeps_shape(node: fx.Node) -> bool:
    """Whether a result has the queries' shape but for its channels, which a mask of more images could change."""
    result, query = node.meta.get("example_value"), _given(node)[0]
    asked: Any = query.meta.get("example_value") if isinstance(query, fx.Node) else None
    return bool(is_static(result) and is_static(asked) and result.shape[:-1] == asked.shape[:-1])


def _known(mask: fx.Node, effects: Effects) -> bool | None:
    """False: it hides nothing; True: what is_causal hides; None: neither, or it is not known."""
    sources = _sources(mask)
    if any(one.op not in ("call_function", "call_method") or not is_pure(one) or effects.aliases[one] & effects.written for one in sources):
        return None
    values = dict[fx.Node, Any]()
    try:
        with unset_fake_temporarily(), torch.no_grad():
            for one in sources:
                args, named = fx.node.map_arg((one.args, dict(one.kwargs)), values.__getitem__)
                values[one] = getattr(args[0], one.target)(*args[1:], **named) if one.op == "call_method" else one.target(*args, **named)
            value = values[mask]
            shown = value if value.dtype is torch.bool else torch.where(value == 0, True, False)
            if value.dtype is not torch.bool and not (shown | (value == -torch.inf)).all():
                return None
            if shown.all():
                return False
            return True if bool((shown == torch.ones_like(shown).tril()).all()) and shown.shape[-1] == shown.shape[-2] else None
    except (RuntimeError, TypeError, AttributeError):  # of an operator that needs what the capture has
        return None


def _sources(mask: fx.Node) -> list[fx.Node]:
    """The mask and all that it is computed from, in the order of the graph."""
    found, waiting = {mask}, [mask]
    while waiting:
        new = set(waiting.pop().all_input_nodes) - found
        found |= new
        waiting += new
    return [node for node in mask.graph.nodes if node in found]


def _set(node: fx.Node, name: str, value: Any) -> None:
    at = _PLACES[name]
    if len(node.args) > at:
        node.update_arg(at, value)
    else:
        node.update_kwarg(name, value)


def _erase_unread(graph: fx.Graph, mask: fx.Node) -> None:
    """Erases a mask that nothing reads any more, and what it alone read."""
    for node in reversed(_sources(mask)):
        if not node.users and node.op in ("call_function", "call_method") and is_pure(node):
            graph.erase_node(node)
