# SPDX-License-Identifier: Apache-2.0
"""The rooms of the laboratory. Importing it makes the scripts of each importable from the others; a script's own folder comes first."""

import sys
from pathlib import Path

LAB = Path(__file__).resolve().parent
ROOT, DATA, PROBLEMS = LAB.parent, LAB / "data", LAB.parent / "problems"
ROOMS = [str(LAB / room) for room in (".", "fits", "figures", "ablations", "benchmarks/cuda", "benchmarks")]
sys.path += [room for room in ROOMS if room not in sys.path]
