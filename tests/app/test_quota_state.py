"""What the file of limits keeps: over a restart, an edit meanwhile, a limit that goes and comes, damage."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from forebay.app.quota_server import QuotaServer
from forebay.app.quota_state import HEADER, SLOT_BYTES, QuotaState
from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.gateway.policy.lending import Shortage, Want
from forebay.testing.clock import VirtualClock

DAY_S = 86_400
CALENDAR = Limit(
    id="c", owner="team a", measure=Measure.REQUESTS, amount=100, period=Period.DAY, kind=Kind.CALENDAR
)
BUCKET = Limit(id="b", owner="team a", measure=Measure.REQUESTS, amount=100, period=Period.DAY)


class Scene:
    """An authority without workers: what one would be lent is taken by hand."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state"
        self.clock = VirtualClock()
        self.start()

    def start(self) -> None:
        self.server = QuotaServer(Path("unused"), QuotaState(self.path), self.clock)

    def restart(self) -> None:
        self.server.close()
        self.start()

    def hold(self, *limits: Limit) -> None:
        self.server.set_limits(limits)

    def use(self, limit: Limit, units: int) -> None:
        found = self.server._authority._lender.ask(
            "w", (Want(limit.id, units, units),), self.server._authority._now()
        )
        assert not isinstance(found, Shortage)
        self.server._authority._save([limit.id])

    def left(self) -> dict[str, int]:
        return {standing.limit.id: standing.left for standing in self.server.list_standings()}


def resize(limit: Limit, amount: int) -> Limit:
    return msgspec.structs.replace(limit, amount=amount)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_used_stays_used_when_the_amount_is_edited(scene: Scene, is_restarted: bool) -> None:
    scene.hold(CALENDAR)
    scene.use(CALENDAR, 60)
    for amount, left in ((200, 140), (50, -10), (60, 0), (100, 40)):
        if is_restarted:
            scene.restart()
        scene.hold(resize(CALENDAR, amount))
        assert scene.left() == {"c": left}


@pytest.mark.parametrize("limit", [CALENDAR, BUCKET])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_limit_that_goes_and_comes_again_goes_on_where_it_was(
    scene: Scene, limit: Limit, is_restarted: bool
) -> None:
    scene.hold(limit)
    scene.use(limit, 60)
    scene.hold()
    assert scene.left() == {}
    if is_restarted:
        scene.restart()
    scene.hold(limit)
    assert scene.left() == {limit.id: 40}


def test_a_slot_that_is_damaged_counts_as_used_and_not_as_new(scene: Scene) -> None:
    scene.hold(CALENDAR, BUCKET)
    scene.use(CALENDAR, 1)
    scene.server.close()
    data = bytearray(scene.path.read_bytes())
    data[len(HEADER) + 20] ^= 1
    scene.path.write_bytes(data)
    scene.start()
    scene.hold(CALENDAR, BUCKET)
    assert scene.left() == {"b": 100, "c": 0}
    scene.clock.advance(DAY_S)
    assert scene.left() == {"b": 100, "c": 100}


def test_a_standing_says_when_all_is_there_again(scene: Scene) -> None:
    places = Limit(id="p", owner="key k", measure=Measure.CONCURRENT, amount=5)
    scene.hold(CALENDAR, BUCKET, places)
    scene.use(CALENDAR, 50)
    scene.use(BUCKET, 50)
    standings = {standing.limit.id: standing for standing in scene.server.list_standings()}
    assert {name: standing.lent for name, standing in standings.items()} == {"b": 50, "c": 50, "p": 0}
    assert standings["b"].full_in_ns == DAY_S // 2 * 10**9, "half of a bucket in half of its time"
    assert standings["c"].full_in_ns == DAY_S * 10**9 - scene.clock.wall_ns() % (DAY_S * 10**9)
    assert standings["p"].full_in_ns is None


def test_an_edited_time_zone_fills_nothing_again_also_over_a_restart(scene: Scene) -> None:
    for zone in ("America/New_York", "Asia/Tokyo"):
        limit = msgspec.structs.replace(CALENDAR, id=zone, period=Period.MONTH)
        scene.hold(limit)
        scene.use(limit, 90)
        scene.hold(msgspec.structs.replace(limit, time_zone=zone))
        assert scene.left() == {zone: 10}
        scene.restart()
        scene.hold(msgspec.structs.replace(limit, time_zone=zone))
        assert scene.left() == {zone: 10}


def test_a_machine_that_comes_up_with_an_old_clock_has_no_more_once_it_is_put_right(scene: Scene) -> None:
    right_ns = scene.clock.wall_ns()
    scene.hold(CALENDAR)
    scene.use(CALENDAR, 90)
    for is_restarted in (False, True):
        scene.restart()
        scene.clock.set_wall(right_ns - 60 * DAY_S * 10**9)
        scene.hold(CALENDAR)
        scene.use(CALENDAR, 1)
        if is_restarted:
            scene.restart()
        scene.clock.set_wall(right_ns + 10**9)
        scene.hold(CALENDAR)
    assert scene.left() == {"c": 8}


class Full:
    """A disk that takes what is written over, but nothing more, or only a part of it."""

    def __init__(self, part: int) -> None:
        self.write, self.part = os.pwrite, part

    def __call__(self, fd: int, data: bytes, at: int) -> int:
        if at < os.fstat(fd).st_size:
            return self.write(fd, data, at)
        if not self.part:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.write(fd, data[: self.part], at)


@pytest.mark.parametrize("part", [0, 50])
def test_a_limit_for_which_there_was_no_room_leaves_no_hole(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    one, other, new = (msgspec.structs.replace(CALENDAR, id=name) for name in ("one", "other", "new"))
    scene.hold(one)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Full(part))
        with pytest.raises(OSError, match="space"):
            scene.hold(one, other)
    scene.hold(one)
    if not part:
        scene.hold(one, CALENDAR)
    scene.restart()
    scene.hold(one, CALENDAR, new)
    assert scene.left() == {"one": 100, "c": 100, "new": 100}


def test_a_file_forgets_limits_that_are_gone_once_they_matter_no_more(scene: Scene) -> None:
    def make(number: int, kind: Kind) -> Limit:
        return msgspec.structs.replace(BUCKET, id=f"{kind}{number}", period=Period.MINUTE, kind=kind)

    def count() -> int:
        return (scene.path.stat().st_size - len(HEADER)) // SLOT_BYTES

    month = msgspec.structs.replace(CALENDAR, id="month", period=Period.MONTH)
    debtor = msgspec.structs.replace(BUCKET, id="debtor", period=Period.MINUTE)
    scene.hold(month, debtor)
    scene.use(month, 90)
    scene.server._authority._lender.meters["debtor"].take(100_000)  # a thousand minutes
    for generation in range(4):
        scene.hold(*(make(generation * 100 + number, kind) for number in range(100) for kind in Kind))
    assert count() == 802, "each of them might come again and matter"
    scene.clock.advance(600)
    scene.hold(BUCKET)
    assert count() == 103, "those that went just now are kept for some periods"
    for is_restarted in (False, True):
        scene.clock.advance(600)
        if is_restarted:
            scene.restart()
        scene.hold(month, debtor)
        assert count() == 3
        assert scene.left()["month"] == 10
        assert -99_000 < scene.left()["debtor"] < -90_000
    scene.hold(make(1, Kind.BUCKET))
    assert scene.left() == {"bucket1": 100}
