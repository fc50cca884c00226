# SPDX-License-Identifier: Apache-2.0
"""`python -m pysim` and `pysim`: the command line. Ctrl-C while it is imported ends as one later does."""

import sys


def run() -> None:
    try:
        from pysim.cli import main

        main(prog_name="pysim")
    except KeyboardInterrupt:
        print("pysim: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    run()
