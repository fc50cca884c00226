# SPDX-License-Identifier: Apache-2.0
"""`python -m pysim` and `pysim`: the command line. Ctrl-C during the imports ends like Ctrl-C later."""

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
