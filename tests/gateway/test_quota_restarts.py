"""What is left of each limit over restarts: what was used stays used, whatever became of the file."""

from pathlib import Path

import pytest

from forebay.app.quota_state import HEADER, SLOT_BYTES, QuotaState
from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.gateway.policy.meter import Meter, Now, make_meter

DAY_NS = 86_400 * 10**9
NOW = Now(10**12, 20_000 * DAY_NS)


def limit(name: str, kind: Kind = Kind.CALENDAR) -> Limit:
    return Limit(id=name, owner="team a", measure=Measure.REQUESTS, amount=10, period=Period.DAY, kind=kind)


def restart(path: Path, names: str, now: Now = NOW, kind: Kind = Kind.CALENDAR) -> dict[str, Meter]:
    meters = {name: make_meter(limit(name, kind), now) for name in names}
    state = QuotaState(path)
    state.restore(meters, now)
    state.close()
    return meters


def use(path: Path, names: str, units: int, kind: Kind = Kind.CALENDAR) -> None:
    meters = [make_meter(limit(name, kind), NOW) for name in names]
    for meter in meters:
        meter.take(units)
    state = QuotaState(path)
    state.save(meters, NOW)
    state.close()


def test_what_was_used_is_used_after_a_restart(tmp_path: Path) -> None:
    for kind in Kind:
        path = tmp_path / kind.value
        use(path, "abc", 7, kind)
        assert {name: meter.left for name, meter in restart(path, "abcd", NOW, kind).items()} == {
            "a": 3, "b": 3, "c": 3, "d": 10,
        }  # fmt: skip


def test_a_new_day_is_a_full_one_and_a_clock_that_went_back_is_not(tmp_path: Path) -> None:
    use(tmp_path / "s", "a", 7)
    assert restart(tmp_path / "s", "a", Now(10**12, 20_001 * DAY_NS))["a"].left == 10
    assert restart(tmp_path / "s", "a", Now(10**12, 19_999 * DAY_NS))["a"].left == 3


def test_a_machine_that_was_started_again_counts_from_0(tmp_path: Path) -> None:
    use(tmp_path / "s", "a", 7, Kind.BUCKET)
    assert restart(tmp_path / "s", "a", Now(5, NOW.wall_ns), Kind.BUCKET)["a"].left == 3


def test_of_a_damaged_file_nothing_counts_as_untouched(tmp_path: Path) -> None:
    path = tmp_path / "s"
    use(path, "abcd", 4)
    data = bytearray(path.read_bytes())
    for at in (0, 1):  # all of the first slot, one bit of the second
        start = len(HEADER) + at * SLOT_BYTES
        data[start : start + (SLOT_BYTES if at == 0 else 1)] = bytes(SLOT_BYTES if at == 0 else 1)
    path.write_bytes(data)
    assert {name: meter.left for name, meter in restart(path, "abcd").items()} == {
        "a": 0,
        "b": 0,
        "c": 6,
        "d": 6,
    }
    use(path, "e", 1)
    left = {name: meter.left for name, meter in restart(path, "cde").items()}
    assert left == {"c": 6, "d": 6, "e": 9}, "a new limit writes over no other"


def test_a_damaged_file_heals_once_all_limits_that_there_are_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "s"
    use(path, "abc", 4)
    data = bytearray(path.read_bytes())
    data[len(HEADER) : len(HEADER) + SLOT_BYTES] = bytes(SLOT_BYTES)
    path.write_bytes(data)
    meters = {name: make_meter(limit(name), NOW) for name in "abc"}
    state = QuotaState(path)
    state.restore(meters, NOW)
    state.save(meters.values(), NOW)
    state.heal()
    meters["b"].take(1)
    state.save(meters.values(), NOW)
    state.close()
    left = {name: meter.left for name, meter in restart(path, "abcn").items()}
    assert left == {"a": 0, "b": 5, "c": 6, "n": 10}
    assert path.stat().st_size == len(HEADER) + 3 * SLOT_BYTES
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "damage", ["a byte less", "a slot and a half less", "another header", "other content"]
)
def test_of_a_file_that_lost_slots_nothing_that_is_missing_counts_as_untouched(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "s"
    use(path, "ab", 10)
    data = path.read_bytes()
    path.write_bytes(
        {
            "a byte less": data[:-1],
            "a slot and a half less": data[: -SLOT_BYTES * 3 // 2],
            "another header": b"X" + data[1:],
            "other content": b"nonsense",
        }[damage]
    )
    assert [meter.left for meter in restart(path, "ab").values()] == [0, 0]
