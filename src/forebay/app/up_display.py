"""What `forebay up` shows: progress until all is ready, then how to call it.  Plain lines without a terminal.

Only prints; it is told what to show and decides nothing.  When nobody reads any more (a closed terminal, a
pipe whose other end is gone) it falls silent, because what runs must not end for that.
"""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Final

import msgspec
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from forebay.app.supervisor_policy import SERVING, ChildState
from forebay.app.supervisor_state import ChildStatus

STYLES: Final = {
    ChildState.READY: "green",
    ChildState.ROLLING: "green",
    ChildState.BACKOFF: "red",
    ChildState.HUNG: "red",
    ChildState.KILLING: "red",
    ChildState.WAITING: "dim",
    ChildState.STOPPED: "dim",
}
TABLE_FRAME: Final = 7  #: lines and blanks around two columns
MOVING: Final = (ChildState.STARTING, ChildState.WAITING, ChildState.STOPPING)


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller needs to know."""

    gateway_url: str
    control_url: str
    chat_model: str | None
    models: tuple[str, ...]
    key: str
    key_path: str
    token_path: str
    logs_path: str


class Display:
    """Progress and words for whoever started `forebay up`.

    Args:
        console: where to; None takes standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        if console is None and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # an old encoding must not end what runs
        self._console = console or _PatientConsole(file=sys.stdout, highlight=False, soft_wrap=True)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._spinners: dict[str, Spinner] = {}
        self._told: dict[str, tuple[ChildState, int]] = {}

    # --- progress -------------------------------------------------------------------------------------------

    def start_progress(self) -> None:
        if self._is_live:
            with self._only_while_read():
                self._live = Live(console=self._console, auto_refresh=False, transient=False)
                self._live.start()

    def show_progress(self, statuses: Sequence[ChildStatus], now_s: float) -> None:
        """Called several times a second; without a terminal a line is printed for each news."""
        if self._live is not None:
            with self._only_while_read():
                self._live.update(self._make_progress(statuses, now_s), refresh=True)
            return
        for status in statuses:
            self._tell_news(status, now_s)

    def stop_progress(self) -> None:
        if self._live is not None:
            with self._only_while_read():
                self._live.stop()
            self._live = None

    def drop_progress(self) -> bool:
        """Ends it in the middle, and takes what was shown away; whether anything was."""
        if self._live is None:
            return False
        self._live.transient = True
        self.stop_progress()
        return True

    def _make_progress(self, statuses: Sequence[ChildStatus], now_s: float) -> Table:
        table = Table.grid(padding=(0, 2))
        for status in statuses:
            style = STYLES.get(status.state, "")
            moving = status.state in MOVING
            table.add_row(
                self._spinners.setdefault(status.name, Spinner("dots")) if moving else Text(_mark(status)),
                status.name,
                Text(_describe(status), style=style),
                Text(f"{max(0.0, now_s - status.since_s):.1f} s" if moving else "", style="dim"),
            )
        return table

    def _tell_news(self, status: ChildStatus, now_s: float) -> None:
        news = (status.state, status.failures)
        if self._told.get(status.name) == news:
            return
        self._told[status.name] = news
        if status.state in (ChildState.READY, ChildState.BACKOFF, ChildState.HUNG):
            self.say(f"{status.name}: {_describe(status)}")

    # --- words ----------------------------------------------------------------------------------------------

    def say(self, text: str = "", style: str = "") -> None:
        with self._only_while_read():
            self._console.print(Text(text, style=style), soft_wrap=True)
            self._console.file.flush()

    def write(self, text: str) -> None:
        """Without a line's end, for an answer as it comes.  What a model says moves no cursor."""
        shown = text if not self._is_live else "".join(c for c in text if c.isprintable() or c in "\n\t")
        with self._only_while_read():
            self._console.file.write(shown)
            self._console.file.flush()

    def welcome(self, facts: Welcome) -> None:
        rows = [
            ("Gateway", f"{facts.gateway_url}/v1"),
            ("Models", ", ".join(facts.models) or "none"),
            ("API key", facts.key),
            ("", f"kept in {facts.key_path}"),
            ("Admin API", f"{facts.control_url}/admin/v1"),
            ("Admin token", f"in {facts.token_path}"),
            ("Logs", facts.logs_path),
        ]
        table = self._make_welcome(rows) if self._is_live else None
        if table is not None:
            with self._only_while_read():
                self._console.print(table)
        else:
            self.say("Forebay is ready")
            for name, value in rows:
                self.say(f"  {name:<12} {value}")
        for title, example in make_examples(facts):
            self.say()
            self.say(title, "bold")
            self.say(example)
        self.say()
        self.say("Ctrl-C ends it.", "dim")

    def _make_welcome(self, rows: Sequence[tuple[str, str]]) -> Table | None:
        """None in a terminal that is too narrow: what is broken in two can't be copied."""
        table = Table(show_header=False, title="Forebay is ready", title_justify="left")
        for name, value in rows:
            table.add_row(Text(name, style="bold"), Text(value))
        names = max(len(name) for name, _ in rows)
        words = max(len(word) for _, value in rows for word in value.split())
        return table if names + words + TABLE_FRAME <= self._console.width else None

    @contextmanager
    def _only_while_read(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            _let_go(self._console.file)


class _PatientConsole(Console):
    """Rich's own answer to a broken pipe is to end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _let_go(file: IO[str]) -> None:
    """All that is said from now on, and what is left in the buffer, goes nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)


def make_examples(facts: Welcome) -> list[tuple[str, str]]:
    """Titles and commands to paste; none where no model can chat."""
    if facts.chat_model is None:
        return []
    curl = (
        f"curl -N {facts.gateway_url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {facts.key}' -H 'Content-Type: application/json' \\\n"
        f'  -d \'{{"model": "{facts.chat_model}", "stream": true, '
        f'"messages": [{{"role": "user", "content": "Hello!"}}]}}\''
    )
    python = (
        "from openai import OpenAI\n"
        f'client = OpenAI(base_url="{facts.gateway_url}/v1", api_key="{facts.key}")\n'
        "answer = client.chat.completions.create(\n"
        f'    model="{facts.chat_model}", messages=[{{"role": "user", "content": "Hello!"}}]\n'
        ")\n"
        "print(answer.choices[0].message.content)"
    )
    return [("With curl", curl), ("With Python (pip install openai)", python)]


def _mark(status: ChildStatus) -> str:
    return "✓" if status.state in SERVING else "✗" if status.state in STYLES else " "


def _describe(status: ChildStatus) -> str:
    if status.state in (ChildState.BACKOFF, ChildState.HUNG) and status.last_exit:
        return f"{status.last_exit}; it is started again ({status.failures} failed)"
    return status.state.value
