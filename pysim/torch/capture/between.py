# SPDX-License-Identifier: Apache-2.0
"""The expected time on a GPU of what a graph computes between its layers: by PyTorch's operators one by one, and fused by its compiler.

    one by one   sum over operators of max(launch, (what it reads + what it writes) / bandwidth, elements x cycles of the kernel)
    fused        sum over kernels of `compiler_seconds.fused_seconds`, where a kernel is a set of connected operators of one level
    attention    in both by `layers.attention_seconds`
    level(x)     the largest of its inputs' levels; one more behind a layer, a library's call, a reduction of images, a long concatenation

The compiler computes operators of one level in one kernel. It reads each value from outside once, and writes those that other kernels,
layers or the caller read. Views take no time; reshapes and shuffles that need new memory are copies.

Worked number: an activation, a product and an addition move 8 values of the same size one by one, fused 4.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from pysim.cachemodel.gpu.windows import SECTOR_BYTES
from pysim.machine.gpu import Gpu
from pysim.network.fusion import InputOp
from pysim.network.graph import Node
from pysim.torch.capture.effects import Effects, is_pure, name_of_operator
from pysim.torch.capture.nodes import WEIGHTED_OPS, joined_channels
from pysim.torch.layers.attention_seconds import attention_seconds, tensor_core_seconds
from pysim.torch.layers.compiler_seconds import fused_seconds
from pysim.torch.layers.pytorch_seconds import HOST_SECONDS
from pysim.torch.precision import NAMES

# Calls of libraries, with which the compiler fuses nothing
_LIBRARY_CALLS = {
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "matmul", "mm", "bmm", "addmm",
    "baddbmm", "scaled_dot_product_attention", "tensor_core_attention", "multi_head_attention_forward",
}  # fmt: skip
# PyTorch's kernels for these need NCHW: beside their three passes, images that layers leave channels last are converted before and after
_IN_NCHW = ("group_norm", "instance_norm")
# Their results are known only after all of the image was read. Those of rows (layer norms, softmax) are computed where the row is read
_OF_IMAGES = (*_IN_NCHW, "adaptive_avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool3d", "mean", "sum", "amax", "norm", "var", "std")
_SHUFFLES = ("pixel_shuffle", "pixel_unshuffle")
_JOINING = ("cat", "concat", "concatenate")
_JOINED = 8  # parts that Inductor joins where it reads them (max_pointwise_cat_inputs); more are copied


# Of images that are channels last, few multiprocessors sum
_MEANS = ("adaptive_avg_pool2d", "mean", "sum")
# Launches that passes take as long as at least. On an H200 17 means of an EfficientNet took 9.2 us each, a ViT's layer norms 3.7, factors
# of gates 4.5
_LAUNCHES = {**dict.fromkeys(_MEANS, 4), **dict.fromkeys(("layer_norm", "rms_norm"), 2)}
_PROLOGUE_LAUNCHES = 2
# Cycles of a multiprocessor for each element (of what is larger, the input or the result) in PyTorch's kernels that find each element's
# place by itself, in images that are channels last: eight float16 networks of batch 16 on an H200 (lab/data/h200/models-compilers.jsonl)
_INDEXED = {
    **dict.fromkeys(_SHUFFLES, 2.1), **dict.fromkeys(_JOINING, 0.6), **dict.fromkeys(_IN_NCHW, 4.2),
    **dict.fromkeys(_MEANS, 0.5), "avg_pool2d": 1.0, **dict.fromkeys(("interpolate", "upsample"), 1.6),
}  # fmt: skip
_BROADCAST = 0.7  # the same of two tensors of different shapes
_PARTS_SHARE = 0.75  # of the bandwidth, in the pass that reads parts in place: 0.70 to 0.81 (lab/data/h200/norms.jsonl)


class Between(NamedTuple):
    """Seconds: by PyTorch's operators one by one, and fused by a compiler. `kernels`: the elements over which each kernel of the compiler's
    runs, and the bytes that it reads and writes."""

    alone: float
    fused: float
    kernels: Sequence[tuple[int, int]]


def seconds_between(
    graph: fx.Graph, alone: Sequence[Node], fused: Sequence[Node], effects: Effects, on: Gpu, in_cuda_graph: bool
) -> Between:
    """`alone`, `fused`: the graph's operators as each way has them, with what layers absorb."""
    least, bandwidth = on.model.pass_seconds.value, on.memory_bytes_per_second.value
    each = least if in_cuda_graph else HOST_SECONDS
    a_cycle = 1 / (on.sms.value * on.frequency_hz.value)
    kernels, calls = _kernels(_Rest(graph, fused, effects)), [_attention_seconds(node, on) for node in graph.nodes]
    return Between(
        sum(by_pytorch for by_pytorch, _ in calls)
        + sum(
            max(each, launches * least, moved / bandwidth, cycles * a_cycle)
            for moved, cycles, launches in _work_alone(_Rest(graph, alone, effects), alone)
        ),
        sum(compiled for _, compiled in calls) + sum(fused_seconds(*kernel, on) for kernel in kernels),
        kernels,
    )


