"""`forebay chat`: one question or a conversation, through the gateway that runs here or another.

The answer goes to standard output, everything else to standard error.  The key of the data folder is sent to
the gateway of that data folder only, never to an address from `--url`.
"""

import importlib
import re
import sys
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from forebay.app.chat_answer import Finish, Spent, Text
from forebay.app.clock import SystemClock
from forebay.app.config import Config, load_config
from forebay.app.config_checks import is_loopback
from forebay.app.config_defaults import EMBEDDED_MODELS
from forebay.app.config_explain import suggest
from forebay.app.config_running import load_live_state
from forebay.cli.gateway_client import GatewayClient, Refused
from forebay.cli.gateway_door import find_key, find_url
from forebay.cli.terminal import Failure, Outcome, is_plain, paint, print_error, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.core.clock import Clock
from forebay.core.errors import ForebayError
from forebay.core.routes import Endpoint

HELP: Final = "/model NAME changes the model, /reset forgets what was said, /quit (or Ctrl-D) ends"
LOW_TEMPERATURE: Final = 0.0
_UNPRINTABLE: Final = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    config_file: Path | None = None
    message: str | None = None
    model: str | None = None
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    url: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Door:
    """Where to knock, with what, and what is known to be behind it."""

    client: GatewayClient
    key_source: str
    models: tuple[str, ...]  #: that this configuration can chat with; empty for another gateway
    mute: frozenset[str] = frozenset()  #: models of this configuration that can't chat
    here: frozenset[str] = frozenset(EMBEDDED_MODELS)  #: models that run on this machine
    idle_folder: Path | None = None  #: the data folder that was looked into, if no Forebay runs in it


@dataclass(slots=True, kw_only=True)
class _Talk:
    """What has been said so far, and how to go on."""

    model: str
    options: ChatOptions
    here: frozenset[str]  #: models that run on this machine
    messages: list[dict[str, str]] = field(default_factory=list)

    def forget(self) -> None:
        system = self.options.system
        self.messages = [{"role": "system", "content": system}] if system else []

    def request(self) -> dict[str, Any]:
        wanted = {
            "model": self.model,
            "messages": self.messages,
            "max_tokens": self.options.max_tokens,
            "temperature": self._choose_temperature(),
        }
        return {name: value for name, value in wanted.items() if value is not None}

    def _choose_temperature(self) -> float | None:
        """Small models make no sense at their default; some that are rented take no other than theirs."""
        if self.options.temperature is not None:
            return self.options.temperature
        return LOW_TEMPERATURE if self.model in self.here else None


def chat(options: ChatOptions) -> Outcome:
    door = _find_door(options)
    is_talk = options.message is None and sys.stdin.isatty()
    message = options.message
    if not is_talk and message in (None, "-"):
        message = sys.stdin.read()
    if not is_talk and not (message or "").strip():
        print_error("there is nothing to say", "give a message, or pipe one in")
        return Outcome.USAGE
    talk = _Talk(model=_choose_model(door, options.model), options=options, here=door.here)
    talk.forget()
    clock = SystemClock()
    if message is not None:
        _say(door, talk, message, clock)
        return Outcome.OK
    return _converse(door, talk, clock)


def _converse(door: _Door, talk: _Talk, clock: Clock) -> Outcome:
    with suppress(ImportError):
        # Gives `input` line editing and history.  Not at the top: it may write to the terminal when loaded.
        importlib.import_module("readline")
    print_note(f"{talk.model} at {door.client.url}. {HELP}.")
    while True:
        try:
            line = input(paint("you> ", "cyan")).strip()
        except EOFError:
            sys.stdout.write("\n")
            return Outcome.OK
        if not line:
            continue
        if line.startswith("/"):
            if not _obey(line, door, talk):
                return Outcome.OK
            continue
        try:
            _say(door, talk, line, clock)
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            print_note("stopped")
        except Failure as failure:
            print_error(failure.message, failure.hint)


def _obey(line: str, door: _Door, talk: _Talk) -> bool:
    """Whether the conversation goes on after a command."""
    command, _, argument = line.partition(" ")
    if command in ("/quit", "/exit", "/q"):
        return False
    if command == "/reset":
        talk.forget()
        print_note("forgotten")
    elif command == "/model":
        try:
            _change_model(argument.strip(), door, talk)
        except Failure as failure:
            print_error(failure.message, failure.hint)
    else:
        print_note(HELP)
    return True


def _change_model(wanted: str, door: _Door, talk: _Talk) -> None:
    """Raises Failure for a name that nothing would answer to."""
    names = tuple(name for name in door.client.fetch_models() if name not in door.mute)
    if not wanted:
        print_note(f"now {talk.model}; there is {', '.join(names)}")
    elif wanted in names:
        talk.model = wanted
        print_note(f"now {talk.model}")
    elif wanted in door.mute:
        raise Failure(f"{wanted} can't chat: it has no endpoint `chat/completions`", hint=_list(names))
    else:
        raise Failure(f"there is no model {wanted} for this key", hint=_name_models(wanted, names, ""))


def _list(names: tuple[str, ...]) -> str:
    return f"there is {', '.join(sorted(names)) or 'no model'}"


