# SPDX-License-Identifier: Apache-2.0
"""What algorithms state of their error, held to what was measured; plans that are as accurate as was asked for, and why others are not."""

from importlib import import_module
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import records
from checkout import DATA
from command_line import document, ok

import pysim
from pysim import planner
from pysim.algorithms import accuracy, algorithm_named
from pysim.algorithms.interface import DIRECT_SUM, Bound
from pysim.cachemodel.cpu import nest_schedules
from pysim.check.reference import reference, shapes
from pysim.errors import MissingError, OperandError, PlanError
from pysim.machine.load import load_any
from pysim.planner.accuracy_filter import accurate
from pysim.problem.text import parse
from pysim.record.accuracy import ACCURACIES
from pysim.record.plan import Plan
from pysim.registry.cuda import conv_kernel, gemm_kernel

LINES = [line for file in sorted(DATA.glob("*/accuracy.jsonl")) for line in records.lines(file)]
CONV, SMALL = "conv:mb8ic64ih28oc64kh3ph1", "conv:mb1ic8ih9oc8kh3ph1"
STRIDED = "conv:mb8ic64ih28oc64kh3sh2ph1"  # which nothing transforms
H200, ZEN4 = load_any("h200"), load_any("zen4")


def kernels(text: str, **options) -> dict[str, Plan]:
    """The best plan of each kernel."""
    first: dict[str, Plan] = {}
    for plan in planner.plans(text, H200, top=100_000, **options):
        first.setdefault(plan.kernel, plan)
    return first


# What is stated


@pytest.mark.parametrize("machine", sorted({line["machine"] for line in LINES}))
def test_no_kernel_is_less_accurate_than_its_algorithm_states(machine: str) -> None:
    ours = [line for line in LINES if line["machine"] == machine and "stated" in line]
    on = ZEN4 if machine == "host" else H200
    stated: dict[tuple[str, str], float] = {}
    for line in ours:
        key = line["problem"], line["kernel"]
        if machine != "host" and not (conv_kernel(line["kernel"]) or gemm_kernel(line["kernel"])):
            continue  # a row that is gone
        if key not in stated:
            problem, kernel = (
                parse(line["problem"]),
                SimpleNamespace(kernel=line["kernel"], decomposition="data_parallel", splits=1, gemm=None),
            )
            bound = algorithm_named(line["algorithm"], problem, on).tolerance(problem, kernel)
            stated[key] = accuracy.stated_error(bound, problem, on)
        assert line["error"] <= stated[key], line
    assert len(ours) > 100


def test_the_error_of_a_long_sum_is_that_of_numpys_in_single_precision():
    """A direct sum, product by product: the stated error holds, and is not three times too large."""
    draw, size = np.random.default_rng(3), accuracy.Size(40_000, 900)
    a, b = draw.random((2, size.results, size.products), np.float32) * 2 - 1
    sums = np.zeros(size.results, np.float32)
    for k in range(size.products):
        sums += a[:, k] * b[:, k]
    want = np.einsum("nk,nk->n", a.astype(float), b.astype(float))
    error = np.abs(sums - want).max() / np.sqrt(np.mean(want**2))
    assert accuracy.random_walk(size, 2.0**-24) / 3 < error < accuracy.random_walk(size, 2.0**-24)


@pytest.mark.parametrize("products", [64, 2304])
def test_fewer_than_one_draw_in_a_hundred_has_a_larger_error_than_is_stated(products: int) -> None:
    """Of 100 draws of 1,000 sums each; by the formula that was here before, 0.33 ln(n), one in fifteen has."""
    draw, size = np.random.default_rng(11), accuracy.Size(1000, products)
    sums, want = np.zeros(100_000, np.float32), np.zeros(100_000)
    for _ in range(products):
        a, b = draw.random((2, want.size), np.float32) * 2 - 1
        product = a.astype(float) * b
        sums, want = (sums + product).astype(np.float32), want + product
    errors = np.abs(sums - want).reshape(100, -1).max(axis=1) / np.sqrt(np.mean(want**2))
    assert np.max(errors) > 0.5 * accuracy.random_walk(size, 2.0**-24)
    assert np.count_nonzero(errors > accuracy.random_walk(size, 2.0**-24)) <= 1


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("conv:ic64ih56oc64kh3", 1.0),
        ("gemm:10x20x30", 1.0),
        ("conv:ic64ih7oc64kh3ph1", (19 / 21) ** 2),
        ("conv:ic4ih3oc4kh3ph8", (9 / 51) ** 2),
        ("conv:ic4ih9oc4kh5ph2dh1", 0.84**2),
        ("conv:ic4ih1iw19oc4kh1kw7sw2ph0pw3", 62 / 70),
        ("conv:ic3ih2oc3kh5ph2", 1.0),
    ],
)
def test_windows_have_on_average_so_much_of_a_whole_windows_products(text: str, met: float) -> None:
    assert accuracy.unpadded_share(parse(text)) == pytest.approx(met)


