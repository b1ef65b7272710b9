"""Keeps children running, in the order they need one another, and ends them in the order they must end.

Knows nothing of gateways or engines: it is given `ChildSpec`s.  Each child has one task that waits for the
next event, looks the move up in `supervisor_policy.MOVES` and enters the new state.  The supervisor must be
run in the main thread (see `supervisor_exec`), and must never wait for one child while another one needs it.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Final

from forebay.app.supervisor_policy import MOVES, ChildEvent, ChildState, describe_exit
from forebay.app.supervisor_process import ChildEnd, ChildProcess, ChildSpec, start_process, trim_log
from forebay.app.supervisor_state import ChildStatus
from forebay.core.clock import Clock

PROBE_INTERVAL_S: Final = 0.1
KILL_DEADLINE_S: Final = 5.0
LOG_CHECK_S: Final = 10.0

logger = logging.getLogger(__name__)


class _Child:
    """A spec and what has become of it so far."""

    def __init__(self, spec: ChildSpec, clock: Clock) -> None:
        self.spec = spec
        self.state = ChildState.WAITING
        self.since_ns = clock.wall_ns()
        self.process: ChildProcess | None = None
        self.successor: ChildProcess | None = None
        self.roll = asyncio.Event()
        self.rolled = asyncio.Event()
        self.roll_failure = ""
        self.failures = 0  #: in a row
        self.restarts = 0
        self.ready_ns: int | None = None  #: monotonic, of the process that runs
        self.last_exit = ""
        self.last_code: int | None = None
        self.is_leaving = False  #: it is forgotten as soon as it has stopped
        self.was_ready = asyncio.Event()
        self.stop = asyncio.Event()
        self.kill = asyncio.Event()
        self.stopped = asyncio.Event()

    def status(self) -> ChildStatus:
        return ChildStatus(
            name=self.spec.name,
            state=self.state,
            pid=self.process.pid if self.process else None,
            since_s=self.since_ns / 1e9,
            restarts=self.restarts,
            failures=self.failures,
            was_ready=self.was_ready.is_set(),
            last_exit=self.last_exit,
        )


class Supervisor:
    """Children from start to end.

    Args:
        specs: the children; names are unique and `needs` names others of them.
        logs: an existing folder for `NAME.log`.
        mark: put into every child's environment, so that those of a killed supervisor can be found.
        clock: for the times in a status and for how long a child was ready.
        on_change: called with nothing after every move; must not raise or block.
        is_final: asked when a child ended by itself, whether to start it again is in vain; must not block.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        logs: Path,
        mark: str,
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        is_final: Callable[[str, ChildEnd], bool] = lambda name, end: False,
    ) -> None:
        self._clock = clock
        self._logs = logs
        self._mark = mark
        self._on_change = on_change
        self._is_final = is_final
        self._group: asyncio.TaskGroup | None = None
        self._children = {spec.name: _Child(spec, clock) for spec in specs}
        if len(self._children) != len(specs):
            raise ValueError("two children have the same name")
        for spec in specs:
            if unknown := set(spec.needs) - set(self._children):
                raise ValueError(f"{spec.name} needs {', '.join(sorted(unknown))}, which is no child")
        self._stopping = asyncio.Event()
        self._retired: dict[asyncio.Task[None], tuple[_Child, ChildProcess]] = {}

    @property
    def statuses(self) -> tuple[ChildStatus, ...]:
        """In the order of the specs."""
        return tuple(child.status() for child in self._children.values())

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def log_path(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def add(self, spec: ChildSpec) -> bool:
        """Takes in one more child, which needs no other; whether it did: not at the end, nor a name twice."""
        if self.stopping or spec.name in self._children or spec.needs:
            return False
        child = self._children[spec.name] = _Child(spec, self._clock)
        if self._group is not None:
            self._group.create_task(self._tend(child), name=spec.name)
        return True

    def remove(self, name: str) -> None:
        """Asks a child to end; then it is known no more.  An unknown name is fine."""
        if child := self._children.get(name):
            child.is_leaving = True
            child.stop.set()

    def kill_child(self, name: str) -> None:
        """Ends its process at once, as if it had ended by itself."""
        if (child := self._children.get(name)) and child.process:
            child.process.kill_group()

    def stop(self) -> None:
        """Ends the children in order.  `run` returns when all are gone."""
        self._stopping.set()

    def kill(self) -> None:
        """Ends the children at once."""
        self._stopping.set()
        for child in self._children.values():
            child.stop.set()
            child.kill.set()
        for _, process in self._retired.values():
            process.kill_group()

    async def roll(self, names: Sequence[str]) -> str:
        """Puts another process in the place of each, one after the other; why it was given up, or nothing.

        The other gets ready before the first is asked to end, and takes its place alone: a child that does
        not serve is left to its own restarts.
        """
        for name in names:
            child = self._children[name]
            if child.state is not ChildState.READY or self.stopping:
                continue
            child.roll_failure = ""
            child.rolled.clear()
            child.roll.set()
            await child.rolled.wait()
            if child.roll_failure:
                return f"{name}: {child.roll_failure}"
        return "all is being stopped" if self.stopping else ""

    async def run(self) -> None:
        """Starts the children and keeps them up until `stop` or `kill`; cancelled, it kills them."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for child in tuple(self._children.values()):
                    group.create_task(self._tend(child), name=child.spec.name)
                logs = group.create_task(self._bound_logs())
                await self._stopping.wait()
                await self._stop_in_stages()
                logs.cancel()
        finally:
            for child in self._children.values():
                for process in filter(None, (child.process, child.successor)):
                    process.kill_group()
            for _, process in self._retired.values():
                process.kill_group()

    async def _stop_in_stages(self) -> None:
        for stage in sorted({child.spec.stop_stage for child in self._children.values()}):
            members = [child for child in self._children.values() if child.spec.stop_stage == stage]
            for child in members:
                child.stop.set()
            for child in members:
                await child.stopped.wait()
            for task in [task for task, (child, _) in self._retired.items() if child in members]:
                await task

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            for name in tuple(self._children):
                try:
                    trim_log(self.log_path(name))
                except OSError as error:
                    logger.warning("log of %s can't be trimmed: %s", name, error.strerror)

    # --- one child ------------------------------------------------------------------------------------------

    async def _tend(self, child: _Child) -> None:
        while child.state is not ChildState.STOPPED:
            event = await _await_first(self._sources(child))
            if event is ChildEvent.EXITED:
                event = self._judge_exit(child)
            previous, child.state = child.state, MOVES[child.state, event]
            child.since_ns = self._clock.wall_ns()
            if event in (ChildEvent.EXITED, ChildEvent.REFUSED):
                self._absorb_exit(child)
            self._log_move(child, previous, event)
            if previous is ChildState.ROLLING or (child.roll.is_set() and event is not ChildEvent.ROLL):
                self._end_roll(child, event)
            await self._enter(child)
            if child.is_leaving and child.state is ChildState.STOPPED:
                self._children.pop(child.spec.name, None)
            self._on_change()
        child.stopped.set()

    def _sources(self, child: _Child) -> Mapping[ChildEvent, Coroutine[None, None, object]]:
        """What is awaited in the present state, the most important event first."""
        spec, E = child.spec, ChildEvent
        match child.state:
            case ChildState.WAITING:
                return {E.STOP: child.stop.wait(), E.RELEASED: self._wait_needs(spec)}
            case ChildState.STARTING:
                return {
                    E.EXITED: self._wait_exit(child),
                    E.STOP: child.stop.wait(),
                    E.PROBED: self._wait_probed(spec, child.process),
                    E.OVERDUE: asyncio.sleep(spec.start_deadline_s),
                }
            case ChildState.READY:
                return {
                    E.EXITED: self._wait_exit(child),
                    E.STOP: child.stop.wait(),
                    E.ROLL: child.roll.wait(),
                }
            case ChildState.ROLLING:
                return {
                    E.EXITED: self._wait_exit(child),
                    E.STOP: child.stop.wait(),
                    E.FAILED: self._wait_failed(child),
                    E.PROBED: self._wait_probed(spec, child.successor),
                }
            case ChildState.BACKOFF:
                delay_s = spec.restart.compute_delay_s(child.failures)
                return {E.STOP: child.stop.wait(), E.RESTART: asyncio.sleep(delay_s)}
            case ChildState.REFUSED:
                return {E.STOP: child.stop.wait()}
            case ChildState.HUNG:
                return {E.EXITED: self._wait_exit(child), E.STOP: child.stop.wait()}
            case ChildState.STOPPING:
                return {E.EXITED: self._wait_exit(child), E.OVERDUE: self._wait_kill(child)}
            case _:
                return {E.EXITED: self._wait_exit(child), E.OVERDUE: asyncio.sleep(KILL_DEADLINE_S)}

    async def _enter(self, child: _Child) -> None:
        match child.state:
            case ChildState.STARTING:
                await self._start(child)
            case ChildState.ROLLING:
                child.roll.clear()
                child.successor = await self._open(child)
            case ChildState.READY:
                child.ready_ns = self._clock.monotonic_ns()
                child.was_ready.set()
            case ChildState.STOPPING if child.process:
                child.process.send_signal(child.spec.stop_signal)
            case ChildState.HUNG | ChildState.KILLING if child.process:
                child.process.kill_group()
            case _:
                pass

    async def _start(self, child: _Child) -> None:
        child.ready_ns = None
        child.restarts += bool(child.last_exit)
        child.process = await self._open(child)

    async def _open(self, child: _Child) -> ChildProcess | None:
        try:
            return await start_process(child.spec, self.log_path(child.spec.name), self._mark)
        except OSError as error:
            logger.error("%s can't be started: %s", child.spec.name, error)
            return None

    def _end_roll(self, child: _Child, event: ChildEvent) -> None:
        """The successor takes the place, or is given up; or the child went before there was one."""
        child.roll.clear()
        successor, child.successor = child.successor, None
        if event is ChildEvent.PROBED:
            successor, child.process = child.process, successor
            child.roll_failure = ""
        elif event is not ChildEvent.FAILED:
            child.roll_failure = "it ended meanwhile"
        if successor is not None:
            stop_signal = child.spec.retire_signal if event is ChildEvent.PROBED else signal.SIGKILL
            assert self._group is not None
            task = self._group.create_task(_see_off(successor, stop_signal, child.spec.stop_deadline_s))
            self._retired[task] = child, successor
            task.add_done_callback(self._retired.pop)
        child.rolled.set()

    def _judge_exit(self, child: _Child) -> ChildEvent:
        is_overdue = child.state is ChildState.HUNG
        if is_overdue:
            child.last_exit = f"not ready within {child.spec.start_deadline_s:g} s"
        if child.state in (ChildState.STOPPING, ChildState.KILLING):
            return ChildEvent.EXITED
        end = ChildEnd(
            pid=child.process.pid if child.process else None,
            code=child.last_code,
            is_overdue=is_overdue,
            was_ready=child.was_ready.is_set(),
        )
        return ChildEvent.REFUSED if self._is_final(child.spec.name, end) else ChildEvent.EXITED

    def _absorb_exit(self, child: _Child) -> None:
        child.process = None
        if child.state in (ChildState.BACKOFF, ChildState.REFUSED):
            ready_s = None if child.ready_ns is None else (self._clock.monotonic_ns() - child.ready_ns) / 1e9
            child.failures = child.spec.restart.count_failures(child.failures, ready_s)

    async def _wait_exit(self, child: _Child) -> None:
        if child.process is None:
            child.last_exit, child.last_code = "could not be started", None
            return
        child.last_code = await child.process.wait()
        child.last_exit = describe_exit(child.last_code)

    async def _wait_needs(self, spec: ChildSpec) -> None:
        for name in spec.needs:
            await self._children[name].was_ready.wait()

    async def _wait_kill(self, child: _Child) -> None:
        try:
            async with asyncio.timeout(child.spec.stop_deadline_s):
                await child.kill.wait()
        except TimeoutError:
            pass

    async def _wait_failed(self, child: _Child) -> None:
        """Until the successor is to be given up."""
        child.roll_failure = "its successor could not be started"
        if child.successor is None:
            return
        try:
            async with asyncio.timeout(child.spec.start_deadline_s):
                ended = describe_exit(await child.successor.wait())
                child.roll_failure = f"its successor {ended} before it was ready"
        except TimeoutError:
            child.roll_failure = f"its successor was not ready within {child.spec.start_deadline_s:g} s"

    async def _wait_probed(self, spec: ChildSpec, process: ChildProcess | None) -> None:
        while True:
            if process is not None and await spec.probe.check(process.pid):
                return
            await asyncio.sleep(PROBE_INTERVAL_S)

    def _log_move(self, child: _Child, previous: ChildState, event: ChildEvent) -> None:
        expected = child.state in (
            ChildState.STARTING,
            ChildState.READY,
            ChildState.ROLLING,
            ChildState.STOPPING,
            ChildState.STOPPED,
        )
        reason = child.last_exit if event in (ChildEvent.EXITED, ChildEvent.REFUSED) else event.value
        if event is ChildEvent.FAILED:
            expected, reason = False, child.roll_failure
        level = logging.INFO if expected else logging.WARNING
        logger.log(level, "%s: %s -> %s (%s)", child.spec.name, previous.value, child.state.value, reason)


async def _see_off(process: ChildProcess, stop_signal: int, deadline_s: float) -> None:
    """Asks a process to end, and sees to it that it does; cancelled, it ends it at once."""
    process.send_signal(stop_signal)
    try:
        async with asyncio.timeout(deadline_s):
            await process.wait()
    except asyncio.CancelledError:
        process.kill_group()
        raise
    except TimeoutError:
        process.kill_group()
        await process.wait()


async def _await_first(sources: Mapping[ChildEvent, Coroutine[None, None, object]]) -> ChildEvent:
    """The first event whose source is done; of several, the one listed first.  The others are cancelled."""
    tasks = {event: asyncio.ensure_future(source) for event, source in sources.items()}
    try:
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        event = next(event for event, task in tasks.items() if task.done())
        tasks[event].result()
        return event
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