def _attention_seconds(node: fx.Node, on: Gpu) -> tuple[float, float]:
    """By PyTorch's kernel, and in a graph that is compiled; 0 for other operators."""
    name = name_of_operator(node) if node.op == "call_function" else ""
    if name not in ("scaled_dot_product_attention", "tensor_core_attention"):
        return 0.0, 0.0
    names = ("query", "key", "value", "attn_mask")
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    query, key, _, mask = (given[name].meta.get("example_value") if isinstance(given.get(name), fx.Node) else None for name in names)
    if query is None or key is None or not (is_static(query) and is_static(key)):
        return 0.0, 0.0
    seconds = attention_seconds(query.shape, key.shape[-2], query.element_size(), mask is not None, on)
    return seconds, tensor_core_seconds(query.shape, key.shape[-2], on) if name == "tensor_core_attention" else seconds


def is_fused(node: fx.Node) -> bool:
    """Whether the compiler makes its own kernel for an operator, and so may compute the operator's input in it."""
    return node.op in ("call_function", "call_method") and name_of_operator(node) not in _LIBRARY_CALLS


def is_static(example: Any) -> bool:
    return isinstance(example, torch.Tensor) and all(type(size) is int for size in (*example.shape, *example.stride()))


def lies_apart(example: Any) -> bool:
    """Whether elements of other values lie between a tensor's, as between those of some channels, so that a layer's kernel reads a copy."""
    if not is_static(example):
        return False
    extent = 1 + sum((size - 1) * stride for size, stride in zip(example.shape, example.stride(), strict=True))
    return bool(example.numel() and extent != example.numel())


def may_overwrite_residual(node: Node, places: dict[str, fx.Node], order: dict[fx.Node, int], effects: Effects) -> bool:
    """Whether the other summand of the addition that reads a layer's result is a value of the same kind, in whose memory nothing reads
    later."""
    result, anchor = places[node.output], order[places[node.name]]
    (addition,) = result.users if len(result.users) == 1 else (None,)
    others = [one for one in addition.all_input_nodes if one is not result] if addition is not None else []
    if addition is None or len(others) != 1:
        return False
    examples = [one.meta.get("example_value") for one in (result, *others)]
    roots = effects.aliases[others[0]]
    if any(one.op in ("placeholder", "get_attr") for one in roots) or not all(map(is_static, examples)) or order[others[0]] > anchor:
        return False
    sharing = [one for one in order if order[one] < order[addition] and effects.aliases[one] & roots]
    alike = examples[0].shape == examples[1].shape and examples[0].dtype == examples[1].dtype
    return alike and all(order[user] < anchor for one in sharing for user in one.users if user is not addition)


def bytes_of(node: fx.Node) -> int:
    return sum(one.numel() * one.element_size() for one in _tensors_of(node))


def _tensors_of(node: fx.Node) -> list[Any]:
    example = node.meta.get("example_value")
    return [one for one in (example if isinstance(example, list | tuple) else [example]) if is_static(one)]


def _copies(node: fx.Node) -> bool:
    """Whether a view needs new memory, since its elements lie in another order."""
    tensors = [one.meta.get("example_value") for one in (node, *node.all_input_nodes[:1])]
    if len(tensors) < 2 or not all(map(is_static, tensors)):
        return False
    return bool(tensors[0].untyped_storage()._cdata != tensors[1].untyped_storage()._cdata)


class _Rest:
    """`kept`: a graph's operators that are neither layers nor absorbed by one, and that write memory. `views`: those that write none."""

    def __init__(self, graph: fx.Graph, nodes: Sequence[Node], effects: Effects) -> None:
        self.graph, places = graph, {node.name: node for node in graph.nodes}
        layers = {name for node in nodes if node.op in WEIGHTED_OPS for name in (node.name, *node.absorbed)}
        others = [one for one in graph.nodes if is_fused(one) and one.name not in layers]
        writing = {one for one in others if effects.owns(one) or not is_pure(one) or _copies(one)}
        self.kept = dict.fromkeys(places[node.name] for node in nodes if places[node.name] in writing)
        self.views = {*others} - writing

    def sources(self, node: fx.Node) -> Iterator[fx.Node]:
        """What an operator reads, behind views."""
        for one in node.all_input_nodes:
            yield from self.sources(one) if one in self.views else (one,)

    def readers(self, node: fx.Node) -> Iterator[fx.Node]:
        """What reads a value, also through views."""
        for one in node.users:
            yield from self.readers(one) if one in self.views else (one,)

    def ends_kernel(self, node: fx.Node) -> bool:
        """Whether what reads a value cannot be computed in the kernel that computes it."""
        if node.op in ("placeholder", "get_attr") or node in self.views:
            return False
        name = name_of_operator(node)
        return node not in self.kept or name in _OF_IMAGES or (name in _JOINING and len(node.all_input_nodes) > _JOINED)


