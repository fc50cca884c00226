# SPDX-License-Identifier: Apache-2.0
"""What holds for every call of the Python functions: from any thread and process, with any argument, at little cost.

PYSIM_LONG=1 makes of the few random problems two thousand.
"""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from call_count import calls_of
from fake_gpu import host_device  # noqa: F401
from fake_torch import Tensor, torch  # noqa: F401
from native_library import native

import pysim
from pysim import api, planner
from pysim.arguments import flag, number, whole
from pysim.cachemodel import Cache
from pysim.caches import LruCache, once
from pysim.errors import MachineError, MissingError, NativeError, OperandError, PlanError, ProblemError, PysimError
from pysim.problem.conv import Conv
from pysim.runtime import cpu_launch

pytestmark = native

THREADS = 8
PROBLEMS = 2000 if os.environ.get("PYSIM_LONG") else 60
IMAGE, FILTERS = np.ones((1, 4, 9, 9), np.float32), np.ones((6, 4, 3, 3), np.float32)
SQUARE = np.ones((4, 4), np.float32)


def run_python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)


# Threads and processes


def test_first_calls_of_eight_threads_at_once_are_right():
    done = run_python(f"""
import threading, numpy as np, pysim
barrier, right = threading.Barrier({THREADS}), []
x, w = np.ones((1, 4, 9, 9), np.float32), np.ones((6, 4, 3, 3), np.float32)
def call(i):
    barrier.wait()
    y = pysim.conv2d(x, w) if i % 2 else pysim.gemm(x[0, 0], x[0, 1])
    right.append((y == (36 if i % 2 else 9)).all())
threads = [threading.Thread(target=call, args=(i,)) for i in range({THREADS})]
[one.start() for one in threads]; [one.join() for one in threads]
assert right == [True] * {THREADS}, right
""")
    assert done.returncode == 0, done.stderr


def test_what_is_made_once_is_made_once_though_many_ask_at_once():
    made = []

    @once
    def slow() -> object:
        made.append(None)
        time.sleep(0.05)
        return object()

    with ThreadPoolExecutor(THREADS) as pool:
        assert len({id(one) for one in pool.map(lambda _: slow(), range(THREADS))}) == len(made) == 1


def test_one_prepared_convolution_serves_eight_threads_at_once():
    draw = np.random.default_rng(3)
    x, w = draw.integers(-3, 4, (16, 1, 12, 40, 40)).astype(np.float32), draw.integers(-3, 4, (24, 12, 3, 3)).astype(np.float32)
    conv = pysim.prepare("conv:mb1ic12ih40oc24kh3ph1", w)
    want = [conv(one) for one in x]
    with ThreadPoolExecutor(THREADS) as pool:
        for i, found in enumerate(pool.map(lambda i: conv(x[i % 16]), range(300))):
            assert np.array_equal(found, want[i % 16]), i


@pytest.mark.parametrize("call", ["pysim.conv2d(x, w, threads=2)", "conv(x)", "pysim.gemm(x[0, 0], x[0, 1], threads=2)"])
def test_a_forked_child_computes_on_several_threads_as_its_parent_did(call):
    done = run_python(f"""
import os, numpy as np, pysim, signal
x, w = np.ones((2, 4, 29, 29), np.float32), np.ones((6, 4, 3, 3), np.float32)
conv = pysim.prepare("conv:mb2ic4ih29oc6kh3ph1", w, threads=2)
want = {call}
child = os.fork()
if child == 0:
    signal.alarm(20)  # ends a child that hangs
    os._exit(0 if all(np.array_equal({call}, want) for _ in range(3)) else 1)
assert os.waitpid(child, 0)[1] == 0 and np.array_equal({call}, want)
""")
    assert done.returncode == 0, done.stderr


