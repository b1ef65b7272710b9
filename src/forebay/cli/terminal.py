"""How the command line speaks: plain text where nobody sees colours, and no traceback for what can go wrong.

Nothing heavy is imported here.  `NO_COLOR` and `TERM` are read here and nowhere else: they are the terminal's
settings, not Forebay's.
"""

import functools
import io
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Final, ParamSpec, TextIO

import typer

from forebay.core.errors import Fault, ForebayError

Arguments = ParamSpec("Arguments")

_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Outcome(IntEnum):
    """The exit status of a command."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    INTERRUPTED = 130
    NOBODY_READS = 141


class Failure(ForebayError):
    """A command can't do what it was asked to.  `hint` says how to mend it."""

    fault = Fault.CALLER
    code = "command_failed"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadOption(Failure):
    """A command was not used rightly: an option or argument has a value that means nothing."""


def is_plain(stream: TextIO | None = None) -> bool:
    """Whether to write without colours and boxes: no terminal, a dumb one, or NO_COLOR is set."""
    # Python has no stream at all where the shell has closed the descriptor.
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return True
    return stream is None or stream.closed or not stream.isatty()


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in a style, or as it is where the stream is plain."""
    return text if is_plain(stream) else f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def print_line(text: str = "") -> None:
    """A line on standard output."""
    sys.stdout.write(f"{text}\n")


def print_note(text: str, style: str = "dim") -> None:
    """A line beside the result, on standard error."""
    sys.stderr.write(f"{paint(text, style, sys.stderr)}\n")


def print_error(text: str, hint: str = "") -> None:
    """What went wrong and how to mend it, on standard error."""
    sys.stderr.write(f"{paint('error:', 'red', sys.stderr)} {text}\n")
    if hint:
        sys.stderr.write(f"  {paint(hint, 'dim', sys.stderr)}\n")


def guard(command: Callable[Arguments, int]) -> Callable[Arguments, None]:
    """Ends the process with the command's exit status; what can go wrong becomes words and a status."""

    @functools.wraps(command)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            status = command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            status = Outcome.INTERRUPTED
        except BrokenPipeError:
            status = Outcome.NOBODY_READS
            _let_go_of_output()
        except ForebayError as error:
            print_error(error.message, error.hint if isinstance(error, Failure) else "")
            status = Outcome.USAGE if isinstance(error, BadOption) else Outcome.PROBLEM
        except OSError as error:
            print_error(f"{error.filename or 'input or output'}: {error.strerror or error}")
            status = Outcome.PROBLEM
        if status != Outcome.OK:
            raise typer.Exit(int(status))

    return guarded


def make_streams_lenient() -> None:
    """What an encoding can't express becomes a question mark instead of an exception.

    A stream that was closed before the start is replaced: no file that is opened later may get its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for the life of the process
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _let_go_of_output() -> None:
    """The interpreter flushes once more at its end; without this that would fail aloud."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
