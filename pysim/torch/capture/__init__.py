# SPDX-License-Identifier: Apache-2.0
"""Graphs that torch.compile captured: what they do, and which of their operators become layers."""
