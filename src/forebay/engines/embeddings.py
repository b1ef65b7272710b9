"""The embedding engine as a process of its own: `python -m forebay.engines.embeddings --help`.

Serves all-MiniLM-L6-v2 with OpenAI's `/v1/embeddings`.  Puts model, batcher, routes and signals together and
decides nothing itself.  Ends with 2 when it can't start as asked.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server

from forebay.engines.batcher import Batcher, BatchLimits
from forebay.engines.child import (
    build_parser,
    check_port,
    parse_count,
    run_child,
)
from forebay.engines.embeddings_http import BODY_MAX_BYTES, EmbeddingApp, EmbeddingMetrics
from forebay.engines.minilm import load_minilm
from forebay.engines.model import EngineRefused

MODULE: Final = "forebay.engines.embeddings"


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(MODULE, "Serves embeddings from all-MiniLM-L6-v2.")
    parser.add_argument(
        "--batch-max", type=parse_count, default=32, help="texts in one run of the model (%(default)s)"
    )
    parser.add_argument(
        "--body-max-bytes", type=parse_count, default=BODY_MAX_BYTES, help="largest request (%(default)s)"
    )
    return parser.parse_args(arguments)


def serve(options: argparse.Namespace) -> int:
    check_port(options.host, options.port)
    if options.port == 0:
        raise EngineRefused("this engine needs a --port of its own: 0 is none.")
    code = asyncio.run(_serve(options))
    sys.stdout.flush()
    # A run of the model that nobody waits for any more would keep its thread, and so the process, alive.
    os._exit(code)


async def _serve(options: argparse.Namespace) -> int:
    model = load_minilm(options.threads)
    model.embed([model.encode("Warm up.")[0]])
    metrics = EmbeddingMetrics()
    batcher = Batcher(model.embed, BatchLimits(batch_max=options.batch_max), metrics.observe_batch)
    app = EmbeddingApp(options.name, model, batcher, metrics, body_max_bytes=options.body_max_bytes)
    server: Any = Server(
        app,
        address=options.host,
        port=options.port,
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        websockets=False,
        log_enabled=False,
    )
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    print(f"engine {options.name}: serving at http://{options.host}:{options.port}", flush=True)
    try:
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(batcher.run())
            serving = tasks.create_task(server.serve())
            await stop.wait()
            server.stop()  # refuses new connections, and ends when the answers in flight have left
            hurrying = tasks.create_task(hurry.wait())
            waited = (serving, hurrying)
            await asyncio.wait(waited, timeout=options.drain_s, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                print(f"engine {options.name}: answers in flight were cut off", file=sys.stderr, flush=True)
            for task in (working, *waited):
                task.cancel()
    except* RuntimeError as group:
        reason = str(group.exceptions[0]).partition("\n")[0]
        raise EngineRefused(f"can't serve at {options.host}:{options.port} ({reason}).") from None
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    return run_child(options.name, lambda: serve(options))


if __name__ == "__main__":
    sys.exit(main())
