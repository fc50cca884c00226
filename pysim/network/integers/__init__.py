# SPDX-License-Identifier: Apache-2.0
"""Quantised networks computed as integers: which operators become integer ones, their weights, and the layers that run them."""
