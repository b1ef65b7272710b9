"""What every engine process of this machine does alike: options, refusals, ports.

Imports nothing heavy: a refusal must come at once.
"""

import argparse
import socket
import sys
from collections.abc import Callable

from forebay.engines.model import DRAIN_S, EXIT_REFUSED, EngineRefused
from forebay.net.listen import explain_bind


def build_parser(module: str, description: str) -> argparse.ArgumentParser:
    """A parser with the options that all engine processes have."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--name", required=True, help="name of the engine and of its model")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=parse_port, required=True, help="TCP port; 0 takes a free one")
    parser.add_argument("--threads", type=parse_count, default=1, help="CPU threads (%(default)s)")
    parser.add_argument(
        "--drain-s",
        type=parse_seconds,
        default=DRAIN_S,
        help="seconds that answers in flight may take after SIGTERM (%(default)s)",
    )
    return parser


def parse_count(text: str) -> int:
    """A whole number from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def parse_port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is no TCP port: 0 to 65535")
    return value


def parse_seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds from 0 on")
    return value


def run_child(name: str, serve: Callable[[], int]) -> int:
    """The exit code of `serve`.  A refusal becomes one line on stderr and `EXIT_REFUSED`."""
    try:
        return serve()
    except EngineRefused as refused:
        print(f"engine {name}: {' '.join(refused.message.split())}", file=sys.stderr, flush=True)
        return EXIT_REFUSED


def check_port(host: str, port: int) -> None:
    """Sees that an engine will be able to listen there.

    A socket that is bound but does not listen keeps nobody away: so a supervisor can reserve a port.

    Raises:
        EngineRefused: the port is taken, or the address is none of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise EngineRefused(f"the host {host!r} can't be resolved ({error.strerror}).") from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise EngineRefused(
                explain_bind(error, host, port, host_setting="--host", port_setting="--port")
            ) from None
