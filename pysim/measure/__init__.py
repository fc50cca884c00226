# SPDX-License-Identifier: Apache-2.0
"""How long calls take: clocks, turns, statistics, and where every sample is kept."""
