# SPDX-License-Identifier: Apache-2.0
"""Peers compute the same as the reference, and a peer that is absent is a reason, not an error."""

import math
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pysim.check.reference import bytes_of, judge, reference, shapes, trial
from pysim.errors import MissingError, OperandError
from pysim.measure.clock import Array, exact_fill, numbers_of, result_from, unwritten
from pysim.peers import cpu as peers
from pysim.peers.cpu import PEERS, Missing, Peer
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload, parse
from pysim.runtime import cpu as runtime

PROBLEMS = [
    "conv:mb1ic5ih9oc7kh3ph1",
    "conv:mb1ic5ih9oc7kh1",
    "conv:mb3ic4ih8oc6kh1sh2",
    "conv:mb2ic6ih10iw13oc8kh3kw2sh2sw1ph1pw0",
    "conv:mb1ic4ih11oc3kh3ph2dh1",
    "conv:mb1ic3ih8oc4oh8kh4ph1",
    "conv:g3mb2ic6ih7oc9kh3ph1",
    "conv:g8mb1ic8ih6oc8kh3ph1",
    "conv:g2mb2ic4ih5oc6kh1",
    "gemm:5x7x9",
    "gemm:300x4x3:nt",
    "gemm:5x7x9:tn",
    "gemm:260x7x9:tt",
]
TWICE = [parse(text) for text in PROBLEMS] + [parse(f"{text}:f64") for text in PROBLEMS]


def native_is_missing() -> str:
    """Why the native library cannot be used; empty if it can."""
    try:
        runtime.library()
    except (MissingError, OSError) as error:
        return str(error)
    return ""


def made(name: str, workload: Workload, x: Array, w: Array, bias: Array | None = None) -> Peer:
    """The peer, or a skip with its own reason."""
    found = PEERS[name](workload, x, w, bias)
    if isinstance(found, Missing):
        pytest.skip(found.reason)
    return found


