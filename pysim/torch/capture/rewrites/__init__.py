# SPDX-License-Identifier: Apache-2.0
"""Rewrites of captured graphs on a GPU that are compiled."""
