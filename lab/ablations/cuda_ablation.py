#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gain of register tiles, double buffering, vector loads and the conflict-free layout: each is left out of one SGEMM kernel.

    lab/ablations/cuda_ablation.py            a table for lab/notebook/gpu-products.md, from lab/data/h200/ablation.jsonl

Measured: `bench --dtype f32 --set main --rows` (M = 10240, N = K = 4096, cuBLAS's NN). Predicted: the GPU cost model of the same launch.
"""

import json
from pathlib import Path

from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.planner import plan
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.schedule import GpuSchedule, name_of

DATA = Path(__file__).parents[1] / "data" / "h200" / "ablation.jsonl"
WITH = "f32_simt_128x128x8_64x32_8x8_s2_c1x1"
WITHOUT = {
    "nothing": WITH,
    "double buffering: one stage": WITH.replace("_s2_", "_s1_"),
    "vector loads: element by element": f"{WITH}_scalar",
    "the conflict-free layout": f"{WITH}_unpadded",
    "register tiles: one output a thread": "f32_simt_32x32x32_4x8_1x1_s2_c1x1",
}


def table() -> str:
    """Each ablation with TFLOP/s measured and predicted, and its share of the full kernel's."""
    found: dict[str, float] = {}
    for one in map(json.loads, DATA.read_text().splitlines()):
        if "layout" in one:
            break  # the rows of the next layout follow
        if "row" in one:
            found.setdefault(one["row"], one["seconds"])
    gpu, problem = load_any("h200"), parse("gemm:4096x10240x4096:f32:nn")  # bench's sizes are cuBLAS's, so the kernel sees C transposed
    assert isinstance(gpu, Gpu) and isinstance(problem, Gemm)
    titles = "| left out | measured, TFLOP/s | of the full kernel | predicted, TFLOP/s | of the full kernel |"
    lines = [titles, "| --- | --: | --: | --: | --: |"]
    base: tuple[float, float] | None = None
    for what, name in WITHOUT.items():
        schedule = GpuSchedule(kernel=name, decomposition="data_parallel", splits=1, along_n=False, group=8)
        seconds = plan(problem, gpu, name=name_of("gemm", schedule)).cost.seconds
        rates = (problem.flops / found[name] / 1e12, problem.flops / seconds / 1e12)
        base = base or rates
        lines.append(f"| {what} | {rates[0]:.1f} | {rates[0] / base[0]:.2f} | {rates[1]:.1f} | {rates[1] / base[1]:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
