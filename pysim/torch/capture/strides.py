# SPDX-License-Identifier: Apache-2.0
"""Strides: layers on a GPU leave images channels last whatever PyTorch's would be, which no operator of PyTorch minds but code that looks
at strides or takes views. Where such code may see a value, it gets the strides that PyTorch's operators would have given it; the fake
tensors of the capture tell them.

Worked number: 2 images of 8 channels, 4x4, have strides (128, 16, 4, 1) in PyTorch and (128, 1, 32, 8) channels last.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

Numbers = tuple[int, ...]


def with_strides(x: Any, strides: Numbers) -> Any:
    """x with these strides; x itself if it has them."""
    if x.stride() == strides:
        return x
    if all(size == 1 or step == wanted for size, step, wanted in zip(x.shape, x.stride(), strides, strict=True)):
        return x.as_strided(x.shape, strides)
    return torch.empty_strided(tuple(x.shape), strides, dtype=x.dtype, device=x.device).copy_(x)


def in_order(x: Any, order: Numbers) -> Any:
    """x in dense memory with its dimensions in this order, the outermost first; x itself if it lies so."""
    strides, span = [0] * x.dim(), 1
    for at in reversed(order):
        strides[at] = span
        span *= max(1, x.shape[at])
    return with_strides(x, tuple(strides))


_KEEP = {  # operators whose results have the strides that a trace tells if their input has
    "chunk", "expand", "flatten", "getitem", "movedim", "permute", "reshape", "split", "squeeze", "t", "transpose", "unsqueeze", "view",
}  # fmt: skip


def keeps_strides(node: fx.Node) -> bool:
    """Whether a value has the strides that the trace tells: an input, a view of one, what is contiguous."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op in ("placeholder", "get_attr") or name in ("contiguous", "linear"):
        return True
    return node.op.startswith("call") and name in _KEEP and all(map(keeps_strides, node.all_input_nodes[:1]))


def restore_strides(module: fx.GraphModule, nodes: Iterable[fx.Node], only_results: bool = False) -> None:
    """Gives these values PyTorch's strides for all of their readers, or only as results of the graph."""
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    for node in nodes:
        form = _form(node.meta.get("example_value"))
        if form is None:
            continue
        with module.graph.inserting_before(output) if only_results else module.graph.inserting_after(node):
            made = module.graph.call_function(form[0], (node, form[1]))
        node.replace_all_uses_with(made, lambda user, made=made: user is output if only_results else user is not made)


def _form(example: Any) -> tuple[Callable[[Any, Numbers], Any], Numbers] | None:
    """What gives a value PyTorch's strides: numbers, or an order where they depend on sizes that are known in each call only. None if
    nothing can differ or is known."""
    if not isinstance(example, torch.Tensor) or example.dim() < 2 or example.layout is not torch.strided:
        return None
    shape, strides = ([_number(one) for one in sizes] for sizes in (example.shape, example.stride()))
    if None in shape or None in strides or not _is_dense(shape, strides):
        return None
    if all(type(one) is int for one in (*example.shape, *example.stride())):
        return with_strides, tuple(strides)
    return in_order, tuple(sorted(range(len(shape)), key=lambda at: (-strides[at], at)))


def _number(size: Any) -> Any:
    """A size in the call that was captured; None if that is not known. Strides of other calls have the same order."""
    return size if type(size) is int else size.node.hint


def _is_dense(shape: list[int], strides: list[int]) -> bool:
    """Whether a value's elements fill a piece of memory, each element one place of it."""
    span = 1
    for step, size in sorted((step, size) for step, size in zip(strides, shape, strict=True) if size != 1):
        if step != span:
            return False
        span *= size
    return True
