"""`forebay up`: everything on this machine, from the first process to the last, in the foreground.

Owns the order of events: lock, sockets, children, the question, the words, the signals, the end.  What each
process is told is planned in `up_children`, how they are kept up in `supervisor`.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from logging.handlers import RotatingFileHandler
from typing import ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from forebay.app.atomic_file import create_private_folder, write_atomically
from forebay.app.batch_place import BATCH_SOCKET, make_batch_secret, open_batch_listener
from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.config_edit import EditNews
from forebay.app.config_model import list_secrets
from forebay.app.config_running import SAVED_CONFIG
from forebay.app.control_watch import save_config
from forebay.app.deployment_compile import list_public_names
from forebay.app.machine_memory import describe_machine
from forebay.app.redaction import LOG_FORMAT, RedactingFormatter
from forebay.app.replica_files import LOGS_FOLDER
from forebay.app.replica_keeper import ReplicaKeeper
from forebay.app.secret_refs import keep_from_logs
from forebay.app.supervisor import Supervisor
from forebay.app.supervisor_policy import SERVING, ChildState, describe_exit
from forebay.app.supervisor_process import LOG_MAX_BYTES, read_log_tail
from forebay.app.supervisor_socket import format_url, open_listener, reserve_engine_port
from forebay.app.supervisor_state import (
    ROLL_SIGNAL,
    ChildStatus,
    RunState,
    SupervisorLock,
    clear_leftovers,
    compute_mark,
    save_run_state,
)
from forebay.app.up_children import (
    Place,
    find_engines_json,
    find_started_json,
    is_worker,
    list_withheld,
    load_last_engine_urls,
    plan_children,
)
from forebay.app.up_display import Display, Welcome
from forebay.app.up_question import stream_answer
from forebay.app.up_rolls import Rolls
from forebay.core.errors import ForebayError
from forebay.core.routes import Endpoint
from forebay.engines.model import EXIT_REFUSED

START_FAILURES_MAX: Final = 3
ENVIRONMENTS: Final = "environments"  #: of engines, within the data folder
FRAME_S: Final = 0.1
LOG_LINES: Final = 15
EDITS_INTERVAL_S: Final = 0.5
INTERRUPTED: Final = 130
ENDING_AT_ONCE: Final = 2  #: signals

logger = logging.getLogger("forebay.up")


class StartFailed(ForebayError):
    """A process could not be started.  The message holds the end of its log."""

    code: ClassVar[str] = "start_failed"


def run_up(config: Config, ask: str | None = None) -> int:
    """Runs everything until SIGTERM or Ctrl-C; returns the exit status.

    Args:
        config: a valid configuration.
        ask: a question for the first chat model, asked once everything is ready.

    Raises:
        AlreadyRunning, AddressUnavailable: nothing has been started then.
        StartFailed: a process ended again and again before it was ready; all others were ended.
        OSError: the data folder can't be used.
    """
    os.umask(0o077)
    _raise_descriptor_limit(config.gateway.connections_max)
    for folder in (config.data_path, config.ledger_path, config.metrics_path, config.logs_path):
        create_private_folder(folder)
    mark = compute_mark(config.data_path)
    with ExitStack() as stack:
        stack.enter_context(SupervisorLock(config.lock_path))
        clear_leftovers(mark)
        gateway = stack.enter_context(
            open_listener(config.gateway.host, config.gateway.port, section="gateway")
        )
        control = stack.enter_context(
            open_listener(config.control.host, config.control.port, section="control")
        )
        batches = None
        if config.batch.enabled:
            batches = stack.enter_context(open_batch_listener(config.run_path))
            make_batch_secret(config.run_path)
        else:
            (config.run_path / BATCH_SOCKET).unlink(missing_ok=True)
        place = Place(
            gateway_fd=gateway.fileno(),
            gateway_url=format_url(gateway),
            control_fd=control.fileno(),
            control_url=format_url(control),
            engine_ports=_reserve_engine_ports(config, stack),
            workers=config.gateway.workers or len(os.sched_getaffinity(0)),
            batch_fd=None if batches is None else batches.fileno(),
        )
        write_atomically(find_engines_json(config), msgspec.json.encode(place.engine_urls), durable=False)
        save_config(find_started_json(config), config)
        (config.run_path / SAVED_CONFIG).unlink(missing_ok=True)  # an earlier run's, of perhaps another file
        stack.enter_context(_logging_to_file(config))
        stack.callback(config.state_path.unlink, missing_ok=True)
        return asyncio.run(_Run(config, place, mark, (gateway, control)).run(ask))


class _Run:
    """One run, from the first process to the last."""

    def __init__(self, config: Config, place: Place, mark: str, listeners: Sequence[socket.socket]) -> None:
        self._config = config
        self._place = place
        self._listeners = listeners
        self._clock = SystemClock()
        self._edits = EditNews(config.run_path)
        self._started_s = self._clock.wall_ns() / 1e9
        self._display = Display()
        self._changed = asyncio.Event()
        self._failure: StartFailed | None = None
        self._signals = 0
        self._telling: asyncio.Task[None] | None = None
        self._supervisor = Supervisor(
            plan_children(config, place),
            logs=config.logs_path,
            mark=mark,
            clock=self._clock,
            on_change=self._absorb_change,
        )
        self._rolls = Rolls(
            self._supervisor, lambda: self._clock.wall_ns() / 1e9, self._absorb_change, self._display.say
        )
        self._replicas = ReplicaKeeper(
            run=config.run_path,
            logs=config.logs_path / LOGS_FOLDER,
            environments=config.data_path / ENVIRONMENTS,
            mark=mark,
            clock=self._clock,
            machine=describe_machine(),
            withheld=list_withheld(config),
        )

    async def run(self, question: str | None) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `nohup` has it ignored, and that is what was asked for.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._take_signal)
        loop.add_signal_handler(ROLL_SIGNAL, self._rolls.ask)
        async with asyncio.TaskGroup() as group:
            supervising = group.create_task(self._supervisor.run())
            keeping = group.create_task(self._replicas.run())
            group.create_task(self._rolls.run())
            self._telling = group.create_task(self._tell(question))
            await supervising
            self._telling.cancel()
            self._replicas.stop()  # only now: the workers needed them until they had drained
            await keeping
            self._rolls.ask()
        if self._failure is not None:
            raise self._failure
        if self._signals >= ENDING_AT_ONCE:
            return INTERRUPTED
        self._display.say("Stopped.")
        return 0 if all(status.was_ready for status in self._supervisor.statuses) else INTERRUPTED

    def _take_signal(self) -> None:
        self._signals += 1
        if self._signals >= ENDING_AT_ONCE:
            self._supervisor.kill()
            self._replicas.kill()
            if self._signals == ENDING_AT_ONCE:
                self._display.say()  # the terminal has written ^C where its line had ended
                self._display.say("Ending at once: requests in flight are cut off.")
            return
        if self._telling is not None:
            self._telling.cancel()
        # Its spinners would stand still below what is said now.
        if not self._display.drop_progress():
            self._display.say()
        may_serve = any(each.was_ready for each in self._supervisor.statuses if is_worker(each.name))
        seconds = self._config.gateway.drain.grace_s + self._config.gateway.drain.deadline_s
        inflight = f"Stopping: requests in flight get up to {seconds:g} s." if may_serve else "Stopping."
        self._stop()
        self._display.say(f"{inflight} Ctrl-C again ends at once.")

    def _stop(self) -> None:
        self._supervisor.stop()
        # The workers hold the sockets still; when they let go, callers are refused and don't wait in vain.
        for listener in self._listeners:
            listener.close()

    def _absorb_change(self) -> None:
        """After each move of a child."""
        self._changed.set()
        state = RunState(
            pid=os.getpid(),
            started_at_s=self._started_s,
            gateway_url=self._place.gateway_url,
            control_url=self._place.control_url,
            children=self._supervisor.statuses,
            stopping=self._supervisor.stopping,
            config_file=str(self._config.file) if self._config.file else None,
            rolls=self._rolls.count,
            roll=self._rolls.now,
            roll_began_s=self._rolls.began_s,
            roll_ended=self._rolls.ended,
        )
        try:
            save_run_state(self._config.state_path, state)
        except OSError as error:
            logger.error("the state can't be written: %s", error)

    # --- what is told to whoever sits in front --------------------------------------------------------------

    async def _tell(self, question: str | None) -> None:
        self._display.start_progress()
        try:
            ready = await self._follow_start()
        finally:
            self._display.stop_progress()
        if not ready:
            return
        key = self._config.local_key_path.read_text().strip()
        model = find_chat_model(self._config)
        if question and model:
            await self._answer(question, model, key)
        self._display.welcome(self._list_facts(model, key))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell_news())
            group.create_task(self._tell_edits())

    async def _follow_start(self) -> bool:
        """Until all are ready, or one failed too often; then everything is ended."""
        while True:
            statuses = self._supervisor.statuses
            self._display.show_progress(statuses, self._clock.wall_ns() / 1e9)
            failed = next((each for each in statuses if has_failed_to_start(each)), None)
            if failed is not None:
                self._failure = self._explain_failure(failed)
                self._stop()
                return False
            if all(each.was_ready for each in statuses):
                return True
            await asyncio.sleep(FRAME_S)

    async def _answer(self, question: str, model: str, key: str) -> None:
        self._display.say()
        self._display.say(f"> {question}", "bold")
        try:
            async with aclosing(stream_answer(self._place.gateway_url, key, model, question)) as answer:
                async for text in answer:
                    self._display.write(text)
            self._display.write("\n\n")
        except ForebayError as error:
            self._display.say(f"{model} gave no answer: {error.message}", "red")

    async def _tell_news(self) -> None:
        told = {status.name: status.restarts for status in self._supervisor.statuses}
        while True:
            self._changed.clear()
            await self._changed.wait()
            for status in self._supervisor.statuses:
                if status.restarts <= told[status.name] and status.state is not ChildState.BACKOFF:
                    continue
                if status.state in SERVING:
                    told[status.name] = status.restarts
                    self._display.say(f"{status.name}: {status.last_exit}; it runs again, pid {status.pid}")
                elif status.state is ChildState.BACKOFF and status.failures == START_FAILURES_MAX:
                    log = self._supervisor.log_path(status.name)
                    self._display.say(f"{status.name}: {status.last_exit}, again and again; see {log}", "red")

    async def _tell_edits(self) -> None:
        while True:
            edit = self._edits.poll()
            if edit is not None:
                self._display.say(f"forebay.yaml: {edit.describe()}", "yellow" if edit.problems else "")
            await asyncio.sleep(EDITS_INTERVAL_S)

    def _list_facts(self, model: str | None, key: str) -> Welcome:
        config = self._config
        return Welcome(
            gateway_url=self._place.gateway_url,
            control_url=self._place.control_url,
            chat_model=model,
            models=list_models(config),
            key=key,
            key_path=str(config.local_key_path),
            token_path=str(config.admin_token_path),
            logs_path=str(config.logs_path),
        )

    def _explain_failure(self, status: ChildStatus) -> StartFailed:
        path = self._supervisor.log_path(status.name)
        tail = "\n".join(f"  {line}" for line in read_log_tail(path, LOG_LINES)) or "  (empty)"
        return StartFailed(
            f"{status.name} does not start: {status.last_exit}, "
            f"tries: {status.failures}. The end of its log, {path}:\n{tail}\n"
            f"{suggest_mending(status.name)}"
        )


def has_failed_to_start(status: ChildStatus) -> bool:
    """Whether a child that has never been ready is given up: at once if it said that trying is in vain."""
    refused = status.failures > 0 and status.last_exit == describe_exit(EXIT_REFUSED)
    return not status.was_ready and (refused or status.failures >= START_FAILURES_MAX)


def list_models(config: Config) -> tuple[str, ...]:
    """The public names of the file, those of its deployments among them."""
    deployed = (model for name, each in config.deployments.items() for model in list_public_names(name, each))
    return tuple(sorted({*config.models, *deployed}))


def find_chat_model(config: Config) -> str | None:
    """The model to show things with: one that runs here, or else any that can chat."""
    chats = [name for name, model in sorted(config.models.items()) if Endpoint.CHAT in model.endpoints]
    here = [name for name in chats if config.models[name].targets[0].engine is not None]
    return next(iter(here or chats), None)


def suggest_mending(child: str) -> str:
    match child.partition("-")[0]:
        case "engine":
            return f"Look at engines.{child.partition('-')[2]} in forebay.yaml, or run `forebay doctor`."
        case "worker":
            return "Run `forebay doctor`; if it finds nothing, this is a fault of Forebay: please report it."
        case _:
            return "Run `forebay doctor`, which looks at the database, the disk and the ports."


def _raise_descriptor_limit(connections_max: int) -> None:
    """For the children, which inherit it: each caller may need a connection to a target as well."""
    wanted = 2 * connections_max + 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        logger.warning("at most %d files may be open; gateway.connections_max wants %d", allowed, wanted)


def _reserve_engine_ports(config: Config, stack: ExitStack) -> dict[str, int]:
    """A port for each engine, the one of the last run where it is free; kept until the end."""
    last = load_last_engine_urls(config)
    ports = {}
    for name in config.engines:
        preferred = urlsplit(last.get(name, "")).port
        holder = stack.enter_context(reserve_engine_port(preferred))
        ports[name] = holder.getsockname()[1]
    return ports


@contextmanager
def _logging_to_file(config: Config) -> Iterator[None]:
    """The supervisor's own words, beside its children's."""
    handler = RotatingFileHandler(
        config.logs_path / "supervisor.log", maxBytes=LOG_MAX_BYTES, backupCount=1, delay=True
    )
    handler.setFormatter(RedactingFormatter(LOG_FORMAT))
    keep_from_logs(list_secrets(config))
    root = logging.getLogger("forebay")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    root.propagate = False
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
