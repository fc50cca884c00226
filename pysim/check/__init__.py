# SPDX-License-Identifier: Apache-2.0
"""Correctness of results: operands, references, tolerances, verdicts."""
