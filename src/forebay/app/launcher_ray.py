"""Runs replicas on a Ray cluster: each is a detached actor that keeps one engine on whatever node has room.

Ray itself runs in a process of its own (`ray_bridge`), which is started when it is first needed and again
after it has ended; in between, what runs on the cluster goes on.
"""

import asyncio
import json
import os
import re
import socket
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.app.ray_actor import NodeSettings
from forebay.app.replica_files import REPLICA_ID
from forebay.app.supervisor_process import EXEC
from forebay.engines.deployment import LauncherKind, Replica, ReplicaStatus
from forebay.engines.model import LauncherError

CONNECT_S: Final = 90.0  #: Ray's import and its way into a cluster on a busy machine
ANSWER_S: Final = 60.0
PORT_S: Final = 5.0
_HOST_AND_PORT: Final = re.compile(r"(ray://)?(?P<host>[^/]+):(?P<port>[0-9]{1,5})")
LINE_MAX: Final = 16 << 20


class RayAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Which cluster, and how it is reached."""

    address: str = "auto"  #: as `ray.init` takes it: `auto`, `HOST:6379`, `ray://HOST:10001`
    namespace: str = "forebay"
    python: str = sys.executable  #: with Ray in it


class RayLauncher:
    """A `Launcher`.

    Args:
        access: to the cluster.
        log: where the bridge's own output goes.
        settings: for all nodes.
        environment: variables for the bridge beside its own.
    """

    kind = LauncherKind.RAY

    def __init__(
        self,
        access: RayAccess,
        log: Path,
        settings: NodeSettings | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._access = access
        self._log = log
        self._settings = settings or NodeSettings()
        self._environment = dict(environment or {})
        self._bridge: _Bridge | None = None
        self._connecting = asyncio.Lock()

    async def start(self, replica: Replica) -> None:
        if not REPLICA_ID.fullmatch(replica.id):
            raise LauncherError(
                f"{replica.id!r} can't be started: a replica's name has at most 63 lower-case letters, "
                "digits and dashes. Give the deployment a shorter name of such letters."
            )
        await self._ask("start", msgspec.to_builtins(replica))

    async def stop(self, replica_id: str) -> None:
        await self._ask("stop", replica_id)

    async def list(self) -> Sequence[ReplicaStatus]:
        return msgspec.convert(await self._ask("list"), tuple[ReplicaStatus, ...])

    async def logs(self, replica_id: str, lines: int = 100) -> Sequence[str]:
        return tuple(await self._ask("logs", replica_id, lines))

    async def close(self) -> None:
        async with self._connecting:
            if self._bridge is not None:
                await self._bridge.close()
                self._bridge = None

    @property
    def bridge_pid(self) -> int | None:
        """The process that speaks with Ray; None while there is none."""
        return None if self._bridge is None else self._bridge.pid

    async def _ask(self, do: str, *what: Any) -> Any:
        async with self._connecting:
            if self._bridge is None or self._bridge.is_gone:
                self._bridge = await self._connect()
            bridge = self._bridge
        return await bridge.ask(do, what)

    async def _connect(self) -> "_Bridge":
        if self._bridge is not None:
            await self._bridge.close()
        access = self._access
        await _check_port(access.address)
        ours, theirs = socket.socketpair()
        with theirs:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            try:
                with self._log.open("ab") as log:
                    process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-I", "-S", str(EXEC), str(os.getpid())),
                        *(access.python, "-m", "forebay.app.ray_bridge", "--fd", str(theirs.fileno())),
                        *("--address", access.address, "--namespace", access.namespace),
                        *("--settings", msgspec.json.encode(self._settings).decode()),
                        stdin=DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=(theirs.fileno(),),
                        env={**os.environ, **self._environment},
                        start_new_session=True,
                    )
            except OSError as error:
                ours.close()
                raise LauncherError(f"{access.python} can't be started: {error}.") from None
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_MAX)
        bridge = _Bridge(process, reader, writer)
        failure = await bridge.await_ready()
        if failure:
            await bridge.close()
            raise LauncherError(
                f"the Ray cluster at {access.address!r} can't be reached: {failure} {self._log} says more. "
                "See that `ray status` works there, and that Ray is installed in `launchers.ray.python`."
            )
        return bridge


async def _check_port(address: str) -> None:
    """Sees that somebody listens there: Ray itself would try for minutes.

    Raises:
        LauncherError
    """
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        return
    try:
        async with asyncio.timeout(PORT_S):
            _, writer = await asyncio.open_connection(found["host"].strip("[]"), int(found["port"]))
    except (OSError, TimeoutError) as error:
        raise LauncherError(
            f"the Ray cluster at {address!r} can't be reached: {error or 'no answer'}. "
            "See that `ray status` works there, and set `launchers.ray.address`."
        ) from None
    writer.close()


class _Bridge:
    """The process, and the questions that it has not answered yet."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._reading: asyncio.Task[None] | None = None
        self.is_gone = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def await_ready(self) -> str:
        """Why it can't serve; empty where it can."""
        try:
            async with asyncio.timeout(CONNECT_S):
                line = await self._reader.readline()
        except TimeoutError:
            return f"no answer within {CONNECT_S:g} s."
        if not line:
            return "the process that speaks with it ended."
        said = json.loads(line)
        if "failed" in said:
            return f"{said['failed']}."
        self._reading = asyncio.create_task(self._read())
        return ""

    async def ask(self, do: str, what: Sequence[Any]) -> Any:
        self._count += 1
        number = self._count
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(json.dumps({"id": number, "do": do, "with": what}).encode() + b"\n")
            async with asyncio.timeout(ANSWER_S):
                await self._writer.drain()
                return await future
        except TimeoutError:
            raise LauncherError(
                f"the Ray cluster has not answered within {ANSWER_S:g} s. See `ray status`."
            ) from None
        except OSError as error:
            self.is_gone = True
            raise LauncherError(f"the process that speaks with Ray is gone: {error}. Try again.") from None
        finally:
            self._asked.pop(number, None)

    async def close(self) -> None:
        self.is_gone = True
        self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
        try:
            async with asyncio.timeout(5):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _read(self) -> None:
        with suppress(OSError, ValueError):
            while line := await self._reader.readline():
                answer = json.loads(line)
                future = self._asked.get(answer["id"])
                if future is None or future.done():
                    continue
                if "error" in answer:
                    future.set_exception(LauncherError(f"Ray says: {answer['error']}"))
                else:
                    future.set_result(answer["result"])
        self.is_gone = True
        for future in self._asked.values():
            if not future.done():
                future.set_exception(
                    LauncherError("the process that speaks with Ray ended. It is started again when asked.")
                )
