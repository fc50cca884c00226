# SPDX-License-Identifier: Apache-2.0
"""Networks of bfloat16: their inputs and outputs, and layers whose input is rounded first."""
