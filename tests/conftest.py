# SPDX-License-Identifier: Apache-2.0
"""Examples may take as long as a busy machine needs: hypothesis' deadline of 200 ms says nothing about the code."""

from hypothesis import settings

settings.register_profile("pysim", deadline=None)
settings.load_profile("pysim")
