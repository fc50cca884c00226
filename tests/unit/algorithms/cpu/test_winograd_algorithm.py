# SPDX-License-Identifier: Apache-2.0
"""Winograd on the CPU: its results are within its bounds of float64, its sizes the library's, its costs add up and decide."""

from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import pytest
from native_library import native
from problems import conv

import pysim
from pysim import planner
from pysim.algorithms.cpu import winograd
from pysim.cachemodel.cpu import winograd as model
from pysim.cachemodel.cpu.winograd_incore import channels_of, phase_elements, phase_share, phases_of, shape_of
from pysim.calibration import host
from pysim.check.bounds import of_rms
from pysim.check.reference import reference
from pysim.errors import NativeError, PlanError
from pysim.machine.load import load
from pysim.problem.conv import Conv
from pysim.record.cost import Cost
from pysim.record.schedule import Schedule
from pysim.registry.cpu import kernels
from pysim.runtime import cpu as runtime
from pysim.runtime import cpu_launch

if TYPE_CHECKING:
    from pysim.record.plan import Layout

pytestmark = native

ZEN4 = load("zen4")
WIDE = "f32_fil_14x32__avx512"
SHAPES = [
    "conv:ic3ih9oc5kh3ph1",
    "conv:mb2ic17ih14oc33kh3ph1",
    "conv:mb2g2ic6ih31iw7oc10kh3ph1",
    "conv:ic5ih8iw40oc40kh3",
    "conv:g8ic8ih12oc8kh3ph1",
    "conv:mb3ic4ih3iw5oc3kh3",
    "conv:ic2ih6oc3kh3ph4",
    "conv:ic64ih28oc96kh3ph1",
    "conv:ic3ih17oc20kh3ph1:f64",
    "conv:mb2ic9ih30iw31oc18kh3ph2:f64",
    "conv:mb2ic3ih40iw61oc20kh7sh2ph3",
    "conv:ic3ih71oc40kh11sh4",
    "conv:mb2g2ic10ih33iw18oc12kh5sh2ph2",
    "conv:ic17ih24oc33kh5",
    "conv:ic4ih19oc9kh4ph2",
    "conv:ic2ih50oc9kh9sh2ph1:f64",
    "conv:mb2ic3ih31oc9kh12sh4ph5:f64",
    "conv:mb2ic5id4ih9iw11oc7kd3kh3kw3pd1ph1pw1",
    "conv:g2ic6id5ih20iw17oc12kd2kh7kw7sd2sh2sw2pd1ph3pw3",
    "conv:ic4id7ih14iw9oc33kd3kh3kw3pd2ph1pw1dd1dh0dw0",
    "conv:ic20ih13oc33kh2",
    "conv:mb2g2ic12ih21iw30oc20kh3sh2ph1",
    "conv:ic24ih20iw23oc9kh4sh2ph1:f64",
    "conv:mb2ic6id5ih20iw17oc12kd3kh3kw3sd2sh2sw2pd1ph1pw1",
    "conv:mb2ic9iw61oc20kw3pw1",
    "conv:ic6iw95oc33kw10sw5pw2",
    "conv:ic40iw203oc17kw16sw8pw4",
    "conv:g2ic8ih9iw30oc12kh1kw4sh1sw2ph0pw1:f64",
    "conv:mb2ic12ih11iw25oc18kh3kw1ph1pw0",
    "conv:ic5ih40iw13oc9kh5kw1sh2sw1ph2pw0",
    "conv:ic4id5ih9iw20oc10kd2kh1kw3pd1ph0pw1",
]


def operands(w: Conv) -> tuple[Any, Any, Any]:
    """Uniform in [-1, 1)."""
    random, dtype = np.random.default_rng(3), runtime.NUMPY_DTYPES[w.dtype]
    shapes = w.input_shape, w.filter_shape, (w.filters,)
    x, filters, bias = ((random.random(shape) * 2 - 1).astype(dtype) for shape in shapes)
    return x, filters, bias