def _say(door: _Door, talk: _Talk, message: str, clock: Clock) -> None:
    """One turn.  What broke off stays in the conversation only as far as it came."""
    before = list(talk.messages)
    talk.messages.append({"role": "user", "content": message})
    answer: list[str] = []
    try:
        _print_answer(door.client, talk, answer, clock)
    except Refused as refused:
        raise _explain(refused, door, talk.model) from None
    finally:
        if answer:
            talk.messages.append({"role": "assistant", "content": "".join(answer)})
        else:
            talk.messages = before


def _print_answer(client: GatewayClient, talk: _Talk, answer: list[str], clock: Clock) -> None:
    started_ns = clock.monotonic_ns()
    first_ns: int | None = None
    spent = Spent()
    reason = ""
    with closing(client.stream_chat(talk.request())) as pieces:
        try:
            for piece in pieces:
                match piece:
                    case Text():
                        first_ns = first_ns or clock.monotonic_ns()
                        answer.append(piece.text)
                        sys.stdout.write(_printable(piece.text))
                        sys.stdout.flush()
                    case Spent():
                        spent = piece
                    case Finish():
                        reason = piece.reason
        finally:
            if answer:
                sys.stdout.write("\n")
                sys.stdout.flush()
    print_note(_summarise(spent, started_ns, first_ns, clock.monotonic_ns(), reason))


def _printable(text: str) -> str:
    """In a terminal, what a model says must not move the cursor or change colours."""
    return text if is_plain() else text.translate(_UNPRINTABLE)


def _summarise(spent: Spent, started_ns: int, first_ns: int | None, ended_ns: int, reason: str) -> str:
    parts = []
    if spent.input_tokens is not None and spent.output_tokens is not None:
        parts.append(f"{spent.input_tokens} tokens in, {spent.output_tokens} out")
    if first_ns is not None:
        parts.append(f"first token after {(first_ns - started_ns) / 1e9:.2f} s")
    parts.append(f"{(ended_ns - started_ns) / 1e9:.2f} s in all")
    if reason not in ("", "stop"):
        parts.append(f"ended by {reason}")
    return " · ".join(parts)


# --- which gateway, which key, which model ------------------------------------------------------------------


def _find_door(options: ChatOptions) -> _Door:
    if options.url is not None:
        key, source = find_key(options.key, None)
        client = GatewayClient(options.url, key)
        mute = _find_mute_at(options.url, options.config_file)
        return _Door(client=client, key_source=source, models=(), mute=mute)
    config = load_usable_config(options.config_file)
    key, source = find_key(options.key, config)
    models, mute = _sort_models(config)
    runs_here = load_live_state(config.state_path) is not None
    return _Door(
        client=GatewayClient(find_url(config), key),
        key_source=source,
        models=models,
        mute=mute if runs_here else frozenset(),
        here=frozenset(
            name for name, model in config.models.items() if all(target.engine for target in model.targets)
        ),
        idle_folder=None if runs_here else config.data_path,
    )


def _sort_models(config: Config) -> tuple[tuple[str, ...], frozenset[str]]:
    """Those that can chat, and those that can't."""
    chats = tuple(name for name, model in config.models.items() if Endpoint.CHAT in model.endpoints)
    return chats, frozenset(config.models) - frozenset(chats)


def _find_mute_at(url: str, file: Path | None) -> frozenset[str]:
    """The models behind an address that can't chat, as far as it is the Forebay that runs here."""
    with suppress(ForebayError, ValueError):
        config = load_config(file, secrets_needed=False)
        state = load_live_state(config.state_path)
        if state is not None and urlsplit(url).port == urlsplit(state.gateway_url).port:
            host = urlsplit(url).hostname or ""
            if host == urlsplit(state.gateway_url).hostname or is_loopback(host):
                return _sort_models(config)[1]
    return frozenset()


def _choose_model(door: _Door, wanted: str | None) -> str:
    if wanted:
        return wanted
    try:
        names = door.client.fetch_models()
    except Refused as refused:
        raise _explain(refused, door, "") from None
    for name in door.models:
        if name in names:
            return name
    names = tuple(name for name in names if name not in door.mute)
    if len(names) == 1:
        return names[0]
    if not names:
        raise Failure("the key may call no model that can chat", hint="see `forebay keys list`")
    raise Failure("which model?", hint=f"choose with --model: {', '.join(names)}")


def _explain(refused: Refused, door: _Door, model: str) -> Failure:
    if refused.http_status == 401:
        return Failure(
            f"the gateway does not accept the key: {refused.message}",
            hint=f"it came from {door.key_source}; {_advise_on_key(door)}",
        )
    if refused.http_status == 404 and model:
        names: tuple[str, ...] = ()
        with suppress(ForebayError):
            names = door.client.fetch_models()
        return Failure(refused.message, hint=_name_models(model, names, refused.message))
    return Failure(refused.message)


def _advise_on_key(door: _Door) -> str:
    """Where a key of the gateway that answers is to be had: a data folder's keys open its own alone."""
    if door.idle_folder is not None:
        return (
            f"{door.idle_folder} is another data folder than the running Forebay's: "
            "cd to where that one was started, or use --config"
        )
    return "`forebay keys create NAME`, where that Forebay was started, makes another"


def _name_models(wanted: str, names: tuple[str, ...], said: str) -> str:
    if (close := suggest(wanted, names)) is not None:
        return f"did you mean `{close}`?"
    is_said = bool(names) and set(names) <= set(re.findall(r"[^\s,`'\"]+", said))
    return "" if is_said else f"the key may call: {', '.join(sorted(names)) or 'none'}"
