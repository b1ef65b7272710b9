"""What every engine process of this machine does alike: options, the tie to its parent, refusals, ports.

Imports nothing heavy: a refusal must come at once.
"""

import argparse
import ctypes
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

from forebay.engines.model import EXIT_REFUSED, EngineRefused

PR_SET_PDEATHSIG: Final = 1


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
        default=30.0,
        help="seconds that answers in flight may take after SIGTERM (%(default)s)",
    )
    parser.add_argument(
        "--parent-death",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end when the process that started this one ends",
    )
    parser.add_argument("--parent-pid", type=parse_count, help="the process that started this one")
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


def tie_to_parent(parent_pid: int | None = None) -> None:
    """Asks the kernel for SIGKILL when the parent ends: there is no state here that a clean end would save.

    The kernel means the thread that forked this process.  A parent that ended before it was asked is told
    by its process id: the caller's, or the one seen on entry where the caller doesn't know.

    Raises:
        EngineRefused: the parent is gone, or the system has no such tie.
    """
    expected = os.getppid() if parent_pid is None else parent_pid
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise EngineRefused(f"can't be tied to the parent process ({reason}). Use --no-parent-death.")
    if os.getppid() != expected:
        raise EngineRefused(f"the process that started this one ({expected}) is gone.")


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
            raise EngineRefused(_explain_bind(error, host, port)) from None


def _explain_bind(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} of {host} is in use. Stop what listens there, or take another --port."
        case errno.EACCES:
            return f"port {port} needs more rights than this user has. Take a --port from 1024 on."
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine. Mend --host."
        case _:
            return f"can't listen on {host}:{port} ({error.strerror})."
