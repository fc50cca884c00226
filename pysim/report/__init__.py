# SPDX-License-Identifier: Apache-2.0
"""Plans and measurements as one page to show: HTML that needs nothing beside it, Markdown, CSV or JSON."""
