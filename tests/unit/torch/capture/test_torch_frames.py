# SPDX-License-Identifier: Apache-2.0
"""A capture leaves the garbage collector as it was."""

import gc

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from pysim.torch.capture.frames import _frozen  # noqa: E402


@pytest.fixture
def nothing_frozen():
    """The tests' own start is frozen (tests/conftest.py)."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_is_there_before_a_capture_is_left_out_of_its_collections(nothing_frozen):
    with _frozen():
        assert gc.get_freeze_count() and gc.isenabled()
        with _frozen():  # a frame within, or another thread's
            pass
        assert gc.get_freeze_count()
    assert not gc.get_freeze_count()


def test_after_a_capture_that_fails_all_is_collected_again(nothing_frozen):
    with pytest.raises(ValueError, match="no capture"), _frozen():
        raise ValueError("no capture")
    assert not gc.get_freeze_count()


def test_what_a_program_froze_stays_frozen(nothing_frozen):
    gc.freeze()
    with _frozen():
        pass
    assert gc.get_freeze_count()
