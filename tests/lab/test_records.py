# SPDX-License-Identifier: Apache-2.0
"""The data files of the laboratory give back what was measured, whatever their form."""

import json
from pathlib import Path

import pack
import pytest
import records
from checkout import DATA

HEADER = {"kind": "header", "device": "a CPU"}
ROWS = [
    {"problem": "gemm:1x2x3", "seconds": 1.25e-5, "plans": [{"kernel": "a", "schedule": {"splits": 1}}, {"kernel": "b", "wrong": True}]},
    {"problem": "gemm:1x2x3", "seconds": 2.5e-5, "plans": []},
    {"problem": "gemm:4x5x6", "plans": [{"kernel": "a", "schedule": {"splits": 2, "group": 8}}], "peers": {"x": {"seconds": 1}}},
]


def test_what_is_packed_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(records.packed(HEADER, ROWS))
    assert records.lines(tmp_path / "a.jsonl") == [HEADER, *ROWS] and records.header(tmp_path / "a.jsonl") == HEADER


def test_objects_by_name_are_read_back_under_their_names(tmp_path: Path) -> None:
    rows = [{"candidates": {"a 1": {"seconds": 1.0}, "b": {"refused": "no"}}}, {"candidates": {"b": {"seconds": 2.0}}}]
    (tmp_path / "a.jsonl").write_text(records.packed(HEADER, rows, {"candidates": "name"}))
    assert records.lines(tmp_path / "a.jsonl")[1:] == rows


def test_lines_that_are_no_tables_are_read_as_they_stand_also_behind_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(records.packed(HEADER, ROWS[:1]) + json.dumps(ROWS[2]) + "\n")
    assert records.lines(tmp_path / "a.jsonl") == [HEADER, ROWS[0], ROWS[2]]


def test_numbers_keep_six_digits() -> None:
    assert records.rounded({"a": [1234567.891, 7, 1.23456789e-9]}) == {"a": [1234570.0, 7, 1.23457e-9]}


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("conv", "h200/conv-f16.jsonl"),
        ("layers", "h200/layers-f16.jsonl"),
        ("products", "h100/products-random.jsonl"),
        ("networks", "zen4/models.jsonl"),
        ("networks", "h100/models.jsonl"),
        ("rows", "zen4/regret.jsonl"),
        ("rows", "h200/accuracy.jsonl"),
    ],
)
def test_a_packed_file_is_packed_alike_once_more(kind: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "again.jsonl").write_text(pack.KINDS[kind](DATA / file))
    assert records.lines(tmp_path / "again.jsonl") == records.lines(DATA / file)


def test_all_data_are_at_most_8_mib_and_stand_under_a_machine() -> None:
    files = [path for path in DATA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8 * 2**20
    assert all(len(path.relative_to(DATA).parts) == 2 for path in files)