def schedules(w: Conv) -> list[Schedule]:
    """A schedule of each m on each kernel that this computer has, of tiles that do not divide what there is."""
    here, channels = runtime.available_kernels(), channels_of(w)
    rows = [row for row in kernels() if row.name in here and row.dtype == w.dtype and winograd._suits(row, ZEN4)]
    return [
        Schedule(row.name, "input_stationary", "tiles", row.windows, row.filters, (channels + 1) // 2, 2, 2, winograd.NAME, m)
        for row in rows
        for m in winograd.outputs_of(w)
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_results_are_within_the_stated_bound_of_float64(shape: str) -> None:
    w = conv(shape)
    x, filters, bias = operands(w)
    exact = reference(w, x.astype(np.float64), filters.astype(np.float64)) + bias.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2))
    want = np.maximum(exact, 0.0)
    for schedule in schedules(w):
        got = cpu_launch.Launch(w, schedule).run(x, filters, None, bias, "relu")
        bound = winograd.tolerance(w, schedule)
        assert np.abs(got - want).max() <= of_rms(bound, exact), schedule


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_threads_nor_on_blocks(shape: str) -> None:
    w = conv(shape)
    x, filters, bias = operands(w)
    for schedule in schedules(w):
        first = cpu_launch.Launch(w, schedule).run(x, filters, None, bias).tobytes()
        for threads, k2, k3 in ((2, 1, 1), (5, 3, 100), (64, 100, 1)):
            other = msgspec.structs.replace(schedule, k2=k2, k3=k3)
            assert cpu_launch.Launch(w, other, threads).run(x, filters, None, bias).tobytes() == first, other


def test_whole_numbers_are_exact_by_f2x2() -> None:
    w = conv("conv:mb2ic16ih13oc24kh3ph1")
    random = np.random.default_rng(5)
    x, filters = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((2, 16, 13, 13), (24, 16, 3, 3)))
    want = reference(w, x, filters)
    for schedule in schedules(w):
        if schedule.outputs == 2:
            np.testing.assert_array_equal(cpu_launch.Launch(w, schedule).run(x, filters), want)


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_are_those_that_the_library_asks_for(shape: str) -> None:
    w = conv(shape)
    planned = [plan.schedule for plan in planner.plans(w, host.machine("host"), top=60, algorithm="winograd")]
    for schedule in [*planned, *schedules(w)]:
        assert isinstance(schedule, Schedule)
        launch = cpu_launch.Launch(w, schedule)
        assert winograd.workspace_bytes(w, schedule, "nchw") == launch.workspace_bytes
        assert winograd.prepare(w, schedule, "nchw").size_bytes == launch.prepared_bytes


@pytest.mark.parametrize("machine", ["zen4", "xeon-4208", "sapphire-rapids"])
@pytest.mark.parametrize("state", ["hot", "cold"])
def test_the_cost_adds_up_and_no_schedule_is_below_its_bound(machine: str, state: Any) -> None:
    for problem in ("conv:mb2ic64ih28oc80kh3ph1", "conv:mb2ic3ih64oc80kh7sh2ph3"):
        plan = planner.plan(problem, machine, algorithm="winograd", state=state)
        assert isinstance(plan.cost, Cost)
        assert sum(plan.cost.counted.values()) == pytest.approx(plan.cost.cycles)
        known = {name for names, _ in model.PASSES for name in names} - ({"phases"} if conv(problem).stride_h == 1 else set())
        assert known == set(plan.cost.terms) - set(plan.cost.levels) and all(plan.cost.terms[name] > 0 for name in known)
        kernel = next(row for row in kernels() if row.name == plan.kernel)
        assert isinstance(plan.schedule, Schedule)
        case = kernel, shape_of(conv(problem), kernel, plan.schedule.outputs or 0)
        assert plan.cost.cycles >= model.least_cycles(conv(problem), load(machine), (case,)).min()


