# SPDX-License-Identifier: Apache-2.0
"""The accuracy levels of a request; `pysim.algorithms.accuracy` defines them."""

from typing import Literal

Accuracy = Literal["standard", "strict", "ieee", "reproducible"]
ErrorScale = Literal["products", "window", "tile"]
ACCURACIES: tuple[Accuracy, ...] = ("standard", "strict", "ieee", "reproducible")
