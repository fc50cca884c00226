# SPDX-License-Identifier: Apache-2.0
"""A plan of a convolution on a GPU in words: the algorithm, its tiles and passes, what an SM holds, traffic, workspace, the others."""

from collections.abc import Iterator

from pysim.cachemodel.gpu import conv as gpu_conv
from pysim.cachemodel.gpu import product as model
from pysim.cachemodel.gpu.product import Prediction
from pysim.cachemodel.gpu.windows import Windows
from pysim.errors import PlanError
from pysim.explain.cpu import bytes_text, seconds_text
from pysim.explain.gpu_product import cycles, launch, rejections
from pysim.machine.gpu import Gpu
from pysim.planner import gpu_conv as planner
from pysim.planner.conv_algorithms import products_of
from pysim.planner.planned import Plan
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.record.cost import Cost
from pysim.record.schedule import GpuConvSchedule
from pysim.registry.rows import ConvKernel, conv_kernel, gemm_attributes

ALGORITHMS = {
    "direct": "a thread an output, straight from the definition",
    "depthwise": "one channel a group, a thread a strip of outputs",
    "im2col": "columns in the workspace, then products",
    "implicit": "tiles of filters x windows, the windows gathered from the input as it lies",
    "im2win": "tiles of filters x windows, each window a slice of a tensor of rows (arXiv 2306.14316)",
    "winograd": "tiles of outputs from transformed patches and filters, a product for each plane (arXiv 1509.09308)",
    "wgmma": "implicit GEMM on tensor cores: the copy engine gathers windows from channels that lie together",
}


