# SPDX-License-Identifier: Apache-2.0
"""Peers compute the same as the reference, and a peer that is absent is a reason, not an error."""

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from checkout import ROOT
from native_library import native_is_missing
from numpy.typing import NDArray

from pysim.algorithms.interface import DIRECT_SUM
from pysim.check.fills import HELD, Array, exact_fill, numbers, unwritten
from pysim.check.reference import Picked, Trial, as_result, reference, shapes, trial
from pysim.check.verdict import Verdict, judge
from pysim.errors import MissingError, OperandError
from pysim.machine.load import load_any
from pysim.peers import PEERS, chosen, onednn, openblas
from pysim.peers.peer import Operands, Ready
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


CPU_PEERS = [name for name, peer in PEERS.items() if peer.on == "cpu"]
Compute = Callable[[Array, Array], Array]


def trial_of(text: str) -> Trial:
    workload = parse(text)
    return trial(workload, runtime.RESULT_DTYPES[workload.dtype])


def operands(t: Trial, exact: bool = False) -> Operands:
    return Operands(*(t.exact if exact else t.random), unwritten(shapes(t.workload).out, t.sums.result))


def made(name: str, workload: Workload, given: Operands) -> Ready:
    """The peer, or a skip with its own reason."""
    try:
        ready: Ready = PEERS[name].library.make(workload, given)
    except MissingError as error:
        pytest.skip(str(error))
    given.out.fill(np.nan)
    return ready


def judged(t: Trial, compute: Compute) -> Verdict:
    """The verdict on a function of both fills."""
    return judge(t, DIRECT_SUM, compute(*t.exact), lambda: compute(*t.random))


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


# ------------------------------------------------------------------------------------------------------------- verdict


@pytest.mark.parametrize("workload", TWICE, ids=lambda w: w.text)
def test_a_right_candidate_passes(workload: Workload) -> None:
    verdict = judged(trial_of(workload.text), partial(reference, workload))
    assert verdict.passed, verdict.reason
    assert 0 <= verdict.error < 1e-6


