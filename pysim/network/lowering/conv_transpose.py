# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions as convolutions whose filters are the phases of the stride."""

import math
from typing import Any

import numpy as np

from pysim.network.graph import Graph, Node
from pysim.network.lowering.array_operators import Constants, Parts, constant_of
from pysim.problem.conv import Conv

_MOST_ZEROS = 4  # taps of the convolution over those of the transposed one


def transposed_by_phases(node: Node, graph: Graph, constants: Constants) -> Parts | None:
    """A transposed convolution of images with constant weights and explicit pads as a convolution, and a transposition:

        y[s q + r - pad] = sum over j of x[q - j] w[r + s j],  0 <= r < s, j < ceil(k / s)

    Worked number: 3 taps with stride 2 are two phases of 2 taps, one of which is 0."""
    if not all(name in constants for name in node.inputs[1:] if name) or set(node.attributes["dilations"]) != {1}:
        return None
    (n, channels, *sizes), out = graph.tensors[node.inputs[0]].shape, graph.tensors[node.output].shape
    weights, groups, strides = constants[node.inputs[1]], node.attributes["group"], node.attributes["strides"]
    filters, kernel, pads = weights.shape[1], weights.shape[2:], node.attributes["pads"][:2]
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    first = [pad // s for pad, s in zip(pads, strides, strict=True)]  # q of the first output
    last = [(size - 1 + pad) // s for size, pad, s in zip(out[2:], pads, strides, strict=True)]
    before = [t - 1 - q for t, q in zip(taps, first, strict=True)]
    behind = [max(0, q - size + 1) for q, size in zip(last, sizes, strict=True)]
    counts = [size + a + b - t + 1 for size, a, b, t in zip(sizes, before, behind, taps, strict=True)]
    if min(*before, *pads) < 0 or math.prod(taps) * math.prod(strides) > _MOST_ZEROS * math.prod(kernel):
        return None
    padded = np.pad(weights, [(0, 0), (0, 0), *((0, t * s - k) for t, s, k in zip(taps, strides, kernel, strict=True))])
    phases = padded.reshape(groups, channels // groups, filters, taps[0], strides[0], taps[1], strides[1])[:, :, :, ::-1, :, ::-1]
    phases = np.ascontiguousarray(phases.transpose(0, 2, 4, 6, 1, 3, 5)).reshape(-1, channels // groups, *taps)
    inputs = [node.inputs[0], constant_of(constants, node, "phases", phases)]
    if len(node.inputs) > 2 and node.inputs[2]:
        inputs.append(constant_of(constants, node, "bias", np.repeat(constants[node.inputs[2]], math.prod(strides))))
    problem = Conv(
        batch=n, channels=channels, height=sizes[0], width=sizes[1], filters=len(phases), kernel_h=taps[0], kernel_w=taps[1],
        pad_top=before[0], pad_left=before[1], pad_bottom=behind[0], pad_right=behind[1], groups=groups,
        dtype="f32" if weights.dtype == np.float32 else "f64",
    )  # fmt: skip
    (rows, columns), (s, t), images = counts, strides, (n, groups * filters)
    starts = [pad - stride * q for pad, stride, q in zip(pads, strides, first, strict=True)]
    slices = tuple(slice(start, start + size, 1) for start, size in zip((0, 0, *starts), out, strict=True))
    steps: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("Conv", (n, len(phases), rows, columns), {"problem": problem}),
        ("View", (*images, s, t, rows, columns), {}),
        ("Transpose", (*images, rows, s, columns, t), {"perm": (0, 1, 4, 2, 5, 3)}),
        ("View", (*images, rows * s, columns * t), {}),
        ("Slice", out, {"slices": slices}),
    ]
    steps = steps[: 4 if out == (*images, rows * s, columns * t) else 5]
    parts: Parts = []
    for at, (op, shape, attributes) in enumerate(steps):
        made = node.output if at == len(steps) - 1 else f"{node.output}:{at}"
        parts.append((Node(op, node.name if at == 0 else f"{node.name}:{at}", tuple(inputs), (made,), attributes), shape))
        inputs = [made]
    return parts
