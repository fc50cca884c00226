# SPDX-License-Identifier: Apache-2.0
"""A GPU plan in words, whatever its algorithm: tiles, occupancy, a k-iteration, traffic, passes, workspace."""

from collections.abc import Callable, Iterator

from pysim.cachemodel.gpu.copy_kernels import pass_cycles
from pysim.cachemodel.gpu.launches import Candidates, Launches, Variant, launched
from pysim.cachemodel.gpu.mainloop import stage_bytes
from pysim.cachemodel.gpu.occupancy import occupancy_limits, pipe_of
from pysim.errors import PlanError
from pysim.machine.gpu import Gpu
from pysim.problem.dtypes import GPU_RESULT_BYTES
from pysim.problem.gemm import Gemm
from pysim.record.cost import Cost
from pysim.record.description import Description, Section, bytes_text, seconds_text
from pysim.record.plan import Plan, Request
from pysim.registry.cuda import WARP, Tiles, conv_kernel, gemm_kernel


def describe(plan: Plan, candidates: Callable[[Request], Candidates], summary: str, lines: tuple[str, ...] = ()) -> Description:
    """The description of a plan; `lines` are the algorithm's own. PlanError where the plan is not one of its candidates."""
    legal, tiles = candidates(Request(plan.workload, plan.on, plan.layout, plan.state, schedule=plan.schedule)), _tiles_of(plan)
    if not isinstance(plan.on, Gpu) or not legal.variants:
        raise PlanError(f"{plan.problem} on {plan.machine} is not a plan of {plan.algorithm}: {plan.name}")
    launches = launched(plan.on, [legal])[0]
    variant = launches.variant(0)
    sections = [
        Section("algorithm", (*lines, *_block(variant, tiles))),
        Section("passes", tuple(_passes(launches, variant))) if variant.passes else None,
        Section("launch", tuple(_launch(launches, variant, tiles, plan))) if tiles else None,
        Section("one k-iteration of a block, SM cycles", tuple(_iteration(launches, variant, tiles))) if tiles else None,
        Section("traffic", tuple(_traffic(plan))),
        Section("workspace", tuple(_workspace(plan))),
    ]
    return Description(
        f"{summary}, {plan.schedule.kind.replace('_', ' ')}", tuple(one for one in sections if one), _peak(launches.gpu, plan, tiles)
    )


def _tiles_of(plan: Plan) -> Tiles | None:
    """The tiles of the kernel that multiplies, if its cost is counted by tiles."""
    product = gemm_kernel(plan.kernel) or gemm_kernel(plan.launch.gemm or "")
    if product and product.dense:
        return None
    row = product or conv_kernel(plan.kernel)
    return row.tiles if row and row.tiles.rows else None


def _peak(gpu: Gpu, plan: Plan, tiles: Tiles | None) -> float:
    """FLOP/s of the problem's definition at the pipe's peak and sustained clock. F(m x m, 3x3) replaces 9 m^2 multiply-adds by (m + 2)^2; a
    product of parts takes several."""
    row, rate = conv_kernel(plan.kernel), pipe_and_rate(gpu, plan)[1]
    m = row.outputs if row else 1
    multiplied = ((m + 2) ** 2 / (9 * m * m) if m > 1 else 1.0) * (tiles.products if tiles else 1)
    return rate / multiplied


def pipe_and_rate(gpu: Gpu, plan: Plan) -> tuple[str, float]:
    """The pipe of the kernel that multiplies, and its FLOP/s at its sustained clock; ("", 0) if the kernel has no tiles."""
    tiles = _tiles_of(plan)
    pipe = pipe_of(gpu, tiles.pipe) if tiles else None
    if not pipe:
        return "", 0.0
    return pipe, 2 * gpu.sms.value * gpu.fma_per_cycle[pipe].value * gpu.sustained_hz.get(pipe, gpu.frequency_hz).value


