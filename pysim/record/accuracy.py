# SPDX-License-Identifier: Apache-2.0
"""The accuracy levels of a request; `pysim.algorithms.accuracy` defines them."""

from typing import Literal

Accuracy = Literal["standard", "strict", "ieee"]
ACCURACIES: tuple[Accuracy, ...] = ("standard", "strict", "ieee")
