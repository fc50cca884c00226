# SPDX-License-Identifier: Apache-2.0
"""Accuracy reproducible on GPUs: the contract of a layer is its own, and rows of one contract give the same bits on emulated CUDA."""

import numpy as np
import pytest

from pysim import planner
from pysim.algorithms import algorithm_named, reproducible
from pysim.check.reference import shapes
from pysim.errors import PlanError
from pysim.explain.text import explain
from pysim.machine import load as machine
from pysim.planner.contracts import PARTS, contracts_of, model_of, resized
from pysim.planner.table import Table
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload, parse
from pysim.record.contract import GpuContract
from pysim.record.plan import Request
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import CONV_LAYOUTS, conv_kernel, conv_kernels, gemm_kernel, gemm_kernels
from pysim.runtime import cuda

GPUS = {name: machine.load_any(name) for name in ("v100", "a100", "h200")}
LAYERS = [
    "conv:mb2ic20ih5oc17kh3ph1", "conv:mb2ic6ih5iw6oc9kh3ph1sh2:f16", "conv:g6mb2ic6ih7oc6kh3ph1", "conv:g2mb2ic8ih5oc8kh3ph1:f16",
    "conv:mb2ic64ih4iw5oc16kh1", "conv:mb2ic32ih4oc16kh1:f16", "gemm:37x20x64", "gemm:5x17x128:nt:f16", "gemm:33x18x64:tn",
    "gemm:7x20x600:nt", "conv:mb5ic136ih1oc17kh1",
]  # fmt: skip
MOST_ROWS = 4  # of a contract


def kept(problem: Workload, gpu, layout):
    """Every row, variant and number of parts that keeps a contract: (contract, schedule)."""
    for algorithm, costs in Table.of(Request(problem, gpu, layout, parts=PARTS), exhaustive=True).costs:
        for row in np.unique(costs.alike, return_index=True)[1].tolist():
            schedule = costs.schedule(row)
            assert isinstance(schedule, GpuSchedule)
            if contract := reproducible.contract(algorithm, problem, schedule, layout):
                yield contract, schedule


def emulates(schedule: GpuSchedule) -> bool:
    """Not wgmma and TMA, nor clusters, whose parts the emulation computes as one."""
    row = gemm_kernel(schedule.gemm or schedule.kernel) or conv_kernel(schedule.kernel)
    return row is not None and not row.exact_capability and not (schedule.decomposition == "split_k" and row.reduces_in_cluster)


def operands(problem: Workload):
    draw = np.random.default_rng(5)
    dtype = {"f16": np.float16, "f64": np.float64}.get(problem.dtype, np.float32)
    x, w, out = (draw.uniform(-1, 1, np.prod(shape)).astype(dtype) for shape in shapes(problem)[:3])
    return x, w, out, draw.uniform(-1, 1, problem.filters if isinstance(problem, Conv) else problem.n).astype(dtype)


def bits(problem: Workload, schedule: GpuSchedule, layout, given) -> bytes:
    """Of a result with a bias, a residual and an activation."""
    x, w, out, bias = given
    y = out[: np.prod(shapes(problem).out)].copy()
    epilogue = cuda.epilogue_struct(1.0, 1.0, bias.ctypes.data, "silu")
    cuda.Launch(problem, schedule, layout=layout).on((x.ctypes.data, w.ctypes.data, y.ctypes.data), epilogue=epilogue).run()
    return y.tobytes()


