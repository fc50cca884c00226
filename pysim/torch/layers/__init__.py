# SPDX-License-Identifier: Apache-2.0
"""Convolutions, products and norms of PyTorch models as modules, and how long PyTorch's own would take."""
