# SPDX-License-Identifier: Apache-2.0
"""Generated nodes of ONNX Runtime's own operators (domain com.microsoft), as its optimised files have them; `onnx_peer` compares them."""

from onnx_case import Case, Make
from onnx_recipes_layers import image, window


def gelu(m: Make) -> Case:
    shape = m.shape(1, 4)
    x = m.x(shape)
    how = m.some(alpha=m.real(0.5, 2)) if m.op == "QuickGelu" else {}
    bias = [m.x(shape[-1:])] if m.op == "BiasGelu" or (m.op == "FastGelu" and m.chance()) else []
    return m.case([x, *bias], attributes=how)


def conv(m: Make) -> Case:
    groups = m.one(1, 1, 2)
    c, filters, kernel = groups * m.whole(1, 2), groups * m.whole(1, 3), [m.whole(1, 3), m.whole(1, 3)]
    kind = m.one(None, "Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")
    how = window(m, 2) | {"group": groups} | ({} if kind is None else {"activation": kind})
    params = {"LeakyRelu": [0.2], "Clip": [-0.5, 1.0], "HardSigmoid": [0.3, 0.4]}.get(kind)
    how |= {"activation_params": params} if params else {}
    how.pop("auto_pad", None)
    return m.case([m.x(image(m, 2, c)), m.value(m.numbers((filters, c // groups, *kernel)), 0.8), *([m.x((filters,))] * m.chance())],
                  attributes=how)  # fmt: skip


def product(m: Make) -> Case:
    r, k, c = m.whole(1, 5), m.whole(1, 5), m.whole(1, 5)
    flip = m.whole(0, 1), m.whole(0, 1)
    if m.op == "FusedGemm":
        inputs = [m.x((k, r) if flip[0] else (r, k)), m.x((c, k) if flip[1] else (k, c)), *([m.x((c,))] if m.chance(0.7) else [])]
        how = {"transA": flip[0], "transB": flip[1]} | m.some(alpha=0.5, beta=2.0)
        return m.case(inputs, attributes=how | m.one({"activation": "Relu"}, {"activation": "LeakyRelu", "activation_alpha": 0.2}))
    batch = m.shape(0, 2, 3)
    inputs = [m.x((*batch, k, r) if flip[0] else (*batch, r, k)), m.x((*batch, c, k) if flip[1] else (*batch, k, c))]
    how = {"transA": flip[0], "transB": flip[1]} | m.some(alpha=m.real(0.2, 2))
    return m.case(inputs, attributes=how)


def skip(m: Make) -> Case:
    n, s, d = m.whole(1, 2), m.whole(1, 4), m.whole(2, 8)
    inputs = [m.x((n, s, d)), m.x((n, s, d)), m.x((d,)), m.x((d,)) if m.chance(0.7) else "", m.x((d,)) if m.chance() else ""]
    return m.case(inputs, attributes=m.some(epsilon=1e-3))


RECIPES = {"Gelu": gelu, "FastGelu": gelu, "BiasGelu": gelu, "QuickGelu": gelu, "FusedConv": conv, "FusedGemm": product,
           "FusedMatMul": product, "SkipLayerNormalization": skip}  # fmt: skip