@pytest.mark.parametrize("text", ["conv:mb7ic2ih5oc3kh3ph1", "gemm:600x3x4", "gemm:600x3x4:tn"])
def test_every_output_of_a_batch_is_compared(text: str) -> None:
    t = trial_of(text)
    size = math.prod(shapes(t.workload).out)
    for index in [0, size // 2, size - 1, *np.random.default_rng(0).integers(0, size, 20).tolist()]:

        def wrong(x: Array, w: Array, index: int = index) -> Array:
            out = reference(t.workload, x, w)
            out.reshape(-1)[index] += 1
            return out

        verdict = judged(t, wrong)
        assert verdict.status == "failed" and verdict.reason.startswith("exact fill: 1 of")


def test_where_an_element_is_wrong_is_said_also_beyond_what_is_compared_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pysim.check.verdict.CHUNK_ELEMENTS", 2 * 3)
    t = trial_of("gemm:9x3x4")
    got = reference(t.workload, *t.exact)
    got[5, 2] += 1
    assert "first at (1, 2)" in (reason := judge(t, DIRECT_SUM, got, lambda: got).reason) and "counted from 4 on the first axis" in reason


def test_a_batch_whose_images_are_mixed_up_fails() -> None:
    t = trial_of("conv:mb8ic2ih5oc3kh3ph1")
    assert judged(t, lambda x, w: np.roll(reference(t.workload, x, w), 1, axis=0)).status == "failed"


def test_products_of_fewer_bits_pass_the_exact_fill_and_fail_the_random_one() -> None:
    t = trial_of("conv:mb1ic16ih9oc7kh3ph1")

    def rounded(array: Array) -> Array:
        return array.astype(HELD["bf16"]).astype(np.float32)

    verdict = judged(t, lambda x, w: reference(t.workload, rounded(x), rounded(w)))
    assert verdict.status == "failed" and verdict.reason.startswith("random fill")


@pytest.mark.parametrize("text", ["conv:mb2ic4ih6oc6kh3ph1", "gemm:5x7x9"])
def test_an_element_that_no_reference_knows_must_be_a_number_and_one_that_a_device_knows_right(text: str) -> None:
    t = trial_of(text)
    t = t._replace(picked=Picked(*(part[:1] for part in t.picked)))
    exact, right = reference(t.workload, *t.exact), reference(t.workload, *t.random)
    scale = reference(t.workload, *map(np.abs, t.random))
    for bad, everywhere, says in (
        (np.nan, lambda: None, "random fill: 1 of"),
        (np.inf, lambda: None, "random fill: 1 of"),
        (3.0, lambda: None, ""),
        (3.0, lambda: (right, scale), "random fill: 1 of"),
    ):
        got = right.copy()
        got.reshape(-1)[-1] = bad
        verdict = judge(t, DIRECT_SUM, exact, lambda got=got: got, everywhere)
        assert verdict.passed == (not says) and verdict.reason.startswith(says)
    assert judge(t, DIRECT_SUM, exact, lambda: right, lambda: (right, scale)).passed


def on_numbers(workload: Workload, x: Array, w: Array) -> Array:
    return as_result(reference(workload, numbers(x), numbers(w)), runtime.RESULT_DTYPES[workload.dtype])


@pytest.mark.parametrize("dtype", ["bf16", "s8"])
@pytest.mark.parametrize("problem", ["conv:mb4g2ic6ih9oc8kh3sh2ph1", "gemm:70x33x130:tn"])
def test_narrow_operands_are_judged_by_the_numbers_that_they_hold(problem: str, dtype: str) -> None:
    t = trial_of(f"{problem}:{dtype}")
    right = judged(t, partial(on_numbers, t.workload))
    assert right.passed, right.reason

    def one_off(x: Array, w: Array) -> Array:
        out = on_numbers(t.workload, x, w)
        if x is not t.exact[0]:
            out.reshape(-1)[0] += out.dtype.type(1)
        return out

    assert judged(t, one_off).reason.startswith("random fill")
    unset = judged(t, lambda x, w: unwritten(shapes(t.workload).out, t.sums.result))
    assert unset.status == "failed" and "never written" in unset.reason


def test_bf16_sums_that_are_rounded_to_bf16_fail() -> None:
    t = trial_of("conv:mb1ic16ih9oc7kh3ph1:bf16")
    verdict = judged(t, lambda x, w: on_numbers(t.workload, x, w).astype(HELD["bf16"]).astype(np.float32))
    assert verdict.status == "failed"


@pytest.mark.parametrize("name", CPU_PEERS)
@pytest.mark.parametrize("text", ["conv:mb2ic4ih6oc6kh3ph1:bf16", "conv:ic4ih6oc6kh1:s8", "gemm:5x7x9:s8", "gemm:5x7x9:bf16"])
def test_a_peer_says_that_it_does_not_compute_in_a_type(name: str, text: str) -> None:
    assert "f32" in (reason := missing(name, text)) and text.rpartition(":")[2] in reason


def test_a_result_that_is_not_written_when_operands_change_fails() -> None:
    t = trial_of("conv:mb1ic5ih9oc7kh3ph1")
    frozen = reference(t.workload, *t.exact)
    assert judged(t, lambda x, w: frozen).status == "failed"
    assert "expected (1, 7, 9, 9)" in judged(t, lambda x, w: frozen[:, 1:]).reason


def test_the_bytes_of_a_problem_are_those_of_its_operands_and_result() -> None:
    assert trial_of("gemm:2x3x4").nbytes == 4 * (8 + 12 + 6)
    assert trial_of("conv:mb1ic5ih9oc7kh3ph1:f64").nbytes == 8 * (405 + 315 + 567)
    assert trial_of("conv:mb1ic5ih9oc7kh3ph1:s8").nbytes == 405 + 315 + 4 * 567


# --------------------------------------------------------------------------------------------------------------- peers


@pytest.mark.parametrize("name", CPU_PEERS)
@pytest.mark.parametrize("workload", TWICE, ids=lambda w: w.text)
def test_a_peer_computes_what_the_reference_does(name: str, workload: Workload) -> None:
    t = trial_of(workload.text)
    outs = []
    for exact in (True, False):
        given = operands(t, exact)
        made(name, workload, given).call()
        outs.append(given.out)
    verdict = judge(t, DIRECT_SUM, outs[0], lambda: outs[1])
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("name", CPU_PEERS)
def test_a_peer_reads_its_operands_again_repeats_its_bits_and_says_which_version_it_is(name: str) -> None:
    t = trial_of("conv:mb2ic4ih6oc6kh3ph1")
    given = operands(t)
    ready = made(name, t.workload, given)
    assert any(letter.isdigit() for letter in ready.version)
    ready.call()
    first = given.out.copy()
    ready.call()
    assert np.array_equal(given.out, first)
    np.multiply(given.x, 2, out=given.x)  # a power of two: every rounding is the same
    ready.call()
    assert np.array_equal(given.out, 2 * first)


@pytest.mark.parametrize("name", CPU_PEERS)
def test_operands_of_another_problem_never_reach_a_library(name: str) -> None:
    workload = parse("conv:mb1ic5ih9oc7kh3ph1")
    x, w, out = np.ones((1, 5, 9, 9), "f4"), np.ones((7, 5, 3, 3), "f4"), np.ones((1, 7, 9, 9), "f4")
    for bad in ((x[:, :, :8], w, out), (x, w.astype("f8"), out), (x.transpose(0, 1, 3, 2), w, out), (x, w, out[:, :6])):
        with pytest.raises(OperandError, match="wants a C-contiguous float32 array of shape"):
            PEERS[name].library.make(workload, Operands(*bad))


def test_a_kernel_that_the_environment_forces_is_reported_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    t = trial_of("gemm:5x7x9")
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    for forced in (False, True):
        if forced:
            monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
        openblas._library.cache_clear()
        version = made("im2col_openblas", t.workload, operands(t)).version
        assert version.endswith(" (forced by OPENBLAS_CORETYPE=Haswell)" if forced else "kernels")
    openblas._library.cache_clear()


# Who takes part


def test_peers_are_none_the_default_all_or_some_by_name() -> None:
    on_cpu, on_gpu = load_any("zen4"), load_any("h200")
    assert list(chosen("none", on_cpu)) == [] == list(chosen((), on_gpu))
    assert list(chosen("default", on_cpu)) == ["im2col_openblas"] and list(chosen("default", on_gpu)) == ["cublas", "cudnn"]
    assert list(chosen("all", on_cpu)) == CPU_PEERS and not set(chosen("all", on_gpu)) & set(CPU_PEERS)
    assert list(chosen(("onednn", "im2col_openblas"), on_cpu)) == ["onednn", "im2col_openblas"]
    assert chosen("torch", on_gpu) == chosen(["torch"], on_gpu)
    with pytest.raises(OperandError, match='no peer on zen4 is named "cublas"; there are: none, default, all, im2col_openblas, onednn'):
        chosen(("cublas",), on_cpu)
    with pytest.raises(OperandError, match="is named True"):
        chosen(True, on_cpu)


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_of_the_table_has_what_a_peer_has(name: str) -> None:
    library = PEERS[name].library
    assert callable(library.estimate) if PEERS[name].analytic else (callable(library.make) and len(library.ALGORITHMS) >= 1)


# ------------------------------------------------------------------------------------------------------------- absence


def missing(name: str, text: str = "conv:mb1ic5ih9oc7kh3ph1") -> str:
    t = trial_of(text)
    with pytest.raises(MissingError) as caught:
        PEERS[name].library.make(t.workload, operands(t))
    return str(caught.value)


def test_openblas_of_numpy_stands_in_where_the_wheel_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    find = openblas.importlib.util.find_spec
    if not list(Path(np.__file__).parent.parent.glob("numpy.libs/libscipy_openblas64*.so")):
        pytest.skip("this NumPy is not a wheel with an OpenBLAS inside")
    monkeypatch.setattr(openblas.importlib.util, "find_spec", lambda name: None if name == "scipy_openblas64" else find(name))
    file, name = openblas._file()
    assert file.parent.name == "numpy.libs"
    assert name == f"OpenBLAS of numpy {np.__version__}"


def test_openblas_that_is_not_installed_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    openblas._library.cache_clear()
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
    t = trial_of("conv:mb1ic5ih9oc7kh1")
    made("im2col_openblas", t.workload, operands(t))


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


def test_a_onednn_that_lacks_a_library_is_told_in_a_line() -> None:
    file = "/opt/libdnnl.so"
    words = f"cannot load library '{file}': libtbb.so.12: cannot open shared object file.  Additionally, ctypes.util.find_library() did not"
    assert onednn._told(file, OSError(words)) == "libtbb.so.12: cannot open shared object file"


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
    assert list(onednn._files()) == ["libdnnl.so.3", str(wheel), str(folder / "libdnnl.so")]


def test_a_dtype_that_a_peer_does_not_compute_is_a_reason() -> None:
    assert missing("onednn", "conv:mb1ic5ih9oc7kh3ph1:f64") == "oneDNN computes in f32 here, not in f64"


def test_peers_load_nothing_until_they_are_used() -> None:
    import subprocess
    import sys

    code = "import sys, pysim.peers; print([m for m in ('cffi','onnx','onnxruntime','scipy') if m in sys.modules])"
    path = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
