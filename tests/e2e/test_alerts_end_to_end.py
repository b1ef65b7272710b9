"""A small limit on a whole Forebay: callers use it up, and the webhook hears of each share and of the end."""

import json
import time
from pathlib import Path

import httpx
from whole import Whole, await_period, running, wait_until

from forebay.testing.answers import answer
from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream

TOLD_S = 60.0


def ask(whole: Whole, count: int) -> list[int]:
    """The statuses of so many requests."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"authorization": f"Bearer {whole.key}"}
    statuses: list[int] = []
    with httpx.Client(timeout=60, headers=headers) as client:
        while len(statuses) < count:
            status = client.post(f"{whole.url}/chat/completions", json=body).status_code
            if status == 503:  # nobody can say at the moment whether there is room: the machine is busy
                time.sleep(0.1)
            else:
                statuses.append(status)
    return statuses


def test_a_webhook_hears_of_each_share_that_callers_use(tmp_path: Path) -> None:
    await_period()
    (tmp_path / "hook.secret").write_text("whsec_" + "c2VjcmV0" * 5)
    with ThreadedUpstream(well_behaved("Hello")) as upstream, ThreadedUpstream(answer(status=204)) as hook:
        yaml = f"""
gateway: {{port: 0, workers: 2}}
control: {{port: 0}}
models: {{m: {{endpoints: [chat/completions], targets: [{{url: '{upstream.url}'}}]}}}}
limits:
  when_away: closed
  rules:
    - {{team: default, requests: 20, per: month, window: calendar, alert_at: [0.5, 1.0]}}
alerts:
  source: /test
  webhooks:
    - {{url: '{hook.origin}/hook', secret: 'file:hook.secret', owners: [team d*]}}
    - {{url: '{hook.origin}/other', secret: 'file:hook.secret', owners: [team x]}}
"""
        with running(tmp_path, yaml) as whole:
            assert ask(whole, 9) == [200] * 9
            time.sleep(3)  # long enough for an alert that must not come
            assert hook.requests == []
            assert ask(whole, 3) == [200] * 3
            wait_for(hook, 1)
            assert set(ask(whole, 12)) == {200, 429}
            wait_for(hook, 3)
            events = [request.json() for request in hook.requests]
            assert [event["type"] for event in events[:1]] == ["forebay.limit.share_reached.v1"]
            assert {event["source"] for event in events} == {"/test"}
            assert sorted((event["type"].split(".")[2], event["data"]["share"] or 0) for event in events) == [
                ("exceeded", 0),
                ("share_reached", 0.5),
                ("share_reached", 1.0),
            ]
            assert events[0]["data"]["used"] in ("10", "11", "12"), "as it was when somebody looked"
            assert {request.path for request in hook.requests} == {"/hook"}

            shown = json.loads(whole.command("alerts", "list", "--json").stdout)
            assert {alert["event_id"] for alert in shown} == {event["id"] for event in events}
            table = whole.command("alerts", "list").stdout
            assert "50% reached" in table
            assert "exceeded" in table
            assert "1 delivered" in table
            tested = whole.command("alerts", "test")
            assert tested.returncode == 0, tested.stderr
            assert tested.stdout.count("204") == 2
            log = (whole.data / "logs" / "control.log").read_text()
            assert "share_reached: team default has used 12 of 20 requests a month" in log
            assert "c2VjcmV0" not in log


def wait_for(hook: ThreadedUpstream, count: int) -> None:
    wait_until(lambda: len(hook.requests) >= count, TOLD_S, f"{count} events")
