# SPDX-License-Identifier: Apache-2.0
"""A commit's subject is `area: imperative` in at most 72 characters."""

import subprocess
from pathlib import Path

import pytest
from checkout import ROOT

SCRIPT = ROOT / "tools" / "subjects"


@pytest.mark.parametrize(
    ("subject", "right"),
    [
        ("gpu model: count the filling of boxes", True),
        ("merge: main", True),
        ("Merge branch 'lab'", True),
        ("lab: " + "x" * 67, True),
        ("lab: " + "x" * 68, False),
        ("count the filling of boxes", False),
        ("lab:", False),
    ],
)
def test_a_subject_has_an_area_and_at_most_72_characters(subject: str, right: bool, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text(f"# a comment\n{subject}\n\nA body of any length, {'x' * 100}.\n")
    done = subprocess.run([SCRIPT, message], capture_output=True, text=True, timeout=250)
    assert (done.returncode == 0) == right
    assert right or subject in done.stdout
