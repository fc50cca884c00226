# SPDX-License-Identifier: Apache-2.0
"""Where models, traces and tiles come from: readers of files, one module per format, and tiles of published kernels. Each is imported by
whoever needs it."""
