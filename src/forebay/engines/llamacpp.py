"""One llama.cpp server as a process of its own: `python -m forebay.engines.llamacpp --help`.

Runs llama.cpp's own HTTP server with continuous batching, on the terms that the gateway relies on
(docs/engines.md lists them).  Handles no request itself.  Ends with 2 when it can't start as asked, with 3
when the model hung.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from forebay.engines.child import (
    build_parser,
    check_port,
    parse_count,
    parse_seconds,
    run_child,
)
from forebay.engines.facts import VERSION_KEY
from forebay.engines.llamacpp_watch import drain, wait_for_stall
from forebay.engines.model import EXIT_STALLED, EngineRefused
from forebay.engines.weights import find_gguf

MODULE: Final = "forebay.engines.llamacpp"
LAST_WORDS_S: Final = 0.3


def make_parser() -> argparse.ArgumentParser:
    """All options; which of them a deployment may set, `accepted` says."""
    parser = build_parser(MODULE, "Serves a GGUF model through llama.cpp's server.")
    parser.add_argument("--model", required=True, help="path of a GGUF file, or embedded:smollm2-135m")
    parser.add_argument("--alias", help="the model's name for callers (the engine's name)")
    parser.add_argument("--slots", type=parse_count, default=4, help="requests at once (%(default)s)")
    parser.add_argument(
        "--context-tokens",
        type=parse_count,
        default=8192,
        help="prompt and answer of one request together; memory grows with slots times this (%(default)s)",
    )
    parser.add_argument(
        "--batch-tokens",
        type=parse_count,
        default=64,
        help="prompt tokens worked off between two looks at the other requests (%(default)s)",
    )
    parser.add_argument(
        "--prompt-cache-mib",
        type=parse_count,
        default=256,
        help="memory for the state of earlier prompts (%(default)s)",
    )
    parser.add_argument(
        "--ngram-tokens",
        type=parse_count,
        help="guess so many tokens at once from what stands in the prompt already, and check them together",
    )
    parser.add_argument(
        "--ngram-lookup",
        type=parse_count,
        default=3,
        help="tokens in a row that have to be alike for that (%(default)s)",
    )
    parser.add_argument(
        "--stall-s",
        type=parse_seconds,
        default=60.0,
        help="end with 3 when the model gives no sign of life for so long; 0 never does (%(default)s)",
    )
    return parser


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    return make_parser().parse_args(arguments)


def build_params(llama: Any, options: argparse.Namespace, path: Path) -> Any:
    """llama.cpp's parameters.  `llama` is the module `xllamacpp`."""
    params = llama.CommonParams()
    params.model.path = str(path)
    params.model_alias = {options.alias or options.name}
    params.hostnames, params.port = [options.host], options.port
    # The context is divided evenly among the slots.  A pool that the slots share is no way out: when it
    # overflows, llama.cpp fails the requests of all slots.
    params.n_ctx, params.n_parallel = options.context_tokens * options.slots, options.slots
    params.kv_unified = False
    # A batch runs to its end: until then nobody else gets a token, and nobody who left is noticed.
    params.n_batch = params.n_ubatch = max(options.batch_tokens, options.slots)
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = options.threads
        cpu.poll = 0  # threads that wait for work by spinning starve whatever shares the cores
    params.cont_batching = params.use_jinja = params.warmup = True
    params.fit_params = False  # what was asked for, or an error
    params.cache_ram_mib = options.prompt_cache_mib
    if options.ngram_tokens is not None:
        speculative = params.speculative
        speculative.types = [llama.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_n = options.ngram_lookup
        speculative.ngram_simple.size_m = options.ngram_tokens
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.ui = False
    # `build_info` of this build is `b0-unknown`; this stands in /props beside it (facts.py reads it).
    params.ui_config_json = json.dumps({VERSION_KEY: llama.__version__})
    params.cors_origins = ""  # no page in a browser has any business here
    return params


def load_xllamacpp() -> Any:
    """The module, imported only now: it is optional, and heavy."""
    if find_spec("xllamacpp") is None:
        raise EngineRefused("xllamacpp is not installed. Run `pip install forebay[embedded]`.")
    try:
        import xllamacpp
    except ImportError as error:
        raise EngineRefused(f"xllamacpp can't be loaded: {error}. Install it anew.") from None
    return xllamacpp


def serve(options: argparse.Namespace) -> int:
    path = find_gguf(options.model)
    check_port(options.host, options.port)
    llama = load_xllamacpp()
    try:
        server = llama.Server(build_params(llama, options, path))
    except (RuntimeError, ValueError):
        # The reason is known to llama.cpp alone, and a thread of its own is still writing it to stderr.
        time.sleep(LAST_WORDS_S)
        raise EngineRefused(f"llama.cpp can't serve {path}; its last messages say why.") from None
    address = urlsplit(server.listening_address)
    code = _attend(options, address.hostname or options.host, address.port or options.port)
    sys.stdout.flush()
    sys.stderr.flush()
    # llama.cpp's own end waits for every idle connection, and aborts while a request runs.
    os._exit(code)


def _attend(options: argparse.Namespace, host: str, port: int) -> int:
    """Waits for a signal or for a stall, then until the answers in flight have left."""
    stop, hurry, stalled = threading.Event(), threading.Event(), threading.Event()

    def on_signal(number: int, frame: object) -> None:
        (hurry if stop.is_set() else stop).set()

    def watch() -> None:
        if wait_for_stall(host, port, options.stall_s, stop):
            stalled.set()
            stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    if options.stall_s > 0:
        threading.Thread(target=watch, name="watch", daemon=True).start()
    print(f"engine {options.name}: ready at http://{host}:{port}", flush=True)
    stop.wait()
    if stalled.is_set():
        print(f"engine {options.name}: no sign of life for {options.stall_s:g} s, ending", file=sys.stderr)
        return EXIT_STALLED
    if not drain(host, port, options.drain_s, hurry):
        print(f"engine {options.name}: answers in flight were cut off", file=sys.stderr)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    return run_child(options.name, lambda: serve(options))


if __name__ == "__main__":
    sys.exit(main())
