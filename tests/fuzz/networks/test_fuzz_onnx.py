# SPDX-License-Identifier: Apache-2.0
"""Whatever a model file holds: layers and reasons, or a sentence, in bounded time and memory."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import bounded, inputs

from pysim.errors import PysimError
from pysim.onnx.layers import read
from pysim.problem.text import Layer

onnx = pytest.importorskip("onnx")
helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT
NAMES = ["x", "w", "h", "y", "", "\x1b[31m\n", "P", "Q", "Conv", "MatMul", "Reshape", "If", "other", "n" * 1000]
NUMBERS = [0, 1, 2, -1, 7, 64, 1 << 31, -(1 << 63), (1 << 63) - 1]


@cache
def models() -> tuple[bytes, ...]:
    """Real graphs without their weights, and a small one with functions, a branch and a shape that is computed."""
    found = []
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for name in ("light_squeezenet", "light_resnet50", "light_shufflenet"):
        model = onnx.load(folder / f"{name}.onnx")
        del model.graph.node[40:]
        found.append(model.SerializeToString())
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("other", 1)]
    body = [helper.make_node("MatMul", ["a", "b"], ["c"], name="inner")]
    product = helper.make_function("other", "P", ["a", "b"], ["c"], body, domains)
    caller = helper.make_function("other", "Q", ["a", "b"], ["c"], [helper.make_node("P", ["a", "b"], ["c"], domain="other")], domains)
    branch = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["b"])], "b", [], [helper.make_tensor_value_info("b", FLOAT, None)])
    nodes = [
        helper.make_node("Conv", ["i", "f"], ["h"], pads=[1, 1, 1, 1], auto_pad="NOTSET", strides=[1, 1], group=1),
        helper.make_node("Reshape", ["h", "s"], ["x"]),
        helper.make_node("Q", ["x", "w"], ["z"], domain="other"),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch),
    ]
    given = [("i", FLOAT, ["N", 3, 4, 4]), ("flag", onnx.TensorProto.BOOL, [])]
    constants = [helper.make_tensor("s", onnx.TensorProto.INT64, (2,), [-1, 16]), helper.make_tensor("f", FLOAT, (2, 3, 3, 3), [0.0] * 54)]
    constants.append(helper.make_tensor("w", FLOAT, (16, 2), [0.0] * 32))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*one) for one in given], [helper.make_tensor_value_info("y", FLOAT, None)], constants
    )
    found.append(helper.make_model(graph, opset_imports=domains, functions=[product, caller]).SerializeToString())
    return tuple(found)


def check(folder, content):
    path = folder / "m.onnx"
    path.write_bytes(content)
    found = bounded(read, path)
    if not isinstance(found, PysimError):
        layers, skipped = found
        assert all(isinstance(layer, Layer) and isinstance(layer.label, str) for layer in layers)
        assert all(len(one.reason) < 5000 for one in skipped)


@inputs(18_000)
@given(
    number=st.integers(0, 3),
    cuts=st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(max_size=4), st.integers(0, 8)), max_size=6),
    end=st.one_of(st.none(), st.integers(0, 1 << 20)),
)
def test_any_bytes_are_a_model_or_a_sentence(tmp_path_factory, number, cuts, end):
    data = bytearray(models()[number])
    for at, put, gone in cuts:
        at %= len(data) + 1
        data[at : at + gone] = put
    check(tmp_path_factory.getbasetemp(), bytes(data if end is None else data[: end % (len(data) + 1)]))


@st.composite
def changed(draw):
    """A model in which a few fields, wherever they are, hold something else, are gone, or stand twice."""
    model = onnx.ModelProto.FromString(draw(st.sampled_from(models())))
    for _ in range(draw(st.integers(1, 5))):
        message = model if draw(st.booleans()) else draw(st.sampled_from([model.graph, *model.functions]))
        while fields := list(message.DESCRIPTOR.fields):
            field = draw(st.sampled_from(fields))
            repeated = isinstance(getattr(message, field.name), type(model.graph.node) | type(onnx.TensorProto().dims))
            if field.message_type is None:
                change(draw, message, field, repeated)
                break
            if repeated:
                items = getattr(message, field.name)
                act = draw(st.sampled_from(["enter"] * 4 + ["twice", "gone", "new", "call"]))
                if act == "call" and field.message_type.name == "NodeProto":
                    name, operands = draw(st.sampled_from(NAMES)), draw(st.lists(st.sampled_from(NAMES), max_size=3))
                    items.append(helper.make_node(name, operands, ["y"], domain=draw(st.sampled_from(["", "other"]))))
                    break
                if act == "new" or not items:
                    items.add()
                index = draw(st.integers(0, len(items) - 1))
                if act == "twice":
                    items.append(items[index])
                    break
                if act == "gone":
                    del items[index]
                    break
                message = items[index]
            else:
                message = getattr(message, field.name)
    return model.SerializeToString()


def change(draw, message, field, repeated):
    kind = {field.CPPTYPE_STRING: NAMES, field.CPPTYPE_FLOAT: [0.0], field.CPPTYPE_DOUBLE: [0.0]}.get(field.cpp_type, NUMBERS)
    value = draw(st.sampled_from(kind))
    if field.type == field.TYPE_BYTES:
        value = value.encode()
    try:
        if repeated:
            getattr(message, field.name).extend([value] * draw(st.sampled_from([1, 1, 2, 1000])))
        else:
            setattr(message, field.name, value)
    except ValueError:  # a number that is too large for the field
        message.ClearField(field.name)


@inputs(18_000)
@given(content=changed())
def test_any_fields_are_a_model_or_a_sentence(tmp_path_factory, content):
    check(tmp_path_factory.getbasetemp(), content)
