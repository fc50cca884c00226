# SPDX-License-Identifier: Apache-2.0
"""Whether results are right: operands, references, tolerances, verdicts."""
