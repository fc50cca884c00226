# SPDX-License-Identifier: Apache-2.0
"""How accurate a plan may be asked to be; what each level takes stands in `pysim.algorithms.accuracy`."""

from typing import Literal

Accuracy = Literal["standard", "strict", "ieee"]
ACCURACIES: tuple[Accuracy, ...] = ("standard", "strict", "ieee")
