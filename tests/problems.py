# SPDX-License-Identifier: Apache-2.0
"""Problems by their text, as the type that a test is about."""

from pysim.problem.conv import Conv
from pysim.problem.text import parse


def conv(text: str) -> Conv:
    found = parse(text)
    assert isinstance(found, Conv)
    return found
