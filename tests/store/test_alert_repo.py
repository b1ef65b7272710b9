"""Alerts and their deliveries at rest: told once whoever tells, sent by one at a time, and never lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.gateway.alerts import DeliveryState, encode_cloud_event
from forebay.gateway.policy.alerting import AlertKind
from forebay.gateway.policy.lending import Standing
from forebay.gateway.repo_alerts import AlertRepo, make_limit_key
from forebay.gateway.repo_deliveries import Claim, DeliveryRepo, Result
from forebay.store.database import Database
from postgres_server import make_location, remove_location

NOVEMBER_NS = 1_793_491_200 * 10**9  # 2026-11-01 in UTC
AT_NS = NOVEMBER_NS + 10**15
SECOND = 10**9
AT_ONCE = 4  #: threads
ROUNDS = 8


@pytest.fixture
def databases(tmp_path: Path) -> Iterator[tuple[Database, Database]]:
    """One database as two control planes have it."""
    location = make_location(tmp_path)
    both = Database.open(location), Database.open(location)
    both[0].migrate()
    yield both
    for database in both:
        database.close()
    remove_location(location)


def stand(
    used: int, *, owner: str = "team a", amount: int = 100, measure: Measure = Measure.REQUESTS
) -> Standing:
    limit = Limit(
        id=f"{owner}/{measure}/month/calendar/{'x' * 5000}",  # longer than an index takes
        owner=owner,
        measure=measure,
        amount=amount,
        period=Period.MONTH,
        kind=Kind.CALENDAR,
        alert_at=(500, 800, 1000),
    )
    return Standing(limit, amount - used, 0, None, NOVEMBER_NS)


def to_both(kind: AlertKind, owner: str) -> tuple[str, ...]:
    return ("https://a/x", "env:HOOK", "https://a/x")


def to_nobody(kind: AlertKind, owner: str) -> tuple[str, ...]:
    return ()


def claim_all(repo: DeliveryRepo, webhook: str = "https://a/x", now_ns: int = AT_NS) -> tuple[Claim, ...]:
    return repo.claim(webhook, 100, now_ns, now_ns + 30 * SECOND)


def test_what_is_due_is_told_once_with_its_deliveries(databases: tuple[Database, Database]) -> None:
    repo, other = AlertRepo(databases[0]), AlertRepo(databases[1])
    standing = stand(85)
    (alert,), marks = repo.tell([(standing, AT_NS)], to_both)
    assert (alert.kind, alert.share, alert.owner, alert.at_ns) == (
        AlertKind.SHARE_REACHED,
        800,
        "team a",
        AT_NS,
    )
    place = (make_limit_key(standing.limit.id), NOVEMBER_NS)
    assert [mark.share for mark in marks[place]] == [800]
    again, known = other.tell([(standing, AT_NS)], to_both)
    assert (again, known) == ((), marks)
    (shown,) = other.load_page(limit=10)
    assert (shown.event_id, shown.id, shown.data) == (alert.event_id, alert.id, alert.data)
    assert [(each.webhook, each.state, each.attempts) for each in shown.deliveries] == [
        ("env:HOOK", DeliveryState.WAITING, 0),
        ("https://a/x", DeliveryState.WAITING, 0),
    ]
    assert alert.data == {
        "limit": standing.limit.id,
        "owner": "team a",
        "measure": "requests",
        "unit": "requests",
        "amount": "100",
        "used": "85",
        "used_share": 0.85,
        "share": 0.8,
        "shares_passed": [0.5],
        "per": "month",
        "time_zone": "UTC",
        "period_start": "2026-11-01T00:00:00Z",
        "period_end": "2026-12-01T00:00:00Z",
        "models": ["*"],
        "consequence": "refuse",
        "exceeded_at": None,
        "grace": None,
    }
    assert encode_cloud_event(shown, "/f") == encode_cloud_event(alert, "/f")


def test_money_is_told_as_a_decimal_of_usd(databases: tuple[Database, Database]) -> None:
    standing = stand(4_012_500_000_001, amount=5 * 10**12, measure=Measure.COST)
    (alert,), _ = AlertRepo(databases[0]).tell([(standing, AT_NS)], to_nobody)
    assert (alert.data["used"], alert.data["amount"], alert.data["unit"]) == ("4012.500000001", "5000", "usd")


def test_many_that_tell_the_same_at_once_tell_it_once(databases: tuple[Database, Database]) -> None:
    repos = [AlertRepo(database) for database in databases]
    together = Barrier(AT_ONCE)

    def tell(number: int) -> int:
        told = 0
        for step in range(ROUNDS):
            together.wait(60)
            standings = [(stand(50 + number, owner=f"team {step}/{each}"), AT_NS) for each in range(3)]
            told += len(repos[number % 2].tell(standings, to_both)[0])
        return told

    with ThreadPoolExecutor(AT_ONCE) as pool:
        told = sum(pool.map(tell, range(AT_ONCE)))
    assert told == 3 * ROUNDS
    found = repos[0].load_page(limit=1000)
    assert len({alert.owner for alert in found}) == len(found) == told
    assert all(len(alert.deliveries) == 2 for alert in found)


def test_another_period_and_a_raised_amount_are_told_of_anew(databases: tuple[Database, Database]) -> None:
    repo = AlertRepo(databases[0])
    next_month = Standing(stand(50).limit, 50, 0, None, NOVEMBER_NS + 30 * 86_400 * SECOND)
    for standing in (stand(100), stand(100, amount=200), stand(90, amount=100), next_month):
        repo.tell([(standing, AT_NS)], to_nobody)
    assert [alert.share for alert in repo.load_page(limit=9)] == [500, 500, 1000]


def test_pages_and_filters(databases: tuple[Database, Database]) -> None:
    repo, deliveries = AlertRepo(databases[0]), DeliveryRepo(databases[0])
    for number in range(5):
        repo.tell([(stand(50, owner=f"team {number % 2}", amount=100 - 20 * number), AT_NS)], to_both)
    whole = repo.load_page(limit=100)
    assert len(whole) == 5
    paged: list[object] = []
    before: int | None = None
    while page := repo.load_page(limit=2, before_id=before):
        paged += page
        before = page[-1].id
    assert paged == list(whole)
    assert {alert.owner for alert in repo.load_page(limit=9, owner="team 1")} == {"team 1"}
    assert repo.load_page(limit=9, kind=AlertKind.EXCEEDED) == ()
    assert len(repo.load_page(limit=9, kind=AlertKind.SHARE_REACHED)) == 5
    first = claim_all(deliveries)[0]
    deliveries.finish(first, Result(state=DeliveryState.FAILED, status=410, error="gone"), AT_NS)
    (failed,) = repo.load_page(limit=9, state=DeliveryState.FAILED)
    assert failed.id == first.alert.id


# --- deliveries ---------------------------------------------------------------------------------------------


def test_a_claim_is_ones_own_until_it_runs_out(databases: tuple[Database, Database]) -> None:
    AlertRepo(databases[0]).tell([(stand(50), AT_NS)], to_both)
    one, other = DeliveryRepo(databases[0]), DeliveryRepo(databases[1])
    assert one.count_due(AT_NS - 1) == {}
    assert one.count_due(AT_NS) == {"https://a/x": 1, "env:HOOK": 1}
    (claim,) = claim_all(one)
    assert claim.attempts == 1
    assert claim_all(other) == ()
    assert other.count_due(AT_NS) == {"env:HOOK": 1}
    later = AT_NS + 30 * SECOND
    (second,) = claim_all(other, now_ns=later)
    assert (second.attempts, second.alert.event_id) == (2, claim.alert.event_id)
    failed = Result(state=DeliveryState.WAITING, status=500, error="late", again_ns=later)
    assert not one.finish(claim, failed, later), "who comes too late decides nothing"
    assert claim_all(one, now_ns=later) == ()
    assert other.finish(second, Result(state=DeliveryState.DELIVERED, status=204), later)
    assert claim_all(one, now_ns=later + 10**15) == ()


def test_what_a_clock_that_ran_ahead_put_off_is_due_once_it_is_right(
    databases: tuple[Database, Database],
) -> None:
    AlertRepo(databases[0]).tell([(stand(50), AT_NS)], to_both)
    repo = DeliveryRepo(databases[0])
    (claim,) = claim_all(repo)
    month_ns = 30 * 86_400 * SECOND
    ahead = Result(state=DeliveryState.WAITING, status=500, error="e", again_ns=AT_NS + month_ns)
    assert repo.finish(claim, ahead, AT_NS + month_ns)
    assert repo.count_due(AT_NS)[claim.webhook] == 1
    assert claim_all(repo, now_ns=AT_NS)


def test_what_arrived_has_arrived_whoever_sent_it(databases: tuple[Database, Database]) -> None:
    AlertRepo(databases[0]).tell([(stand(50), AT_NS)], to_both)
    repo = DeliveryRepo(databases[0])
    (claim,) = claim_all(repo)
    (second,) = claim_all(repo, now_ns=AT_NS + 30 * SECOND)
    assert repo.finish(claim, Result(state=DeliveryState.DELIVERED, status=200), AT_NS)
    assert not repo.finish(second, Result(state=DeliveryState.FAILED, status=500), AT_NS)
    shown = AlertRepo(databases[0]).load_page(limit=1)[0].deliveries[1]
    assert (shown.state, shown.status, shown.ended_ns) == (DeliveryState.DELIVERED, 200, AT_NS)


def test_a_failed_try_is_due_again_when_it_says(databases: tuple[Database, Database]) -> None:
    AlertRepo(databases[0]).tell([(stand(50), AT_NS)], to_both)
    repo = DeliveryRepo(databases[0])
    (claim,) = claim_all(repo)
    again_ns = AT_NS + 2 * SECOND
    repo.finish(
        claim, Result(state=DeliveryState.WAITING, status=503, error="e" * 5000, again_ns=again_ns), AT_NS
    )
    assert claim_all(repo, now_ns=again_ns - 1) == ()
    (second,) = claim_all(repo, now_ns=again_ns)
    assert second.attempts == 2
    shown = AlertRepo(databases[0]).load_page(limit=1)[0].deliveries[1]
    assert (shown.state, shown.status, shown.error) == (DeliveryState.WAITING, 503, "e" * 1000)


def test_two_that_claim_at_once_share_what_is_due(databases: tuple[Database, Database]) -> None:
    count = 40
    standings = [(stand(50, owner=f"team {number}"), AT_NS) for number in range(count)]
    AlertRepo(databases[0]).tell(standings, to_both)
    repos = [DeliveryRepo(database) for database in databases]

    together = Barrier(AT_ONCE)

    def claim(number: int) -> list[int]:
        found: list[int] = []
        for _ in range(count // 4):
            together.wait(60)
            claims = repos[number % 2].claim("https://a/x", 4, AT_NS, AT_NS + 1)
            found += [each.alert.id for each in claims]
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        claimed = [alert_id for ids in pool.map(claim, range(AT_ONCE)) for alert_id in ids]
    assert len(claimed) == len(set(claimed)) == count


def test_what_waits_for_a_webhook_that_is_gone_is_given_up_after_days(
    databases: tuple[Database, Database],
) -> None:
    alerts, repo = AlertRepo(databases[0]), DeliveryRepo(databases[0])
    alerts.tell([(stand(50), AT_NS)], to_both)
    assert repo.expire(AT_NS, ["https://a/x"], "gone", AT_NS + 1) == 0
    assert repo.expire(AT_NS + 1, ["https://a/x"], "gone", AT_NS + 1) == 1
    states = {each.webhook: (each.state, each.error) for each in alerts.load_page(limit=1)[0].deliveries}
    assert states == {
        "env:HOOK": (DeliveryState.FAILED, "gone"),
        "https://a/x": (DeliveryState.WAITING, ""),
    }


def test_old_alerts_are_removed_but_none_that_is_on_its_way(databases: tuple[Database, Database]) -> None:
    alerts, repo = AlertRepo(databases[0]), DeliveryRepo(databases[0])
    alerts.tell([(stand(50, owner="team waits"), AT_NS)], to_both)
    alerts.tell([(stand(50, owner="team done"), AT_NS)], lambda kind, owner: ["https://b"])
    (claim,) = repo.claim("https://b", 9, AT_NS, AT_NS + 1)
    assert repo.finish(claim, Result(state=DeliveryState.DELIVERED, status=200), AT_NS)
    alerts.tell([(stand(50, owner="team young"), AT_NS + 10)], to_nobody)
    assert alerts.prune(AT_NS + 1) == 1
    assert alerts.prune(AT_NS + 1) == 0
    assert [alert.owner for alert in alerts.load_page(limit=9)] == ["team young", "team waits"]
