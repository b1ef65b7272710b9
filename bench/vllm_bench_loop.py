"""Runs `vllm bench serve` once for each line of arguments (JSON) on standard input, in vLLM's environment.

Its imports take longer than a run does, so they are done once.  What it prints goes to stderr; on stdout
there is a line when it is ready, and one after each run.
"""

import contextlib
import json
import sys

with contextlib.redirect_stdout(sys.stderr):
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
print("ready", flush=True)
for line in sys.stdin:
    with contextlib.redirect_stdout(sys.stderr):
        main(parser.parse_args(json.loads(line)))
    print("done", flush=True)