@pytest.mark.parametrize("text", LAYERS)
def test_rows_of_one_contract_give_the_same_bits_for_every_tile_and_batch(emulated, text):
    layer = parse(text)
    given, alone, compared = operands(layer), resized(layer, 1), 0
    for layout in CONV_LAYOUTS if isinstance(layer, Conv) else ("nchw",):
        of = dict[GpuContract, dict[GpuSchedule, None]]()
        for gpu in GPUS.values():
            for contract, schedule in kept(layer, gpu, layout):
                if emulates(schedule):
                    of.setdefault(contract, {})[schedule] = None
        for contract, schedules in of.items():
            some = [*schedules][:: -(-len(schedules) // MOST_ROWS)]
            found = {bits(layer, schedule, layout, given) for schedule in some}
            assert len(found) == 1, str(contract)
            if not (isinstance(layer, Gemm) and layer.trans_a):
                first = bits(alone, some[-1], layout, given)
                assert next(iter(found))[: len(first)] == first, str(contract)
            compared += len(some)
    assert compared > 3


@pytest.mark.parametrize(
    "planted",
    [
        ("split_k", 3),  # other parts
        ("stream_k", 7),
    ],
)
def test_a_launch_of_another_order_is_caught(emulated, planted):
    problem = parse("gemm:64x64x512")
    mine, given = planner.plan(problem, "v100", accuracy="reproducible"), operands(problem)
    other = GpuSchedule("f32_simt_32x32x8_16x32_4x4_s2_c1x1", *planted, False, 1)
    contract = reproducible.contract(algorithm_named("gemm", problem, GPUS["v100"]), problem, other, "nchw")
    assert contract != mine.contract and bits(problem, other, "nchw", given) != bits(problem, mine.schedule, "nchw", given)


@pytest.mark.parametrize("name", [row.name for row in gemm_kernels() if row.dtype in ("f32", "tf32x3") and row.sums])
def test_a_row_adds_the_last_of_bias_and_residual_that_its_contract_states(emulated, name):
    problem, big = parse("gemm:3x40x128:nt"), np.float32(2**25)
    row = gemm_kernel(name)
    for splits in (1, 2):
        schedule = GpuSchedule(name, "split_k" if splits > 1 else "data_parallel", splits, False, 1)
        if row is None or not emulates(schedule) or splits > -(-problem.k // row.block_k):
            continue
        a, b, y = np.ones((3, 128), np.float32), np.full((40, 128), 1 / 64, np.float32), np.full((3, 40), big)
        bias = np.full(40, 2, np.float32)
        epilogue = cuda.epilogue_struct(1.0, 1.0, bias.ctypes.data, None)
        cuda.Launch(problem, schedule).on((a.ctypes.data, b.ctypes.data, y.ctypes.data), epilogue=epilogue).run()
        assert set(y.ravel() - big) == {4 if row.adds_last(splits) == "residual" else 0}  # 2 alone is half of the last place


def test_machines_of_a_capability_choose_by_the_one_whose_constants_were_measured():
    assert [model_of(one).name for one in ("9.0", "8.9", "8.0")] == ["h200", "l40s", "a100"]
    assert GPUS["h200"].sources.get("like") is None and "like" in machine.load_any("h100").sources


def test_a_product_whose_k_is_no_whole_k_iterations_keeps_none_where_the_rest_comes_first(emulated):
    problem, small = parse("gemm:64x64x75"), parse("gemm:8x64x75")
    schedule = GpuSchedule("f32_simt_16x16x16_8x16_2x2_s2_c1x1", "data_parallel", 1, False, 1)
    given = operands(problem)
    first = bits(small, schedule, "nchw", given)
    assert bits(problem, schedule, "nchw", given)[: len(first)] != first, "a tile inside the product begins with the rest of k"
    assert reproducible.contract(algorithm_named("gemm", problem, GPUS["v100"]), problem, schedule, "nchw") is None


@pytest.mark.parametrize("text", ["conv:mb{}ic64ih56oc64kh3ph1", "conv:mb{}ic512ih7oc512kh3ph1:f16", "gemm:{}x1000x2048:nt:bf16"])
@pytest.mark.parametrize("layout", CONV_LAYOUTS)
def test_a_contract_is_a_function_of_the_layer_whatever_the_batch_the_memory_and_the_gpu_of_a_generation(text, layout):
    terms = {"layout": layout, "accuracy": "reproducible"}
    plans = [planner.plan(text.format(batch), on, **terms) for batch in (1, 7, 64) for on in ("h100", "h200")]
    plans.append(planner.plan(text.format(7), "h200", memory_limit=plans[3].workspace_bytes, **terms))
    assert len({plan.contract for plan in plans}) == 1 and plans[0].contract is not None
    assert f"contract {plans[0].contract}"[:30] in explain(plans[0])


def test_a_layer_takes_the_contract_whose_price_over_strict_is_least():
    plans = {size: planner.plan(f"conv:mb{size}ic512ih7oc512kh3ph1", "h200", accuracy="reproducible") for size in (1, 8, 64)}
    request = Request(plans[8].workload, GPUS["h200"], accuracy="strict", parts=PARTS)
    assert plans[8].contract in contracts_of(request) and plans[8].contract.parts > 1
    prices = [plan.seconds / planner.plan(plan.workload, "h200", accuracy="strict").seconds for plan in plans.values()]
    assert max(prices) < 1.35


@pytest.mark.parametrize("layer", ["4096x25088", "4096x4096", "1000x4096"])
def test_a_product_of_few_rows_keeps_the_contract_of_many_at_little_price(layer):
    plans = [planner.plan(f"gemm:{m}x{layer}:nt", "h200", accuracy="reproducible") for m in (1, 64, 1024)]
    assert len({plan.contract for plan in plans}) == 1 and plans[0].contract.sums == "bf16 thirds on tensor cores, 64 a sum"
    strict = [planner.plan(plan.workload, "h200", accuracy="strict") for plan in plans]
    prices = [plan.seconds / other.seconds for plan, other in zip(plans, strict, strict=True)]
    assert max(prices[1:]) < 1.5  # 2.0 to 2.6 where warps and warpgroups added in orders of their own
    assert "streamed" in strict[0].name and prices[0] < 2.5  # one row: an order of sums that no kernel has for many


@pytest.mark.parametrize("layer", ["576x192", "768x192", "192x768", "768x768"])
def test_a_layer_of_few_channels_costs_little_for_few_rows_and_many(layer):
    for m in (197, 3152, 12608):
        mine, strict = (planner.plan(f"gemm:{m}x{layer}:nt", "h200", accuracy=accuracy) for accuracy in ("reproducible", "strict"))
        assert mine.seconds / strict.seconds < 1.35  # 1.9 where warps and warpgroups added residuals in orders of their own


def test_parts_of_equal_length_are_one_contract_for_k_iterations_of_any_length():
    problem = parse("gemm:64x64x4096:nt")
    algorithm = algorithm_named("gemm", problem, GPUS["h200"])

    def of(row: str, parts: int):
        return reproducible.contract(algorithm, problem, GpuSchedule(row, "split_k", parts, False, 1), "nchw")

    rows = "f32_simt_16x128x32_16x32_4x4_s2_c1x1", "f32_simt_64x64x16_32x32_8x4_s2_c1x1"
    (eight, also_eight), (three, also_three) = ([of(row, parts) for row in rows] for parts in (8, 3))
    assert eight == also_eight and str(eight) == "chain along k, 8 parts of whole 512, bias last"
    assert three != also_three  # 43, 43 and 42 k-iterations of 32 are no multiples of those of 16: 85, 85 and 86


def test_every_row_states_its_sums_but_those_of_half_accumulators_and_of_residues():
    assert {row.name for row in gemm_kernels() if row.sums is None} == {
        row.name for row in gemm_kernels() if row.accumulates_f16 or row.residues
    }
    assert {row.sums for row in conv_kernels() if row.promotion} == {"tf32 halves on wgmma, 64 a sum", "bf16 thirds on mma, 16 a sum"}


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("name", [row.name for row in gemm_kernels() if row.mainloop == "streamed" and row.promotion])
def test_few_rows_on_tensor_cores_add_the_parts_of_k_that_many_rows_have(emulated, name, rows):
    problem, row = parse(f"gemm:{rows}x40x1100:nt"), "tf32x3_mma_32x32x64_16x16_16x8_s3_c1x1"
    given, found = operands(problem), set()
    for parts in (1, 2, 3, 8):
        kind = "split_k" if parts > 1 else "data_parallel"
        mine, many = (bits(problem, GpuSchedule(one, kind, parts, False, 1), "nchw", given) for one in (name, row))
        assert mine == many, parts
        found.add(mine)
    assert len(found) == 4  # other parts are another contract


def test_a_gate_of_a_plane_costs_little_for_few_images_and_many():
    for batch in (1, 8, 64):
        mine, strict = (
            planner.plan(f"conv:mb{batch}ic576ih1oc144kh1", "h200", accuracy=one, layout="nhwc") for one in ("reproducible", "strict")
        )
        assert mine.contract.sums.startswith("chains of") and mine.seconds / strict.seconds < 1.1  # 2.1 by a chain in 8 parts


def test_what_no_kernel_sums_in_an_order_of_its_own_is_refused():
    with pytest.raises(PlanError, match="no kernel of v100 sums this layer in an order that is the layer's alone"):
        planner.plan("gemm:64x64x75", "v100", accuracy="reproducible")
