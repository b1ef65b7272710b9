"""The way of an alert to its webhooks: tried until it has arrived, by one at a time, none behind another."""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from alert_scene import AlertScene, hurry, make_yaml, run, until
from control_scene import AUTH
from fastapi.testclient import TestClient
from webhook_rig import is_signed

from forebay.app import webhook_sender
from forebay.app.alert_setup import AlertParts
from forebay.app.config_alerts import AlertsConfig
from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.gateway.alerts import DeliveryState
from forebay.gateway.policy.lending import Standing
from forebay.testing.answers import answer, json_answer
from forebay.testing.steps import Stall
from forebay.testing.threaded import ThreadedUpstream
from forebay.testing.upstream import ScriptedUpstream

OK = answer(status=204)


def make_scene(folder: Path, *urls: str) -> AlertScene:
    return AlertScene(folder, make_yaml(folder, *urls))


def tell(scene: AlertScene, count: int, config: AlertsConfig | None = None) -> None:
    """So many alerts of as many owners."""
    now_ns = scene.clock.wall_ns()
    standings = [
        Standing(
            Limit(
                id=f"team:t{number}",
                owner=f"team t{number}",
                measure=Measure.REQUESTS,
                amount=10,
                period=Period.MONTH,
                kind=Kind.CALENDAR,
                alert_at=(500,),
            ),
            5,
            0,
            None,
            1_793_491_200 * 10**9,
        )
        for number in range(count)
    ]
    choose = (config or scene.watch.config.alerts).choose_webhooks
    scene.repos.alerts.tell([(standing, now_ns) for standing in standings], choose)


def states(scene: AlertScene) -> Counter[DeliveryState]:
    return Counter(each.state for alert in scene.told() for each in alert.deliveries)


async def stop(*loops: asyncio.Task[None]) -> None:
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


def test_an_alert_arrives_though_its_receiver_fails_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)

    async def scenario() -> None:
        async with ScriptedUpstream(OK) as receiver:
            scene = make_scene(tmp_path, receiver.origin + "/hook")
            receiver.enqueue(json_answer({}, status=500), answer(status=302), json_answer({}, status=404))
            async with scene.working() as worker:
                loops = asyncio.create_task(scene.alerts.run())
                assert await worker.spend(82)
                worker.give_all_back()
                await until(lambda: states(scene) == {DeliveryState.DELIVERED: 1}, "delivered")
                await stop(loops)
            (alert,) = scene.told()
            assert [request.header("webhook-id") for request in receiver.requests] == [alert.event_id] * 4
            event = receiver.requests[-1].json()
            assert event == {
                "specversion": "1.0",
                "id": alert.event_id,
                "source": "/forebay",
                "type": "forebay.limit.share_reached.v1",
                "subject": "team default",
                "time": event["time"],
                "datacontenttype": "application/json",
                "data": alert.data,
            }
            assert all(is_signed(each, tmp_path / "hook.secret", time.time()) for each in receiver.requests)
            assert len({bytes(each.body) for each in receiver.requests}) == 1
            assert (alert.deliveries[0].attempts, alert.deliveries[0].status) == (4, 204)
            scene.close()

    run(scenario)


def test_a_receiver_that_stalls_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)

    async def scenario() -> None:
        async with ScriptedUpstream([Stall()]) as slow, ScriptedUpstream(OK) as quick:
            scene = make_scene(tmp_path, slow.origin + "/slow", quick.origin + "/quick")
            tell(scene, 20)
            loops = asyncio.create_task(scene.alerts.run())
            await until(lambda: states(scene)[DeliveryState.DELIVERED] == 20, "all are with the quick one")
            assert len(slow.requests) == 4, "no more are in flight"
            assert len(quick.requests) == 20
            await stop(loops)
            scene.close()

    run(scenario)


