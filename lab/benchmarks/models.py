# SPDX-License-Identifier: Apache-2.0
"""Whole networks on this computer's CPU beside ONNX Runtime, interleaved in one run: python lab/benchmarks/models.py -o FILE MODEL.onnx...

The first JSON line has machine and versions; then one line per model, as under "models" of `pysim compare MODEL --peers --json`. Times are
CPU times of interleaved calls; on a shared machine only their ratios are meaningful. Models: the light ones of the onnx package, and
torchvision's (lab/benchmarks/export_onnx.py).
"""

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path

import msgspec

from pysim.calibration import host
from pysim.onnx.compare import compare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of samples of each candidate")
    given = parser.parse_args()
    on = host.runnable("host")
    print(f"{on.description}, {platform.python_implementation()} {platform.python_version()}, {given.threads} threads")
    print("model               pysim ms  onnxruntime  convs and products  predicted of all    errors (pysim, onnxruntime)")
    about = {"machine": on.description, "threads": given.threads, "onnxruntime": version("onnxruntime"), "numpy": version("numpy")}
    with given.output.open("w") as out:
        out.write(json.dumps(about) + "\n")
        for path in given.models:
            one = compare(path, on, given.threads, True, given.seconds)
            one = msgspec.structs.replace(one, model=path.name)
            out.write(msgspec.json.encode(one).decode() + "\n")
            out.flush()  # what is measured is kept, whatever happens to the next
            planned = sum(layer.measured_seconds for layer in one.layers if layer.problem)
            ratio = one.peers.get("onnxruntime", float("nan")) / (one.measured_seconds or float("nan"))
            errors = ", ".join(f"{error:.1e}" for error in one.errors.values())
            times = f"{(one.measured_seconds or 0) * 1e3:8.2f}  {ratio:10.2f}x"
            parts = f"{planned * 1e3:15.2f} ms  {one.predicted_seconds * 1e3:15.2f} ms"
            print(f"{path.stem:<18}  {times}  {parts}  {errors}", flush=True)


if __name__ == "__main__":
    main()
