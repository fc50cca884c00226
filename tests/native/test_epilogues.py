# SPDX-License-Identifier: Apache-2.0
"""What follows a sum on the CPU: every activation, with and without a residual, is its formula of the sums, under every algorithm and type,
and what is not a finite number goes where the formula takes it. Guard pages and exact sums: native/test/check_conv.c."""

import math
import platform
import shutil
import subprocess

import numpy as np
import pytest
from checkout import NATIVE
from native_library import native, reference_conv
from scipy import special

import pysim
from pysim.check.bounds import gamma
from pysim.errors import NativeError, OperandError
from pysim.machine.load import load
from pysim.network.operator_seconds import activation_cycles
from pysim.problem.text import parse
from pysim.record.plan import on_cpu
from pysim.registry.cpu import cpu_epilogues, epilogue_operations
from pysim.registry.cuda import epilogues
from pysim.runtime import cpu, cpu_launch
from pysim.runtime.operators import Window, map_step, pool_step

pytestmark = native

FORMULAS = {
    None: lambda x: x,
    "identity": lambda x: x,
    "relu": lambda x: np.where(x < 0, 0, x),
    "gelu": lambda x: x * special.erfc(-x / math.sqrt(2)) / 2,
    ("clamp", -0.25, 1.5): lambda x: np.where(x < -0.25, -0.25, np.where(x > 1.5, 1.5, x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "hard_swish": lambda x: x * np.where(x + 3 < 0, 0, np.where(x + 3 > 6, 6, x + 3)) / 6,
    "tanh": np.tanh,
    "erf": special.erf,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    ("leaky_relu", 0.1, 1.0): lambda x: x * np.where(x < 0, 0.1, 1.0),
    "exp": np.exp,
    ("elu", 0.5, 1.25): lambda x: np.where(x < 0, 0.5 * np.expm1(x), 1.25 * x),
    "softplus": lambda x: np.logaddexp(0, x),
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}
# algorithm, problem: tiles that end in rows and filters, channels in sets, more images and groups than one
PROBLEMS = [
    ("sconv", "conv:mb2g2ic10ih9iw11oc38kh3ph1:{}"), ("sconv", "conv:mb1ic70ih7oc45kh1:{}"), ("sconv", "conv:mb1ic3ih19oc20kh7sh2ph3:{}"),
    ("im2col", "conv:mb2g2ic10ih9iw11oc38kh3ph1:{}"), ("winograd", "conv:mb2ic12ih13iw10oc37kh3ph1:{}"),
    ("depthwise", "conv:mb2g20ic20ih14oc20kh3ph1:{}"), ("depthwise", "conv:g9ic9ih33oc9kh5sh2ph2:{}"),
    ("polyphase", "conv:mb2g2ic6ih19iw23oc20kh3sh2ph1:{}"),
]  # fmt: skip
UNITS = {"f32": 2.0**-24, "f64": 2.0**-53}


def formula(activation, x):
    with np.errstate(all="ignore"):
        return FORMULAS[activation](x.astype(np.float64))


def operands(problem, seed=0):
    rng, kind = np.random.default_rng(seed), cpu.RESULT_DTYPES[problem.dtype]
    shapes = [
        (problem.batch, problem.channels, problem.height, problem.width),
        (problem.filters, problem.channels // problem.groups, problem.kernel_h, problem.kernel_w),
        (problem.filters,),
        (problem.batch, problem.filters, problem.out_h, problem.out_w),
    ]
    x, w, bias, residual = (rng.standard_normal(shape).astype(kind) for shape in shapes)
    return x, w / kind.type(math.sqrt(w[0].size)), bias, 2 * residual


def test_every_activation_has_a_formula_here_and_one_number_on_all_devices():
    assert {name[0] if isinstance(name, tuple) else name for name in FORMULAS if name} == cpu_epilogues().keys()
    assert all(epilogues().get(name, number) == number for name, number in cpu_epilogues().items())


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("algorithm", "text"), PROBLEMS)
def test_an_activation_is_its_formula_of_the_sums(algorithm, text, dtype):
    problem = parse(text.format(dtype))
    x, w, bias, residual = operands(problem)
    plans = [one for one in pysim.plans(problem, top=40, algorithm=algorithm) if one.kernel in cpu.available_kernels()]
    for plan in {one.kernel: one for one in plans}.values():
        launch = cpu_launch.Launch(problem, on_cpu(plan)[0])
        sums = launch.run(x, w, None, bias)
        terms = launch.run(np.abs(x), np.abs(w), None, np.abs(bias)) + np.abs(residual)
        for activation in FORMULAS:
            for added in (None, residual):
                y = launch.run(x, w, None, bias, activation, added)
                of = sums if added is None else sums + added
                want = formula(activation, of)
                bound = gamma(16, UNITS[dtype]) * np.maximum(np.abs(of.astype(np.float64)), np.abs(want))  # a dozen operations
                if added is not None:
                    bound += gamma(4, UNITS[dtype]) * terms  # which a kernel may add in the middle of the sum
                assert (np.abs(y - want) <= bound).all(), (plan.name, activation, added is not None)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_the_reference_adds_and_activates(dtype):
    problem = parse(f"conv:mb2ic3ih5oc4kh3ph1:{dtype}")
    x, w, bias, residual = operands(problem)
    if dtype == "bf16":
        x, w = ((a.view(np.uint32) >> 16).astype(np.uint16) for a in (x, w))
    sums = reference_conv(problem, x, w, bias)
    for activation in FORMULAS:
        y = reference_conv(problem, x, w, bias, activation, residual=residual)
        of = (sums + residual).astype(np.float64)
        want = formula(activation, of)
        scale = (np.abs(of) + np.abs(residual) + np.abs(sums)) * np.maximum(np.abs(want), 1)  # the largest slope is that of exp
        assert (np.abs(y - want) <= gamma(8, UNITS["f32" if dtype == "bf16" else dtype]) * scale).all(), activation


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_what_is_not_finite_and_what_is_large_goes_where_the_formula_takes_it(dtype):
    kind = cpu.RESULT_DTYPES[dtype].type
    special_values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, -1e-30, 20, -20, 90, -90, 1e4, -1e4, 1e30, -1e30, -5.5, -3, 3, 87.5, -87.5]
    x = np.array(special_values * 2, kind).reshape(1, 1, 1, 40)
    for activation in FORMULAS:
        y = pysim.conv2d(x, np.ones((1, 1, 1, 1), kind), activation=activation)
        with np.errstate(invalid="ignore", over="ignore"):
            want = formula(activation, x).astype(kind).astype(np.float64)
            most = np.minimum(np.maximum(np.abs(x.astype(np.float64)), np.abs(want)), 1e300)
            near = np.abs(y - want) <= gamma(16, UNITS[dtype]) * most + np.finfo(kind).tiny * 1e3
        assert (near | (y == want) | (np.isnan(y) & np.isnan(want))).all(), (activation, x[~near], y[~near], want[~near])


def test_infinite_weights_and_padding_with_a_residual_are_the_references():
    problem = parse("conv:mb1ic3ih6oc5kh3ph1")
    x, w, bias, residual = operands(problem)
    w[1, 2, 0, 0], w[3, 0, 2, 1] = np.inf, np.nan
    for activation in (None, "relu", ("clamp", -0.25, 1.5), "silu"):
        plan = pysim.plan(problem, algorithm="sconv")
        y = cpu_launch.Launch(problem, on_cpu(plan)[0]).run(x, w, None, bias, activation)
        assert np.isnan(y).any() and (np.isnan(y) == np.isnan(reference_conv(problem, x, w, bias, activation))).all()
        z = cpu_launch.Launch(problem, on_cpu(plan)[0]).run(x, w, None, bias, activation, residual)
        want = reference_conv(problem, x, w, bias, activation, residual=residual)
        assert (np.isnan(z) == np.isnan(want)).all() and np.allclose(z, want, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_products_add_c_and_activate():
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((23, 40), (40, 37), (23, 37)))
    bias = rng.standard_normal(37).astype(np.float32)
    sums = pysim.gemm(a, b, c, beta=1.0, bias=bias)
    for activation in FORMULAS:
        y, want = pysim.gemm(a, b, c, beta=1.0, bias=bias, activation=activation), formula(activation, sums)
        assert (np.abs(y - want) <= gamma(16, UNITS["f32"]) * np.maximum(np.abs(sums), np.abs(want))).all(), activation


def test_threads_do_not_change_bits():
    for algorithm, text in PROBLEMS:
        problem = parse(text.format("f32"))
        x, w, bias, residual = operands(problem)
        plan = pysim.plan(problem, algorithm=algorithm)
        one, two = (cpu_launch.Launch(problem, on_cpu(plan)[0], threads).run(x, w, None, bias, "silu", residual) for threads in (1, 2))
        assert (one == two).all()


def test_a_prepared_convolution_takes_a_residual_and_gives_conv2ds_bits():
    x, w, bias, residual = operands(parse("conv:mb1ic8ih9oc12kh3ph1"))
    prepared = pysim.prepare("conv:mb1ic8ih9oc12kh3ph1", w, bias, activation="relu")
    before = residual.copy()
    out = np.empty_like(residual)
    assert prepared(x, out, residual) is out
    assert (out == pysim.conv2d(x, w, bias, padding=1, activation="relu", residual=residual)).all() and (residual == before).all()
    assert (prepared(x) == pysim.conv2d(x, w, bias, padding=1, activation="relu")).all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"activation": "swish"}, "is not known"),
        ({"activation": "clamp"}, "clamp needs its numbers"),
        ({"activation": ("clamp", 2, 1)}, "low at most high"),
        ({"activation": ("clamp", "a", 1)}, "two numbers"),
        ({"activation": ("relu", 0, 6)}, "relu has no bounds"),
        ({"activation": []}, "is not known"),
        ({"residual": np.zeros((1, 3, 3, 4), np.float32)}, "residual has shape"),
        ({"residual": np.zeros((1, 3, 3, 3))}, "residual is float64"),
    ],
)
def test_what_an_epilogue_cannot_be_is_said(how, message):
    with pytest.raises(OperandError, match=message):
        pysim.conv2d(np.zeros((1, 2, 5, 5), np.float32), np.zeros((3, 2, 3, 3), np.float32), **how)