def random_results(seed: int) -> tuple[Any, Any, Any]:
    """A random convolution or product: a function of threads (and whether the plan is that of one), its result in float64, and bound."""
    draw = np.random.default_rng(seed)
    if seed % 2:
        m, n, k = draw.integers(1, 80, 3)
        a, b = draw.standard_normal((m, k)), draw.standard_normal((k, n))
        single = a.astype(np.float32), b.astype(np.float32)
        wide = [one.astype(np.float64) for one in single]
        bound = (k + 2) * 2.0**-23 * (np.abs(wide[0]) @ np.abs(wide[1]))
        plan = pysim.plan(f"gemm:{m}x{n}x{k}")
        return lambda threads, one: pysim.gemm(*single, threads=threads, plan=plan if one else None), wide[0] @ wide[1], bound
    batch, groups, channels, filters = draw.integers(1, 3, 4) * (1, 1, 8, 12)
    size, kernel, pad, stride = draw.integers(6, 20), draw.integers(1, 4), draw.integers(0, 2), draw.integers(1, 3)
    x = draw.standard_normal((batch, channels * groups, size, size)).astype(np.float32)
    w = draw.standard_normal((filters * groups, channels, kernel, kernel)).astype(np.float32)
    given = {"stride": stride, "padding": pad, "groups": groups}  # NumPy's whole numbers

    def wide(image: Any, taps: Any) -> Any:
        image = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        seen = np.lib.stride_tricks.sliding_window_view(image, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
        parts = zip(np.split(seen, groups, 1), np.split(taps.astype(np.float64), groups), strict=True)
        return np.concatenate([np.einsum("nchwrs,mcrs->nmhw", *part) for part in parts], 1)

    sizes = {"batch": batch, "groups": groups, "channels": channels * groups, "filters": filters * groups, "height": size, "width": size}
    sizes |= {"kernel_h": kernel, "kernel_w": kernel, "stride_h": stride, "stride_w": stride, "pad_top": pad, "pad_left": pad}
    plan = pysim.plan(Conv(**{name: int(value) for name, value in sizes.items()}, pad_bottom=int(pad), pad_right=int(pad)))
    call = lambda threads, one: pysim.conv2d(x, w, threads=threads, **given, plan=plan if one else None)  # noqa: E731
    return call, wide(x, w), (w[0].size + 2) * 2.0**-23 * wide(abs(x), abs(w))


def check_result(seed: int) -> None:
    call, want, bound = random_results(seed)
    first = call(1, True)
    assert (np.abs(first - want) <= bound).all(), seed
    for threads in (2, 5):
        assert np.array_equal(call(threads, True), first), (seed, threads)
    assert (np.abs(call(3, False) - want) <= bound).all(), seed


def test_random_results_are_right_and_those_of_a_plan_the_same_bits_for_any_number_of_threads():
    for seed in range(PROBLEMS):
        check_result(seed)


def test_random_results_are_right_from_eight_threads_at_once():
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(check_result, range(PROBLEMS))) == [None] * PROBLEMS


def test_workspaces_that_lie_idle_are_bounded_and_serve_the_next_call():
    kept = cpu_launch.Workspaces(idle_bytes=1000)
    small, large = kept.take(300), kept.take(900)
    kept.give(small)
    kept.give(large)  # beyond the bound: let go
    assert kept.take(200) is small and kept.take(200) is not large
    kept.give(small)
    assert len(kept.take(400)) == 400


# Arguments


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: pysim.conv2d(IMAGE, FILTERS, stride=1.5), OperandError, "stride is 1.5; expected a whole number, at least 1"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, stride=True), OperandError, "stride is True"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, stride=1.0), OperandError, "stride is 1.0"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, stride=(1, 1.0)), OperandError, "stride is 1.0"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, stride=0), OperandError, "stride is 0; expected at least 1"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, stride="12"), OperandError, 'stride is "12"'),
        (lambda: pysim.conv2d(IMAGE, FILTERS, padding=-1), OperandError, "padding is -1; expected at least 0"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, padding=(1, 2, 3)), OperandError, r"padding is \(1, 2, 3\); expected one whole number or"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, dilation=None), OperandError, "dilation is None"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, groups=0), OperandError, "groups is 0; expected at least 1"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, groups=np.bool_(True)), OperandError, "groups is"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, threads="2"), OperandError, 'threads is "2"; expected a whole number'),
        (lambda: pysim.conv2d(IMAGE, FILTERS, threads=0), OperandError, "threads is 0; expected at least 1"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, threads=2**31), OperandError, "threads is 2147483648; expected at most"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, threads=100000), OperandError, "threads is 100000; expected at most 1024"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, plan="foo"), PlanError, 'plan is "foo"; expected a plan from pysim.plan'),
        (lambda: pysim.conv2d(IMAGE, FILTERS, machine=3), MachineError, "machine is 3"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, activation=["relu"]), OperandError, "activation .'relu'. is not known"),
        (lambda: pysim.conv2d(IMAGE, FILTERS, out=[[1.0]]), OperandError, "out is a list, which NumPy can only copy"),
        (lambda: pysim.gemm(SQUARE, SQUARE, alpha="2"), OperandError, 'alpha is "2"; expected a number'),
        (lambda: pysim.gemm(SQUARE, SQUARE, alpha=True), OperandError, "alpha is True"),
        (lambda: pysim.gemm(SQUARE, SQUARE, SQUARE, beta=float("nan")), OperandError, "beta is nan; expected a finite number"),
        (lambda: pysim.gemm(SQUARE, SQUARE, trans_a="n"), OperandError, 'trans_a is "n"; expected True or False'),
        (lambda: pysim.gemm(SQUARE, SQUARE, threads=-1), OperandError, "threads is -1"),
        (lambda: pysim.gemm(SQUARE, SQUARE, plan=1), PlanError, "plan is 1"),
        (lambda: pysim.gemm(SQUARE, SQUARE, dtype=["f32"]), OperandError, "dtype .'f32'."),
        (lambda: pysim.prepare("conv:ic4ih9oc6kh3", FILTERS, threads=1.0), OperandError, "threads is 1.0"),
        (lambda: pysim.prepare("conv:ic4ih9oc6kh3", FILTERS, plan="p"), PlanError, 'plan is "p"'),
    ],
)
def test_wrong_types_and_values_are_sentences_whatever_was_called_before(call, kind, says):
    pysim.conv2d(IMAGE, FILTERS)  # the ready launch of 1 is not an answer to True or 1.0
    pysim.gemm(SQUARE, SQUARE)
    with pytest.raises(kind, match=says):
        call()


