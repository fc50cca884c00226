# SPDX-License-Identifier: Apache-2.0
"""ONNX models give the problems that ONNX itself says they hold, and every node left out has its reason."""

import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pysim.errors import MissingError, ProblemError
from pysim.onnx.layers import read
from pysim.onnx.model import Skipped
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Layer, parse, resolve

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT
LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("light_*.onnx"))


def value(name, *sizes, element=FLOAT):
    return helper.make_tensor_value_info(name, element, sizes)


def save(path, nodes, inputs, output="y", functions=(), initializers=(), element=FLOAT):
    """A model with one output of unknown rank, written to `path`."""
    unknown = helper.make_tensor_value_info(output, element, None)
    graph = helper.make_graph(nodes, "g", inputs, [unknown], initializer=list(initializers))
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("other", 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=domains, functions=list(functions)).SerializeToString())
    return path


@pytest.fixture
def model(tmp_path):
    """Reads a model of one node: its operator, the inputs' sizes, its attributes."""

    def read_one(op, *shapes, element=FLOAT, domain="", **attributes):
        inputs = [value(f"i{index}", *shape, element=element) for index, shape in enumerate(shapes)]
        node = helper.make_node(op, [i.name for i in inputs], ["y"], name="node", domain=domain, **attributes)
        return read(save(tmp_path / "m.onnx", [node], inputs, element=element))

    return read_one


def test_the_worked_number_holds(model):
    layers, skipped = model("Conv", (1, 3, 224, 224), (64, 3, 7, 7), strides=[2, 2], pads=[3, 3, 3, 3])
    assert layers == [Layer(parse("conv:mb1ic3ih224oc64kh7sh2ph3"), "node")]
    assert skipped == []


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_every_light_model_is_read_to_its_end_with_the_shapes_that_onnx_infers(path):
    layers, skipped = read(path)
    assert skipped == []
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True)
    values = (*inferred.graph.value_info, *inferred.graph.output)
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
    nodes = [node for node in inferred.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    assert len(layers) == len(nodes) > 0
    for layer, node in zip(layers, nodes, strict=True):
        w = layer.workload
        mine = [w.batch, w.filters, w.out_h, w.out_w] if isinstance(w, Conv) else [w.m, w.n]
        assert mine == shapes[node.output[0]]
        assert layer.label == (node.name or node.output[0])


def test_there_are_nine_light_models():
    assert len(LIGHT) == 9


def test_resnet50_is_the_set_of_that_name():
    convolutions = [layer.workload for layer in read(LIGHT[4])[0] if isinstance(layer.workload, Conv)]
    assert LIGHT[4].stem == "light_resnet50"
    assert convolutions == [layer.workload for layer in resolve(["resnet50"])]


# size, kernel, stride, dilation
sizes = st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(1, 3), st.integers(1, 2))


