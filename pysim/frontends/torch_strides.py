# SPDX-License-Identifier: Apache-2.0
"""Strides: layers on a GPU leave images channels last whatever PyTorch's would be, which no operator of PyTorch minds but code that looks
at strides or takes views. Where such code may see a value, it gets the strides that PyTorch's operators would have given it; the fake
tensors of the capture tell them.

Worked number: 2 images of 8 channels, 4x4, have strides (128, 16, 4, 1) in PyTorch and (128, 1, 32, 8) channels last.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def with_strides(x: Any, strides: Any) -> Any:
    """x with these strides, or in this memory format; x itself if it has them."""
    if not isinstance(strides, tuple):
        return x.contiguous(memory_format=strides)
    if x.stride() == strides:
        return x
    if all(size == 1 or step == wanted for size, step, wanted in zip(x.shape, x.stride(), strides, strict=True)):
        return x.as_strided(x.shape, strides)
    return torch.empty_strided(tuple(x.shape), strides, dtype=x.dtype, device=x.device).copy_(x)


def restore_strides(module: fx.GraphModule, nodes: Iterable[fx.Node], only_results: bool = False) -> None:
    """Gives these values PyTorch's strides for all of their readers, or only as results of the graph."""
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    for node in nodes:
        strides = _strides(node.meta.get("example_value"))
        if strides is None:
            continue
        with module.graph.inserting_before(output) if only_results else module.graph.inserting_after(node):
            made = module.graph.call_function(with_strides, (node, strides))
        node.replace_all_uses_with(made, lambda user, made=made: user is output if only_results else user is not made)


def _strides(example: Any) -> Any:
    """The strides of a value in PyTorch: numbers, or a memory format where they depend on sizes that are known in each call only; None if
    nothing can differ or is known."""
    if not isinstance(example, torch.Tensor) or example.dim() < 2 or example.layout is not torch.strided:
        return None
    if all(type(one) is int for one in (*example.shape, *example.stride())):
        return tuple(example.stride()) if _is_dense(example) else None
    for form in _FORMATS:
        if (form is torch.contiguous_format or example.dim() == (4 if form is torch.channels_last else 5)) and example.is_contiguous(
            memory_format=form
        ):
            return form
    return None


def _is_dense(x: Any) -> bool:
    """Whether its elements fill a piece of memory, each element one place of it."""
    span = 1
    for step, size in sorted((step, size) for step, size in zip(x.stride(), x.shape, strict=True) if size != 1):
        if step != span:
            return False
        span *= size
    return True
