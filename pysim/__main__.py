# SPDX-License-Identifier: Apache-2.0
"""`python -m pysim`: the command line."""

from pysim.cli import main

if __name__ == "__main__":
    main(prog_name="pysim")
