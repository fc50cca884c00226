# SPDX-License-Identifier: Apache-2.0
"""ONNX files as networks."""
