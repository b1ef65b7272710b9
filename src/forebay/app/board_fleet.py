"""A machine's line to the boards of the others, over the Redis or Valkey that they share limits in.

It tells them what the workers here have (`policy.machines`), at most five times a second and only what
changed, and hears what they tell.  While there is no line this machine goes on with its own board; it comes
back by itself.  No worker ever waits for it.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from typing import Any

import msgspec

from forebay.app.board_server import FleetState
from forebay.app.quota_script import make_prefix
from forebay.app.redis_link import RedisLink
from forebay.gateway.policy.dealing import Dealing
from forebay.gateway.policy.machines import Machines, Message
from forebay.gateway.policy.merging import Merging

logger = logging.getLogger("forebay.control")

SCRIPT = files("forebay.app").joinpath("board.lua").read_text()
SCRIPT_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
TELL_S = 0.2  #: between two times that the others are told
SETTLE_S = 1.2  #: after the line stands, until everybody who is there was heard
MESSAGE_MAX_BYTES = 1024 * 1024  #: that is listened to
NAME_CHARS_MAX = 64
GOODBYE_MAX_S = 0.5

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class BoardFleet:
    """See the module.

    Args:
        find_url: the server's address; see `RedisLink`.
        fleet: the name that all machines use.
        name: of this machine, for people.
        merging: holds what all workers have, those of other machines among them.
        dealing: knows for what those of this machine wait, and is told of others who wait for the same.
        workers: that are to run on this machine.
    """

    def __init__(
        self,
        find_url: Callable[[], str],
        fleet: str,
        name: str,
        merging: Merging,
        dealing: Dealing,
        workers: int,
    ) -> None:
        prefix = make_prefix(fleet)
        self._link = RedisLink(find_url, SCRIPT, SCRIPT_SHA, prefix, f"{prefix}:board", "loads")
        self._merging = merging
        self._dealing = dealing
        self._machines = Machines(secrets.token_hex(8), name[:NAME_CHARS_MAX], merging)
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []
        self._now = time.monotonic
        self._up_at: float | None = None
        self._others = 0  # workers of other machines, as was known last while the line stood
        self._trouble = "it has not been asked yet"
        self._told = self._heard = 0
        self._has_complained = False

    def start(self) -> None:
        """To be called in the loop, once."""
        keeping = self._link.keep_up(self._make_probe, self._begin, self._end, self._hear)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (keeping, self._tell())]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def say_goodbye(self) -> None:
        """Nothing of this machine counts any more for the others; where they can't be told, they find out."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._link.is_up:
            return
        goodbye = _encode(self._machines.say_goodbye())
        self._link.call(goodbye, lambda _: None if done.done() else done.set_result(None))
        with suppress(TimeoutError):
            await asyncio.wait_for(done, GOODBYE_MAX_S)

    @property
    def state(self) -> FleetState:
        trouble = "" if self._link.is_up else self._trouble
        machines = self._machines.list_machines()
        return FleetState(
            trouble=trouble,
            expected=self.count_expected(),
            machines=machines,
            told=self._told,
            heard=self._heard,
        )

    def count_expected(self) -> int:
        """Workers on all machines, as far as is known; 0 where nobody knows of others.

        While there is no line those of which was known last are believed to go on.
        """
        if self._is_settled:
            self._others = self._merging.size - self._merging.own_size
        return self._others and self._others + max(self._workers, self._merging.own_size)

    @property
    def _is_settled(self) -> bool:
        return self._up_at is not None and self._now() >= self._up_at + SETTLE_S

    def sweep(self) -> None:
        """To be called some times a second: what is silent is unknown."""
        for name in self._machines.sweep(self._now()):
            logger.warning("the machine %s says nothing any more; its loads are unknown now", name)
        uses = [(machine.workers, machine.pools) for machine in self._machines.list_machines()]
        self._dealing.share_with(uses, self._merging.own_size, self._now())

    # --- the line -------------------------------------------------------------------------------------------

    def _make_probe(self) -> bytes:
        return _encode(self._machines.make_beat())

    def _begin(self) -> None:
        if self._trouble:
            logger.info("what workers know of loads is shared with other machines")
        self._trouble, self._up_at = "", self._now()
        self._machines.begin()

    def _end(self, reason: str) -> None:
        if reason != self._trouble:
            logger.error(
                "loads are not shared with other machines: their server (limits.authority) can't be used: "
                "%s; workers go by the loads of this machine and its share of every capacity until it can",
                reason,
            )
        self._trouble, self._up_at = reason, None

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            if self._link.is_up:  # else it stays news
                for message in self._machines.take(self._now(), self._dealing.list_uses()):
                    self._link.call(_encode(message), _ignore)
                    self._told += 1

    def _hear(self, data: bytes) -> None:
        try:
            if len(data) > MESSAGE_MAX_BYTES:
                raise ValueError(f"{len(data)} bytes")
            message = _decode(data)
        except (ValueError, msgspec.MsgspecError) as error:
            if not self._has_complained:
                logger.error("a machine of another version, or another program, talks of loads: %s", error)
            self._has_complained = True
            return
        self._heard += message.instance != self._machines.instance
        self._machines.hear(message, self._now())


def _ignore(answer: Any) -> None:
    pass
