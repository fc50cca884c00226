# SPDX-License-Identifier: Apache-2.0
"""Names as numbers: what a table of candidates has of its kernels and kinds."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def numbered(names: Iterable[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Names in the order in which each stands first, and the place of each among them: a, b, a are (a, b) and 0, 1, 0."""
    places: dict[str, int] = {}
    numbers = [places.setdefault(name, len(places)) for name in names]
    return tuple(places), np.array(numbers, dtype=np.int64)