def explain(plan: Plan) -> str:
    """The explanation as text, lines of at most about 120 characters."""
    on, w, schedule, cost = plan.on, plan.workload, plan.schedule, plan.cost
    row = conv_kernel(plan.kernel)
    if not (isinstance(on, Gpu) and isinstance(w, Conv) and isinstance(schedule, GpuConvSchedule) and isinstance(cost, Cost) and row):
        raise PlanError(f"{plan.problem} on {plan.machine} is no plan of a CUDA convolution")
    one = planner.one(on, w, plan.layout == "nhwc", schedule, plan.state == "hot")
    prediction = one.group.prediction
    sections = (
        _head(plan, row, cost),
        ["algorithm", *_algorithm(plan, w, row, schedule)],
        ["passes", *_passes(one)] if one.group.passes[0] else [],
        ["launch", *launch(prediction, prediction.rows.kernels[0], schedule)] if prediction else [],
        ["a step of a block, cycles of its SM", *_step(prediction)] if prediction else [],
        ["traffic", *_traffic(w, cost)],
        ["workspace", *_workspace(plan)],
        ["cycles", *cycles(cost)],
        ["algorithms", *_algorithms(plan, cost)],
        ["rejected", *rejections(plan)],
        ["assumed numbers", *(f"  {path}" for path in plan.assumed)] if plan.assumed else [],
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _head(plan: Plan, row: ConvKernel, cost: Cost) -> list[str]:
    rate = plan.workload.flops / cost.seconds / 1e12
    return [
        f"{plan.problem} on {plan.machine}, {plan.layout}: {plan.algorithm}, {plan.schedule.kind}, kernel {row.name}",
        f"predicted {seconds_text(cost.seconds)} = {cost.cycles:,.0f} cycles, {rate:.1f} TFLOP/s of the direct method, bound by "
        f"{cost.bound_by}; workspace {bytes_text(plan.workspace_bytes)}",
    ]


def _algorithm(plan: Plan, w: Conv, row: ConvKernel, schedule: GpuConvSchedule) -> Iterator[str]:
    nhwc = plan.layout == "nhwc"
    yield f"  {row.family:<18}{ALGORITHMS[row.family]}"
    if row.form != "full":
        yield f"  form              {row.form}"
    yield f"  needs finite      {plan.needs_finite}"
    if row.outputs > 1:
        planes = gpu_conv.planes_of(row)
        yield f"  transform         F({row.outputs}x{row.outputs}, 3x3): {planes} multiplications for {9 * row.outputs**2}, {planes} planes"
    if schedule.gemm:
        of = products_of(w, nhwc)
        yield f"  products          {of.times:,} of {of.problem.text}, by {schedule.gemm}"
    elif row.block_filters:
        windows = Windows(w, nhwc, row.outputs)
        tiles = -(-windows.number // row.block_windows)
        k = gpu_conv.whole_steps(row, w, nhwc) if row.family == "wgmma" else windows.k
        filters = -(-(w.filters // w.groups) // row.block_filters)
        computed = tiles * row.block_windows * row.outputs**2 * filters * row.block_filters
        useful = w.batch * w.windows * (w.filters // w.groups) / computed
        what = f"tiles of {row.outputs}x{row.outputs} outputs" if row.outputs > 1 else "windows"
        yield (
            f"  block tile        {row.block_filters} filters x {row.block_windows} {what}: {filters} x {tiles:,}"
            f"{f' x {w.groups} groups' if w.groups > 1 else ''}, {useful:.1%} of their outputs useful; "
            f"{-(-k // row.block_k)} steps of {row.block_k} along {'channels' if row.outputs > 1 else 'k'} = {windows.k}"
        )
        warp, thread = ("warpgroup", "an instruction") if row.family == "wgmma" else ("warp", "a thread")
        yield f"  {warp + ' tile':<18}{row.warp_filters} x {row.warp_windows}, of {thread} {row.thread_filters} x {row.thread_windows}"
        if row.cluster != (1, 1):
            yield f"  cluster           {row.cluster[0]} x {row.cluster[1]} blocks, which share what they load"
    attributes, _ = gpu_conv.attributes_of(row, gemm_attributes(plan.on.capability_number if isinstance(plan.on, Gpu) else 0))
    if not schedule.gemm:
        yield f"  threads           {attributes.threads} a block, {attributes.registers} registers each"


def _passes(one: planner.Launch) -> Iterator[str]:
    for item in one.group.passes[0]:
        seconds = gpu_conv.pass_cycles(one.group.on, item) / one.group.on.frequency_hz.value
        times = f", {item.launches:,} launches" if item.launches > 1 else ""
        yield f"  {item.name:<18}{bytes_text(item.read)} read, {bytes_text(item.written)} written, {seconds_text(seconds)}{times}"


def _step(prediction: Prediction) -> Iterator[str]:
    step, rows = prediction.rows.works[0], prediction.rows
    yield f"  arithmetic        {step.arithmetic:>10,.1f}   {model.pipe_of(prediction.gpu, rows.kernels[0])} pipe"
    yield f"  shared            {step.shared:>10,.1f}   wavefronts of 128 bytes, of L1's loads too"
    yield f"  issue             {step.issue:>10,.1f}   instructions of {prediction.gpu.schedulers_per_sm.value} schedulers"
    yield f"  taken             {rows.step[0]:>10,.1f}   the largest over an efficiency of {step.cycles / rows.step[0]:.3f}"


def _traffic(w: Conv, cost: Cost) -> Iterator[str]:
    for name, level in cost.levels.items():
        yield f"  {name:<18}{bytes_text(level['bytes']):>10}   {level['cycles']:,.0f} cycles"
    size = SIZES[w.dtype]
    filters = w.filters * (w.channels // w.groups) * w.kernel_h * w.kernel_w
    least = (w.batch * w.channels * w.height * w.width + filters + w.batch * w.filters * w.windows) * size
    yield f"  {'operands':<18}{bytes_text(least):>10}   input, filters and output, once each"


def _workspace(plan: Plan) -> Iterator[str]:
    yield f"  {'needed':<18}{plan.workspace_bytes:>14,} bytes"
    yield f"  {'limit':<18}" + ("none was given" if plan.memory_limit is None else f"{plan.memory_limit:>14,} bytes")


def _algorithms(plan: Plan, cost: Cost) -> Iterator[str]:
    for item in plan.considered:
        if isinstance(item.cost, Cost) and isinstance(item.schedule, GpuConvSchedule):
            by = f" by {item.schedule.gemm}" if item.schedule.gemm else ""
            how = f"{item.schedule.kind}, bound by {item.cost.bound_by}"
            yield f"  {item.cost.seconds / cost.seconds:>8.3f}  {item.schedule.kernel}{by}, {how}"
