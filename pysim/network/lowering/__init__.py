# SPDX-License-Identifier: Apache-2.0
"""Operators of both frontends as nodes that networks compute natively."""
