# SPDX-License-Identifier: Apache-2.0
"""Algorithms of problems cut in halves (`pysim.algorithms.seven_products`)."""
