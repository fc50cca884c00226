# SPDX-License-Identifier: Apache-2.0
"""One file per command of `pysim`."""