@pytest.mark.parametrize(
    ("given_options", "kind", "says"),
    [
        ({"machine": "h200", "threads": 4}, PlanError, "threads is 4, but h200 is a GPU"),
        ({"model": "csa", "threads": 2}, PlanError, "threads is 2, but the csa model is for one core"),
        ({"threads": 0}, OperandError, "threads is 0; expected at least 1"),
        ({"threads": 2**31}, OperandError, "expected at most 1024"),
        ({"threads": "4"}, OperandError, 'threads is "4"; expected a whole number'),
        ({"threads": None}, OperandError, "threads is None"),
        ({"micro_kernel": 5}, PlanError, "no kernel 5x5 computes"),
        ({"micro_kernel": (4, 4.5)}, OperandError, "micro_kernel is 4.5; expected a whole number"),
        ({"memory_limit": "64MiB"}, OperandError, 'memory_limit is "64MiB"; expected a whole number'),
        ({"memory_limit": True}, OperandError, "memory_limit is True"),
        ({"name": 5}, PlanError, "5 is not the name of a plan"),
        ({"error_limit": "low"}, OperandError, 'error_limit is "low"; expected a number'),
        ({"input_footprint": "raw"}, PlanError, 'input_footprint "raw" exists in the csa model only'),
        ({"input_footprint": "x", "model": "csa"}, PlanError, 'no input_footprint is named "x"'),
        ({"machine": 5}, MachineError, "machine is 5; expected a name, the path of a .toml file, or a machine"),
        ({"machine": None}, MachineError, "machine is None"),
        ({"problem": 5}, ProblemError, "a problem is a text such as conv:.*, not a value of type int"),
        ({"problem": None}, ProblemError, "not a value of type NoneType"),
        ({"problem": b"conv:"}, ProblemError, "a problem is a text"),
    ],
)
def test_an_option_that_does_not_apply_to_a_plan_is_refused_and_never_ignored(given_options, kind, says):
    with pytest.raises(kind, match=says):
        pysim.plan(**{"problem": "conv:ic4ih9oc6kh3", "machine": "zen4"} | given_options)


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: pysim.plans("gemm:8x8x8", "zen4", top="3"), OperandError, 'top is "3"; expected a whole number'),
        (lambda: pysim.plans("gemm:8x8x8", "zen4", top=0), OperandError, "top is 0; expected at least 1"),
        (lambda: pysim.compare(5), ProblemError, "a value of type int names no problem; expected a text such as conv:"),
        (lambda: pysim.compare([None]), ProblemError, "a value of type NoneType names no problem"),
        (lambda: pysim.compare("gemm:8x8x8", min_seconds=-1), OperandError, "min_seconds is -1 seconds; expected at least 0"),
        (lambda: pysim.compare("gemm:8x8x8", budget_seconds="x"), OperandError, 'budget_seconds is "x"; expected a number'),
        (lambda: pysim.compare("gemm:8x8x8", store="samples.db"), OperandError, 'store is "samples.db"; expected a'),
        (lambda: pysim.compare("gemm:8x8x8", layout="nchw16c"), PlanError, "compare times NCHW and NHWC"),
        (lambda: pysim.compare(np.array(1)), ProblemError, "a value of type ndarray names no problem"),
        (lambda: pysim.compare("gemm:8x8x8", state="chained"), PlanError, 'no cache state is named "chained"; there are: hot, cold'),
        (lambda: pysim.compare("gemm:8x8x8", accuracy="exact"), PlanError, 'no accuracy is named "exact"'),
        (lambda: pysim.compare("gemm:8x8x8", name="gemm"), PlanError, '"gemm" is not the name of a plan'),
        (lambda: pysim.compare(["gemm:8x8x8", "gemm:9x9x9"], memory_limit=0), PlanError, "gemm:8x8x8 .* above the limit of 0"),
        (lambda: planner.candidates("conv:ic4ih9oc6kh3", "zen4", layout="nchw16c"), PlanError, "not a multiple of 16"),
        (lambda: pysim.prepare(5, FILTERS), ProblemError, "a problem is a text"),
        (lambda: pysim.load(None), OperandError, "path is None; expected the path of a .onnx file"),
    ],
)
def test_other_functions_say_what_is_wrong_with_an_argument_too(call, kind, says):
    with pytest.raises(kind, match=says):
        call()


