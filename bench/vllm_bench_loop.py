"""Runs `vllm bench serve` once for each line of arguments (JSON) on standard input, in vLLM's environment.

Its imports take longer than a run does, so they are done once.  What it prints goes to stderr; on stdout
there is a line when it is ready, and one after each run: `done`, and with `--send-times` the mean
milliseconds from where its HTTP client begins with a request to where it has written the head.
"""

import contextlib
import json
import sys
from statistics import fmean
from time import perf_counter
from types import SimpleNamespace
from typing import Any

with contextlib.redirect_stdout(sys.stderr):
    import aiohttp
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)

send_ms: list[float] = []


def trace_sends() -> None:
    """Has each session that is made from now on tell when it begins and when it has sent."""

    async def begin(session: Any, context: SimpleNamespace, params: Any) -> None:
        context.began = perf_counter()

    async def sent(session: Any, context: SimpleNamespace, params: Any) -> None:
        send_ms.append((perf_counter() - context.began) * 1000)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(begin)
    trace.on_request_headers_sent.append(sent)
    plain = aiohttp.ClientSession.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        plain(self, *args, trace_configs=[trace], **options)

    aiohttp.ClientSession.__init__ = init


if "--send-times" in sys.argv:
    trace_sends()
print("ready", flush=True)
for line in sys.stdin:
    send_ms.clear()
    with contextlib.redirect_stdout(sys.stderr):
        serve.main(parser.parse_args(json.loads(line)))
    print("done", f"{fmean(send_ms):.3f}" if send_ms else "", flush=True)