def test_a_residual_is_not_written_over():
    x, w, _, residual = operands(parse("conv:mb1ic8ih9oc12kh3ph1"))
    with pytest.raises(OperandError, match="out overlaps residual"):
        pysim.conv2d(x, w, padding=1, residual=residual, out=residual)


def test_whole_numbers_have_relu_alone():
    x, w = np.ones((1, 2, 5, 5), np.int8), np.ones((3, 2, 3, 3), np.int8)
    assert (pysim.conv2d(x, w, activation="relu") == 18).all()
    with pytest.raises(NativeError, match="sums of s8 have activations"):
        pysim.conv2d(x, w, activation="silu")


_VECTORS = """
#include "operators/loops.h"
#include "x86/vectors/vec_avx512_f32.h"
typedef T NUMBER;
#include "templates/activations.h"
void loop(float *p, int64_t n, VEC low, VEC high) {
    for (; n--; p += LANES) {
        VEC x = v_load(p);
        activated(ACTIVATION, low, high, 1, &x);
        v_store(p, x);
    }
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("gcc"), reason="counts what GCC makes for AVX-512")
@pytest.mark.parametrize("name", ["gelu", "silu", "hard_swish", "gelu_tanh", "sigmoid", "tanh", "erf", "mish", "exp", "elu", "softplus"])
def test_a_vector_of_an_activation_has_the_operations_that_the_registry_says(tmp_path, name):
    flags = ["-std=gnu11", "-O3", "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"]
    command = ["gcc", *flags, f"-I{NATIVE}", f"-DACTIVATION={cpu_epilogues()[name]}", "-S", "-x", "c", "-", "-o", "-"]
    made = subprocess.run(command, input=_VECTORS, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    words = [line.split()[0] for line in made.splitlines() if line.startswith("\tv")]  # of the loop, and what stands before it
    count = sum(not word.startswith(("vmov", "vbroadcast", "vpbroadcast", "vxorps", "vzero")) for word in words)
    assert abs(count - epilogue_operations()[name]) <= 3, (count, made)  # compilers differ in how they negate and choose


def test_an_activation_takes_what_its_operations_take():
    zen5 = load("zen5")
    assert activation_cycles(zen5, "silu", "f32", 4, 480, 14 * 14) == 480 * 13 * 8  # the worked number
    assert activation_cycles(zen5, "silu", "f64", 8, 480, 14 * 14) == 480 * 25 * 8
    assert activation_cycles(zen5, "hard_swish", "f32", 4, 1, 100) == 7 * 2.5
    assert activation_cycles(zen5, "clamp", "f32", 4, 480, 14 * 14) == 0
    assert activation_cycles(load("power10-e1050"), "silu", "f32", 4, 1, 100) > 0


# Operators between convolutions


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_map_scales_shifts_adds_and_activates_planes(kind):
    rng = np.random.default_rng(2)
    x, residual = (rng.standard_normal((2, 5, 33, 37)).astype(kind) for _ in range(2))
    scale, shift = rng.standard_normal((2, 5)).astype(kind)
    out, unit = np.empty_like(x), UNITS["f32" if kind is np.float32 else "f64"]
    for numbers in ((scale, shift), (scale, None), (None, shift), (None, None)):
        for added in (None, residual):
            for activation in FORMULAS:
                map_step(out, x, 10, *numbers, added, activation)()
                terms = [x.astype(np.float64), *(one if one is None else one.astype(np.float64)[:, None, None] for one in numbers)]
                wide = terms[0] * (1 if terms[1] is None else terms[1]) + (0 if terms[2] is None else terms[2])
                of = wide + (0 if added is None else added)
                scales = np.abs(wide) + np.abs(of) + (0 if terms[2] is None else np.abs(terms[2])) + (0 if added is None else np.abs(added))
                want = formula(activation, of)
                scales *= np.maximum(np.abs(want), 1)  # the largest slope is that of exp
                assert (np.abs(out - want) <= gamma(20, unit) * np.maximum(scales, np.abs(want))).all()
    map_step(x, x, 10, activation="relu")()
    assert (x >= 0).all()
    with pytest.raises(NativeError, match="overlaps"):
        map_step(x, residual, 10, residual=x)()


def pooled(x, out, kernel, strides, dilations, pads, largest, count_padding):
    """The definition, window by window; the mean of a window that counts no element is 0."""
    result = np.empty((len(x), *out))
    for p in range(out[0]):
        for q in range(out[1]):
            ys = [p * strides[0] - pads[0] + r * dilations[0] for r in range(kernel[0])]
            xs = [q * strides[1] - pads[1] + s * dilations[1] for s in range(kernel[1])]
            inside = [x[:, i, j].astype(np.float64) for i in ys for j in xs if 0 <= i < x.shape[1] and 0 <= j < x.shape[2]]
            bounds = (-pads[0], x.shape[1] + pads[2], -pads[1], x.shape[2] + pads[3]) if count_padding else (0, x.shape[1], 0, x.shape[2])
            count = sum(bounds[0] <= i < bounds[1] and bounds[2] <= j < bounds[3] for i in ys for j in xs)
            with np.errstate(all="ignore"):
                result[:, p, q] = np.max([np.full(len(x), -np.inf), *inside], axis=0) if largest else np.divide(sum(inside), max(1, count))
    return result


@pytest.mark.parametrize("seed", range(80))
def test_a_pool_is_its_definition(seed):
    rng = np.random.default_rng(seed)
    kind, unit = [(np.float32, UNITS["f32"]), (np.float64, UNITS["f64"])][seed % 2]
    sizes = [int(rng.integers(1, 30)), int(rng.integers(1, 30 if seed % 8 else 2600))]
    kernel, strides, dilations = ([int(n) for n in rng.integers(1, most, 2)] for most in (5, 4, 3))
    if seed % 40 == 7:
        sizes, kernel, strides, dilations = [3, 2600], [1, 1100], [1, 300], [1, 2]  # wider than any block
    pads = [int(n) for n in rng.integers(0, 3, 4)]
    outs = [(size + pads[i] + pads[i + 2] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i, size in enumerate(sizes)]
    if min(outs) < 1:
        kernel, dilations, outs = [1, 1], [1, 1], [(size + pads[i] + pads[i + 2] - 1) // strides[i] + 1 for i, size in enumerate(sizes)]
    x, out = rng.standard_normal((2, *sizes)).astype(kind), np.empty((2, *outs), kind)
    for largest, count_padding in ((True, False), (False, False), (False, True)):
        pool_step(out, x, Window(tuple(kernel), tuple(strides), tuple(dilations), tuple(pads)), largest, count_padding)()
        want = pooled(x, outs, kernel, strides, dilations, pads, largest, count_padding)
        bound = gamma(kernel[0] * kernel[1] + 2, unit) * np.abs(x).max() * (not largest)
        with np.errstate(invalid="ignore"):
            assert ((np.abs(out - want) <= bound) | (out == want) | (np.isnan(out) & np.isnan(want))).all()


def test_a_nan_stays_in_the_windows_that_it_is_in():
    x = np.arange(25, dtype=np.float32).reshape(1, 5, 5)
    x[0, 2, 2] = np.nan
    out = np.empty((1, 3, 3), np.float32)
    for largest in (True, False):
        pool_step(out, x, Window((3, 3), (2, 2), pads=(1, 1, 1, 1)), largest)()
        assert (np.isnan(out[0]) == np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]], bool)).all()


def test_the_mean_of_a_plane_is_its_mean():
    x = np.random.default_rng(3).standard_normal((7, 13, 11)).astype(np.float32)
    out = np.empty((7, 1, 1), np.float32)
    pool_step(out, x, Window((13, 11)), largest=False)()
    assert np.abs(out[:, 0, 0] - x.astype(np.float64).mean((1, 2))).max() <= gamma(12, UNITS["f32"]) * np.abs(x).mean((1, 2)).max()