FAULTS = [
    (lambda y: y.astype("f8"), "out is float64 of shape (1, 3, 6, 6)"),
    (lambda y: y[0], "out is float32 of shape (3, 6, 6)"),
    (lambda y: np.broadcast_to(y[:, :1], y.shape), "out is float32 of shape (1, 3, 6, 6), read-only, not C-contiguous"),
    (lambda y: np.asfortranarray(y), "out is float32 of shape (1, 3, 6, 6), not C-contiguous"),
    (lambda y: np.zeros(y.nbytes + 1, "u1")[1:].view("f4").reshape(y.shape), "out is float32 of shape (1, 3, 6, 6), not aligned"),
]


@pytest.mark.parametrize(("spoilt", "says"), FAULTS)
def test_an_out_that_does_not_fit_is_refused_by_what_it_is(spoilt, says):
    y = np.zeros((1, 3, 6, 6), np.float32)
    with pytest.raises(OperandError, match=re.escape(says)):
        pysim.conv2d(np.ones((1, 2, 8, 8), np.float32), np.ones((3, 2, 3, 3), np.float32), out=spoilt(y))


WORDS = ("machine", "model", "micro_kernel", "input_footprint", "state", "layout", "algorithm", "name", "accuracy")


@pytest.mark.parametrize("value", [IMAGE, np.ones((0, 3)), {"a": 1}, [1], 1j, object()], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("word", WORDS)
def test_whatever_stands_for_a_word_of_a_plan_is_answered_by_one_short_line(word: str, value: Any) -> None:
    with pytest.raises(PysimError) as refused:
        pysim.plan(**{"problem": "conv:ic4ih9oc6kh3", "machine": "zen4"} | {word: value})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.parametrize("word", ["machine", "plan", "accuracy", "layout"])
@pytest.mark.parametrize("call", [pysim.conv2d, partial(pysim.prepare, "conv:ic4ih9oc6kh3")], ids=["conv2d", "prepare"])
def test_an_array_is_no_word_of_a_call(call: Any, word: str) -> None:
    operands = (IMAGE, FILTERS) if call is pysim.conv2d else (FILTERS,)
    with pytest.raises(PysimError) as refused:
        call(*operands, **{word: IMAGE})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


def test_numpys_numbers_leave_a_document_of_a_plan() -> None:
    plan = pysim.plan("gemm:64x64x64", "zen4", threads=np.array(3), error_limit=np.float64(1), memory_limit=np.int64(1 << 30))
    assert json.dumps(plan.to_dict()).count('"threads": 3')


def test_a_cache_has_a_name_that_can_be_written() -> None:
    for name in (1, (1, 2), IMAGE, {}):
        with pytest.raises(MachineError, match="a cache's name is"):
            Cache(name=name, sets=64, ways=8, line_bytes=64)


def test_a_path_names_a_machine_file_as_its_text_does(tmp_path):
    from pysim.machine.load import load
    from pysim.machine.write import to_toml

    file = tmp_path / "mine.toml"
    file.write_text(to_toml(load("zen4")).replace('name = "zen4"', 'name = "mine"'))
    assert pysim.plan("gemm:8x8x8", file).machine == pysim.plan("gemm:8x8x8", str(file)).machine == "mine"


def test_numpys_numbers_are_taken_wherever_pythons_are():
    one, two = np.int64(1), np.int32(2)
    want = pysim.conv2d(IMAGE, FILTERS, stride=2, padding=(1, 2), threads=2)
    assert np.array_equal(pysim.conv2d(IMAGE, FILTERS, None, two, np.array([1, 2]), one, one, threads=np.uint8(2)), want)
    assert np.array_equal(pysim.gemm(SQUARE, SQUARE, SQUARE, np.float32(2), np.int8(1), np.bool_(True)), SQUARE * 9)
    assert (whole(np.int64(3), "x", 1), number(np.float16(0.5), "x"), flag(np.False_, "x")) == (3, 0.5, False)
    assert np.array_equal(pysim.prepare("conv:ic4ih9oc6kh3ph0", FILTERS, threads=np.int64(2))(IMAGE), pysim.conv2d(IMAGE, FILTERS))


M = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": np.ones(5, np.float32)},
        {"bias": np.ones(4)},
        {"threads": 0},
        {"threads": 5000},
        {"activation": "swish"},
        {"c": np.ones((3, 4), np.float32)},
        {"c": np.ones((4, 4))},
        {"a": M.astype(np.float64)},
        {"a": M[:3, :3]},
    ],
)
def test_what_is_refused_leaves_out_as_it_was(options):
    out = np.full((4, 4), 7, np.float32)
    given = {"a": M, "b": M, "c": np.ones((4, 4), np.float32), "beta": 1.0, **options}
    with pytest.raises(PysimError):
        pysim.gemm(out=out, **given)
    assert (out == 7).all()


