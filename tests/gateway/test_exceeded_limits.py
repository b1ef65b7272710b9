"""What follows when a limit has no room: grace, overdrafts, and that it is never forgotten."""

import struct
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.app.quota_state import HEADER, SLOT_BYTES, QuotaState
from forebay.core.limits import Exceeded, Kind, Limit, Measure, Period, spell_usd
from forebay.gateway.policy.lending import Lender, Loan, Shortage, Want
from forebay.gateway.policy.meter import Now

S = 1_000_000_000
HOUR = 3600 * S
DAY = Limit(id="d", owner="team a", measure=Measure.COST, amount=1000, period=Period.DAY, kind=Kind.CALENDAR)
BUCKET = Limit(id="b", owner="team a", measure=Measure.REQUESTS, amount=10, period=Period.SECOND)
FREE = Limit(id="free", owner="team a", measure=Measure.REQUESTS, amount=10**6, period=Period.DAY)


def at(seconds: float) -> Now:
    """A moment; the wall clock is an hour ahead, so that no moment is 0 on it."""
    return Now(int(seconds * S), int(seconds * S) + HOUR)


def make_lender(*limits: Limit) -> Lender:
    lender = Lender()
    lender.set_limits(limits, at(0))
    lender.join("w", ())
    return lender


def ask(lender: Lender, units: int, now: Now, *, final: bool = True, limit: str = "d") -> Loan | Shortage:
    found = lender.ask("w", (Want(limit, units, units),), now, final=final)
    return found if isinstance(found, Shortage) else found[0]


def with_grace(share: int, seconds: float) -> Limit:
    return msgspec.structs.replace(DAY, grace_units=share, grace_ns=int(seconds * S))


def test_grace_is_given_only_once_nothing_can_be_recalled() -> None:
    lender = make_lender(with_grace(100, 60))
    assert isinstance(ask(lender, 1000, at(0)), Loan)
    assert isinstance(ask(lender, 1, at(1), final=False), Shortage)
    assert lender.meters["d"].exceeded_ns == 0, "others may have it"
    assert isinstance(ask(lender, 1, at(1)), Loan)
    assert lender.meters["d"].exceeded_ns == at(1).wall_ns


def test_grace_is_bounded_in_units_and_in_time_and_begins_anew_with_the_period() -> None:
    lender = make_lender(with_grace(100, 60))
    ask(lender, 1000, at(0))
    loan = ask(lender, 60, at(1))
    assert isinstance(loan, Loan)
    assert not loan.is_exceeded
    assert isinstance(ask(lender, 41, at(2)), Shortage), "more than the part"
    assert isinstance(ask(lender, 40, at(60.9)), Loan)
    assert isinstance(ask(lender, 0, at(61)), Shortage), "its time is over"
    tomorrow = 86_400
    loan = ask(lender, 1000, at(tomorrow))
    assert isinstance(loan, Loan)
    assert lender.meters["d"].exceeded_ns == 0
    assert isinstance(ask(lender, 100, at(tomorrow + 600)), Loan)


def test_after_the_grace_comes_what_the_limit_says_and_all_is_counted() -> None:
    limit = msgspec.structs.replace(with_grace(100, 60), exceeded=Exceeded.THROTTLE, throttle="t")
    lender = make_lender(limit, FREE)
    ask(lender, 1000, at(0))
    assert ask(lender, 100, at(1)).is_exceeded is False  # type: ignore[union-attr]
    found = lender.ask("w", (Want("d", 5, 50), Want("free", 1, 1)), at(2), final=True)
    assert not isinstance(found, Shortage)
    assert [(loan.units, loan.is_exceeded) for loan in found] == [(50, True), (1, False)]
    assert lender.meters["d"].left == -150
    (standing, _) = lender.list_standings(at(3))
    assert (standing.left, standing.lent, standing.used) == (-150, 1150, 0)


def test_a_limit_that_refuses_holds_up_those_that_do_not() -> None:
    soft = msgspec.structs.replace(DAY, exceeded=Exceeded.DOWNGRADE, downgrade_to="small")
    lender = make_lender(soft, BUCKET)
    ask(lender, 1000, at(0))
    found = lender.ask("w", (Want("d", 5, 5), Want("b", 11, 11)), at(0), final=True)
    assert isinstance(found, Shortage)
    assert found.limit_id == "b"
    assert lender.meters["d"].left == 0, "nothing was taken"


