# SPDX-License-Identifier: Apache-2.0
"""Single operators of networks beside ONNX Runtime: python lab/benchmarks/onnx_operators.py [-o FILE] [NAME ...] [--seconds 0.2]

One node a model, in the shapes of transformers, detectors and recurrent networks, on one thread. Both run the same file, interleaved; the
table has the median times and their ratio (above 1: pysim is slower). NAME selects the cases whose names contain it. A result that differs
from ONNX Runtime's by more than its tolerance is an error. One JSON line per case.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import pysim
from pysim.measure.clock import CpuClock, interleave
from pysim.measure.store import environment

_OPSET = 20
Shape = tuple[int, ...]


class Case(NamedTuple):
    """A node: `inputs` are values of the model, `constants` its other inputs, by place."""

    name: str
    op: str
    inputs: Sequence[Any]  # arrays, or shapes of normally distributed float32
    constants: Mapping[int, Any] = {}
    attributes: Mapping[str, Any] = {}
    outputs: int = 1
    tolerance: float = 1e-4


def _ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def _half(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float16)


def _bools(*shape: int) -> Any:
    return np.random.default_rng(4).random(shape) < 0.5


def _weights(*shape: int) -> Any:
    return (np.random.default_rng(5).standard_normal(shape) * 0.1).astype(np.float32)


def _recurrent(op: str, steps: int, inputs: int, hidden: int, both: bool = False) -> Case:
    gates, directions = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if both else 1
    about = {"hidden_size": hidden, "direction": "bidirectional" if both else "forward"}
    shapes = (inputs, gates * hidden, inputs), (directions, gates * hidden, hidden)
    constants = {
        1: _weights(directions, *shapes[0][1:]), 2: _weights(*shapes[1]), 3: _weights(directions, 2 * gates * hidden),
    }  # fmt: skip
    return Case(f"{op} {steps}x{inputs}x{hidden}{' both' if both else ''}", op, [(steps, 1, inputs)], constants, about)


_ROWS, _SCORES, _IMAGE = (1, 128, 768), (1, 12, 128, 128), (1, 64, 56, 56)
_POSITIVE = np.abs(np.random.default_rng(6).standard_normal(_ROWS)).astype(np.float32) + 0.1
_NUMBER = np.float32
CASES = [
    Case("Pow 2", "Pow", [_ROWS], {1: _NUMBER(2)}),
    Case("Pow 3", "Pow", [_ROWS], {1: _NUMBER(3)}),
    Case("Pow 0.5", "Pow", [_POSITIVE], {1: _NUMBER(0.5)}),
    Case("Pow -0.5", "Pow", [_POSITIVE], {1: _NUMBER(-0.5)}),
    Case("Pow 1.7", "Pow", [_POSITIVE], {1: _NUMBER(1.7)}),
    Case("Sqrt", "Sqrt", [_POSITIVE]),
    Case("Reciprocal", "Reciprocal", [_POSITIVE]),
    Case("Exp", "Exp", [_ROWS]),
    Case("Log", "Log", [_POSITIVE]),
    Case("Abs", "Abs", [_ROWS]),
    Case("Neg", "Neg", [_ROWS]),
    Case("Sin", "Sin", [_ROWS]),
    Case("Cos", "Cos", [_ROWS]),
    Case("Floor", "Floor", [_ROWS]),
    Case("Softplus", "Softplus", [_ROWS]),
    Case("Elu", "Elu", [_ROWS]),
    Case("HardSigmoid", "HardSigmoid", [_ROWS]),
    Case("Sigmoid", "Sigmoid", [_ROWS]),
    Case("Tanh", "Tanh", [_ROWS]),
    Case("Erf", "Erf", [_ROWS]),
    Case("Gelu", "Gelu", [(1, 128, 3072)]),
    Case("Gelu tanh", "Gelu", [(1, 128, 3072)], {}, {"approximate": "tanh"}),
    Case("Softmax scores", "Softmax", [_SCORES]),
    Case("LogSoftmax", "LogSoftmax", [(1, 128, 1000)]),
    Case("LayerNormalization", "LayerNormalization", [_ROWS], {1: _weights(768), 2: _weights(768)}),
    Case("LayerNormalization 96", "LayerNormalization", [(1, 3136, 96)], {1: _weights(96), 2: _weights(96)}),
    Case("Add", "Add", [_ROWS, _ROWS]),
    Case("Mul row", "Mul", [_ROWS, (768,)]),
    Case("Max", "Max", [_ROWS, _ROWS]),
    Case("Min", "Min", [_ROWS], {1: _NUMBER(0.5)}),
    Case("Add int64", "Add", [np.arange(128 * 768).reshape(_ROWS), np.arange(768)]),
    Case("Where", "Where", [_bools(*_SCORES), _SCORES, _SCORES]),
    Case("Where mask", "Where", [_bools(1, 1, 128, 128), _SCORES], {2: _NUMBER(-1e9)}),
    Case("Equal int64", "Equal", [np.arange(128 * 768).reshape(_ROWS) % 7], {1: np.int64(3)}),
    Case("Less", "Less", [_ROWS, _ROWS]),
    Case("Greater", "Greater", [_ROWS], {1: _NUMBER(0.5)}),
    Case("And", "And", [_bools(*_SCORES), _bools(*_SCORES)]),
    Case("Or", "Or", [_bools(*_SCORES), _bools(1, 1, 128, 128)]),
    Case("Not", "Not", [_bools(*_SCORES)]),
    Case("ReduceSum last", "ReduceSum", [_ROWS], {1: _ints(-1)}),
    Case("ReduceSum first", "ReduceSum", [(128, 768)], {1: _ints(0)}),
    Case("ReduceSum middle", "ReduceSum", [_IMAGE], {1: _ints(1)}),
    Case("ReduceSum planes", "ReduceSum", [_IMAGE], {1: _ints(2, 3)}),
    Case("ReduceMean last", "ReduceMean", [_ROWS], {1: _ints(-1)}),
    Case("ReduceMean middle", "ReduceMean", [_ROWS], {1: _ints(1)}),
    Case("ReduceMax last", "ReduceMax", [_SCORES], {1: _ints(-1)}),
    Case("ReduceMax middle", "ReduceMax", [_IMAGE], {1: _ints(1)}),
    Case("ReduceMin last", "ReduceMin", [_SCORES], {1: _ints(-1)}),
    Case("ReduceProd last", "ReduceProd", [_weights(1, 128, 64)], {1: _ints(-1)}),
    Case("ReduceL2 last", "ReduceL2", [_ROWS], {1: _ints(-1)}),
    Case("ReduceL2 middle", "ReduceL2", [_IMAGE], {1: _ints(1)}),
    Case("ReduceSumSquare last", "ReduceSumSquare", [_ROWS], {1: _ints(-1)}),
    Case("ReduceL1 last", "ReduceL1", [_ROWS], {1: _ints(-1)}),
    Case("ReduceLogSumExp last", "ReduceLogSumExp", [_ROWS], {1: _ints(-1)}),
    Case("ArgMax last", "ArgMax", [(1, 128, 5000)], {}, {"axis": -1}),
    Case("ArgMax channels", "ArgMax", [(1, 21, 128, 128)], {}, {"axis": 1}),
    Case("TopK 100 of 8400", "TopK", [(1, 8400)], {1: _ints(100)}, {}, 2),
    Case("TopK 5 of rows", "TopK", [(128, 1000)], {1: _ints(5)}, {}, 2),
    Case("CumSum", "CumSum", [_ROWS], {1: np.int64(1)}),
    Case("CumSum last", "CumSum", [_ROWS], {1: np.int64(2)}),
    Case("Cast f32 f16", "Cast", [_ROWS], {}, {"to": TensorProto.FLOAT16}, 1, 1e-2),
    Case("Cast f16 f32", "Cast", [_half(*_ROWS)], {}, {"to": TensorProto.FLOAT}),
    Case("Cast i64 f32", "Cast", [np.arange(128 * 768).reshape(_ROWS)], {}, {"to": TensorProto.FLOAT}),
    Case("Cast bool f32", "Cast", [_bools(*_SCORES)], {}, {"to": TensorProto.FLOAT}),
    Case("Cast f32 bool", "Cast", [_ROWS], {}, {"to": TensorProto.BOOL}),
    Case("MatMul f16", "MatMul", [_half(128, 768)], {1: _half(768, 768)}, {}, 1, 2e-2),
    Case("MatMul computed", "MatMul", [(1, 12, 128, 64), (1, 12, 64, 128)]),
    Case("MatMul computed matrix", "MatMul", [(128, 768), (768, 768)]),
    Case("MatMul constant", "MatMul", [(128, 768)], {1: _weights(768, 768)}),
    Case("Gemm computed", "Gemm", [(128, 256), (512, 256), (512,)], {}, {"transB": 1}),
    Case("MaxPool indices", "MaxPool", [_IMAGE], {}, {"kernel_shape": [2, 2], "strides": [2, 2]}, 2),
    Case("GridSample", "GridSample", [_IMAGE, _weights(1, 56, 56, 2) * 8], {}, {"align_corners": 0}),
    Case("GatherElements", "GatherElements", [(128, 768), np.arange(128 * 768).reshape(128, 768) % 128], {}, {"axis": 0}),
    Case("GatherND", "GatherND", [(128, 768), np.stack([np.arange(64), np.arange(64)], -1)]),
    Case("Gather rows", "Gather", [(1000, 256), np.arange(128).reshape(1, 128)]),
    Case("Gather int64", "Gather", [np.arange(5000), np.arange(128).reshape(1, 128)]),
    Case("ScatterND", "ScatterND", [(128, 768), np.arange(64).reshape(64, 1), (64, 768)]),
    Case("ScatterElements", "ScatterElements", [(128, 768), np.arange(128 * 64).reshape(128, 64) % 768, (128, 64)], {}, {"axis": 1}),
    Case("Trilu", "Trilu", [_SCORES]),
    Case("Tile", "Tile", [(1, 12, 16, 64)], {1: _ints(1, 1, 8, 1)}),
    Case("Expand int64", "Expand", [np.arange(128).reshape(1, 128)], {1: _ints(64, 128)}),
    Case("Transpose", "Transpose", [(1, 128, 12, 64)], {}, {"perm": [0, 2, 1, 3]}),
    Case("Transpose last", "Transpose", [(1, 128, 12, 64)], {}, {"perm": [0, 2, 3, 1]}),
    Case("Slice step", "Slice", [_IMAGE], {1: _ints(0), 2: _ints(56), 3: _ints(3), 4: _ints(2)}),
    Case("Concat", "Concat", [_ROWS, _ROWS], {}, {"axis": 1}),
    Case("Concat last", "Concat", [_ROWS, _ROWS], {}, {"axis": 2}),
    Case("DepthToSpace", "DepthToSpace", [(1, 64, 56, 56)], {}, {"blocksize": 2}),
    Case("InstanceNormalization", "InstanceNormalization", [_IMAGE], {1: _weights(64), 2: _weights(64)}),
    Case("Conv computed depthwise", "Conv", [(1, 64, 56, 56), (64, 1, 3, 3)], {}, {"pads": [1, 1, 1, 1], "group": 64}),
    Case("Conv computed", "Conv", [(1, 32, 28, 28), (32, 32, 3, 3)], {}, {"pads": [1, 1, 1, 1]}),
    Case("OneHot", "OneHot", [np.arange(128) % 100], {1: np.int64(100), 2: np.array([0, 1], np.float32)}),
    _recurrent("LSTM", 100, 128, 128),
    _recurrent("LSTM", 100, 256, 256, both=True),
    _recurrent("LSTM", 25, 32, 32),
    _recurrent("GRU", 100, 128, 128),
    _recurrent("GRU", 25, 32, 32),
    _recurrent("RNN", 100, 128, 128),
]  # fmt: skip


def model_of(case: Case, arrays: Sequence[Any]) -> onnx.ModelProto:
    names, fed, held = [], iter(arrays), []
    for place in range(len(case.inputs) + len(case.constants)):
        names.append(f"c{place}" if place in case.constants else f"x{place}")
        if place in case.constants:
            held.append(numpy_helper.from_array(np.asarray(case.constants[place]), names[-1]))
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip([name for name in names if name[0] == "x"], fed, strict=True)
    ]
    outputs = [f"y{at}" for at in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name=case.op, **case.attributes)
    graph = helper.make_graph([node], "one", values, [onnx.ValueInfoProto(name=name) for name in outputs], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)


def measure(case: Case, seconds: float) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(x).astype(np.float32) if isinstance(x, tuple) else np.asarray(x) for x in case.inputs]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.onnx"
        onnx.save(model_of(case, arrays), path)
        ours, theirs = pysim.load(path), onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    fed = dict(zip([one.name for one in theirs.get_inputs()], arrays, strict=True))
    found, right = ours(*arrays), theirs.run(None, fed)
    for y, z in zip(found if isinstance(found, tuple) else [found], right, strict=True):
        error, most = (float(np.abs(of).max(initial=0)) for of in (y.astype(np.float64) - z.astype(np.float64), z))
        near = error <= case.tolerance * max(1.0, most)
        if y.shape != z.shape or y.dtype != z.dtype or not near:
            raise SystemExit(f"{case.name} differs from ONNX Runtime's result")
    calls = {"pysim": lambda: ours(*arrays), "onnxruntime": lambda: theirs.run(None, fed)}
    samples = interleave(calls, CpuClock(), min_samples=9, min_seconds=seconds, budget_seconds=10 * seconds).samples
    return {"case": case.name, "seconds": {name: float(np.median(times)) for name, times in samples.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[""])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--seconds", type=float, default=0.1, help="of samples of each candidate")
    given = parser.parse_args()
    lines = [json.dumps({"kind": "header", "environment": environment()})]
    print(f"{'':<26}{'pysim us':>10}{'onnxruntime':>12}  ratio")
    for case in CASES:
        if any(name in case.name for name in given.names):
            row = measure(case, given.seconds)
            ours, theirs = row["seconds"]["pysim"], row["seconds"]["onnxruntime"]
            print(f"{case.name:<26}{ours * 1e6:10.1f}{theirs * 1e6:12.1f}{ours / theirs:7.2f}", flush=True)
            lines.append(json.dumps(row))
    if given.output:
        given.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