@settings(max_examples=60, deadline=None)
@given(rows=sizes, columns=sizes, rule=st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"]), data=st.data())
def test_padding_rules_compute_what_onnx_computes(tmp_path_factory, rows, columns, rule, data):
    """onnx's reference evaluator runs the node, and numpy the problem that was read from it."""
    (height, kernel_h, stride_h, dilation_h), (width, kernel_w, stride_w, dilation_w) = rows, columns
    attributes = {"strides": [stride_h, stride_w], "dilations": [dilation_h, dilation_w], "auto_pad": rule}
    pads = data.draw(st.lists(st.integers(0, 2), min_size=4, max_size=4)) if rule == "NOTSET" else [0, 0, 0, 0]
    assume(rule.startswith("SAME") or height + pads[0] + pads[2] > dilation_h * (kernel_h - 1))
    assume(rule.startswith("SAME") or width + pads[1] + pads[3] > dilation_w * (kernel_w - 1))
    if rule == "NOTSET":
        attributes["pads"] = pads
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    path = tmp_path_factory.mktemp("m") / "m.onnx"
    save(path, [node], [value("x", 1, 1, height, width), value("w", 1, 1, kernel_h, kernel_w)])
    ((layer,), skipped) = read(path)
    assert skipped == []
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 9, (1, 1, height, width)).astype(np.float32)
    w = rng.integers(-8, 9, (1, 1, kernel_h, kernel_w)).astype(np.float32)
    expected = reference.ReferenceEvaluator(str(path)).run(None, {"x": x, "w": w})[0]
    c = layer.workload
    padded = np.pad(x[0, 0], ((c.pad_top, c.pad_bottom), (c.pad_left, c.pad_right)))
    got = np.zeros((c.out_h, c.out_w), np.float32)
    for r in range(kernel_h):
        for s in range(kernel_w):
            part = padded[r * dilation_h :: stride_h, s * dilation_w :: stride_w][: c.out_h, : c.out_w]
            got += w[0, 0, r, s] * part
    np.testing.assert_array_equal(got, expected[0, 0])


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "text"),
    [
        ("Conv", [(1, 4, 9, 7), (6, 2, 3, 1)], {"group": 2, "pads": [1, 0, 1, 0]}, "conv:g2ic4ih9iw7oc6kh3kw1ph1pw0"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"pads": [2, 1, 0, 0]}, "conv:ic3ih8oc4oh8ow7kh3ph2pw1"),
        ("Conv", [(2, 8, 9, 9), (8, 1, 3, 3)], {"group": 8, "dilations": [2, 2]}, "conv:g8mb2ic8ih9oc8kh3dh1"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"pads": [0, 0, 2, 1]}, "conv:ic3ih8oc4oh8ow7kh3ph0"),
        ("Gemm", [(5, 7), (7, 6)], {}, "gemm:5x6x7"),
        ("Gemm", [(7, 5), (7, 6)], {"transA": 1}, "gemm:5x6x7:tn"),
        ("Gemm", [(5, 7), (6, 7)], {"transB": 1}, "gemm:5x6x7:nt"),
        ("Gemm", [(7, 5), (6, 7)], {"transA": 1, "transB": 1}, "gemm:5x6x7:tt"),
        ("Gemm", [(5, 7), (7, 6), (6,)], {}, "gemm:5x6x7"),
        ("Gemm", [(5, 7), (7, 6), (5, 1)], {}, "gemm:5x6x7"),
        ("Gemm", [(5, 7), (7, 6), ()], {}, "gemm:5x6x7"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], {}, "conv:ic3ih8oc4kh3"),
        ("MatMul", [(5, 7), (7, 6)], {}, "gemm:5x6x7"),
        ("MatMul", [(2, 3, 5, 7), (7, 6)], {}, "gemm:30x6x7"),
        ("MatMul", [(2, 5, 7), (1, 1, 7, 6)], {}, "gemm:10x6x7"),
        ("MatMul", [(7,), (7, 6)], {}, "gemm:1x6x7"),
        ("MatMul", [(2, 5, 7), (7,)], {}, "gemm:10x1x7"),
    ],
)
def test_an_operator_is_read_as_onnx_defines_it(model, op, shapes, attributes, text):
    assert model(op, *shapes, **attributes) == ([Layer(parse(text), "node")], [])


@pytest.mark.parametrize(
    ("element", "dtype"),
    [("FLOAT", "f32"), ("DOUBLE", "f64"), ("FLOAT16", "f16"), ("BFLOAT16", "bf16"), ("INT8", "s8")],
)
def test_the_element_type_is_that_of_the_input(model, element, dtype):
    layers, _ = model("MatMul", (2, 3), (3, 4), element=getattr(onnx.TensorProto, element))
    assert layers[0].workload == Gemm(m=2, n=4, k=3, dtype=dtype)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "reason"),
    [
        ("Conv", [(1, 3, 8, 8, 8, 8), (4, 3, 3, 3, 3, 3)], {}, "a 4-D convolution"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3)], {}, "its weights are [4, 3, 3]"),
        ("Conv", [(1, 3, 8, 8), (4, 2, 3, 3)], {}, "weights [4, 2, 3, 3] take 2 channels"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"kernel_shape": [5, 5]}, "kernel_shape is [5, 5]"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"strides": [1, 1, 1]}, "strides is [1, 1, 1]; it should be 2 whole"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"strides": [0, 1]}, "stride_h is 0"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"strides": [0, 1], "auto_pad": "SAME_UPPER"}, "strides are [0, 1]"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"auto_pad": "SOME"}, "auto_pad is b'SOME'; it should be NOTSET"),
        ("Conv", [(1, 3, 2, 8), (4, 3, 3, 3)], {}, "the output has no rows"),
        ("Conv", [(1, 3, "h", 8), (4, 3, 3, 3)], {}, "[1, 3, h, 8]: the size h is dynamic"),
        ("Conv", [(1, 3, 8, None), (4, 3, 3, 3)], {}, "the size ? is dynamic"),
        ("Conv", [(0, 3, 8, 8), (4, 3, 3, 3)], {}, "batch is 0"),
        ("ConvTranspose", [(1, 3, 8, 8), (3, 4, 3, 3)], {}, "a transposed convolution is not read"),
        ("Gemm", [(5, 7), (8, 6)], {}, "do not multiply (k is 7 and 8)"),
        ("Gemm", [(5, 7), (7, 6), (5,)], {}, "its C is [5], which cannot be broadcast to the result, [5, 6]"),
        ("Gemm", [(5, 7), (7, 6), (1, 5, 6)], {}, "its C is [1, 5, 6], which cannot"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3), (3,)], {}, "its bias is [3]; expected [4], one number per filter"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3), (4, 1)], {}, "its bias is [4, 1]; expected [4]"),
        ("MatMul", [(5, 7), (8, 6)], {}, "do not multiply"),
        ("MatMul", [(3, 5, 7), (3, 7, 6)], {}, "batched: [3, 5, 7] times [3, 7, 6] has 3 right sides"),
        ("MatMul", [(), (7, 6)], {}, "a product needs vectors or more"),
        ("Einsum", [(5, 7), (7, 6)], {"equation": "ij,jk->ik"}, "may be any contraction"),
    ],
)
def test_what_is_not_read_is_listed_with_its_reason(model, op, shapes, attributes, reason):
    layers, skipped = model(op, *shapes, **attributes)
    assert layers == []
    assert [(name, kind) for name, kind, _ in skipped] == [("node", op)]
    assert reason in skipped[0].reason