def test_a_file_that_hangs_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one on a file system that is away: nobody can end the wait for it."""
    hurry(monkeypatch)
    monkeypatch.setattr(webhook_sender, "TOTAL_S", 0.2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def scenario() -> None:
        async with ScriptedUpstream(OK) as receiver:
            scene = make_scene(tmp_path, receiver.origin + "/quick")
            quick = scene.watch.config.alerts.webhooks[0]
            hung = quick.model_copy(update={"url": receiver.origin + "/hung", "secret": f"file:{pipe}"})
            config = AlertsConfig(webhooks=(hung, quick))
            parts = AlertParts(scene.quota, scene.database, lambda: config, scene.clock)
            tell(scene, 8, config)
            loops = asyncio.create_task(parts.run())
            await until(lambda: states(scene)[DeliveryState.DELIVERED] == 8, "all are with the quick one")
            shown = scene.told()[0].deliveries[0]
            await until(lambda: scene.told()[0].deliveries[0].attempts > 1, "the other is tried again")
            assert (shown.webhook, shown.state) == (hung.url, DeliveryState.WAITING)
            await asyncio.wait_for(asyncio.to_thread(lambda: None), 30)
            await stop(loops)
            os.close(os.open(pipe, os.O_RDWR))  # lets go whoever waits for a writer
            scene.close()

    run(scenario)


def test_a_receiver_that_is_gone_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)

    async def scenario() -> None:
        async with ScriptedUpstream(json_answer("gone", status=410)) as receiver:
            scene = make_scene(tmp_path, receiver.origin)
            tell(scene, 1)
            loops = asyncio.create_task(scene.alerts.run())
            await until(lambda: states(scene) == {DeliveryState.FAILED: 1}, "given up")
            await stop(loops)
            assert scene.told()[0].deliveries[0].error == 'answered 410: "gone"'
            assert len(receiver.requests) == 1
            scene.close()

    run(scenario)


def test_two_control_planes_send_each_event_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)

    async def scenario() -> None:
        async with ScriptedUpstream(OK) as receiver:
            scene = make_scene(tmp_path, receiver.origin)
            tell(scene, 40)
            parts = [
                AlertParts(scene.quota, scene.database, lambda: scene.watch.config.alerts, scene.clock)
                for _ in range(2)
            ]
            loops = [asyncio.create_task(each.run()) for each in parts]
            await until(lambda: states(scene) == {DeliveryState.DELIVERED: 40}, "all delivered")
            await stop(*loops)
            ids = Counter(request.header("webhook-id") for request in receiver.requests)
            assert len(ids) == 40
            assert set(ids.values()) == {1}
            scene.close()

    run(scenario)


def test_what_was_in_flight_when_its_sender_ended_is_sent_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, claim_s=0.5)

    async def scenario() -> None:
        async with ScriptedUpstream(OK) as receiver:
            scene = make_scene(tmp_path, receiver.origin)
            receiver.enqueue([Stall()])
            tell(scene, 1)
            loops = asyncio.create_task(scene.alerts.run())
            await receiver.wait_requests(1, 30)
            await stop(loops)
            assert states(scene) == {DeliveryState.WAITING: 1}
            fresh = AlertParts(scene.quota, scene.database, lambda: scene.watch.config.alerts, scene.clock)
            loops = asyncio.create_task(fresh.run())
            await until(lambda: states(scene) == {DeliveryState.DELIVERED: 1}, "delivered")
            await stop(loops)
            first, second = receiver.requests
            assert first.header("webhook-id") == second.header("webhook-id")
            scene.close()

    run(scenario)


def test_a_test_shows_what_came_back_and_no_secret(tmp_path: Path) -> None:
    with ThreadedUpstream({"/good": OK, "/bad": json_answer({"why": "signature"}, status=401)}) as receiver:
        scene = make_scene(tmp_path, receiver.origin + "/good", receiver.origin + "/bad")
        client = TestClient(scene.app, headers=AUTH)
        shown = client.post("/admin/v1/alerts/test")
        assert shown.status_code == 200, shown.text
        good, bad = shown.json()["data"]
        assert (good["webhook"], good["status"], good["error"]) == (receiver.origin + "/good", 204, None)
        assert (bad["status"], bad["error"]) == (401, 'answered 401: {"why":"signature"}')
        events = [request.json() for request in receiver.requests]
        assert {event["type"] for event in events} == {"forebay.test.v1"}
        assert all(is_signed(request, tmp_path / "hook.secret", time.time()) for request in receiver.requests)
        secret = (tmp_path / "hook.secret").read_text().strip()
        for path in ("/alerts", "/config"):
            assert secret not in client.get(f"/admin/v1{path}").text
        assert secret not in shown.text
        assert scene.told() == []
        scene.close()
