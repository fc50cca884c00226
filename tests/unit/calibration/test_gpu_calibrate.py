# SPDX-License-Identifier: Apache-2.0
"""A GPU is calibrated from products: what was fitted finds the constants of the machine that computed them, on products it has not seen."""

from collections import Counter

import msgspec
import numpy as np
import pytest

from pysim.calibration import gpu_calibrate, gpu_lab
from pysim.calibration.gpu_calibrate import MIN_PRODUCTS, GpuFit, calibrate, fitted, moved_to
from pysim.calibration.gpu_fit import Case, Measured, Moved, fit, half_of, predicted
from pysim.calibration.gpu_lab import best_of_kernels, case_of, drawn
from pysim.errors import MachineError
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.problem.text import parse
from pysim.registry.cuda import gemm_attributes

DTYPES, COUNT = ("f32", "f16"), 24


def h200() -> Gpu:
    gpu = load_any("h200")
    assert isinstance(gpu, Gpu)
    return gpu


def slower(gpu: Gpu, factor: float) -> Gpu:
    """A machine of other constants: launches, and the start and end of blocks, take `factor` times as long."""
    families = {
        name: msgspec.structs.replace(
            one,
            launch_seconds=msgspec.structs.replace(one.launch_seconds, value=factor * one.launch_seconds.value),
            block_cycles=msgspec.structs.replace(one.block_cycles, value=min(19_000, factor * one.block_cycles.value)),
        )
        for name, one in gpu.model.families.items()
    }
    return msgspec.structs.replace(gpu, model=msgspec.structs.replace(gpu.model, families=families))


class Synthetic:
    """A lab whose times are what a machine predicts, off by a few percent."""

    def __init__(self, gpu: Gpu, noise: float = 0.02) -> None:
        self.gpu, self._known, self._draw = gpu, gemm_attributes(gpu.capability_number), np.random.default_rng(3)
        self.noise, self.asked = noise, list[str]()

    def dtypes(self) -> tuple[str, ...]:
        return DTYPES

    def measure(self, text: str, top: int) -> Case | None:
        self.asked.append(text)
        plans = best_of_kernels(text, h200(), top, "ieee")
        case = case_of([(plan, np.ones(9)) for plan in plans])
        assert case is not None
        seconds = predicted(case, self.gpu, self._known)
        return case._replace(seconds=seconds * np.exp(self.noise * self._draw.standard_normal(len(seconds))))


@pytest.fixture(scope="module")
def measured() -> tuple[Gpu, GpuFit, list[Case]]:
    """A machine 1.5 times as slow to start, and what is found where the H200's file is what was known of it."""
    lab = Synthetic(slower(h200(), 1.5))
    cases = [case for dtype in DTYPES for text in drawn(dtype, COUNT, 5, 1e10) if (case := lab.measure(text, 4))]
    return lab.gpu, fitted(h200(), cases), cases


def test_products_that_the_fit_has_not_seen_are_predicted_within_their_noise(measured) -> None:
    _, found, _ = measured
    assert found.before.median_error > 0.1
    assert found.left_out.median_error < 0.03 and found.left_out.p90_error < 0.09 and found.left_out.regret < 1.01


def test_the_constants_are_those_of_the_machine_within_their_errors(measured) -> None:
    gpu, found, _ = measured
    for path in ("model.families.wgmma_f16.launch_seconds", "model.families.simt.block_cycles"):
        *_, family, name = path.split(".")
        one, want = found.constants[path], getattr(gpu.model.families[family], name).value
        assert abs(one.value / want - 1) < 0.15 and abs(one.value - want) < 4 * one.error


def test_a_family_that_no_product_used_keeps_its_constants(measured) -> None:
    _, found, _ = measured
    new = moved_to(h200(), found.constants)
    assert new.model.families["wgmma_s8"] == h200().model.families["wgmma_s8"]
    assert new.model.families["conv_implicit"] == h200().model.families["conv_implicit"]
    assert new.model.families["wgmma_f16"] != h200().model.families["wgmma_f16"]


