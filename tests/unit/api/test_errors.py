# SPDX-License-Identifier: Apache-2.0
"""What a refusal adds for a name that nothing has: the nearest one, where one is near, and all there are."""

from pathlib import Path

import pytest

from pysim import errors
from pysim.errors import PysimError, choose, nearest

PACKAGE = Path(errors.__file__).parent


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("zen-4", ["xeon-4208", "zen4"], 'did you mean "zen4"? there are: xeon-4208, zen4'),
        ("abacus", ["zen4", "xeon-4208"], "there are: zen4, xeon-4208"),
        ("sconf", ["sconv"], 'did you mean "sconv"? there is sconv'),
        ("L9", [], "there is none"),
        (7, {"f32": 4, "f64": 8}, "there are: f32, f64"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_all_options_in_their_order(name, options, message):
    assert choose(name, options) == message


def test_the_nearest_option_does_not_depend_on_their_order_and_may_be_none():
    options = ["kernel_h", "kernel_w", "stride_h"]
    assert nearest("kernel", options) == nearest("kernel", options[::-1]) is not None
    assert nearest("zebra", options) is None
    assert nearest(None, options) is None


def test_every_error_of_the_package_is_of_the_family_and_is_defined_with_it():
    family = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)]
    assert len(family) > 5
    assert all(issubclass(error, PysimError) and error.__doc__ for error in family)
    for path in PACKAGE.rglob("*.py"):
        assert path.name == "errors.py" or "Error(PysimError)" not in path.read_text(), f"{path} defines an error of its own"
