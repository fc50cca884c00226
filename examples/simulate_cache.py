# SPDX-License-Identifier: Apache-2.0
"""Exact misses of a column sum of a matrix, row by row and column by column, in the caches of a Zen 4 core."""

import numpy as np

from pysim.cachemodel import Hierarchy

ROWS, COLUMNS, BYTES = 512, 512, 8
places = np.arange(ROWS * COLUMNS, dtype=np.int64).reshape(ROWS, COLUMNS) * BYTES
sizes, writes = np.full(places.size, BYTES, np.int32), np.zeros(places.size, bool)

for order, addresses in (("row by row", places.ravel()), ("column by column", places.T.ravel())):
    result = Hierarchy.from_machine("zen4").simulate(addresses, sizes, writes)
    misses = ", ".join(f"{name} {result[name].misses}" for name in result)
    print(f"{order}: {places.size} loads; misses: {misses}")