def test_the_filters_bytes_decide_between_tiles_where_there_are_few() -> None:
    """At 8x8 the filters of F(4x4) come from memory: fewer bytes beat fewer multiplications (Zen 4, 768 channels: 0.62 ms, F(4x4) 0.93; at
    7x7, 512 to 512 channels, 1.55 and 1.56); at 28x28 they are read by many tiles."""

    def m(problem: str) -> int | None:
        schedule = planner.plan(problem, ZEN4, algorithm="winograd").schedule
        return schedule.outputs if isinstance(schedule, Schedule) else None

    assert m("conv:ic768ih8oc144kh3ph1") == 2
    assert m("conv:ic128ih28oc128kh3ph1") == 4


@pytest.mark.parametrize("machine", ["zen4", "sapphire-rapids"])
@pytest.mark.parametrize(
    ("problem", "m"), [("conv:ic3ih227oc96kh11sh4", 4), ("conv:ic64ih112oc64kh7sh2ph3", 3), ("conv:ic96ih24oc256kh5", 2)]
)
def test_larger_kernels_go_by_their_phases_where_that_is_less_work(machine: str, problem: str, m: int) -> None:
    plan = planner.plan(problem, machine)
    assert isinstance(plan.schedule, Schedule)
    assert (plan.algorithm, plan.schedule.outputs) == ("winograd", m)
    assert planner.plan(problem, machine, accuracy="ieee").algorithm in ("sconv", "polyphase", "blocked")


