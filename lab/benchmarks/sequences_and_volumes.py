# SPDX-License-Identifier: Apache-2.0
"""Convolutions of sequences and volumes, and transposed ones, beside ONNX Runtime and OpenVINO on one thread.

    taskset -c 1 python lab/benchmarks/sequences_and_volumes.py -o FILE [LAYER ...] [--milliseconds 300]

LAYER is a benchdnn line, a built-in set, or SET:NUMBER, its layer of that number from 0; without one, 62 layers of the sets below, of
state-space models and of diffusion U-Nets, 22 of them of 2 to 8 images. Each is a model of one node, which all three read and run
interleaved; a result that is further than 1e-4 of the largest from float64 is an error. Times are CPU times, the lower deciles of the
samples. One JSON line a layer: seconds, errors, the plans, their predicted time, and the faster peer's time over ours.
"""

import argparse
import json
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper
from products import lower_deciles

import pysim
from pysim.check.reference import reference
from pysim.measure.store import environment
from pysim.problem.text import line_of, parse

LAYERS = """
    r3d18:0 r3d18:1 r3d18:5 r3d18:6 r3d18:7 slowfast:1 slowfast:2 slowfast:4 slowfast:5 slowfast:60 slowfast:90 wav2vec2:0 wav2vec2:1
    wav2vec2:3 wav2vec2:7 encodec:0 encodec:1 encodec:8 encodec:20 encodec:24 encodec:35 dcgan:1 dcgan:2 dcgan:3 dcgan:6
    conv:mb1ic32id56ih56iw56oc64kd3kh3kw3 deconv:mb1ic256id9ih9iw9oc256od18oh18ow18kd2kh2kw2sd2sh2sw2pd0ph0pw0
    conv:g1024mb1ic1024iw2048oc1024ow2048kw4pw3 conv:g512mb1ic512iw1000oc512kw31pw15 conv:g256mb1ic256iw4000oc256kw7pw3
    conv:g64mb1ic64iw8000oc64kw63pw31 conv:g64mb1ic64id8ih56iw56oc64kd3kh3kw3pd1ph1pw1
    conv:g128mb1ic128id16ih28iw28oc128kd3kh3kw3sd1sh2sw2pd1ph1pw1 conv:g256mb1ic256id8ih14iw14oc256kd3kh3kw3pd1ph1pw1
    conv:g54mb1ic54id16ih56iw56oc54kd5kh1kw1pd2ph0pw0 conv:mb1ic144id8ih28iw28oc64kd3kh1kw1pd1ph0pw0
    deconv:mb1ic64ih28iw28oc32oh56ow56kh3kw3sh2sw2ph1pw1 deconv:mb1ic128ih14iw14oc64oh28ow28kh5kw5sh2sw2ph2pw2
    deconv:mb1ic256ih1iw75oc128oh1ow600kh1kw16sh1sw8ph0pw4
    deconv:mb1ic64id8ih14iw14oc32od16oh28ow28kd3kh3kw3sd2sh2sw2pd1ph1pw1
    conv:mb4ic8id32ih56iw56oc32kd1kh1kw1 conv:mb4ic16id32ih28iw28oc64kd1kh1kw1 conv:mb4ic32id32ih14iw14oc128kd1kh1kw1
    conv:mb2ic128id4ih28iw28oc512kd1kh1kw1 conv:mb8ic128id8ih28iw28oc256kd1kh1kw1sd2sh2sw2 conv:mb4ic512id4ih7iw7oc2048kd1kh1kw1
    conv:mb4ic64id32ih28iw28oc16kd3kh1kw1pd1ph0pw0 conv:mb8ic256id32ih7iw7oc64kd3kh1kw1pd1ph0pw0
    conv:mb8ic16id32ih28iw28oc16kd1kh3kw3pd0ph1pw1 conv:mb2ic512ih1iw3199oc512kh1kw3sh1sw2 conv:mb8ic128ih1iw3005oc256kh1kw10sh1sw5
    conv:mb8ic32ih1iw12000oc64kh1kw1 conv:mb4ic32ih1iw24002oc64kh1kw4sh1sw2 conv:g1536mb2ic1536iw2048oc1536ow2048kw4pw3
    conv:g2560mb4ic2560iw512oc2560ow512kw4pw3 conv:mb2ic320ih64iw64oc320kh3kw3sh2sw2ph1pw1
    conv:mb4ic1280ih16iw16oc1280kh3kw3sh2sw2ph1pw1 conv:mb8ic4ih64iw64oc320kh3kw3ph1pw1
    deconv:mb8ic1024ih4iw4oc512oh8ow8kh4kw4sh2sw2ph1pw1 deconv:mb4ic256ih16iw16oc256oh32ow32kh4kw4sh2sw2ph1pw1
    deconv:mb8ic128ih16iw16oc64oh32ow32kh4kw4sh2sw2ph1pw1 deconv:mb4ic512ih1iw100oc256oh1ow500kh1kw10sh1sw5ph0pw3
"""
TOLERANCE = 1e-4
REFERENCE_FLOPS = 3e8  # larger layers are compared with ONNX Runtime's result


