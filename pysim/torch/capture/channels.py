# SPDX-License-Identifier: Apache-2.0
"""Norms and products between a permutation of images to NHWC and one back to NCHW (ConvNeXt), as functions of the NCHW images.

On a GPU the images are channels last in memory, so without the permutations nothing remains between these layers.

    y = f(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)      f: layer_norm over one axis, linear, activations
"""

from collections.abc import Callable, Container
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from pysim.torch.layers.norm_layers import TO_NCHW, TO_NHWC


def linear_over_channels(x: Any, weight: Any, bias: Any = None) -> Any:
    return functional.linear(x.permute(TO_NHWC), weight, bias).permute(TO_NCHW)


def norm_over_channels(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return functional.layer_norm(x.permute(TO_NHWC), normalized_shape, weight, bias, eps).permute(TO_NCHW)


_OVER_CHANNELS: dict[Any, Callable[..., Any]] = {functional.linear: linear_over_channels, functional.layer_norm: norm_over_channels}


def without_permutes(module: fx.GraphModule, elementwise: Container[Any]) -> None:
    """Removes such pairs of permutations; `elementwise`: the functions that may stand between them."""
    for first in list(module.graph.nodes):
        if _permutation(first) != TO_NHWC:
            continue
        run = [first]
        while len(run[-1].users) == 1 and _permutation(run[-1]) != TO_NCHW:
            (user,) = run[-1].users
            if _permutation(user) != TO_NCHW and not _is_over_last_axis(user, run[-1], elementwise):
                break
            run.append(user)
        if _permutation(run[-1]) == TO_NCHW:
            _without_pair(module, run)


def _without_pair(module: fx.GraphModule, run: list[fx.Node]) -> None:
    """Applies the functions between two permutations to the input of the first."""
    first, *between, last = run
    at: Any = first.args[0]
    for node in between:
        with module.graph.inserting_before(node):
            function: Any = _OVER_CHANNELS.get(node.target, node.target)
            at = module.graph.call_function(function, (at, *node.args[1:]), node.kwargs)
            at.meta["nn_module_stack"] = node.meta.get("nn_module_stack")
    if between:
        at.meta["example_value"] = last.meta.get("example_value")
    last.replace_all_uses_with(at)
    for node in reversed(run):
        module.graph.erase_node(node)


def _is_over_last_axis(node: fx.Node, x: fx.Node, elementwise: Container[Any]) -> bool:
    """Whether a node is a function of x alone that is elementwise or works on the last axis."""
    if node.op != "call_function" or node.args[:1] != (x,) or node.all_input_nodes.count(x) != 1:
        return False
    if node.target is functional.layer_norm:
        shape = node.args[1] if len(node.args) > 1 else node.kwargs.get("normalized_shape")
        return isinstance(shape, list | tuple) and len(shape) == 1
    return node.target is functional.linear or node.target in elementwise


def _permutation(node: fx.Node) -> tuple[int, ...] | None:
    """The axes of a permutation; None for other nodes."""
    is_permute = (node.op, node.target) == ("call_method", "permute") or (node.op == "call_function" and node.target is torch.permute)
    if not is_permute or node.kwargs or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    axes: Any = node.args[1:]
    axes = axes[0] if len(axes) == 1 and isinstance(axes[0], list | tuple) else axes
    return tuple(axes) if all(isinstance(axis, int) for axis in axes) else None
