# SPDX-License-Identifier: Apache-2.0
"""Readers of other programs' models: one module per format, each imported by whoever needs it."""