def model_of(line: str) -> tuple[onnx.ModelProto, Any]:
    """The line as a model of one node, and its input."""
    of, (x, w, about) = np.random.default_rng(0), _shapes(line)
    op = "ConvTranspose" if line.startswith("deconv") else "Conv"
    weights = (of.standard_normal(w, dtype=np.float32) / np.sqrt(math.prod(w[1:]))).astype(np.float32)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", x), ("y", None))]
    node = helper.make_node(op, ["x", "w"], ["y"], **about)
    graph = helper.make_graph([node], "one", values[:1], values[1:], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), of.standard_normal(x, dtype=np.float32)


def _shapes(line: str) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of input and weights, and the node's attributes."""
    if not line.startswith("deconv"):
        c = parse(line)
        axes = [c.slices, c.rows, c.columns] if c.is_volume else [c.columns] if c.height == c.kernel_h == 1 else [c.rows, c.columns]
        x, w = (c.batch, c.channels, *(a.size for a in axes)), (c.filters, c.group_channels, *(a.kernel for a in axes))
        pads = [a.before for a in axes] + [a.after for a in axes]
        return x, w, {"strides": [a.stride for a in axes], "pads": pads, "dilations": [a.dilation for a in axes], "group": c.groups}
    of = {name: int(number) for name, number in re.findall(r"([a-z]+)(\d+)", line.partition(":")[2])}
    letters, groups = [a for a in "dhw" if f"i{a}" in of], of.get("g", 1)
    sizes, kernel, outs = ([of[f"{field}{a}"] for a in letters] for field in "iko")
    strides, pads = [of.get(f"s{a}", 1) for a in letters], [of.get(f"p{a}", 0) for a in letters]
    more = [o - ((i - 1) * s - 2 * p + k) for o, i, s, p, k in zip(outs, sizes, strides, pads, kernel, strict=True)]
    about = {"strides": strides, "pads": pads * 2, "group": groups, "output_padding": more}
    return (of.get("mb", 1), of["ic"], *sizes), (of["ic"], of["oc"] // groups, *kernel), about


def measure(line: str, seconds: float) -> dict[str, Any]:
    model, x = model_of(line)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.onnx"
        onnx.save(model, path)
        ours, ort = pysim.load(path), onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        hints = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        request = openvino.Core().compile_model(path, "CPU", hints).create_infer_request()

    def by_openvino() -> Any:
        request.infer([x], share_inputs=True, share_outputs=True)
        return request.get_output_tensor(0).data

    calls = {"pysim": lambda: ours(x), "onnxruntime": lambda: ort.run(None, {"x": x})[0], "openvino": by_openvino}
    found = {name: np.array(call(), np.float64) for name, call in calls.items()}
    right = found["onnxruntime"]
    if (conv := parse(line)).flops < REFERENCE_FLOPS and line.startswith("conv"):
        weights = numpy_helper.to_array(model.graph.initializer[0])
        right = reference(conv, *(of.astype(np.float64) for of in (x.reshape(conv.input_shape), weights.reshape(conv.filter_shape))))
    most = float(np.abs(right).max())
    errors = {name: float(np.abs(y.reshape(right.shape) - right).max()) / most for name, y in found.items()}
    if not errors["pysim"] < TOLERANCE:
        raise SystemExit(f"{line}: pysim is {errors['pysim']:.1e} off")
    times = lower_deciles(calls, seconds)
    plans = [layer.plan.name for layer in ours.plan.layers if layer.plan]
    ratio = min(times["onnxruntime"], times["openvino"]) / times["pysim"]
    about = {"problem": line, "seconds": times, "predicted": ours.plan.predicted_seconds, "errors": errors, "plans": plans}
    return about | {"ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=LAYERS.split())
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--milliseconds", type=float, default=300)
    given = parser.parse_args()
    ratios, off = [], []
    with given.output.open("w", encoding="utf-8") as out:
        print(json.dumps({"kind": "header", "environment": environment()}), file=out)
        for word in given.layers:
            one = measure(line_of(word), given.milliseconds / 1e3)
            print(json.dumps(one), file=out, flush=True)
            times = "  ".join(f"{name} {of * 1e3:.3f}" for name, of in one["seconds"].items())
            expected = one["predicted"] / one["seconds"]["pysim"]
            about = f"{one['errors']['pysim']:.0e}  {one['problem']}  {one['plans']}"
            print(f"{one['ratio']:.2f}  {times} ms, predicted {expected:.2f} of it  {about}", flush=True)
            ratios.append(one["ratio"])
            off.append(abs(math.log(expected)))
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"# {mean:.3f} in the mean, least {min(ratios):.2f}, {sum(one < 0.95 for one in ratios)} of {len(ratios)} below 0.95")
    print(f"# predictions {np.quantile(off, 0.5):.1%} off in the median, {np.quantile(off, 0.9):.1%} at the 90th percentile")


if __name__ == "__main__":
    main()