def test_constants_of_one_fit_move_together_sure_or_not(measured) -> None:
    _, found, cases = measured
    best = fit([Measured(h200(), cases)], gemm_attributes(90), gpu_calibrate.MOVED)
    assert len(found.constants) == len(best.errors) and all(
        path.endswith(name) for path, name in zip(found.constants, best.errors, strict=True)
    )
    assert any(one.doubt for one in found.constants.values())
    constants = moved_to(h200(), found.constants).model.families["wgmma_f16"]
    for name in ("launch_seconds", "block_cycles", "meet_cycles"):
        assert getattr(constants, name).value == pytest.approx(getattr(best.gpus[0].model.families["wgmma_f16"], name).value, rel=1e-3)


def test_machines_of_one_chip_get_one_set_of_constants_and_keep_what_differs_between_them() -> None:
    slow, h100 = slower(h200(), 1.3), load_any("h100")
    assert isinstance(h100, Gpu)
    known, texts = gemm_attributes(90), drawn("f16", 2 * COUNT, 6, 1e9)
    labs = [
        Synthetic(slow),
        Synthetic(msgspec.structs.replace(slow, l2_bytes=h100.l2_bytes, memory_bytes_per_second=h100.memory_bytes_per_second)),
    ]
    measured = [
        Measured(msgspec.structs.replace(h200(), l2_bytes=lab.gpu.l2_bytes, memory_bytes_per_second=lab.gpu.memory_bytes_per_second), cases)
        for lab, own in zip(labs, (texts[::2], texts[1::2]), strict=True)
        if (cases := [case for text in own if (case := lab.measure(text, 4))])
    ]
    found = fit(measured, known, Moved())
    one, other = found.gpus
    assert one.model == other.model and one.memory_bytes_per_second != other.memory_bytes_per_second == h100.memory_bytes_per_second
    for gpu, (_, cases) in zip(found.gpus, measured, strict=True):
        assert np.median(np.abs(np.concatenate([np.log(predicted(case, gpu, known) / case.seconds) for case in cases]))) < 0.03


def test_the_rate_of_l2_is_what_products_say_whatever_a_probe_did(measured) -> None:
    gpu, _, cases = measured
    probed = msgspec.structs.replace(
        h200(), l2_bytes_per_second=msgspec.structs.replace(gpu.l2_bytes_per_second, value=7e12, kind="measured")
    )
    found = moved_to(probed, fitted(probed, cases).constants).l2_bytes_per_second
    assert found.kind == "fitted" and found.value > 8.5e12, "the products' machine has 1.145e13"


def test_every_constant_that_was_moved_says_where_it_is_from(measured) -> None:
    _, found, _ = measured
    new = gpu_calibrate.with_constants(h200(), found, "NVIDIA H100", "h200")
    number = new.model.families["simt"].launch_seconds
    assert (number.kind, number.source) == ("fitted", gpu_calibrate.SOURCE) and number.error
    assert "NVIDIA H100" in new.sources[gpu_calibrate.SOURCE].title


def test_too_few_products_are_an_error_that_says_how_many_are_needed(measured) -> None:
    _, _, cases = measured
    with pytest.raises(MachineError, match=f"3 products were measured and {MIN_PRODUCTS} are needed"):
        fitted(h200(), cases[:3])


def test_a_calibration_interleaves_types_and_ends_with_its_budget(monkeypatch) -> None:
    lab, clock = Synthetic(h200()), iter(range(1000))
    monkeypatch.setattr(gpu_calibrate, "perf_counter", lambda: float(next(clock)))
    found = calibrate(h200(), lab, 60.0)
    assert MIN_PRODUCTS <= found.problems == len(lab.asked) < 60
    assert max(Counter(text.rpartition(":")[2] for text in lab.asked).values()) - len(lab.asked) / len(DTYPES) <= 0.5


def test_halves_of_random_products_have_as_many_of_whole_vectors_each() -> None:
    """Every second random product is in multiples of eight: halves by their place would be those, and the others."""
    some = [parse(text) for text in drawn("f16", 200, 11, gpu_calibrate.MAX_MULTIPLY_ADDS)]
    whole = [half_of(one) for one in some if one.m % 8 == one.n % 8 == one.k % 8 == 0]
    assert 0.35 < np.mean(whole) < 0.65 and len(whole) >= 100


def test_a_lab_asks_for_the_best_plan_of_each_of_several_kernels() -> None:
    plans = gpu_lab.best_of_kernels("gemm:512x512x512:f16", h200(), 3)
    assert len({plan.kernel for plan in plans}) == 3
    assert [plan.cost.seconds for plan in plans] == sorted(plan.cost.seconds for plan in plans)