def tiling(problem: Gemm, of: Tiles) -> tuple[str, ...]:
    """The tiles of a product and their number."""
    high, wide = -(-problem.m // (of.rows * of.cluster_rows)), -(-problem.n // (of.columns * of.cluster_columns))
    useful = problem.m * problem.n / (high * of.rows * of.cluster_rows * wide * of.columns * of.cluster_columns)
    return (
        f"{'block tile':<18}{of.rows} x {of.columns}: {high} x {wide} = {high * wide:,} {'clusters' if of.blocks > 1 else 'tiles'}, "
        f"{useful:.1%} of their outputs useful; {-(-problem.k // of.depth)} k-iterations of {of.depth}",
    )


def _block(variant: Variant, of: Tiles | None) -> Iterator[str]:
    """Tiles of warps and threads; threads, registers and shared memory of a block."""
    attributes = variant.attributes
    if of:
        if of.blocks > 1:
            yield f"{'cluster':<18}{of.cluster_rows} x {of.cluster_columns} blocks, which share their loads (TMA multicast)"
        yield f"{'warpgroup tile' if of.by_warpgroups else 'warp tile':<18}{of.warp_rows} x {of.warp_columns}"
        yield f"{'instruction tile' if of.tensor else 'thread tile':<18}{of.thread_rows} x {of.thread_columns}"
    spilled = f", {attributes.local_bytes} bytes of local memory" if attributes.local_bytes else ""
    yield f"{'threads':<18}{attributes.threads} per block, {attributes.registers} registers each{spilled}"
    if of:
        stages = f"{of.stages} {'stage' if of.stages == 1 else 'stages'} of {bytes_text(stage_bytes(of))}"
        yield f"{'shared memory':<18}{stages}; {bytes_text(attributes.shared_bytes)} per block in all"


def _launch(launches: Launches, variant: Variant, of: Tiles, plan: Plan) -> Iterator[str]:
    """Occupancy, waves and rasterisation order of a launch."""
    on, schedule, columns, attributes, counts = launches.gpu, plan.launch, variant.columns, variant.attributes, launches.prediction.counts
    assert columns is not None and counts is not None
    limits, held = occupancy_limits(on, attributes), int(columns.blocks_per_sm)
    least = min(limits, key=lambda name: limits[name])
    why = "persistent kernel" if of.by_warpgroups and held < limits[least] else f"limited by {least}"
    warps = held * attributes.threads // WARP
    yield f"{'occupancy':<18}{held} {'block' if held == 1 else 'blocks'} per SM ({why}): {warps} of {on.warps_per_sm.value} warps"
    split = {"split_k": f" (split-K: {schedule.splits} parts of each tile)", "stream_k": " (stream-K: they share all k-iterations)"}
    items, slots, what = int(counts.items[0]), int(counts.slots[0]), "clusters" if of.blocks > 1 else "blocks"
    last = f", {items % slots} in the last" if items % slots and items > slots else ""
    yield f"{what:<18}{items:,}{split.get(schedule.decomposition, '')}: {items / slots:.2f} waves of up to {slots}{last}"
    group = f"{schedule.group} {'tile' if schedule.group == 1 else 'tiles'}"
    yield f"{'rasterisation':<18}along {'n' if schedule.along_n else 'm'}, in groups of {group}"
    if copies := int(columns.conversions):
        moved = bytes_text(float(columns.conversion_bytes))
        yield f"{'layout conversion':<18}{copies} {'operand' if copies == 1 else 'operands'} copied first, {moved} moved"


def _iteration(launches: Launches, variant: Variant, of: Tiles) -> Iterator[str]:
    """What each resource takes of a k-iteration, and what the model counts."""
    gpu, work, columns = launches.gpu, variant.work, variant.columns
    assert work is not None and columns is not None
    pipe = pipe_of(gpu, of.pipe) or ""
    yield f"{'arithmetic':<18}{work.arithmetic:>10,.1f}   {pipe} pipe, {gpu.fma_per_cycle[pipe].value:,.0f} multiply-adds a cycle"
    yield f"{'shared memory':<18}{work.shared:>10,.1f}   wavefronts of 128 bytes, those of L1 loads included"
    yield f"{'issue':<18}{work.issue:>10,.1f}   instructions / {gpu.schedulers_per_sm.value} schedulers"
    source = "measured for this kernel" if variant.attributes.efficiency else "its family's"
    yield f"{'counted':<18}{columns.iteration:>10,.1f}   the largest / calibration factor {work.cycles / columns.iteration:.3f} ({source})"


def _passes(launches: Launches, variant: Variant) -> Iterator[str]:
    for one in variant.passes:
        times = f", {one.launches:,} launches" if one.launches > 1 else ""
        took = seconds_text(pass_cycles(launches.gpu, one) / launches.gpu.clock_hz)
        yield f"{one.name:<18}{bytes_text(one.read)} read, {bytes_text(one.written)} written, {took}{times}"


def _traffic(plan: Plan) -> Iterator[str]:
    assert isinstance(plan.cost, Cost)
    w = plan.workload
    touched = w.operand_elements * w.element_bytes + w.output_elements * GPU_RESULT_BYTES[w.dtype]
    for name, level in plan.cost.levels.items():
        counted = f"{level['wavefronts']:,.0f} wavefronts" if "wavefronts" in level else f"{level['lines']:,.0f} lines"
        yield f"{name:<18}{bytes_text(level['bytes']):>10}   {counted}, {level['cycles']:,.0f} cycles"
    yield f"{'operands':<18}{bytes_text(touched):>10}   once each"


def _workspace(plan: Plan) -> Iterator[str]:
    yield f"{'needed':<18}{plan.workspace_bytes:>14,} bytes"
    yield f"{'limit':<18}" + ("none was given" if plan.memory_limit is None else f"{plan.memory_limit:>14,} bytes")
