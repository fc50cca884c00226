# SPDX-License-Identifier: Apache-2.0
"""Random ONNX networks for tests: convolutions of all kinds, what is fused into them, fan-out, dead ends, shared weights, many outputs."""

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Builder:
    """Adds nodes to a graph; `shapes` has the shape of every value made so far. Channels are multiples of `unit`."""

    def __init__(self, seed: int, batch: int = 1, dtype: type = np.float32, unit: int = 1) -> None:
        self.rng, self.dtype, self.unit = np.random.default_rng(seed), dtype, unit
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.weights: list[str] = []
        self.shapes: dict[str, tuple[int, ...]] = {"x": (batch, self.channels(8), self.whole(5, 14), self.whole(5, 14))}

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def channels(self, most: int) -> int:
        return self.whole(1, most) if self.unit == 1 else self.unit * self.whole(1, 2)

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array, self.dtype), name))
        return name

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes))
        self.shapes[name] = shape
        return name

    def model(self, outputs: list[str], opset: int = 17) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        ends = [helper.make_tensor_value_info(name, kind, self.shapes[name]) for name in ("x", *outputs)]
        graph = helper.make_graph(self.nodes, "random", ends[:1], ends[1:], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    # operators on images

    def conv(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        groups = int(self.rng.choice([g for g in (1, 1, 2, c) if c % g == 0]))
        filters = groups * (self.channels(6) if groups < c else self.whole(1, 6))
        (kh, kw), (sh, sw) = self.rng.integers(1, 4, 2).tolist(), self.rng.integers(1, 3, 2).tolist()
        dh, dw = (2 if self.chance(0.2) and 2 * (k - 1) < s else 1 for k, s in ((kh, h), (kw, w)))
        pads = self.rng.integers(0, 2, 4).tolist()
        axes = ((h, pads[0], pads[2], dh, kh, sh), (w, pads[1], pads[3], dw, kw, sw))
        outs = [(size + a + b - d * (k - 1) - 1) // t + 1 for size, a, b, d, k, t in axes]
        if min(outs) < 1:
            return x
        shape = (filters, c // groups, kh, kw)
        known = [name for name in self.weights if self.shapes[name] == shape]
        weights = known[0] if known else self.constant(self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:])))
        if not known:
            self.weights.append(weights)
            self.shapes[weights] = shape
        inputs = [x, weights] + [self.constant(self.rng.standard_normal(filters))] * self.chance()
        how = {"kernel_shape": [kh, kw], "strides": [sh, sw], "dilations": [dh, dw], "pads": pads, "group": groups}
        return self.add("Conv", inputs, (n, filters, *outs), **how)

    def norm(self, x: str) -> str:
        c = self.shapes[x][1]
        numbers = [self.rng.standard_normal(c), self.rng.standard_normal(c), self.rng.standard_normal(c), self.rng.uniform(0.5, 2, c)]
        return self.add("BatchNormalization", [x, *map(self.constant, numbers)], self.shapes[x], epsilon=1e-3)

    def scaled(self, x: str) -> str:
        number = self.rng.standard_normal((self.shapes[x][1], 1, 1)[-3 if self.chance(0.8) else 2 :])
        operands = [x, self.constant(number)]
        return self.add("Mul" if self.chance() else "Add", operands[:: 1 if self.chance() else -1], self.shapes[x])

    def activated(self, x: str) -> str:
        if self.chance(0.6):
            return self.add("Relu", [x], self.shapes[x])
        if self.chance():
            return self.add("Clip", [x, self.constant(np.array(-0.5)), self.constant(np.array(0.7))], self.shapes[x])
        if self.chance():
            return self.gated(x)
        return self.add(str(self.rng.choice(["Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Identity"])), [x], self.shapes[x])

    def gated(self, x: str) -> str:
        """x sigmoid(x), as exporters write SiLU; or x by a number for each plane, as squeeze-and-excitation has it."""
        n, c, *_ = self.shapes[x]
        squeezed = self.chance(0.4)
        gate = self.add("GlobalAveragePool", [x], (n, c, 1, 1)) if squeezed else x
        gate = self.add("Sigmoid", [gate], self.shapes[gate])
        return self.add("Mul", [x, gate][:: 1 if self.chance() else -1], self.shapes[x])

    def block(self, x: str) -> str:
        """A residual block: convolutions that keep the shape, x added, an activation."""
        n, c, h, w = self.shapes[x]
        y = x
        for kernel in (1, 3)[: self.whole(1, 2)]:
            groups = c if self.chance(0.3) else 1
            weights = self.constant(self.rng.standard_normal((c, c // groups, kernel, kernel)) / np.sqrt(c // groups * kernel * kernel))
            y = self.activated(y) if y != x else y
            y = self.add("Conv", [y, weights], (n, c, h, w), pads=[kernel // 2] * 4, group=groups)
            y = self.norm(y) if self.chance(0.3) else y
        y = self.add("Add", [x, y][:: 1 if self.chance() else -1], (n, c, h, w))
        return self.activated(y) if self.chance(0.7) else y

    def dense(self, x: str) -> str:
        """A dense block: every layer reads all before it, joined."""
        n, _, h, w = self.shapes[x]
        parts = [x]
        for _ in range(self.whole(2, 3)):
            channels = sum(self.shapes[part][1] for part in parts)
            joined = self.add("Concat", list(parts), (n, channels, h, w), axis=1)
            grown = self.channels(4)
            weights = self.constant(self.rng.standard_normal((grown, channels, 3, 3)) / np.sqrt(9 * channels))
            y = self.activated(self.norm(joined)) if self.chance() else joined
            parts.append(self.add("Conv", [y, weights], (n, grown, h, w), pads=[1, 1, 1, 1]))
        return self.add("Concat", list(parts), (n, sum(self.shapes[part][1] for part in parts), h, w), axis=1)

    def pool(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        if min(h, w) < 4:
            return x
        how: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "ceil_mode": int(self.chance())}
        if self.chance():
            how["count_include_pad"] = int(self.chance())
            op = "AveragePool"
        else:
            op = "MaxPool"
        rows = (h + 2 - 3 + (1 if how["ceil_mode"] else 0)) // 2 + 1
        if how["ceil_mode"] and (rows - 1) * 2 >= h + 1:
            rows -= 1
        return self.add(op, [x], (n, c, rows, w), **how)

    def joined(self, x: str) -> str:
        """With others of the same rows and columns, along the channels."""
        shape = self.shapes[x]
        others = [name for name, other in self.shapes.items() if len(other) == 4 and name[0] in "vx" and other[2:] == shape[2:]]
        parts = [x, *self.rng.choice(others, self.whole(1, 2)).tolist()]
        return self.add("Concat", parts, (shape[0], sum(self.shapes[part][1] for part in parts), *shape[2:]), axis=1)

    def added(self, x: str) -> str:
        others = [name for name, other in self.shapes.items() if other == self.shapes[x] and name[0] in "vx"]
        return self.add(str(self.rng.choice(["Add", "Sum", "Mul", "Sub"])), [x, str(self.rng.choice(others))], self.shapes[x])

    def shuffled(self, x: str) -> str:
        """Channels of two or three groups in turn (ShuffleNet), as exporters write that; or halves of them."""
        n, c, h, w = self.shapes[x]
        groups = next((g for g in (3, 2) if c % g == 0), 1)
        x = self.reshaped(x, (n, groups, c // groups, h, w))
        x = self.add("Transpose", [x], (n, c // groups, groups, h, w), perm=[0, 2, 1, 3, 4])
        return self.reshaped(x, (n, c, h, w))

    def reshaped(self, x: str, shape: tuple[int, ...]) -> str:
        self.constants.append(numpy_helper.from_array(np.array(shape, np.int64), name := f"c{len(self.constants)}"))
        return self.add("Reshape", [x, name], shape)

    def cut(self, x: str) -> str:
        """Some channels, or all but the edges, or every other pixel."""
        n, c, h, w = self.shapes[x]
        axis, step = (1, 1) if self.chance() else (self.whole(2, 3), self.whole(1, 2))
        size = (n, c, h, w)[axis]
        start = self.whole(0, size - 1)
        numbers = [np.array([one], np.int64) for one in (start, size, axis, step)]
        names = [f"c{len(self.constants) + at}" for at in range(4)]
        self.constants += [numpy_helper.from_array(one, name) for one, name in zip(numbers, names, strict=True)]
        shape = tuple(len(range(start, size, step)) if at == axis else one for at, one in enumerate((n, c, h, w)))
        return self.add("Slice", [x, *names], shape)

    def padded(self, x: str) -> str:
        """A border of a number, and GELU behind it, as exporters of opset 17 write that."""
        n, c, h, w = self.shapes[x]
        self.constants.append(numpy_helper.from_array(np.array([0, 0, 1, 0, 0, 0, 0, 2], np.int64), name := f"c{len(self.constants)}"))
        x = self.add("Pad", [x, name, self.constant(np.array(0.5))], (n, c, h + 1, w + 2))
        return self.gelu(x)

    def gelu(self, x: str) -> str:
        root, one, half = (self.constant(np.array(number)) for number in (np.sqrt(2), 1, 0.5))
        shape = self.shapes[x]
        bent = self.add("Erf", [self.add("Div", [x, root], shape)], shape)
        product = self.add("Mul", [x, self.add("Add", [bent, one], shape)][:: 1 if self.chance() else -1], shape)
        return self.add("Mul", [product, half], shape)

    def transposed(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        return self.add("Transpose", [x], (n, c, w, h), perm=[0, 1, 3, 2])


def random_model(seed: int, batch: int = 1, dtype: type = np.float32, unit: int = 1) -> onnx.ModelProto:
    """About a dozen operators on images, then, as a rule, a classifier."""
    b = Builder(seed, batch, dtype, unit)
    steps = [b.conv, b.conv, b.conv, b.norm, b.norm, b.activated, b.activated, b.scaled, b.pool, b.joined, b.added, b.transposed,
             b.block, b.block, b.dense, b.shuffled, b.cut, b.padded]  # fmt: skip
    x = "x"
    for _ in range(b.whole(3, 14)):
        if b.chance(0.15):
            x = str(b.rng.choice([name for name, shape in b.shapes.items() if len(shape) == 4 and name[0] in "vx"]))
        x = steps[b.whole(0, len(steps) - 1)](x)
    if x == "x":
        x = b.norm(x)
    outputs = [x]
    if b.chance(0.3):
        outputs.append(str(b.rng.choice([name for name in b.shapes if name[0] == "v"])))
    if b.chance(0.7):
        outputs[0] = _classified(b, x)
    return b.model(list(dict.fromkeys(outputs)))


def _classified(b: Builder, x: str) -> str:
    n, c, *_ = b.shapes[x]
    if b.chance(0.3):
        x = b.add("ReduceMean", [x], (n, c), axes=[2, 3], keepdims=0)
    else:
        x = b.add("GlobalAveragePool", [x], (n, c, 1, 1))
        x = b.add("Flatten", [x], (n, c))
    m = b.whole(1, 9)
    if b.chance():
        x = b.add("Gemm", [x, b.constant(b.rng.standard_normal((m, c))), b.constant(b.rng.standard_normal(m))], (n, m), transB=1, alpha=0.5)
    else:
        x = b.add("MatMul", [x, b.constant(b.rng.standard_normal((c, m)))], (n, m))
    x = b.add("Relu", [x], (n, m)) if b.chance() else x
    return b.add("Softmax", [x], (n, m), axis=1) if b.chance() else x