def direct(c: Conv, x: Array, w: Array) -> NDArray[np.float64]:
    """The definition, tap by tap: no im2col, no matrix product."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (c.pad_top, c.pad_bottom), (c.pad_left, c.pad_right)))
    out = np.zeros((c.batch, c.filters, c.out_h, c.out_w))
    per_group, per_filter = c.channels // c.groups, c.filters // c.groups
    for m in range(c.filters):
        for i in range(per_group):
            for r in range(c.kernel_h):
                for s in range(c.kernel_w):
                    h, v = r * c.dilation_h, s * c.dilation_w
                    plane = padded[:, m // per_filter * per_group + i, h :: c.stride_h, v :: c.stride_w]
                    out[:, m] += float(w[m, i, r, s]) * plane[:, : c.out_h, : c.out_w]
    return out


@pytest.mark.parametrize("workload", TWICE, ids=lambda w: w.text)
def test_the_reference_is_the_definition(workload: Workload) -> None:
    s = shapes(workload)
    x, w = exact_fill(s.x, s.k, workload.dtype, 1), exact_fill(s.w, s.k, workload.dtype, 2)
    if isinstance(workload, Gemm):
        a, b = (x.T if workload.trans_a else x), (w.T if workload.trans_b else w)
        want = np.einsum("mk,kn->mn", a.astype(np.float64), b.astype(np.float64), optimize=False)
    else:
        want = direct(workload, x, w)
    got = reference(workload, x, w)
    assert got.shape == s.out and got.dtype == x.dtype
    assert np.array_equal(got, want)


def test_the_reference_takes_its_rows_in_slices_without_changing_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = parse("conv:mb2ic6ih10iw13oc8kh3kw2sh2sw1ph1pw0")
    s = shapes(workload)
    x, w = exact_fill(s.x, s.k, seed=1), exact_fill(s.w, s.k, seed=2)
    whole = reference(workload, x, w)
    monkeypatch.setattr("pysim.check.reference.COLUMN_BYTES", 1)
    assert np.array_equal(reference(workload, x, w), whole)


def test_the_reference_refuses_operands_of_another_problem() -> None:
    workload = parse("conv:mb1ic5ih9oc7kh3ph1")
    with pytest.raises(OperandError, match=r"wants \(1, 5, 9, 9\) and \(7, 5, 3, 3\)"):
        reference(workload, np.ones((1, 5, 9, 8), "f4"), np.ones((7, 5, 3, 3), "f4"))


# --------------------------------------------------------------------------------------------------------------- judge


def honest(workload: Workload, x: Array, w: Array) -> Array:
    return reference(workload, x, w)


@pytest.mark.parametrize("workload", TWICE, ids=lambda w: w.text)
def test_a_right_contender_passes(workload: Workload) -> None:
    judged = judge(trial(workload), lambda x, w: partial(honest, workload, x, w))
    assert judged.verdict.passed, judged.verdict.reason
    assert 0 <= judged.max_error < 1e-6


@pytest.mark.parametrize("text", ["conv:mb7ic2ih5oc3kh3ph1", "gemm:600x3x4", "gemm:600x3x4:tn"])
def test_every_output_of_a_batch_is_compared(text: str) -> None:
    workload = parse(text)
    t = trial(workload)
    size = math.prod(shapes(workload).out)
    for index in [0, size // 2, size - 1, *np.random.default_rng(0).integers(0, size, 20).tolist()]:

        def wrong(x: Array, w: Array, index: int = index) -> Array:
            out = reference(workload, x, w)
            out.reshape(-1)[index] += 1
            return out

        verdict = judge(t, lambda x, w: partial(wrong, x, w)).verdict
        assert verdict.status == "failed" and "exact fill: 1 of" in verdict.reason


def test_a_batch_whose_images_are_mixed_up_fails() -> None:
    workload = parse("conv:mb8ic2ih5oc3kh3ph1")
    rolled = judge(trial(workload), lambda x, w: lambda: np.roll(reference(workload, x, w), 1, axis=0))
    assert rolled.verdict.status == "failed"


def test_products_of_fewer_bits_pass_the_exact_fill_and_fail_the_random_one() -> None:
    workload = parse("conv:mb1ic16ih9oc7kh3ph1")

    def rounded(array: Array) -> Array:
        return (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # bfloat16's 8 bits

    verdict = judge(trial(workload), lambda x, w: lambda: reference(workload, rounded(x), rounded(w))).verdict
    assert verdict.status == "failed" and verdict.reason.startswith("random fill")


def on_numbers(workload: Workload, x: Array, w: Array) -> Array:
    dtype = workload.dtype
    return result_from(reference(workload, numbers_of(x, dtype), numbers_of(w, dtype)), dtype)


@pytest.mark.parametrize("dtype", ["bf16", "s8"])
@pytest.mark.parametrize("problem", ["conv:mb4g2ic6ih9oc8kh3sh2ph1", "gemm:70x33x130:tn"])
def test_narrow_operands_are_judged_by_the_numbers_that_they_hold(problem: str, dtype: str) -> None:
    workload = parse(f"{problem}:{dtype}")
    t = trial(workload)
    right = judge(t, lambda x, w: partial(on_numbers, workload, x, w))
    assert right.verdict.passed, right.verdict.reason

    def one_off(x: Array, w: Array) -> Array:
        out = on_numbers(workload, x, w)
        if not np.array_equal(x, t.exact_x):
            out.reshape(-1)[0] += out.dtype.type(1)
        return out

    assert judge(t, lambda x, w: partial(one_off, x, w)).verdict.reason.startswith("random fill")
    unset = judge(t, lambda x, w: lambda: unwritten(shapes(workload).out, dtype)).verdict
    assert unset.status == "failed" and "never written" in unset.reason


def test_bf16_sums_that_are_rounded_to_bf16_fail() -> None:
    workload = parse("conv:mb1ic16ih9oc7kh3ph1:bf16")

    def rounded(x: Array, w: Array) -> Array:
        return (on_numbers(workload, x, w).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

    assert judge(trial(workload), lambda x, w: partial(rounded, x, w)).verdict.status == "failed"


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("text", ["conv:mb2ic4ih6oc6kh3ph1:bf16", "conv:ic4ih6oc6kh1:s8", "gemm:5x7x9:s8", "gemm:5x7x9:bf16"])
def test_a_peer_says_that_it_does_not_compute_in_a_type(name: str, text: str) -> None:
    t = trial(parse(text))
    found = PEERS[name](t.workload, t.x, t.w)
    assert isinstance(found, Missing) and "f32" in found.reason


def test_a_result_that_is_not_written_when_operands_change_fails() -> None:
    workload = parse("conv:mb1ic5ih9oc7kh3ph1")
    t = trial(workload)
    frozen = reference(workload, t.exact_x, t.exact_w)
    assert judge(t, lambda x, w: lambda: frozen).verdict.status == "failed"
    short = judge(t, lambda x, w: lambda: frozen[:, 1:])
    assert "right is (1, 7, 9, 9)" in short.verdict.reason


def test_the_bytes_of_a_problem_are_those_of_its_operands_and_result() -> None:
    assert bytes_of(parse("gemm:2x3x4")) == 4 * (8 + 12 + 6)
    assert bytes_of(parse("conv:mb1ic5ih9oc7kh3ph1:f64")) == 8 * (405 + 315 + 567)
    assert bytes_of(parse("conv:mb1ic5ih9oc7kh3ph1:s8")) == 405 + 315 + 4 * 567


# --------------------------------------------------------------------------------------------------------------- peers


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("workload", TWICE, ids=lambda w: w.text)
def test_a_peer_computes_what_the_reference_does(name: str, workload: Workload) -> None:
    t = trial(workload)
    made(name, workload, t.x, t.w)
    judged = judge(t, lambda x, w: made(name, workload, x, w).call)
    assert judged.verdict.passed, judged.verdict.reason


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("text", ["conv:mb2ic4ih6oc6kh3ph1", "conv:g2mb2ic4ih6oc6kh1", "gemm:5x7x9:nt"])
def test_a_peer_adds_the_bias(name: str, text: str) -> None:
    workload = parse(text)
    s = shapes(workload)
    x, w, bias = exact_fill(s.x, s.k + 1, seed=1), exact_fill(s.w, s.k + 1, seed=2), exact_fill((s.out[1],), 1, seed=3)
    got = made(name, workload, x, w, bias).call()
    want = reference(workload, x, w) + (bias if isinstance(workload, Gemm) else bias[:, None, None])
    assert np.array_equal(got, want)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_reads_its_operands_anew_and_repeats_its_bits(name: str) -> None:
    workload = parse("conv:mb2ic4ih6oc6kh3ph1")
    t = trial(workload)
    call = made(name, workload, t.x, t.w).call
    first = call().copy()
    assert np.array_equal(call(), first)
    np.multiply(t.x, 2, out=t.x)  # a power of two: every rounding is the same
    assert np.array_equal(call(), 2 * first)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_says_which_version_it_is(name: str) -> None:
    workload = parse("conv:mb1ic5ih9oc7kh3ph1")
    t = trial(workload)
    assert any(letter.isdigit() for letter in made(name, workload, t.x, t.w).version)


@pytest.mark.parametrize("name", PEERS)
def test_operands_of_another_problem_never_reach_a_library(name: str) -> None:
    workload = parse("conv:mb1ic5ih9oc7kh3ph1")
    x, w = np.ones((1, 5, 9, 9), "f4"), np.ones((7, 5, 3, 3), "f4")
    for bad in ((x[:, :, :8], w), (x, w.astype("f8")), (x.transpose(0, 1, 3, 2), w), (x, w, np.ones(6, "f4"))):
        with pytest.raises(OperandError, match="wants a C-contiguous float32 array of shape"):
            PEERS[name](workload, *bad)


# ------------------------------------------------------------------------------------------------------------- absence


def missing(name: str, text: str = "conv:mb1ic5ih9oc7kh3ph1") -> str:
    workload = parse(text)
    t = trial(workload)
    found = PEERS[name](workload, t.x, t.w)
    assert isinstance(found, Missing)
    return found.reason


def test_openblas_of_numpy_stands_in_where_the_wheel_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    find = peers.importlib.util.find_spec
    if not list(Path(np.__file__).parent.parent.glob("numpy.libs/libscipy_openblas64*.so")):
        pytest.skip("this NumPy is not a wheel with an OpenBLAS inside")
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None if name == "scipy_openblas64" else find(name))
    file, name = peers._openblas_file()
    assert file.parent.name == "numpy.libs"
    assert name == f"OpenBLAS of numpy {np.__version__}"


def test_openblas_that_is_not_installed_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    peers._openblas.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert missing("im2col_openblas") == "OpenBLAS is not installed: pip install scipy-openblas64"


def test_onnx_runtime_that_is_not_installed_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    assert "pip install onnx onnxruntime" in missing("onnxruntime")


def test_a_missing_native_library_stops_im2col_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent() -> None:
        raise MissingError("the native library is not there")

    monkeypatch.setattr(runtime, "library", absent)
    assert missing("im2col_openblas") == "the native library is not there"
    t = trial(parse("conv:mb1ic5ih9oc7kh1"))
    made("im2col_openblas", t.workload, t.x, t.w)


def test_a_onednn_path_that_is_wrong_is_named_and_no_other_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = tmp_path / "libdnnl.so"
    text.write_text("no library")
    for path in (text, tmp_path, tmp_path / "nowhere.so"):
        monkeypatch.setenv("PYSIM_ONEDNN", str(path))
        assert "set PYSIM_ONEDNN to its libdnnl.so" in (reason := missing("onednn"))
        assert str(path) in reason


def test_another_library_in_onednns_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := native_is_missing():
        pytest.skip(reason)
    monkeypatch.setenv("PYSIM_ONEDNN", str(runtime.library_path()))
    assert "dnnl_version" in missing("onednn")


def test_onednn_is_looked_for_in_the_environment_where_wheels_put_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel, folder = tmp_path / "lib" / "libdnnl.so.3", tmp_path / "site" / "onednn" / "lib"
    wheel.parent.mkdir()
    folder.mkdir(parents=True)
    wheel.touch()
    (folder / "libdnnl.so").touch()
    paths = {"data": str(tmp_path), "platlib": str(tmp_path / "site"), "purelib": str(tmp_path / "site")}
    monkeypatch.delenv("PYSIM_ONEDNN", raising=False)
    monkeypatch.setattr("sysconfig.get_paths", lambda: paths)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: "libdnnl.so.3")
    assert list(peers._onednn_files()) == ["libdnnl.so.3", str(wheel), str(folder / "libdnnl.so")]


def test_a_survey_answers_for_every_peer() -> None:
    found = peers.survey()
    assert found.keys() == PEERS.keys()
    for answer in found.values():
        assert answer.version if isinstance(answer, Peer) else answer.reason


def test_a_dtype_that_a_peer_does_not_compute_is_a_reason() -> None:
    assert missing("onednn", "conv:mb1ic5ih9oc7kh3ph1:f64") == "the oneDNN peer computes in f32 only"


def test_peers_load_nothing_until_they_are_asked() -> None:
    import subprocess
    import sys

    code = "import sys, pysim.peers.cpu; print([m for m in ('cffi','onnx','onnxruntime','scipy') if m in sys.modules])"
    path = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
