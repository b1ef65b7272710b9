"""A worker as the authority over limits sees it, over its real socket: borrows, uses, and gives back."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from forebay.gateway.policy.lending import Want
from forebay.gateway.quota_client import QuotaClient
from forebay.gateway.quota_wire import Held, Lent, Refused


class Borrower:
    """Has units of one limit; `spend` takes from them, borrowing `like` at a time."""

    def __init__(self, socket: Path, limit_id: str, name: str = "w0") -> None:
        self._limit_id = limit_id
        self._client = QuotaClient(asyncio.get_running_loop(), socket, name, self)
        self._line = asyncio.Event()
        self._answer: asyncio.Future[Lent | Refused | None] | None = None
        self._epoch = 0
        self.held = 0
        self.recalls = 0

    async def connect(self) -> None:
        self._client.keep_connected(0)
        async with asyncio.timeout(60):
            await self._line.wait()

    async def spend(self, units: int, like: int | None = None) -> bool:
        """Whether there was room."""
        if self.held < units:
            self._answer = asyncio.get_running_loop().create_future()
            need = units - self.held
            self._client.ask((Want(self._limit_id, need, max(need, like or 0)),))
            async with asyncio.timeout(60):
                found = await self._answer
            if not isinstance(found, Lent):
                return False
        self.held -= units
        return True

    def give_all_back(self) -> None:
        self._client.send_back((Held(self._limit_id, self._epoch, self.held),))
        self.held = 0

    def close(self) -> None:
        self._client.close()

    # --- what the client calls ------------------------------------------------------------------------------

    def list_held(self) -> list[Held]:
        return []

    def absorb(self, answer: Lent | Refused | None, number: int) -> None:
        if isinstance(answer, Lent):
            for loan in answer.loans:
                self.held += loan.units
                self._epoch = loan.epoch
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def give_back(self, limit_id: str) -> None:
        self.recalls += 1
        self._client.send_back((Held(limit_id, self._epoch, self.held),), limit_id)
        self.held = 0

    def note(self, number: int) -> None:
        pass

    def change_amounts(self, amounts: Iterable[tuple[str, int]]) -> None:
        pass

    def begin_line(self) -> None:
        self._line.set()

    def lose_line(self) -> None:
        self._line.clear()
