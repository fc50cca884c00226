# SPDX-License-Identifier: Apache-2.0
"""An ONNX model run by pysim: python examples/onnx_model.py [MODEL.onnx]. Without a file, a small network is written first."""

import sys
from pathlib import Path

import numpy as np

import pysim


def small_network(path: Path) -> Path:
    """Two convolutions with ReLU and a mean over the image."""
    from onnx import TensorProto, helper, numpy_helper, save

    random = np.random.default_rng(0)
    weights = {name: random.standard_normal(shape, np.float32) / 8 for name, shape in (("a", (32, 3, 3, 3)), ("b", (64, 32, 3, 3)))}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "b"], ["r"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["r"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", (1, 3, 64, 64)), ("y", (1, 64, 1, 1)))
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "small", values[:1], values[1:], tensors)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


file = Path(sys.argv[1]) if len(sys.argv) > 1 else small_network(Path("small.onnx"))
model = pysim.load(file)
x = np.ones((1, 3, 64, 64) if len(sys.argv) == 1 else (1, 3, 224, 224), np.float32)
y = model(x)
print(f"{file.name}: {y.shape}")
print(model.plan.explain())
print("measured:", ", ".join(f"{layer.seconds * 1e6:.0f} us" for layer in model.profile(x)))
