# SPDX-License-Identifier: Apache-2.0
"""Meanings of ONNX's operators, in NumPy."""
