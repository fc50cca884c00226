# SPDX-License-Identifier: Apache-2.0
"""Products with weights of four bits (MatMulNBits) beside ONNX Runtime on one thread, interleaved (`pysim.network.integers.few_bits`).

    python lab/benchmarks/few_bits.py [MxKxN:BLOCK[:zeros] ...] [--seconds 3]

Each is measured as a file has float32 inputs (accuracy_level 0) and as these may be rounded to bytes (4). Columns: medians of a call in us,
ONNX Runtime's time over pysim's, the largest error from float64 over the largest result of each, predicted over measured, and the operator.
Pin it to a core: `taskset -c 1`.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import pysim

SHAPES = "1x4096x4096:32 1x4096x4096:32:zeros 1x4096x11008:128 4x4096x4096:32 12x4096x4096:32 128x2048x2048:32"
LEVELS = (0, 4)


def written(path: Path, sizes: tuple[int, int, int], block: int, zeros: bool, level: int) -> Any:
    """Writes the model; returns its matrix in float64."""
    rng, (m, k, n), blocks = np.random.default_rng(0), sizes, -(-sizes[1] // block)
    packed = rng.integers(0, 256, (n, blocks, block // 2)).astype(np.uint8)
    scales = (rng.standard_normal((n, blocks)) / 64).astype(np.float32)
    at = rng.integers(0, 256, (n, -(-blocks // 2))).astype(np.uint8) if zeros else np.full((n, -(-blocks // 2)), 0x88, np.uint8)
    kept = {"w": packed, "s": scales.reshape(-1)} | ({"z": at.reshape(-1)} if zeros else {})
    about = {"K": k, "N": n, "bits": 4, "block_size": block, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", ["x", *kept], ["y"], domain="com.microsoft", **about)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [m, size]) for name, size in (("x", k), ("y", n))]
    graph = helper.make_graph([node], "bits", ends[:1], ends[1:], [numpy_helper.from_array(one, name) for name, one in kept.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    q, zero = (np.stack([one & 15, one >> 4], -1).reshape(n, -1).astype(np.float64) for one in (packed, at))
    return ((q - np.repeat(zero[:, :blocks], block, 1)) * np.repeat(scales.astype(np.float64), block, 1))[:, :k].T


def measured(text: str, level: int, seconds: float, folder: Path) -> None:
    shape, block, *zeros = text.split(":")
    m, k, n = (int(one) for one in shape.split("x"))
    right = written(folder / "bits.onnx", (m, k, n), int(block), bool(zeros), level)
    x = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    peer = onnxruntime.InferenceSession(str(folder / "bits.onnx"), options, providers=["CPUExecutionProvider"])
    network = pysim.load(folder / "bits.onnx", threads=1)
    runs: dict[str, Any] = {"pysim": lambda: network(x), "onnxruntime": lambda: peer.run(None, {"x": x})[0]}
    whole = x @ right
    errors = {name: np.abs(run() - whole).max() / np.abs(whole).max() for name, run in runs.items()}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in runs.items():
            begun = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - begun)
    ours, theirs = (float(np.median(taken[name])) for name in runs)
    told = " ".join(f"{one:.1e}" for one in errors.values())
    print(
        f"{text:<24} level {level}  pysim {ours * 1e6:7.0f}  onnxruntime {theirs * 1e6:7.0f} us | {theirs / ours:.2f} | errors {told} | "
        f"predicted {network.plan.predicted_seconds / ours:.2f} | {network.plan.layers[-1].node.op}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES.split())
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for text in given.shapes:
            for level in LEVELS:
                measured(text, level, given.seconds, Path(folder))


if __name__ == "__main__":
    main()
