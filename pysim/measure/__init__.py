# SPDX-License-Identifier: Apache-2.0
"""Timing of calls: clocks, interleaved samples, statistics, and the store that keeps every sample."""