def test_a_raised_amount_ends_being_exceeded() -> None:
    lender = make_lender(with_grace(100, 60))
    ask(lender, 1000, at(0))
    ask(lender, 1, at(1))
    lender.set_limits((msgspec.structs.replace(with_grace(100, 60), amount=2000),), at(100))
    assert lender.meters["d"].exceeded_ns == 0
    assert isinstance(ask(lender, 999, at(100)), Loan)
    assert isinstance(ask(lender, 50, at(101)), Loan), "and grace begins anew"


def test_a_bucket_that_is_full_again_is_exceeded_no_more() -> None:
    soft = msgspec.structs.replace(BUCKET, exceeded=Exceeded.THROTTLE, throttle="t")
    lender = make_lender(soft)
    ask(lender, 8, at(0), limit="b")
    assert ask(lender, 4, at(0), limit="b").is_exceeded is True  # type: ignore[union-attr]
    assert lender.meters["b"].exceeded_ns
    lender.list_standings(at(0.5))
    assert lender.meters["b"].exceeded_ns
    lender.list_standings(at(2))
    assert lender.meters["b"].exceeded_ns == 0


@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(0, 20)), max_size=40),
    st.integers(0, 200),
    st.floats(0, 100),
)
def test_no_more_than_amount_and_grace_is_ever_lent(
    asks: list[tuple[int, float]], share: int, seconds: float
) -> None:
    lender = make_lender(with_grace(share, seconds))
    moment, lent, exceeded_at = 0.0, 0, None
    for units, wait in asks:
        moment += wait
        found = ask(lender, units, at(moment))
        if isinstance(found, Loan):
            lent += found.units
        elif exceeded_at is None:
            exceeded_at = moment
        if lent > 1000:
            started = lender.meters["d"].exceeded_ns
            assert started
            if isinstance(found, Loan):
                assert at(moment).wall_ns < started + int(seconds * S)
    assert lent <= 1000 + share


def test_when_it_was_exceeded_outlives_the_process(tmp_path: Path) -> None:
    limit = with_grace(100, 60)
    lender = make_lender(limit)
    ask(lender, 1000, at(0))
    ask(lender, 1, at(5))
    state = QuotaState(tmp_path / "state")
    state.save(lender.meters.values(), at(5))
    state.close()
    after = make_lender(limit)
    QuotaState(tmp_path / "state").restore(after.meters, at(10))
    assert after.meters["d"].exceeded_ns == at(5).wall_ns
    assert isinstance(ask(after, 1, at(64)), Loan)
    assert isinstance(ask(after, 1, at(65)), Shortage)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("damage", ["", "a slot", "the end"])
def test_a_file_of_a_version_before_is_read_and_written_anew(
    tmp_path: Path, damage: str, version: int
) -> None:
    lender = make_lender(DAY, FREE)
    ask(lender, 300, at(0))
    path = tmp_path / "state"
    state = QuotaState(path)
    state.save(lender.meters.values(), at(0))
    state.close()
    length = struct.calcsize({1: "<16sqqQqqq", 2: "<16sqqQqqqq"}[version])
    data = path.read_bytes().removeprefix(HEADER)
    old = f"forebay-quota {version}\n".encode()
    for place in range(0, len(data), SLOT_BYTES):
        slot = data[place : place + length]
        old += slot + struct.pack("<I", crc32(slot))
    if damage == "a slot":
        old = old[:20] + b"?" + old[21:]
    elif damage == "the end":
        old = old[:-3]
    path.write_bytes(old)
    after = make_lender(DAY, FREE)
    state = QuotaState(path)
    state.restore(after.meters, at(1))
    lefts = after.meters["d"].left, after.meters["free"].left
    expected = {"": (700, 10**6), "a slot": (0, 10**6), "the end": (700, 0)}
    assert lefts == expected[damage]
    state.heal()
    assert path.read_bytes().startswith(HEADER)


def test_units_of_money_are_spelled_exactly() -> None:
    spelled = {0: "0", 5 * 10**12: "5000", 12_500_000: "0.0125", -(10**9): "-1", 1: "0.000000001"}
    assert {nano: spell_usd(nano) for nano in spelled} == spelled
