# SPDX-License-Identifier: Apache-2.0
"""Machines as data: one TOML file each under `data/`, in which every number has a source."""
