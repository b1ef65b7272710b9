"""Rolling restarts that are asked for while one is under way."""

import asyncio
from collections.abc import Sequence
from itertools import count

from forebay.app.supervisor_policy import ChildState
from forebay.app.supervisor_state import ROLL_DONE, ROLL_RUNS, ChildStatus
from forebay.app.up_rolls import Rolls


class Workers:
    """A supervisor's workers, of which a test says how their restarts end."""

    def __init__(self, *ends: str) -> None:
        self.ends = list(ends)
        self.gates: list[asyncio.Event] = []
        self.stopping = False
        self.statuses = tuple(
            ChildStatus(
                name=name, state=ChildState.READY, pid=1, since_s=0, restarts=0, failures=0, was_ready=True,
                last_exit="",
            )
            for name in ("worker-0", "control")
        )  # fmt: skip

    async def roll(self, names: Sequence[str]) -> str:
        assert list(names) == ["worker-0"]
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        return self.ends.pop(0)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_who_asks_during_a_restart_gets_another_and_hears_how_that_one_ended() -> None:
    async def run() -> None:
        workers, clock = Workers("", "worker-0: it would not start", ""), count(100)
        told: list[tuple[str, float, str]] = []
        rolls = Rolls(
            workers,
            lambda: float(next(clock)),
            lambda: told.append((rolls.now, rolls.began_s, rolls.ended)),
            lambda text, style: None,
        )
        running = asyncio.create_task(rolls.run())
        rolls.ask()
        await settle()
        assert told == [(ROLL_RUNS, 0.0, "")]
        for _ in range(3):
            rolls.ask()  # these all get the same one
        workers.gates[0].set()
        await settle()
        assert told[1:] == [(ROLL_RUNS, 100.0, ROLL_DONE), (ROLL_RUNS, 100.0, ROLL_DONE)]
        workers.gates[1].set()
        await settle()
        assert told[3:] == [("worker-0: it would not start", 101.0, "worker-0: it would not start")]
        assert (len(workers.gates), rolls.count) == (2, 2)
        rolls.ask()
        await settle()
        workers.stopping = True
        rolls.ask()
        workers.gates[2].set()
        await asyncio.wait_for(running, 10)
        assert (rolls.now, len(workers.gates)) == (ROLL_DONE, 3)

    asyncio.run(run())
