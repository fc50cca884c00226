# SPDX-License-Identifier: Apache-2.0
"""What is said of predictions follows from the data in the repository, by definitions that can be worked out by hand."""

import math
from pathlib import Path

import fit_gpu
import prediction_quality as quality
import pytest
from checkout import DATA, ROOT
from prediction_quality import Sample

from pysim.machine.load import load_any

PLANS = [Sample("m", False, "a", "f32", "p", predicted, measured) for predicted, measured in ((80, 100), (100, 90), (90, 120))]


def test_error_rank_and_regret_are_those_of_the_worked_number() -> None:
    every, own = quality.rows(PLANS)
    assert (every.algorithm, own.algorithm) == ("all", "a") and every[4:] == own[4:]
    assert (own.problems, own.plans) == (1, 3)
    assert own.median_error == pytest.approx(math.log(100 / 80))
    assert own.tau == pytest.approx(-1 / 3) and own.regret_mean == own.regret_worst == pytest.approx(100 / 90)


def test_a_problem_with_few_plans_has_an_error_and_no_rank() -> None:
    (_, own) = quality.rows(PLANS[:2])
    assert own.tau is own.regret_mean is own.regret_worst is None and own.p90_error > 0
    assert quality.rows([*PLANS, PLANS[0]._replace(dtype="f64")])[0].plans == 3  # types stand apart


def test_rows_stand_in_the_order_of_the_numbers_in_their_names() -> None:
    some = [PLANS[0]._replace(algorithm=f"{count} threads") for count in (16, 2, 8)]
    assert [row.algorithm for row in quality.rows(some)] == ["all", "2 threads", "8 threads", "16 threads"]


def test_launches_of_kernels_that_changed_since_they_were_measured_play_no_part() -> None:
    for name, changed in fit_gpu.CHANGED.items():
        path = DATA / name
        all_of = fit_gpu.document_of(path)["problems"]
        cases, _ = fit_gpu.read([path], load_any("h200"))
        assert 0 < sum(len(case.seconds) for case in cases) < sum(len(one["launches"]) for one in all_of)
        for case in cases:
            used = {case.kernels[place] for place in case.table.variant}
            assert not any(are(case.problem, kernel) for kernel in used for are in changed)


def test_the_document_has_what_the_data_say_and_its_picture_is_there() -> None:
    text = (ROOT / "docs" / "accuracy.md").read_text()
    assert quality.table(quality.found()) in text
    picture = (ROOT / "docs" / "prediction-error.svg").read_text()
    assert all(label in picture for label in quality.drawn(quality.found()))


def test_the_picture_has_machines_never_seen_first_and_the_smallest_error_of_each_kind_at_the_top(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    kinds = (("a", True, 90), ("b", True, 99), ("c", False, 80))
    some = [PLANS[0]._replace(machine=name, seen=seen, predicted=off) for name, seen, off in kinds]
    found = quality.rows(some)
    assert [row.machine for row in quality.drawn(found).values()] == ["c", "b", "a"]
    quality.draw(found, tmp_path / "errors.svg")
    picture = (tmp_path / "errors.svg").read_text()
    places = [picture.index(text) for text in (quality.KINDS[False], quality.KINDS[True])]
    assert places == sorted(places) and "legend" not in picture  # which would lie over bars
