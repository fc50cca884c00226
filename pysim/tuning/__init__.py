# SPDX-License-Identifier: Apache-2.0
"""The best plan by measurement: which plans to time next, the result, and its stored evidence."""
