# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: a model of one Conv or Gemm node, all graph optimisations, IO binding."""

import functools
from typing import Any

import numpy as np

from pysim.check.fills import Array
from pysim.errors import MissingError
from pysim.peers.peer import Operands, Ready, on_host, only
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload

ALGORITHMS = ("",)
_OPSET, _IR_VERSION = 17, 8  # supported by every ONNX Runtime since 1.12


def make(workload: Workload, operands: Operands, algorithm: str = "") -> Ready:
    only(("f32", "f64") if isinstance(workload, Gemm) else ("f32",), workload, "ONNX Runtime")
    x, w, out = on_host(workload, operands)
    try:
        import onnx
        import onnxruntime as ort
    except ImportError as error:
        raise MissingError(f"{error.name} is not installed: pip install onnx onnxruntime") from None
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    try:
        model = _one_node(onnx, workload, x, w, out).SerializeToString()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # exceptions differ between versions
        raise MissingError(f"ONNX Runtime {ort.__version__} refuses this problem: {str(error).splitlines()[0]}") from None
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype.type, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, out.dtype.type, out.shape, out.ctypes.data)
    return Ready(functools.partial(session.run_with_iobinding, binding), f"onnxruntime {ort.__version__}")


def _one_node(onnx: Any, workload: Workload, x: Array, w: Array, out: Array) -> Any:
    """A model with input x, output y, and the weights as constants."""
    if isinstance(workload, Gemm):
        attributes: dict[str, Any] = {"transA": int(workload.trans_a), "transB": int(workload.trans_b)}
    else:
        c = workload
        attributes = {
            "kernel_shape": (c.kernel_h, c.kernel_w),
            "strides": (c.stride_h, c.stride_w),
            "dilations": (c.dilation_h, c.dilation_w),
            "pads": (c.pad_top, c.pad_left, c.pad_bottom, c.pad_right),
            "group": c.groups,
        }
    node = onnx.helper.make_node("Gemm" if isinstance(workload, Gemm) else "Conv", ["x", "w"], ["y"], **attributes)
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    ends = [onnx.helper.make_tensor_value_info(name, kind, array.shape) for name, array in (("x", x), ("y", out))]
    graph = onnx.helper.make_graph([node], "one", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    weights = model.graph.initializer.add()  # here, since messages are copied into one another
    weights.name, weights.data_type, weights.raw_data = "w", kind, np.ascontiguousarray(w, w.dtype.newbyteorder("<")).tobytes()
    weights.dims.extend(w.shape)
    return model
