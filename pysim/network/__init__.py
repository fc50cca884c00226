# SPDX-License-Identifier: Apache-2.0
"""Whole networks: a graph as a value, its fusions, its buffers, and what runs it."""
