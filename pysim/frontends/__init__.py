# SPDX-License-Identifier: Apache-2.0
"""Readers of files: models of other programs, traces of accesses, tiles and their accesses. One module per format, each imported by whoever
needs it."""
