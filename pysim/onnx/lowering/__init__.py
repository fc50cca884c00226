# SPDX-License-Identifier: Apache-2.0
"""Nodes of ONNX models in the forms that networks expect."""
