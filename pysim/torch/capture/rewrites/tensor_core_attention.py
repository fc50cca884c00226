# SPDX-License-Identifier: Apache-2.0
"""Attention in FP32 on tensor cores where the program allows TF32, by the kernel of PyTorch's compiler for flexible attention.

PyTorch's own attention multiplies FP32 exactly, whatever the program allows: 6 heads of 197 tokens and 64 channels, 16 images, take 52 us
on an H200, this kernel 20 and float16 12. It reads operands with any strides.

Triton gives FP32 numbers to tensor cores as they are, and these cut the bits that TF32 does not have: results were 7.0e-4 too small on an
H200, by cut probabilities and cut values, and scores too small as well. What is cut in the mean is therefore multiplied back, into the
scale of the scores and into the results; then a ViT's, DistilBERT's and Electra's errors are those of exact attention to within 0.2 %,
computed on a CPU with products cut and rounded as they are here.

A mask stays PyTorch's, which reads it in one kernel; `is_causal` is a comparison of places.
"""

from importlib import import_module
from math import log
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.flex_attention import flex_attention as flexible
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.functional import scaled_dot_product_attention

from pysim.machine.gpu import Gpu
from pysim.torch.capture.between import is_static
from pysim.torch.capture.effects import Effects
from pysim.torch.layers.attention_seconds import attention_seconds, tensor_core_seconds
from pysim.torch.layers.compiler_seconds import MARGIN
from pysim.torch.precision import ModelAccuracy, settings

_CHANNELS = range(16, 65)  # of a head: the kernel takes 16 and more; wider heads' tiles do not fit every GPU's shared memory
# Queries and keys of a tile, copies of keys in flight, warps: what PyTorch takes for 64 channels on an H100. 80 KiB of shared memory. And
# this kernel for few queries, too
_KERNEL = {"BLOCK_M": 128, "BLOCK_N": 32, "num_stages": 3, "num_warps": 4, "FORCE_USE_FLEX_ATTENTION": True}
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
# The share of a number that is cut below 2^-10 of its power of two, in the mean over mantissas whose logarithms are evenly distributed
CUT = 2.0**-11 / (2 * log(2))
_NEEDED = ("_apply_kernel_options", "_create_empty_block_mask", "_identity", "noop_mask")  # of PyTorch


def may_cut(effects: Effects, accuracy: ModelAccuracy) -> bool:
    """Whether a graph's attention may be in TF32, and the graph does not look at strides: its results' may be others than PyTorch's."""
    now = settings()
    allowed = accuracy == "tf32" or (accuracy != "ieee" and now.linear)
    return allowed and now.cast is None and not effects.needs_strides


def on_tensor_cores(module: fx.GraphModule, effects: Effects, accuracy: ModelAccuracy, on: Gpu) -> None:
    """Attention that is expected to be faster so."""
    if not may_cut(effects, accuracy):
        return
    blocks, graph = list[Any](), module.graph
    for node in graph.find_nodes(op="call_function", target=scaled_dot_product_attention):
        given = dict(zip(_ARGUMENTS, node.args, strict=False)) | node.kwargs
        if node in effects.unsettled or not _is_faster(given, on) or not all(hasattr(_pytorchs(), one) for one in _NEEDED):
            continue
        operands = [given.pop(name) for name in _ARGUMENTS[:3]]
        example = operands[0].meta["example_value"]
        if not blocks:
            with graph.inserting_before(next(one for one in graph.nodes if one.op != "placeholder")):
                blocks = _blocks(graph, example.device)
        scale = given.get("scale")
        scale = example.shape[-1] ** -0.5 if scale is None else scale
        node.target, node.kwargs = tensor_core_attention, {}
        node.args = (*operands, bool(given.get("is_causal", False)), scale, *blocks)


def _pytorchs() -> Any:
    """PyTorch's module of flexible attention, which nothing else of a capture imports."""
    return import_module("torch.nn.attention.flex_attention")


def _is_faster(given: dict[str, Any], on: Gpu) -> bool:
    examples: list[Any] = [one.meta.get("example_value") if isinstance(one, fx.Node) else None for one in map(given.get, _ARGUMENTS[:3])]
    if not all(is_static(one) and one.dim() == 4 and one.dtype is torch.float32 and one.numel() for one in examples):
        return False
    query, key, value = (tuple(one.shape) for one in examples)
    several = given.get("enable_gqa", False) is True and query[1] % key[1] == 0  # heads with the same keys
    same = query[0] == key[0] and key[:3] == value[:3] and query[3] == key[3] and (several or query[1] == key[1])
    plain = given.get("attn_mask") is None and given.get("dropout_p", 0.0) == 0.0
    known = isinstance(given.get("is_causal", False), bool) and isinstance(given.get("scale"), float | int | None)
    if not (same and plain and known and query[3] in _CHANNELS and value[3] in _CHANNELS):
        return False
    return tensor_core_seconds(query, key[2], on) * (1 + MARGIN) < attention_seconds(query, key[2], examples[0].element_size(), False, on)


def _blocks(graph: fx.Graph, device: Any) -> list[Any]:
    """What the kernel reads of a mask without blocks that are hidden: nodes of small tensors, and numbers."""
    with unset_fake_temporarily():
        real = torch.empty(1, 1, 1, 1)
        parts = _pytorchs()._create_empty_block_mask(real, real).as_tuple()[:-1]  # but the function that says what is hidden
    made = dict[Any, fx.Node]()
    for one in parts:
        if isinstance(one, torch.Tensor) and (kind := (tuple(one.shape), int(one.flatten()[0]))) not in made:
            made[kind] = graph.call_function(torch.full, kind, {"dtype": one.dtype, "device": device})
            made[kind].meta["example_value"] = one
    return [made[tuple(one.shape), int(one.flatten()[0])] if isinstance(one, torch.Tensor) else one for one in parts]


def tensor_core_attention(query: Any, key: Any, value: Any, is_causal: bool, scale: float, *blocks: Any) -> Any:
    """Attention of (images, heads, tokens, channels) that the compiler computes in TF32."""
    of = _pytorchs()
    options = of._apply_kernel_options(query, key, value, False, {"FLOAT32_PRECISION": "'tf32'"} | _KERNEL)
    options["OUTPUT_LOGSUMEXP"] = False  # which gradients need
    score = _of_earlier_keys if is_causal else of._identity
    y, *_ = flexible(query, key, value, score, (*blocks, of.noop_mask), scale * (1 + 2 * CUT), options)
    return y * (1 + 2 * CUT)


def _of_earlier_keys(score: Any, image: Any, head: Any, query: Any, key: Any) -> Any:
    return torch.where(query >= key, score, -float("inf"))
