"""The command line for `make run`: an end by Ctrl-C is what was asked for, no failure that make reports.

In one process, so that make's signals reach what they are meant for.
"""

import sys

from forebay.cli.main import run
from forebay.cli.terminal import Outcome

if __name__ == "__main__":
    try:
        run()
    except SystemExit as end:
        sys.exit(0 if end.code == Outcome.INTERRUPTED else end.code)
