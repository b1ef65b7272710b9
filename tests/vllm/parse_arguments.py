"""Says of each command line on standard input whether vLLM's own parser takes it; in its environment."""

import contextlib
import json
import os
import sys

with contextlib.redirect_stdout(sys.stderr):
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    taken = []
    for arguments in json.load(sys.stdin):
        try:
            with contextlib.redirect_stderr(open(os.devnull, "w")):
                parser.parse_args(["model", *arguments])
            taken.append(True)
        except (SystemExit, ValueError, TypeError):
            taken.append(False)
json.dump(taken, sys.stdout)