@pytest.mark.parametrize("text", ["conv:ic256ih7oc256kh3ph1", "conv:ic64ih3oc128kh3ph8", "conv:ic32ih4oc64kh3ph3", "conv:ic512ih7oc64kh3"])
def test_the_stated_error_holds_where_sums_are_long_or_windows_lie_in_the_padding(text: str) -> None:
    w, draw = parse(text), np.random.default_rng(5)
    try:
        plan = pysim.plan(text, machine="host", accuracy="strict")
        for _ in range(5):
            x = draw.random((1, w.channels, w.height, w.width), np.float32) * 2 - 1
            f = draw.random((w.filters, w.channels, w.kernel_h, w.kernel_w), np.float32) * 2 - 1
            want = reference(w, x.astype(float), f.astype(float))
            got = pysim.conv2d(x, f, padding=w.pad_top, plan=plan)
            assert np.abs(got - want).max() / np.sqrt(np.mean(want**2)) <= plan.error
    except MissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("text", ["gemm:1x1x300", "gemm:1x2x300", "gemm:3x1x20", "conv:ic40ih1oc1kh1ph4", "conv:ic16ih1oc1kh3ph1"])
def test_the_stated_error_holds_for_few_results_which_may_all_be_small(text: str) -> None:
    """Product by product, 4,000 draws; as if there were many, one in eight of a single result's errors would be larger."""
    w, draw, draws = parse(text), np.random.default_rng(2), 4000
    size, machine = accuracy.size_of(w), ZEN4
    results = max(1, round(size.results * accuracy.unpadded_share(w)))  # the others are of padding alone
    sums, want = np.zeros((draws, results), np.float32), np.zeros((draws, results))
    for _ in range(size.products):
        product = np.prod(draw.random((2, *want.shape), np.float32) * 2 - 1, axis=0, dtype=float)
        sums, want = (sums + product).astype(np.float32), want + product
    errors = np.abs(sums - want).max(axis=1) / np.sqrt((want**2).sum(axis=1) / size.results)
    assert 0.4 < np.quantile(errors, 0.99) / accuracy.direct_sum_error(w, machine) < 1


