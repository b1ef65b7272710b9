"""`kill -9` of whoever removes, at any moment: bills stay right, and the next one goes on to the end."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ledger_examples import BOOK, START_NS, World, make_event
from sqlalchemy import Connection

from forebay.core.events import Tokens, UsageSource
from forebay.ledger.bill import load_bill
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.retention import KeepDays, Removal, Retention
from forebay.ledger.rollup import DAY_NS, Rollups
from forebay.ledger.usage import UsageBy, UsageRow
from forebay.store.database import Database

DAY0_NS = START_NS // DAY_NS * DAY_NS
DAYS, EACH_DAY, KEPT = 12, 40, 2
ROLLUPS = Rollups(tags=("customer",))
KILLS = 25


def remove_forever(world: World, may_go_on: Callable[[], object] = bool) -> None:
    database = Database.open(world.location)
    retention = Retention(database, world.clock, tell, get_rollups=lambda: ROLLUPS, portion_rows=3)
    while retention.remove_portion(KeepDays(records=KEPT)):
        may_go_on()


def tell(connection: Connection, removal: Removal) -> None:
    pass


def run_and_kill(world: World, portions: int, after_s: float) -> bool:
    """Whether it was killed, so long after it had removed so many portions, and had not ended before.

    It may remove three more meanwhile: so it is not done too soon, however late the kill comes.
    """
    (permits, permit), (told, tell_done) = os.pipe(), os.pipe()

    def may_go_on() -> None:
        os.write(tell_done, b".")
        os.read(permits, 1)

    child = os.fork()
    if not child:
        try:
            remove_forever(world, may_go_on)
        finally:
            os._exit(0)
    os.close(tell_done)
    os.write(permit, b"." * (portions + 3))
    has_ended = any(not os.read(told, 1) for _ in range(portions))
    time.sleep(after_s)  # the moment is what is tried here, not a thing to wait for
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    for end in (permits, permit, told):
        os.close(end)
    return os.WIFSIGNALED(status) and not has_ended


def load_rows(world: World) -> list[list[UsageRow]]:
    database = Database.open(world.location)
    groupings = ((UsageBy.DAY, UsageBy.KEY), (UsageBy.TAG, UsageBy.MODEL))
    rows = [
        load_bill(
            database,
            by=by,
            since_ns=DAY0_NS,
            until_ns=DAY0_NS + DAYS * DAY_NS,
            tag="customer" if UsageBy.TAG in by else None,
        ).rows
        for by in groupings
    ]
    database.close()
    return [list(each) for each in rows]


def test_bills_stay_right_whenever_it_is_killed(tmp_path: Path) -> None:
    draw = random.Random(20261130)
    world = World(tmp_path)
    spent = {"usage_source": UsageSource.REPORTED, "tokens": Tokens(input=1000, output=10)}
    world.write(
        *(
            make_event(
                number,
                at_ns=DAY0_NS + number * DAY_NS // EACH_DAY,
                key=f"key_{number % 3}",
                tags=(("customer", f"c{number % 4}"),),
                **spent,
            )
            for number in range(DAYS * EACH_DAY)
        )
    )
    world.make_ingester(book=BOOK, rollups=ROLLUPS).ingest_once()
    world.clock.now_ns = DAY0_NS + (DAYS - 1) * DAY_NS
    world.database.close()  # forks must not share its connections
    right = load_rows(world)
    killed = 0
    while killed < KILLS and run_and_kill(world, draw.randrange(1, 5), draw.uniform(0.0, 0.02)):
        killed += 1
        assert load_rows(world) == right
    assert killed > 3, "it was done before it could be killed"
    remove_forever(world)
    world.database = Database.open(world.location)
    assert len(world.load_all()) == (KEPT + 1) * EACH_DAY
    assert load_rows(world) == right
    rebuild_usage(world.database, ROLLUPS)
    assert load_rows(world) == right
    world.close()
