# SPDX-License-Identifier: Apache-2.0
"""Convolutions of volumes (N, C, D, H, W), after fusion: each as what it is, or as convolutions of images, whichever the plans and the
copies between the two forms say is faster. As images, a volume becomes D N images of C channels:

    y[d] = act(bias + residual[d] + sum over taps t of conv(x[d stride + t dilation - pad], w[:, :, t]))

Each tap t along the depth is one convolution of a batch of D N images; its residual is the sum over the taps before it. Images of zeros
before and after the volume are the padding of the depth. Between two convolutions a volume stays images.

Worked number: 3 x 3 x 3 taps over 8 images of a volume, padded by one on every side, are three 3x3 convolutions of batch 8.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from pysim.network.fusion import RESIDUAL_INPUT
from pysim.network.graph import Graph, Node, Tensor, live
from pysim.problem.conv import DEPTH_FIELDS, Conv
from pysim.problem.windows import conv_of

_TO_IMAGES, _TO_VOLUME = (2, 0, 1, 3, 4), (1, 2, 0, 3, 4)


Seconds = Callable[[Conv], float]  # of the best plan


def with_volumes(graph: Graph, seconds: Seconds, copying: Callable[[Tensor], float]) -> Graph:
    """The graph with a `problem` for each convolution of volumes, which has none so far. `copying`: seconds of a copy."""
    found = [node for node in graph.nodes if _is_of_volumes(node)]
    if not found:
        return graph
    volumes, tensors, before = _Volumes(graph), graph.tensors, {node.name for node in graph.nodes}

    def by_images(node: Node) -> bool:
        taps = tensors[node.inputs[1]].shape[2] * seconds(volumes.problem_of_tap(node))
        return taps + copying(tensors[node.inputs[0]]) + copying(tensors[node.output]) < seconds(volumes.problem(node).folded)

    def all_seconds(of: Graph) -> float:
        copies = (node for node in of.nodes if node.op in ("Transpose", "Concat") and node.name not in before)
        problems = (node.attributes["problem"] for node in of.nodes if node.op == "Conv")
        return sum(copying(of.tensors[node.output]) for node in copies) + sum(map(seconds, problems))

    chosen = ({node.output for node in found}, {node.output for node in found if by_images(node)}, set[str]())
    return min((as_images(graph, outputs) for outputs in chosen), key=all_seconds)


def as_images(graph: Graph, outputs: Collection[str] | None = None) -> Graph:
    """The graph with convolutions of images instead of those of volumes, for those that have one of these outputs (None: for all)."""
    if not any(map(_is_of_volumes, graph.nodes)):
        return graph
    volumes = _Volumes(graph)

    def parts(node: Node) -> Iterable[Node]:
        if not _is_of_volumes(node):
            return [node]
        if outputs is None or node.output in outputs:
            return volumes.convolved(node)
        return [node.having(problem=volumes.problem(node).folded)]

    nodes = tuple(part for node in graph.nodes for part in parts(node))
    return live(graph._replace(nodes=nodes, tensors=volumes.tensors, constants=volumes.constants))


def _is_of_volumes(node: Node) -> bool:
    return node.op == "Conv" and "problem" not in node.attributes


class _Volumes:
    def __init__(self, graph: Graph) -> None:
        self.tensors, self.constants = dict(graph.tensors), dict(graph.constants)
        self._images: dict[str, str] = {}  # volume (N, C, D, H, W) -> its images (D N, C, H, W)
        self._joined: dict[str, str] = {}  # volume and its padding -> the padded images

    def convolved(self, node: Node) -> Iterator[Node]:
        """The convolutions of the taps along the depth."""
        x, w, bias, *_, residual = (*node.inputs, *[""] * RESIDUAL_INPUT)[: RESIDUAL_INPUT + 1]
        for name in filter(None, (x, residual)):
            yield from self._as_images(name)
        (stride, *_), (dilation, *_), pads = (node.attributes[name] for name in ("strides", "dilations", "pads"))
        padded = yield from self._padded(x, pads[0], pads[3])
        problem, depth, count = self.problem_of_tap(node), self.tensors[node.output].shape[2], self.tensors[w].shape[2]
        total = self._images.get(residual, "")
        for tap in range(count):
            made = f"{node.output}:tap{tap}"
            depths = slice(tap * dilation, tap * dilation + (depth - 1) * stride + 1, stride)
            image = yield from self._cut(padded, f"{made}:x", depths, self.tensors[x].shape[0])
            self.constants[f"{made}:w"] = np.ascontiguousarray(self.constants[w][:, :, tap])
            inputs = (image, f"{made}:w", bias if tap == 0 else "", "", "", "", "", total)
            part = Node("Conv", f"{node.name}:tap{tap}", _trimmed(inputs), (made,), {"problem": problem})
            if tap == count - 1:
                part = part._replace(name=node.name, absorbed=node.absorbed).having(activation=node.attributes.get("activation"))
            yield self._made(part, x, (problem.batch, problem.filters, problem.out_h, problem.out_w))
            total = made
        self._images[node.output] = total
        yield from self._as_volume(node.output)

    def problem(self, node: Node) -> Conv:
        """The convolution of the volumes."""
        x, w, about = *(self.tensors[name] for name in node.inputs[:2]), node.attributes
        dtype = "f32" if x.dtype == np.float32 else "f64"
        return conv_of(x.shape, w.shape, about["strides"], about["pads"], about["dilations"], about["group"], dtype)

    def problem_of_tap(self, node: Node) -> Conv:
        """The convolution of all images for one tap of the depth."""
        count = self.tensors[node.output].shape[2]
        image = dict.fromkeys(DEPTH_FIELDS[:4], 1) | dict.fromkeys(DEPTH_FIELDS[4:], 0)
        whole = self.problem(node)
        return msgspec.structs.replace(whole, batch=whole.batch * count, **image)

    def _made(self, node: Node, like: str, shape: Sequence[int]) -> Node:
        """The node, with the shape of its output noted; `like`: a value of its type."""
        self.tensors[node.output] = self.tensors[like]._replace(shape=tuple(shape))
        return node

    def _view(self, name: str, to: str, shape: tuple[int, ...]) -> Generator[Node, None, str]:
        """A value under another shape, called `to` unless it has that shape. Returns its name."""
        if self.tensors[name].shape == shape:
            return name
        yield self._made(Node("View", to, (name,), (to,)), name, shape)
        return to

    def _as_images(self, name: str) -> Iterator[Node]:
        """A transposition of a volume, unless its images are known."""
        if name in self._images:
            return
        n, c, d, h, w = self.tensors[name].shape
        slices, images = f"{name}:slices", f"{name}:images"
        self._images[name] = images
        if name in self.constants:
            self.constants[images] = np.ascontiguousarray(self.constants[name].transpose(_TO_IMAGES)).reshape(d * n, c, h, w)
            self.tensors[images] = self.tensors[name]._replace(shape=(d * n, c, h, w))
        else:
            yield self._made(_transposed(name, slices, _TO_IMAGES, 1 in (d, n * c)), name, (d, n, c, h, w))
            yield from self._view(slices, images, (d * n, c, h, w))

    def _as_volume(self, name: str) -> Iterator[Node]:
        n, c, d, h, w = self.tensors[name].shape
        slices = yield from self._view(self._images[name], f"{name}:slices", (d, n, c, h, w))
        yield _transposed(slices, name, _TO_VOLUME, 1 in (d, n * c))

    def _padded(self, x: str, before: int, behind: int) -> Generator[Node, None, str]:
        """The images with zeros before and after them, one depth per row: (D, N C, H, W). Returns the value's name."""
        (n, c, d, h, w), joined = self.tensors[x].shape, f"{x}:padded {before} {behind}"
        if joined in self._joined:
            return self._joined[joined]
        images, depth = self._images[x], before + d + behind
        zeros = {end: count for end, count in ((f"{joined}:before", before), (f"{joined}:behind", behind)) if count}
        for end, count in zeros.items():
            self.constants[end] = np.zeros((count * n, c, h, w), self.tensors[x].dtype)
            self.tensors[end] = self.tensors[x]._replace(shape=(count * n, c, h, w))
        if zeros:
            parts = tuple(one for one in (f"{joined}:before", images, f"{joined}:behind") if one == images or one in zeros)
            images = f"{joined}:images"
            yield self._made(Node("Concat", joined, parts, (images,), {"axis": 0}), x, (depth * n, c, h, w))
        self._joined[joined] = yield from self._view(images, joined, (depth, n * c, h, w))
        return self._joined[joined]

    def _cut(self, padded: str, name: str, depths: slice, n: int) -> Generator[Node, None, str]:
        """The images of n volumes at some depths. Returns the value's name."""
        of, *shape = self.tensors[padded].shape
        count = len(range(*depths.indices(of)))
        slices = (depths, *(slice(0, size, 1) for size in shape))
        cut = f"{name}:cut"
        yield self._made(Node("Slice", cut, (padded,), (cut,), {"slices": slices}), padded, (count, *shape))
        return (yield from self._view(cut, name, (count * n, shape[0] // n, *shape[1:])))


def _transposed(name: str, to: str, order: tuple[int, ...], in_place: bool) -> Node:
    """A transposition, or a View if that does not reorder elements in memory."""
    return Node("View", to, (name,), (to,)) if in_place else Node("Transpose", to, (name,), (to,), {"perm": order})


def _trimmed(inputs: tuple[str, ...]) -> tuple[str, ...]:
    while not inputs[-1]:
        inputs = inputs[:-1]
    return inputs