def random_problem(draw: np.random.Generator) -> str:
    """Of few results and many, short sums and long ones, inside the image and in the padding."""
    if draw.random() < 0.4:
        m, n, k = np.exp(draw.uniform(0, np.log([60, 60, 2500]))).astype(int)
        return f"gemm:{m}x{n}x{k}:{draw.choice(['nn', 'nt', 'tn', 'tt'])}"
    channels, filters, height = np.exp(draw.uniform(0, np.log([300, 24, 14]))).astype(int)
    kernel = draw.choice([1, 3, 3, 5])
    groups = channels if draw.random() < 0.2 else 1
    padding = draw.choice([kernel // 2, kernel - 1, kernel + 2])
    return f"conv:g{groups}ic{channels}ih{height + 1}oc{filters * groups}kh{kernel}sh{draw.integers(1, 3)}ph{padding}"


def test_of_random_problems_fewer_than_one_draw_in_a_hundred_is_less_accurate_than_its_plan_states() -> None:
    draw, above, trials = np.random.default_rng(17), 0, 600
    try:
        for _ in range(trials // 2):
            w = parse(random_problem(draw))
            plan = pysim.plan(w, machine="host")
            for _ in range(2):
                x, f = (draw.random(shape, np.float32) * 2 - 1 for shape in shapes(w)[:2])
                want = reference(w, x.astype(float), f.astype(float))
                got = plan.run(x, f)
                assert plan.error is not None
                above += np.abs(got - want).max() / np.sqrt(np.mean(want**2)) > plan.error
    except MissingError as error:
        pytest.skip(str(error))
    assert above < trials / 100


def test_an_error_grows_with_the_products_and_the_results_and_narrow_types_are_worse():
    def direct(text: str) -> float:
        return accuracy.direct_sum_error(parse(text), H200)

    assert direct("gemm:100x100x400") == pytest.approx(2 * direct("gemm:100x100x100"))
    assert direct("gemm:1000x1000x100") == pytest.approx(
        direct("gemm:100x100x100") * (np.log(1e6) + accuracy.HUNDREDTH_DRAW) / (np.log(1e4) + accuracy.HUNDREDTH_DRAW)
    )
    types = [direct(f"gemm:100x100x100:{dtype}") for dtype in ("s8", "f64", "f32", "tf32", "f16", "bf16")]
    assert types == sorted(types) and types[0] == 0


def test_what_states_nothing_is_taken_for_a_direct_sum_or_for_what_it_may_be_off():
    problem = parse("conv:mb8ic64ih28oc64kh3")
    direct = accuracy.direct_sum_error(problem, ZEN4)
    assert accuracy.stated_error(DIRECT_SUM, problem, ZEN4) == direct
    assert accuracy.stated_error(Bound(4.0, 0.0, ""), problem, ZEN4) == 4 * direct
    assert accuracy.stated_error(Bound(1.0, 1e-3, ""), problem, ZEN4) == pytest.approx(1e-3)
    assert accuracy.stated_error(Bound(1.0, 1e-3, "", error=1e-6), problem, ZEN4) == pytest.approx(1e-6)


# What is planned


def test_strict_has_no_plan_above_a_direct_sums_error_and_ieee_none_of_transformed_operands():
    problem = parse(CONV)
    direct = accuracy.direct_sum_error(problem, H200)
    found = {level: kernels(CONV, accuracy=level) for level in ACCURACIES if level != "reproducible"}
    assert max(plan.error for plan in found["standard"].values()) > direct
    assert max(plan.error for plan in found["strict"].values()) <= direct
    for level, plans in found.items():
        operands = {algorithm_named(one.algorithm, problem, H200).tolerance(problem, one.schedule).operands for one in plans.values()}
        assert operands == ({"plain"} if level == "ieee" else {"plain", "transformed", "split"})
        assert {(one.accuracy, one.to_dict()["accuracy"]) for one in plans.values()} == {(level, level)}
    assert set(found["ieee"]) < set(found["strict"]) < set(found["standard"])
    gone = set(found["standard"]) - set(found["strict"])
    some = next(iter(found["strict"].values()))
    why = {item.what: item for item in some.rejected if item.code == "accuracy"}
    assert set(why) == gone


def test_a_strict_plan_is_the_best_of_those_that_are_so_accurate():
    for text in (CONV, "conv:mb1ic16ih9oc5kh3"):
        direct = accuracy.direct_sum_error(parse(text), H200)
        best = min((plan for plan in kernels(text).values() if plan.error <= direct), key=lambda plan: plan.cost.cycles)
        chosen = planner.plan(text, H200, accuracy="strict")
        assert (chosen.schedule, chosen.error) == (best.schedule, best.error)


def test_an_error_limit_leaves_what_is_below_it_and_says_so_where_nothing_is():
    errors = sorted({plan.error for plan in kernels(CONV).values()})
    for limit in errors:
        plan = planner.plan(CONV, H200, error_limit=limit)
        assert plan.error <= limit == plan.to_dict()["error_limit"]
    with pytest.raises(PlanError, match=r"nothing computes .*: its error of \d\.\de-\d+ is above the limit of 1\.0e-09"):
        planner.plan(CONV, H200, error_limit=1e-9)
    with pytest.raises(PlanError, match="is above the limit"):
        planner.plan(CONV, ZEN4, error_limit=1e-9)


@pytest.mark.parametrize("options", [{}, {"accuracy": "strict"}, {"accuracy": "ieee"}, {"error_limit": 1e-3}])
def test_on_a_cpu_where_all_are_direct_sums_the_plan_is_the_same(options):
    plain, plan = planner.plan(STRIDED, ZEN4), planner.plan(STRIDED, ZEN4, **options)
    assert (plan.schedule, plan.cost, plan.error) == (plain.schedule, plain.cost, accuracy.direct_sum_error(parse(STRIDED), ZEN4))


def test_an_algorithm_of_split_operands_is_left_out_by_what_it_says_not_by_its_name(monkeypatch):
    """A module that says its operands are split, or its error large, is rejected before it is costed."""
    on = msgspec.structs.replace(ZEN4, name="a machine whose plans nobody keeps")
    one = import_module(f"pysim.algorithms.cpu.{planner.plan(STRIDED, on).algorithm}")
    for bound, options in (
        (DIRECT_SUM._replace(operands="split"), {"accuracy": "ieee"}),
        (DIRECT_SUM._replace(error=1e-3), {"accuracy": "strict"}),
        (DIRECT_SUM._replace(error=1e-3), {"error_limit": 1e-4}),
    ):
        monkeypatch.setattr(one, "tolerance", lambda problem, schedule, bound=bound: bound)
        plan = planner.plan(STRIDED, on, **options)
        assert plan.considered and one.NAME not in {item.algorithm for item in plan.considered}
        assert "accuracy" in {item.code for item in plan.rejected}  # of kernels whose bound alone is too slow nobody asks the error
        assert planner.plan(STRIDED, on).algorithm == one.NAME


def test_kinds_that_are_not_accurate_enough_are_not_waited_for():
    """Of an algorithm none of whose kernels is left, the planner does not go on asking for more."""
    request = planner.request_of(parse(CONV), ZEN4, accuracy="ieee")
    algorithm = algorithm_named("sconv", parse(CONV), ZEN4)
    (costs,) = nest_schedules.cost(ZEN4, [algorithm.candidates(request)])
    split = SimpleNamespace(tolerance=lambda problem, schedule: DIRECT_SUM._replace(operands="split"))
    left = accurate(request, split, costs)
    assert not left.cycles.size and set(left.lost) == set(costs.kind) and np.isnan(left.bounds[np.unique(costs.kernel)]).all()


# What is asked for


def test_words_and_limits_that_are_none_are_answered_with_a_sentence():
    with pytest.raises(PlanError, match='no accuracy is named "exact"'):
        planner.plan(CONV, H200, accuracy="exact")
    with pytest.raises(OperandError, match="error_limit is nan; expected a finite number"):
        planner.plan(CONV, H200, error_limit=float("nan"))
    x, w = np.ones((1, 8, 9, 9), np.float32), np.ones((8, 8, 3, 3), np.float32)
    with pytest.raises(PlanError, match=r"no accuracy is named \['strict'\]; there are: standard, strict, ieee, reproducible"):
        pysim.conv2d(x, w, accuracy=["strict"])
    with pytest.raises(OperandError, match='error_limit is "low"; expected a number'):
        pysim.conv2d(x, w, error_limit="low")


def test_calls_are_as_accurate_as_they_ask_and_a_plan_brings_its_own():
    pytest.importorskip("cffi")
    try:
        pysim.api.runtime.library()
    except Exception as why:
        pytest.skip(str(why))
    draw = np.random.default_rng(1)
    x, w = draw.random((1, 8, 9, 9), np.float32), draw.random((8, 8, 3, 3), np.float32)
    want = reference(parse(SMALL), x.astype(float), w.astype(float))
    for options in ({}, {"accuracy": "strict"}, {"accuracy": "ieee"}, {"error_limit": 1e-3}):
        for _ in range(2):
            assert np.abs(pysim.conv2d(x, w, padding=1, **options) - want).max() < 1e-4
            assert np.abs(pysim.gemm(x[0, 0], x[0, 1], **options) - x[0, 0] @ x[0, 1]).max() < 1e-4
        assert np.abs(pysim.prepare(SMALL, w, **options)(x) - want).max() < 1e-4
    with pytest.raises(PlanError, match="is above the limit"):
        pysim.conv2d(x, w, padding=1, error_limit=1e-12)
    plan = pysim.plan(SMALL)
    for call in (lambda **a: pysim.conv2d(x, w, padding=1, plan=plan, **a), lambda **a: pysim.prepare(SMALL, w, plan=plan, **a)):
        call()
        with pytest.raises(PlanError, match="accuracy and error_limit choose a plan, but a plan is given"):
            call(accuracy="strict")


def test_the_command_line_takes_both_and_shows_the_error_beside_the_time():
    (plan,) = document("plan", CONV, "-m", "h200", "--accuracy", "strict")["plans"]
    assert plan["accuracy"] == "strict" and 0 < plan["error"] <= accuracy.direct_sum_error(parse(CONV), H200)
    (plan,) = document("plan", CONV, "-m", "h200", "--error-limit", "1e-5")["plans"]
    assert plan["error"] <= plan["error_limit"] == 1e-5
    text = ok("plan", CONV, "-m", "h200")
    assert "max error" in text.splitlines()[0] and f"{planner.plan(CONV, H200).error:.1e}" in text.splitlines()[1]
