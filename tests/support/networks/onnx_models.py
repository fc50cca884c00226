# SPDX-License-Identifier: Apache-2.0
"""What tests of ONNX models share: a model here and by ONNX Runtime, what it is given, and how near results are."""

import numpy as np
import pytest

from pysim.calibration import host
from pysim.network.execution import Network
from pysim.onnx import reading

ort = pytest.importorskip("onnxruntime")


def model_of(proto, threads=1):
    return Network(reading.graph_of(proto, "a model"), host.runnable("host"), threads)


def given(proto, seed=0):
    sizes = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(seed).standard_normal(sizes).astype(np.float32)


def by_onnxruntime(content, x):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})


def several(y):
    return y if isinstance(y, tuple) else (y,)


def assert_close(found, wanted, alike=2e-5):
    for y, right in zip(several(found), wanted, strict=True):
        assert y.shape == right.shape and y.dtype == right.dtype
        assert np.abs(y - right).max() <= alike * max(np.abs(right).max(), 1e-6)
