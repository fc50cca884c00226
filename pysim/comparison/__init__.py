# SPDX-License-Identifier: Apache-2.0
"""Plans beside what was predicted of them, and beside other libraries."""
