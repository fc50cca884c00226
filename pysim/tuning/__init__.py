# SPDX-License-Identifier: Apache-2.0
"""The best plan by measurement: what to measure next, what was found, and the stored evidence of it."""