def _work_alone(rest: _Rest, nodes: Sequence[Node]) -> Iterator[tuple[int, float, int]]:
    """The bytes that each operator reads and writes, those before a layer and copies for it included, the cycles of finding its elements,
    and how many launches it takes as long as at least."""
    places = {node.name: node for node in rest.graph.nodes}
    for node in nodes:
        if node.op in WEIGHTED_OPS and lies_apart(example := places[node.inputs[0]].meta.get("example_value")):
            yield 2 * bytes_of(places[node.inputs[0]]), _BROADCAST * example.numel(), 1
        if isinstance(absorbed := node.attributes.get("input_op"), InputOp):
            image = places[node.inputs[0]]
            yield 2 * bytes_of(image), 0.0, _PROLOGUE_LAUNCHES
            if absorbed.epsilon is None and any(one.element_size() < 4 for one in _tensors_of(image)):
                yield 0, 0.0, 1  # the factor is cast to float32 first: 2.3 us each in a RegNetY on an H200
    for place in rest.kept:
        name, examples = name_of_operator(place), [one.meta.get("example_value") for one in (place, *place.all_input_nodes)]
        shapes = [one.shape for one in examples if is_static(one) and one.dim()]
        again = 5 * bytes_of(place) if name in _IN_NCHW else 0
        broadcasts = len(shapes) > 2 and len({*shapes[1:]}) > 1 and shapes[0] in shapes[1:]
        cycles = _INDEXED.get(name, _BROADCAST if broadcasts else 0.0) * max((shape.numel() for shape in shapes), default=0)
        moved = sum(map(bytes_of, place.all_input_nodes)) + bytes_of(place) + again
        if _is_joined_here(place):
            moved, cycles = int(moved / _PARTS_SHARE), 0.0
        yield moved, cycles, _LAUNCHES.get(name, 1)


def _is_joined_here(node: fx.Node) -> bool:
    """Whether a concatenation is one pass of the library (`layers.concatenations`)."""
    examples = [one.meta.get("example_value") for one in joined_channels(node) or ()]
    return bool(examples) and all(is_static(one) and one.dim() == 4 and one.dtype in NAMES for one in examples)


def _kernels(rest: _Rest) -> list[tuple[int, int]]:
    """The elements over which each kernel of a compiler runs, and the bytes that it reads and writes."""
    level = dict[fx.Node, int]()
    for node in rest.graph.nodes:
        level[node] = max((level[one] + rest.ends_kernel(one) for one in node.all_input_nodes), default=0)
    kernels = {node: {node} for node in rest.kept}  # the operators of its kernel
    for node in rest.kept:
        for one in rest.sources(node):
            if level[one] == level[node] and one in kernels and kernels[one] is not kernels[node]:
                kernels[one] |= kernels[node]
                kernels |= dict.fromkeys(kernels[node], kernels[one])
    found = []
    for together in {id(one): one for one in kernels.values()}.values():
        read = {one for node in together for one in rest.sources(node)} - together
        written = [node for node in together if not together.issuperset(rest.readers(node))]
        elements = max((one.numel() for node in (*read, *together) for one in _tensors_of(node)), default=0)
        found.append((elements, sum(map(bytes_of, (*read, *written))) + sum(map(_read_again, together))))
    return found


def _read_again(node: fx.Node) -> int:
    """The bytes that an operator of a compiler moves beside its values: an image once more for statistics; whole sectors for shuffled
    pixels, whose neighbours lie some channels apart in images that are channels last."""
    name = name_of_operator(node)
    if name in _SHUFFLES:
        channels = [one.meta["example_value"].shape[-3] for one in (node, node.all_input_nodes[0])]
        apart = max(channels) // max(1, min(channels))
        return (min(apart, SECTOR_BYTES // node.meta["example_value"].element_size()) - 1) * bytes_of(node)
    return bytes_of(node) if name in _IN_NCHW else 0