def transformed_filters(w: Conv, schedule: Schedule, weights: Any) -> Any:
    """Of `weights`, as a run reads them, without the filters themselves."""
    kernel = next(row for row in kernels() if row.name == schedule.kernel)
    ffi, lib = runtime.library()
    structs, size = (runtime.problem_struct(w), runtime.schedule_struct(schedule, w)), ffi.new("int64_t *")
    runtime.check(lib.pysim_prepared_bytes(*structs, size))
    prepared = np.full(size[0] // 4, np.nan, dtype=np.float32)
    pointers = (ffi.cast("void *", one.ctypes.data) for one in (weights, prepared))
    runtime.check(lib.pysim_prepare(*structs, *pointers, size[0]))
    return prepared[: model.prepared_bytes(w, kernel, schedule.outputs or 0) // 4]


def test_prepared_filters_of_a_set_of_channels_lie_one_behind_the_other() -> None:
    """They are read in one stream: panels of the first set of channels of a plane, then panels of the next."""
    w = conv("conv:ic8ih14oc192kh3ph1")
    plan = planner.plan(w, host.machine("host"), algorithm="winograd")
    kernel = next(row for row in kernels() if row.name == plan.kernel)
    assert isinstance(plan.schedule, Schedule)
    panels = -(-w.filters // kernel.windows)
    schedule = msgspec.structs.replace(plan.schedule, channels=4, k3=panels)
    x = np.zeros((w.filters, 8, 3, 3), dtype=np.float32)
    x[:, 4:] = 1.0
    transformed = transformed_filters(w, schedule, x)
    planes = transformed.reshape(-1, 2, panels * 4 * kernel.windows)
    assert not planes[:, 0].any()
    assert planes[0, 1].any()


@pytest.mark.parametrize(
    ("text", "zeros"),
    [
        ("conv:ic8ih19oc16kh3sh2", 15),
        ("conv:ic8iw41oc16kw3sw2", 1),
        ("conv:ic8ih41iw9oc16kh5kw1sh2sw1", 1),
        ("conv:ic8ih19oc16kh5sh2", 23),
        ("conv:ic8ih19oc16kh4sh2", 0),
    ],
)
def test_only_zeros_of_phases_are_left_out(text: str, zeros: int) -> None:
    """Of the planes times phases of a channel."""
    w = conv(text)
    plan = planner.plan(w, host.machine("host"), algorithm="winograd")
    assert isinstance(plan.schedule, Schedule)
    shape = shape_of(w, next(row for row in kernels() if row.name == plan.kernel), plan.schedule.outputs or 0)
    weights = np.random.default_rng(0).random(w.filter_shape, dtype=np.float32) + 0.5
    lines = transformed_filters(w, plan.schedule, weights).reshape(-1, plan.schedule.windows)
    assert (~lines.any(axis=1)).sum() == zeros * w.channels
    assert (1 - phase_share(w, shape)) * shape.planes * phases_of(w) == pytest.approx(zeros)


def test_parting_the_phases_reads_the_image_and_writes_it_once() -> None:
    """From memory, cold: an image of 12 MB, of which each element is in one phase."""
    w = conv("conv:ic64ih224oc64kh7sh2ph3")
    plan = planner.plan(w, ZEN4, algorithm="winograd", state="cold")
    assert isinstance(plan.cost, Cost)
    image, phases = 4 * 64 * 224 * 224, 4 * phase_elements(w)
    assert plan.cost.levels["memory"]["image_bytes"] == pytest.approx(image)
    assert phases == 4 * 256 * 115 * 115
    assert plan.cost.levels["L2"]["input_bytes"] >= 2 * phases


def test_cold_filters_cost_what_memory_gives() -> None:
    plan = planner.plan("conv:ic512ih7oc512kh3ph1", ZEN4, algorithm="winograd", state="cold")
    kernel = next(row for row in kernels() if row.name == plan.kernel)
    assert isinstance(plan.cost, Cost) and isinstance(plan.schedule, Schedule)
    read = plan.cost.levels["memory"]["filters_bytes"]
    assert read == pytest.approx(model.prepared_bytes(conv("conv:ic512ih7oc512kh3ph1"), kernel, plan.schedule.outputs or 0), rel=0.01)


@pytest.mark.parametrize(
    ("problem", "options", "message"),
    [
        ("conv:ic64ih56oc64kh7ph3", {}, "2, 3, 4 or 5 taps per phase and axis; 7x7 with stride 1 has 7"),
        ("conv:ic64ih56oc64kh3ph1sh3", {}, "3x3 with stride 3 has 1"),
        ("conv:ic64ih56oc64kh3kw5ph1", {}, "square kernels"),
        ("conv:ic64ih56oc64kh18sh4", {}, "up to 16x16"),
        ("conv:ic64ih56oc64kh3dh1", {}, "dilation 1"),
        ("conv:ic24ih56oc64kh3", {"layout": "nchw16c"}, "not multiples of 16"),
        ("conv:ic64ih56oc64kh3:s8", {}, "no transforms of s8"),
        ("conv:ic64ih56oc64kh3", {"model": "csa"}, "csa model costs sconv only"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(problem: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        planner.plan(problem, "xeon-4208", algorithm="winograd", **options)


def test_a_plan_comes_back_by_its_name_and_explains_itself() -> None:
    plan = pysim.plan("conv:ic16ih28oc16kh3ph1", "zen4", algorithm="winograd")
    again = pysim.plan("conv:ic16ih28oc16kh3ph1", "zen4", name=plan.name)
    assert (again.schedule, again.cost.cycles) == (plan.schedule, pytest.approx(plan.cost.cycles))
    assert "F(4x4, 3x3): 36 multiplications per tile instead of 144" in plan.explain()
    assert plan.to_dict()["tile"]["outputs"] == 4
    assert (plan.to_dict()["needs_finite"], plan.to_dict()["error_scale"]) == ("nothing", "tile")


def test_another_form_is_planned_where_it_is_named() -> None:
    plan = pysim.plan("conv:ic16ih28oc16kh3ph1", "zen4", algorithm="winograd")
    smaller = pysim.plan("conv:ic16ih28oc16kh3ph1", "zen4", name=plan.name.replace("outputs=4", "outputs=2"))
    assert isinstance(smaller.schedule, Schedule) and smaller.schedule.outputs == 2
    for bad in ("outputs=3", "outputs=6"):
        with pytest.raises(PlanError, match="outputs=2, 4"):
            pysim.plan("conv:ic16ih28oc16kh3ph1", "zen4", name=plan.name.replace("outputs=4", bad))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": 3}, r"schedule.outputs is 3; native/winograd.inc has no F\(3x3, 3x3\)"),
        ({"outputs": None}, "schedule.outputs is 0"),
        ({"stationary": "weight_stationary"}, "winograd is input stationary"),
        ({"kernel": WIDE, "windows": 14, "filters": 32}, "is wider"),
        ({"channels": 9}, "schedule.channels is 9"),
    ],
)
def test_a_schedule_that_the_library_cannot_obey_is_refused_in_a_sentence(change: dict[str, Any], message: str) -> None:
    if change.get("kernel") == WIDE and WIDE not in runtime.available_kernels():
        pytest.skip("this CPU has no kernel that is too wide")
    w = conv("conv:ic8ih9oc8kh3ph1")
    good = Schedule("f32_win_8x4__portable", "input_stationary", "tiles", 8, 4, 8, 1, 1, "winograd", 4)
    with pytest.raises(NativeError, match=message):
        cpu_launch.Launch(w, msgspec.structs.replace(good, **change))


def test_its_accesses_are_not_traced_and_that_is_said() -> None:
    from plan_trace import accesses

    good = Schedule("f32_win_8x4__portable", "input_stationary", "tiles", 8, 4, 8, 1, 1, "winograd", 4)
    with pytest.raises(NativeError, match="algorithm winograd is not a loop nest"):
        list(accesses(conv("conv:ic8ih9oc8kh3ph1"), good))


@pytest.mark.parametrize(
    "text", ["conv:mb2ic32ih9iw14oc48kh3ph1", "conv:ic16ih15oc32kh4", "conv:g2ic32ih12oc64kh5ph2", "conv:ic3ih33oc32kh7sh2ph3"]
)
def test_blocks_of_channels_give_what_planes_give(text: str) -> None:
    """Of every m, from planes to blocks and, without a stride, from blocks to blocks."""
    w, here = conv(text), runtime.available_kernels()
    x, filters, bias = operands(w)
    rows = [row for row in kernels() if row.form == "win" and row.lane_windows > 1 and row.dtype == w.dtype and row.name in here]
    for row in rows:
        c = row.lane_windows
        blocks = np.ascontiguousarray(x.reshape(w.batch, -1, c, w.height, w.width).transpose(0, 1, 3, 4, 2)) if w.channels % c == 0 else x
        ways = [(f"nchw-nchw{c}c", x)] + [(f"nchw{c}c", blocks)] * (w.stride_h == 1)
        for m in winograd.outputs_of(w):
            shape = shape_of(w, row, m)
            s = Schedule(row.name, "input_stationary", "tiles", row.windows, row.filters, shape.channels, 1, 1, "winograd", m)
            want = cpu_launch.Prepared(w, filters, s, bias, "relu")(x)
            for name, given in ways:
                layout = cast("Layout", name)
                launch: Any = cpu_launch.Prepared(w, filters, s, bias, "relu", layout=layout)
                assert launch.workspace_bytes == winograd.workspace_bytes(w, s, layout)
                got = launch(given).transpose(0, 1, 4, 2, 3).reshape(want.shape)
                np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max() * m**2)
    assert rows or not here


def test_blocks_are_refused_where_no_transform_reads_them() -> None:
    with pytest.raises(PlanError, match="with a stride it takes NCHW input"):
        planner.plan("conv:ic32ih33oc32kh7sh2ph3", ZEN4, layout="nchw16c", algorithm="winograd")
    with pytest.raises(PlanError, match="not multiples of 16"):
        planner.plan("conv:ic24ih33oc24kh3ph1", ZEN4, layout="nchw16c", algorithm="winograd")
