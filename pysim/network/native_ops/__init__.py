# SPDX-License-Identifier: Apache-2.0
"""Operators that the native library runs, bound to their arrays."""
