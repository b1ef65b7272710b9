"""A control plane that is killed between an alert and its arrival: the next one delivers it."""

import asyncio
from pathlib import Path

from alert_scene import LIMIT_ID, make_yaml
from borrower import Borrower
from control_scene import LiveControl

from forebay.testing.answers import answer
from forebay.testing.threaded import ThreadedUpstream, find_closed_port
from forebay.testing.upstream import UpstreamSettings

LIMIT_S = 60


def spend(control: LiveControl, units: int) -> None:
    async def borrow() -> None:
        borrower = Borrower(control.data / "run" / "quota.sock", LIMIT_ID)
        await borrower.connect()
        assert await borrower.spend(units)
        borrower.give_all_back()
        await asyncio.sleep(0)
        borrower.close()

    asyncio.run(borrow())


def test_an_alert_outlives_its_receiver_and_its_control_plane(tmp_path: Path) -> None:
    port = find_closed_port()
    control = LiveControl(tmp_path, make_yaml(tmp_path, f"http://127.0.0.1:{port}/hook"))
    try:

        def list_alerts() -> list[dict[str, object]]:
            found: list[dict[str, object]] = control.get("/admin/v1/alerts").json()["data"]
            return found

        def delivery() -> dict[str, object]:
            (alert,) = list_alerts()
            (found,) = alert["deliveries"]  # type: ignore[misc]
            return found  # type: ignore[no-any-return]

        spend(control, 55)
        control.wait_for(lambda: bool(list_alerts()) and int(str(delivery()["attempts"])) > 0, LIMIT_S)
        assert delivery()["state"] == "waiting"
        control.process.kill()
        control.process.wait()
        with ThreadedUpstream(answer(status=204), UpstreamSettings(port=port)) as receiver:
            control.start()
            control.wait_for(lambda: delivery()["state"] == "delivered", LIMIT_S)
            spend(control, 30)
            control.wait_for(lambda: len(list_alerts()) == 2, LIMIT_S)
            receiver.wait_requests(2, LIMIT_S)
            shares = [request.json()["data"]["share"] for request in receiver.requests]
            assert shares == [0.5, 0.8]
            ids = [request.header("webhook-id") for request in receiver.requests]
        assert ids == [alert["event_id"] for alert in reversed(list_alerts())]
        secret = (tmp_path / "hook.secret").read_text().strip()
        assert secret not in control.log.read_text()
        assert secret.encode() not in (control.data / "forebay.db").read_bytes()
    finally:
        control.close()