def test_other_elements_and_other_domains_are_skipped(model):
    (_, skipped) = model("MatMul", (2, 3), (3, 4), element=onnx.TensorProto.INT32)
    assert "its elements are INT32; read are FLOAT, DOUBLE" in skipped[0].reason
    (_, skipped) = model("Conv", (1, 3, 8, 8), (4, 3, 3, 3), domain="other")
    assert 'of the domain "other"' in skipped[0].reason


def test_nodes_that_are_no_product_are_not_listed(model):
    assert model("Relu", (2, 3)) == ([], [])


def test_a_symbolic_batch_is_read_as_one_and_said_so(tmp_path):
    """Also where it reaches a product through a reshape to -1 rows."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Reshape", ["c", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "v"], ["y"], name="fc"),
    ]
    constants = [
        helper.make_tensor("w", FLOAT, (4, 3, 3, 3), np.zeros(108, np.float32)),
        helper.make_tensor("shape", onnx.TensorProto.INT64, (2,), [-1, 144]),
        helper.make_tensor("v", FLOAT, (144, 10), np.zeros(1440, np.float32)),
    ]
    path = save(tmp_path / "m.onnx", nodes, [value("x", "N", 3, 8, 8)], initializers=constants)
    layers, skipped = read(path)
    assert layers == [Layer(parse("conv:ic3ih8oc4kh3"), "conv"), Layer(parse("gemm:1x10x144"), "fc")]
    assert skipped == [Skipped("x", "Input", 'not skipped: its symbolic batch "N" is read as 1')]


def test_a_batch_without_a_name_is_read_as_one_too(model):
    layers, skipped = model("Conv", (None, 3, 8, 8), (4, 3, 3, 3))
    assert layers == [Layer(parse("conv:ic3ih8oc4kh3"), "node")]
    assert [entry.reason for entry in skipped] == ['not skipped: its symbolic batch "?" is read as 1']


def test_one_batch_name_is_one_batch_wherever_it_stands(tmp_path):
    inputs = [value("a", "N", 7), value("b", 7, "N")]
    layers, skipped = read(save(tmp_path / "m.onnx", [helper.make_node("MatMul", ["a", "b"], ["y"])], inputs))
    assert [layer.workload for layer in layers] == [parse("gemm:1x1x7")]
    assert len(skipped) == 1


def test_large_weights_change_nothing_and_need_not_be_there(tmp_path):
    node = helper.make_node("Gemm", ["x", "w"], ["y"], name="fc")
    weights = helper.make_tensor("w", FLOAT, (512, 512), np.zeros(512 * 512, np.float32).tobytes(), raw=True)
    path = save(tmp_path / "m.onnx", [node], [value("x", 8, 512)], initializers=[weights])
    expected = ([Layer(parse("gemm:8x512x512"), "fc")], [])
    assert read(path) == expected
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="not_there.bin")
    assert read(save(tmp_path / "m.onnx", [node], [value("x", 8, 512)], initializers=[weights])) == expected


def test_weights_that_a_node_fills_are_read_by_their_shape(tmp_path):
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"], name="conv"),
    ]
    shape = helper.make_tensor("shape", onnx.TensorProto.INT64, (4,), [4, 3, 3, 3])
    layers, _ = read(save(tmp_path / "m.onnx", nodes, [value("x", 1, 3, 8, 8)], initializers=[shape]))
    assert layers == [Layer(parse("conv:ic3ih8oc4kh3"), "conv")]


def test_a_local_function_is_read_where_it_is_called(tmp_path):
    body = [helper.make_node("MatMul", ["a", "b"], ["c"], name="inner")]
    function = helper.make_function("other", "Product", ["a", "b"], ["c"], body, [helper.make_opsetid("", 17)])
    call = helper.make_node("Product", ["x", "w"], ["y"], domain="other")
    path = save(tmp_path / "m.onnx", [call], [value("x", 5, 7), value("w", 7, 6)], functions=[function])
    layers, skipped = read(path)
    assert [layer.workload for layer in layers] == [parse("gemm:5x6x7")]
    assert skipped == []


def test_a_product_inside_a_branch_is_skipped_by_name(tmp_path):
    def branch():
        node = helper.make_node("MatMul", ["x", "w"], ["b"], name="inner")
        return helper.make_graph([node], "b", [], [helper.make_tensor_value_info("b", FLOAT, None)])

    node = helper.make_node("If", ["flag"], ["y"], name="choice", then_branch=branch(), else_branch=branch())
    inputs = [value("flag", element=onnx.TensorProto.BOOL), value("x", 5, 7), value("w", 7, 6)]
    layers, skipped = read(save(tmp_path / "m.onnx", [node], inputs))
    assert layers == []
    assert [entry.node for entry in skipped] == ["inner", "inner"]
    assert "inside If choice" in skipped[0].reason


def test_an_operator_that_inference_does_not_know_hides_the_shapes_behind_it(tmp_path):
    nodes = [
        helper.make_node("Mystery", ["x"], ["h"], domain="other"),
        helper.make_node("MatMul", ["h", "w"], ["y"], name="fc"),
    ]
    _, skipped = read(save(tmp_path / "m.onnx", nodes, [value("x", 5, 7), value("w", 7, 6)]))
    assert skipped == [Skipped("fc", "MatMul", 'the shape of its first input "h" is not known')]


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (("lost", "w"), ("y",), 'MatMul "fc" reads "lost", but no node, initializer or input of the model defines it'),
        (("x", "lost"), ("y",), 'MatMul "fc" reads "lost", but no node'),
        (("x", "later"), ("y",), 'MatMul "fc" reads "later" before a node computes it'),
        (("x", "y"), ("y",), 'MatMul "fc" reads "y" before a node computes it'),
        (("x", "w"), ("w",), 'MatMul "fc" computes "w", which is already defined'),
        (("x", "w"), ("z",), 'no node, initializer or input defines its output "y"'),
    ],
)
def test_a_value_is_defined_once_and_before_it_is_read(tmp_path, inputs, outputs, message):
    nodes = [helper.make_node("MatMul", inputs, outputs, name="fc"), helper.make_node("Identity", ["w"], ["later"])]
    with pytest.raises(ProblemError, match=message):
        read(save(tmp_path / "m.onnx", nodes, [value("x", 5, 5), value("w", 5, 5)]))


@pytest.mark.parametrize("opset", [0, -1, 999, 1 << 40])
def test_an_opset_that_is_not_known_is_refused(tmp_path, opset):
    path = save(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], [value("x", 5, 7), value("w", 7, 6)])
    proto = onnx.load(path)
    proto.opset_import[0].version = opset
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ProblemError, match=f"is of opset {opset}, but this onnx package knows opsets 1 to"):
        read(path)


def test_operands_of_two_types_are_no_product(tmp_path):
    inputs = [value("x", 5, 7), value("w", 7, 6, element=onnx.TensorProto.DOUBLE)]
    _, (one,) = read(save(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], inputs))
    assert one.reason == "its inputs are of the types FLOAT and DOUBLE; expected one type"


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 64], ids=["empty", "text", "zeros"])
def test_a_file_that_is_no_model_is_refused(tmp_path, content):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ProblemError, match=r"m\.onnx is not an ONNX model"):
        read(path)


@pytest.mark.parametrize("name", ["none.onnx", "."])
def test_a_path_that_is_no_file_is_refused(tmp_path, name):
    with pytest.raises(ProblemError, match="cannot be read"):
        read(tmp_path / name)


def test_damaged_models_give_layers_or_a_problem_error(tmp_path):
    whole = next(path for path in LIGHT if path.stem == "light_squeezenet").read_bytes()
    rng = random.Random(0)
    outcomes = set()
    for _ in range(300):
        damaged = bytearray(whole[: rng.randrange(len(whole))] if rng.random() < 0.3 else whole)
        for _ in range(min(rng.choice([0, 1, 5]), len(damaged))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path = tmp_path / "m.onnx"
        path.write_bytes(bytes(damaged))
        try:
            layers, skipped = read(path)
            outcomes.add("read" if layers else "skipped" if skipped else "nothing")
        except ProblemError:
            outcomes.add("refused")
    assert {"read", "refused"} <= outcomes


def test_without_the_onnx_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingError, match="pip install onnx"):
        read(LIGHT[0])


def test_a_model_among_the_words_is_read_by_the_frontend():
    (first, *_) = resolve([str(LIGHT[0])], lambda model: read(*model)[0])
    assert first.workload == parse("conv:ic3ih224oc96kh11sh4")


def call(*functions):
    """Functions of two operands, each a name and what it calls one after the other."""
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("other", 1)]
    made = []
    for name, *called in functions:
        values = ["a", *(f"c{index}" for index in range(len(called) - 1)), "c"]
        body = [
            helper.make_node(kind, [values[index], "b"], [values[index + 1]], domain="" if kind == "MatMul" else "other")
            for index, kind in enumerate(called)
        ]
        made.append(helper.make_function("other", name, ["a", "b"], ["c"], body, domains))
    return made


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        (call(("F0", "F0")), r"a function calls itself \(F0 calls F0\)"),
        (call(("F0", "G"), ("G", "F0")), "a function calls itself"),
        (call(*((f"F{n}", f"F{n + 1}") for n in range(200)), ("F200", "MatMul")), "more than 100 deep"),
        (call(*((f"F{n}", *[f"F{n + 1}"] * 2) for n in range(90)), ("F90", "MatMul")), "more than 50,000 nodes"),
    ],
    ids=["itself", "each other", "deep", "wide"],
)
def test_functions_that_never_end_are_refused(tmp_path, functions, says):
    node = helper.make_node("F0", ["x", "w"], ["y"], domain="other")
    path = save(tmp_path / "m.onnx", [node], [value("x", 5, 5), value("w", 5, 5)], functions=functions)
    with pytest.raises(ProblemError, match=says):
        read(path)


def test_names_that_are_not_utf8_are_texts_and_still_name_their_values(tmp_path):
    node = helper.make_node("MatMul", ["XXXX", "w"], ["y"], name="NAME")
    path = save(tmp_path / "m.onnx", [node], [value("XXXX", 5, 7), value("w", 7, 6)])
    path.write_bytes(path.read_bytes().replace(b"NAME", b"A\xff\xfeB"))
    assert read(path) == ([Layer(parse("gemm:5x6x7"), "A\\xff\\xfeB")], [])
    path.write_bytes(path.read_bytes().replace(b"XXXX", b"\xff\xfe\xfd\xfc", 1))
    with pytest.raises(ProblemError, match=r'MatMul "A\\xff\\xfeB" reads "\\xff\\xfe\\xfd\\xfc", but no node'):
        read(path)


def test_a_device_a_pipe_a_folder_and_a_file_too_large_are_refused_unread(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path):
        with pytest.raises(ProblemError, match="cannot be read: it is a folder, device, pipe or socket"):
            read(path)
    with (tmp_path / "huge.onnx").open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room on the disk
    with pytest.raises(ProblemError, match=r"is too large: 1,099,511,627,776 bytes; it should have at most 2,147,483,647"):
        read(tmp_path / "huge.onnx")


def test_a_rank_or_a_list_of_a_million_is_refused_in_a_sentence(model):
    many = [1 << 40] * 100_000
    layers, skipped = model("MatMul", many, (7, 6))
    assert (layers, skipped[0].reason) == ([], 'its first input "i0" has 100000 dimensions; at most 64 are read')
    layers, skipped = model("Conv", (1, 3, 8, 8), (4, 3, 3, 3), strides=many)
    assert layers == [] and len(skipped[0].reason) < 300