def test_scales_that_the_library_refuses_leave_out_as_it_was():
    a, c, out = np.ones((4, 4), np.int8), np.ones((4, 4), np.int32), np.full((4, 4), 7, np.int32)
    with pytest.raises(NativeError, match="whole numbers within int32"):
        pysim.gemm(a, a, c, beta=0.5, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("turn", [lambda x: x, lambda x: x.T])
def test_an_out_over_an_operand_is_refused_before_anything_is_written(turn):
    for place in ("a", "b", "c"):
        x = M.copy()
        given = {"a": M, "b": M, "c": np.zeros((4, 4), np.float32), place: turn(x)[::-1] if place == "c" else turn(x)}
        with pytest.raises(OperandError, match=f"out overlaps {place}, which is read while it is written"):
            pysim.gemm(**given, beta=1.0, out=x)
        assert np.array_equal(x, M)
    for groups in (1, 4):  # with filters that are prepared, and that are read as they are
        filters = np.full((4, 4 // groups, 9, 9), 2, np.float32)
        with pytest.raises(OperandError, match="out overlaps w"):
            pysim.conv2d(IMAGE, filters, groups=groups, out=filters.reshape(-1)[:4].reshape(1, 4, 1, 1))
        assert (filters == 2).all()
    image = IMAGE.copy()
    with pytest.raises(OperandError, match="out overlaps x"):
        pysim.prepare("conv:ic4ih9oc4kh1", np.ones((4, 4, 1, 1), np.float32))(image[:, :, ::-1], image)
    assert np.array_equal(image, IMAGE)


def test_c_may_be_out_and_else_is_only_read():
    c, out = M.copy(), np.empty((4, 4), np.float32)
    want = M @ M + M
    assert pysim.gemm(M, M, c, beta=1.0, out=out) is out and np.array_equal(out, want) and np.array_equal(c, M)
    assert pysim.gemm(M, M, c, beta=1.0, out=c) is c and np.array_equal(c, want)
    assert np.array_equal(pysim.gemm(M, M, np.asfortranarray(M), beta=1.0), want)


def test_a_prepared_convolution_keeps_its_bias_whatever_becomes_of_the_array():
    bias = np.arange(6, dtype=np.float32)
    conv = pysim.prepare("conv:ic4ih9oc6kh3ph1", FILTERS, bias)
    before = conv(IMAGE)
    bias[:] = np.nan
    assert np.array_equal(conv(IMAGE), before)


# Gradients


@pytest.mark.parametrize("name", ["x", "w", "bias", "out"])
@pytest.mark.parametrize("is_cuda", [False, True])
def test_a_tensor_that_requires_a_gradient_is_refused_while_gradients_are_on(torch, host_device, name, is_cuda):  # noqa: F811
    arrays = {"x": IMAGE, "w": FILTERS, "bias": np.ones(6, np.float32), "out": np.empty((1, 6, 7, 7), np.float32)}
    given = {key: Tensor(x, is_cuda, requires_grad=key == name) for key, x in arrays.items()}
    with pytest.raises(OperandError, match=rf"{name} requires a gradient.*pass {name}.detach\(\), or call under torch.no_grad\(\)"):
        pysim.conv2d(**given)


def test_under_no_grad_and_detached_tensors_are_taken(torch):  # noqa: F811
    want = pysim.conv2d(IMAGE, FILTERS)
    assert np.array_equal(pysim.conv2d(Tensor(IMAGE), Tensor(FILTERS, requires_grad=True).detach()), want)
    torch.grad = False
    assert np.array_equal(pysim.conv2d(Tensor(IMAGE), Tensor(FILTERS, requires_grad=True)), want)
    torch.grad = True
    for name in "abc":
        given = {key: Tensor(M, requires_grad=key == name) for key in "abc"}
        with pytest.raises(OperandError, match=f"{name} requires a gradient"):
            pysim.gemm(**given, beta=1.0)
    with pytest.raises(OperandError, match="weights requires a gradient"):
        pysim.prepare("conv:ic4ih9oc6kh3", Tensor(FILTERS, requires_grad=True))


# What calls that look alike have in common


@pytest.mark.parametrize(
    ("call", "most"),
    [
        (lambda: pysim.conv2d(IMAGE, FILTERS), 50),
        (lambda: pysim.gemm(SQUARE, SQUARE), 45),
        (lambda: pysim.conv2d(IMAGE, FILTERS, machine="host", stride=(1, 1)), 70),
    ],
)
def test_a_second_call_costs_few_python_calls(call, most):
    """They take 0.2 microseconds each or so: 15 microseconds are about 60. Reading a machine file makes thousands."""
    assert calls_of(call) <= most


def test_a_prepared_call_costs_few_python_calls():
    conv, out = pysim.prepare("conv:ic4ih9oc6kh3ph0", FILTERS), np.empty((1, 6, 7, 7), np.float32)
    assert calls_of(lambda: conv(IMAGE, out)) <= 20


def test_another_type_layout_plan_or_machine_is_another_launch():
    api._ready.clear()
    x64 = IMAGE.astype(np.float64)
    assert pysim.conv2d(IMAGE, FILTERS).dtype == np.float32 and pysim.conv2d(x64, FILTERS.astype(np.float64)).dtype == np.float64
    plans = pysim.plans("conv:ic4ih9oc6kh3ph0", top=3)
    for plan in plans:
        assert np.array_equal(pysim.conv2d(IMAGE, FILTERS, plan=plan), pysim.conv2d(IMAGE, FILTERS))
    assert len({found[0].schedule for found in api._ready._entries.values() if found[2] is not None}) == len(plans)
    with pytest.raises(OperandError, match="the plan is for"):
        pysim.conv2d(IMAGE, FILTERS, padding=1, plan=plans[0])
    with pytest.raises(MissingError, match="zen4 is not known to be this computer"):
        pysim.conv2d(IMAGE, FILTERS, machine="zen4")


def test_a_machine_file_that_was_changed_is_read_again(tmp_path):
    from pysim.machine.load import load
    from pysim.machine.write import to_toml

    file = tmp_path / "mine.toml"
    text = to_toml(load("zen3")).replace('name = "zen3"', 'name = "mine"')
    file.write_text(text)
    pysim.conv2d(IMAGE, FILTERS, machine=str(file))
    file.write_text("schema = 1")
    with pytest.raises(MachineError):
        pysim.conv2d(IMAGE, FILTERS, machine=str(file))


def test_the_least_recently_used_entry_goes_first_and_what_has_no_hash_has_no_entry():
    kept: LruCache[int] = LruCache(2)
    kept.put("a", 1), kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c"), len(kept)) == (1, None, 3, 2)
    assert kept.put(["d"], 4) == 4 and kept.get(["d"]) is None
