# SPDX-License-Identifier: Apache-2.0
"""A GPU plan in words: the hierarchy of tiles, what an SM holds, waves, what a step costs, traffic, and what the others would take."""

from collections.abc import Iterator

from pysim.cachemodel.gpu import product as model
from pysim.errors import PlanError
from pysim.explain.cpu import bytes_text, seconds_text
from pysim.machine.gpu import Gpu
from pysim.planner import gpu
from pysim.planner.planned import Plan
from pysim.problem.dtypes import SIZES
from pysim.problem.gemm import Gemm
from pysim.record.cost import Cost
from pysim.record.schedule import GpuConvSchedule, GpuSchedule
from pysim.registry.rows import WARP, GemmKernel, gemm_kernel

_TOP = 10  # rejections that are printed


def explain(plan: Plan) -> str:
    """The explanation as text, lines of at most about 120 characters."""
    on, problem, schedule, cost = plan.on, plan.workload, plan.schedule, plan.cost
    kernel = gemm_kernel(schedule.kernel)
    if not (isinstance(on, Gpu) and isinstance(problem, Gemm) and isinstance(schedule, GpuSchedule) and isinstance(cost, Cost) and kernel):
        raise PlanError(f"{plan.problem} on {plan.machine} is no plan of a CUDA kernel")
    prediction = gpu.one(on, problem, kernel, schedule, plan.state == "hot")
    sections = (
        _head(plan, schedule, cost),
        ["hierarchy", *_hierarchy(prediction, kernel)],
        ["launch", *launch(prediction, kernel, schedule)],
        ["a step of a block, cycles of its SM", *_step(prediction, kernel)],
        ["traffic", *_traffic(prediction, cost)],
        ["cycles", *cycles(cost)],
        ["decompositions", *_decompositions(plan, cost)],
        ["rejected", *rejections(plan)],
        ["assumed numbers", *(f"  {path}" for path in plan.assumed)] if plan.assumed else [],
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _head(plan: Plan, schedule: GpuSchedule, cost: Cost) -> list[str]:
    rate = plan.workload.flops / cost.seconds / 1e12
    return [
        f"{plan.problem} on {plan.machine}: {plan.algorithm}, {schedule.decomposition}, kernel {plan.kernel}",
        f"predicted {seconds_text(cost.seconds)} = {cost.cycles:,.0f} cycles, {rate:.1f} TFLOP/s, bound by {cost.bound_by}; "
        f"workspace {bytes_text(plan.workspace_bytes)}",
    ]


def _hierarchy(prediction: model.Prediction, kernel: GemmKernel) -> Iterator[str]:
    p, facts, attributes = prediction.problem, prediction.facts, prediction.rows.attributes[0]
    tiles_m, tiles_n = int(facts["tiles_m"][0]), int(facts["tiles_n"][0])
    rows, columns = tiles_m * kernel.block_m * kernel.cluster_m, tiles_n * kernel.block_n * kernel.cluster_n
    warp = "warpgroup" if kernel.family == "wgmma" else "warp"
    thread = "thread" if kernel.family == "simt" else "instruction"
    yield f"  product           {p.m} x {p.n} x {p.k}, {p.dtype}, layout {p.layout}"
    if kernel.cluster_m * kernel.cluster_n > 1:
        sizes = f"{kernel.block_m * kernel.cluster_m} x {kernel.block_n * kernel.cluster_n}"
        yield f"  cluster           {kernel.cluster_m} x {kernel.cluster_n} blocks: {sizes}"
    yield (
        f"  block tile        {kernel.block_m} x {kernel.block_n}: {tiles_m} x {tiles_n} = {tiles_m * tiles_n:,} "
        f"{'clusters' if kernel.cluster_m * kernel.cluster_n > 1 else 'tiles'}, {p.m * p.n / (rows * columns):.1%} of them useful; "
        f"{int(facts['all_steps'][0])} steps of {kernel.block_k} along k"
    )
    yield f"  {warp + ' tile':<18}{kernel.warp_m} x {kernel.warp_n}"
    yield f"  {thread + ' tile':<18}{kernel.thread_m} x {kernel.thread_n}"
    spilled = f", {attributes.local_bytes} bytes of local memory" if attributes.local_bytes else ""
    yield f"  threads           {attributes.threads} a block, {attributes.registers} registers each{spilled}"
    stage = model.stage_bytes(kernel)
    yield f"  shared            {kernel.stages} stages of {bytes_text(stage)}; {bytes_text(attributes.shared_bytes)} a block in all"


def launch(prediction: model.Prediction, kernel: GemmKernel, schedule: GpuSchedule | GpuConvSchedule) -> Iterator[str]:
    """What an SM holds of a launch, its waves and its walk."""
    on, facts, attributes = prediction.gpu, prediction.facts, prediction.rows.attributes[0]
    limits = model.occupancy_limits(on, attributes)
    held = int(facts["resident"][0])
    least = min(limits, key=lambda name: limits[name])
    why = "the kernel stays on its SM" if kernel.family == "wgmma" and held < limits[least] else f"limited by {least}"
    warps = held * attributes.threads // WARP
    yield f"  occupancy         {held} {'block' if held == 1 else 'blocks'} an SM ({why}): {warps} of {on.warps_per_sm.value} warps"
    what = {"split_k": f", k in {schedule.splits} parts", "stream_k": f", all steps shared by {schedule.splits} blocks"}
    items, slots = int(facts["items"][0]), int(facts["slots"][0])
    last = items % slots
    yield (
        f"  blocks            {items:,}{what.get(schedule.decomposition, '')}: {items / slots:.2f} waves of {slots}"
        f"{f', {last} in the last' if last and items > slots else ''}"
    )
    tiles = "tile" if schedule.group == 1 else "tiles"
    yield f"  walk              along {'n' if schedule.along_n else 'm'}, in bands of {schedule.group} {tiles}"
    if copies := int(facts["relayouts"][0]):
        moved = bytes_text(float(facts["relayout_bytes"][0]))
        yield f"  re-layout         {copies} {'operand' if copies == 1 else 'operands'} first, {moved} moved"


def _step(prediction: model.Prediction, kernel: GemmKernel) -> Iterator[str]:
    step = prediction.rows.works[0]
    pipe = model.pipe_of(prediction.gpu, kernel) or ""
    rate = prediction.gpu.fma_per_cycle[pipe].value
    yield f"  arithmetic        {step.arithmetic:>10,.1f}   {pipe} pipe, {rate:,.0f} multiply-adds a cycle"
    yield f"  shared            {step.shared:>10,.1f}   wavefronts of 128 bytes"
    yield f"  issue             {step.issue:>10,.1f}   instructions of {prediction.gpu.schedulers_per_sm.value} schedulers"
    whose = "the kernel's measured" if prediction.rows.attributes[0].efficiency else "its family's"
    share = f"{whose} efficiency, {step.cycles / prediction.rows.step[0]:.3f}"
    yield f"  taken             {prediction.rows.step[0]:>10,.1f}   the largest over {share}"


def _traffic(prediction: model.Prediction, cost: Cost) -> Iterator[str]:
    for name, level in cost.levels.items():
        extra = f"{level['wavefronts']:,.0f} wavefronts" if name == "shared" else f"{level['lines']:,.0f} lines"
        yield f"  {name:<18}{bytes_text(level['bytes']):>10}   {extra}, {level['cycles']:,.0f} cycles"
    p = prediction.problem
    size = SIZES[p.dtype]
    least = (p.m * p.k + p.k * p.n) * size + p.m * p.n * model.RESULT_BYTES.get(p.dtype, size)
    yield f"  {'operands':<18}{bytes_text(least):>10}   A, B and C, once each"


def cycles(cost: Cost) -> Iterator[str]:
    """Where a cost comes from, term by term."""
    for name, value in cost.terms.items():
        if value:
            yield f"  {name:<18}{value:>16,.0f}{value / cost.cycles:>8.1%}"
    yield f"  {'all':<18}{cost.cycles:>16,.0f}"
    yield "  loop and power, L2 and memory: the larger of each pair counts, and the lesser of the two mostly hides"


def _decompositions(plan: Plan, cost: Cost) -> Iterator[str]:
    for item in plan.considered:
        if isinstance(item.cost, Cost) and isinstance(item.schedule, GpuSchedule):
            s = item.schedule
            parts = f" ({s.splits})" if s.splits > 1 else ""
            yield f"  {s.decomposition + parts:<18}{item.cost.seconds / cost.seconds:>6.3f}  {s.kernel}, bound by {item.cost.bound_by}"


def rejections(plan: Plan) -> Iterator[str]:
    """What was turned down, the first few."""
    for item in plan.rejected[:_TOP]:
        yield f"  {item.what}: {item.reason}"
    if len(plan.rejected) > _TOP:
        yield f"  and {len(plan.rejected) - _TOP} more (all stand in the JSON document)"
