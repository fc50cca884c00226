# SPDX-License-Identifier: Apache-2.0
"""Measured plans compared with their predictions and with other libraries."""
