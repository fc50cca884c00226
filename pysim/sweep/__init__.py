# SPDX-License-Identifier: Apache-2.0
"""Many problems on many machines with many options: predicted, simulated or measured, one row each, on any number of workers."""
