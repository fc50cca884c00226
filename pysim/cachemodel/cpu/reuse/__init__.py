# SPDX-License-Identifier: Apache-2.0
"""Reuse in loop nests described as data: how often, at which distance, and which cache still holds the lines."""
