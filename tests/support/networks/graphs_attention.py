# SPDX-License-Identifier: Apache-2.0
"""Random ONNX networks with operators on arrays of any shape between convolutions: attention in the forms that exporters write, tables,
resized and padded images, arrays that are broadcast."""

import numpy as np
import onnx
from graphs import Builder, numpy_helper


class Attention(Builder):
    def whole_numbers(self, *numbers: int) -> str:
        self.constants.append(numpy_helper.from_array(np.array(numbers, np.int64), name := f"c{len(self.constants)}"))
        return name

    def product(self, x: str, columns: int) -> str:
        """By a constant matrix, with a bias as a rule."""
        *rows, k = self.shapes[x]
        weights = self.constant(self.rng.standard_normal((k, columns)) / np.sqrt(k))
        y = self.add("MatMul", [x, weights], (*rows, columns))
        biased = self.chance(0.8)
        return self.add("Add", [self.constant(self.rng.standard_normal(columns)), y], (*rows, columns)) if biased else y

    def layer_norm(self, x: str) -> str:
        """As one operator, or in parts; sometimes a part is read again."""
        shape = self.shapes[x]
        scale, shift = (self.constant(self.rng.standard_normal(shape[-1])) for _ in range(2))
        if self.chance():
            return self.add("LayerNormalization", [x, scale, shift], shape, axis=-1, epsilon=1e-3)
        mean = self.add("ReduceMean", [x], (*shape[:-1], 1), axes=[-1])
        d = self.add("Sub", [x, mean], shape)
        square = self.add("Mul", [d, d], shape) if self.chance() else self.add("Pow", [d, self.constant(np.array(2.0))], shape)
        variance = self.add("ReduceMean", [square], mean_shape := (*shape[:-1], 1), axes=[-1])
        root = self.add("Sqrt", [self.add("Add", [variance, self.constant(np.array(1e-2))], mean_shape)], mean_shape)
        scaled = self.add("Mul", [self.add("Div", [d, root], shape), scale], shape)
        y = self.add("Add", [scaled, shift], shape)
        return self.add("Add", [y, d if self.chance() else mean], shape) if self.chance(0.2) else y

    def heads(self, x: str, heads: int) -> str:
        n, rows, width = self.shapes[x]
        x = self.reshaped(x, (n, rows, heads, width // heads))
        return self.add("Transpose", [x], (n, heads, rows, width // heads), perm=[0, 2, 1, 3])

    def attended(self, x: str) -> str:
        """A block of a transformer over the pixels of an image."""
        n, c, h, w = self.shapes[x]
        tokens = self.reshaped(x, (n, c, h * w))
        tokens = self.add("Transpose", [tokens], (n, h * w, c), perm=[0, 2, 1])
        y, heads = self.layer_norm(tokens), self.whole(1, 3)
        width = heads * self.whole(1, 5)
        q, k, v = (self.heads(self.product(y, width), heads) for _ in range(3))
        logits = self.logits(q, k)
        shape = self.shapes[logits]
        if self.chance():
            logits = self.add("Add", [logits, self.constant(self.rng.standard_normal((1, heads, 1, h * w)))], shape)
        chances = self.add("Softmax", [logits], shape, axis=-1)
        y = self.add("MatMul", [chances, v], (n, heads, h * w, width // heads))
        y = self.add("Transpose", [y], (n, h * w, heads, width // heads), perm=[0, 2, 1, 3])
        y = self.product(self.reshaped(y, (n, h * w, width)), c)
        y = self.gelu(y) if self.chance() else y
        y = self.add("Add", [tokens, y], (n, h * w, c))
        y = self.add("Transpose", [y], (n, c, h * w), perm=[0, 2, 1])
        return self.reshaped(y, (n, c, h, w))

    def logits(self, q: str, k: str) -> str:
        n, heads, rows, depth = self.shapes[q]
        shape, factor = (n, heads, rows, rows), self.constant(np.array(0.5))
        q = self.add("Mul", [q, factor], self.shapes[q]) if self.chance(0.3) else q
        if self.chance(0.3):
            product = self.add("Einsum", [q, k], shape, equation="bhid,bhjd->bhij")
        else:
            transposed = self.add("Transpose", [k], (n, heads, depth, rows), perm=[0, 1, 3, 2])
            product = self.add("MatMul", [q, transposed], shape)
        return self.add("Div" if self.chance() else "Mul", [product, factor], shape) if self.chance(0.6) else product

    def resized(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        to = n, c, *(max(1, int(size * self.rng.uniform(0.5, 2))) for size in (h, w))
        rule = str(self.rng.choice(["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]))
        how = {"mode": "linear" if self.chance() else "nearest", "coordinate_transformation_mode": rule, "nearest_mode": "floor"}
        return self.add("Resize", [x, "", "", self.whole_numbers(*to)], to, **how)

    def bordered(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        pads = [self.whole(0, min(2, size - 1)) for size in (h, w, h, w)]
        shape = (n, c, h + pads[0] + pads[2], w + pads[1] + pads[3])
        mode = str(self.rng.choice(["constant", "reflect", "edge"]))
        return self.add("Pad", [x, self.whole_numbers(0, 0, *pads[:2], 0, 0, *pads[2:])], shape, mode=mode)

    def gathered(self, x: str) -> str:
        """Rows of any axis but the first, some of them again; or one of two halves of a sum."""
        shape = list(self.shapes[x])
        axis = self.whole(1, 3)
        rows = [self.whole(-shape[axis], shape[axis] - 1) for _ in range(self.whole(1, 6))]
        shape[axis] = len(rows)
        return self.add("Gather", [x, self.whole_numbers(*rows)], tuple(shape), axis=axis)

    def spread(self, x: str) -> str:
        """Beside arrays that are broadcast: constants, or numbers of each row."""
        shape = self.shapes[x]
        op = str(self.rng.choice(["Add", "Sub", "Mul"]))
        if self.chance():
            other = self.constant(self.rng.standard_normal([1 if self.chance(0.4) else size for size in shape][self.whole(0, 3) :]))
        else:
            other = self.add("ReduceL2", [x], (*shape[:-1], 1), axes=[-1])
            other = self.add("Clip", [other, self.constant(np.array(0.1))], self.shapes[other])
            other = self.add("Expand", [other, self.whole_numbers(*shape)], shape) if self.chance() else other
            op = "Div"
        return self.add(op, [x, other], shape)


def random_attention(seed: int, batch: int = 1) -> onnx.ModelProto:
    """About half a dozen of them."""
    b = Attention(seed, batch)
    steps = [
        b.conv,
        b.activated,
        b.attended,
        b.attended,
        b.attended,
        b.resized,
        b.bordered,
        b.gathered,
        b.spread,
        b.spread,
        b.shuffled,
        b.pool,
    ]
    x = b.conv("x")
    for _ in range(b.whole(2, 8)):
        x = steps[b.whole(0, len(steps) - 1)](x)
    if x == "x":
        x = b.norm(x)
    return b.model([x])
