"""An identity provider's tokens at the whole admin API, beside our own."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from control_scene import TOKEN, LiveControl, Scene
from oidc_issuer import AUDIENCE, Issuer
from oidc_scene import EC, OTHER_RSA, ROLES, RSA

from forebay.app.oidc_keys import RETRY_S


def call(scene: Scene, method: str, path: str, token: str = TOKEN, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=scene.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
            headers = {"authorization": f"Bearer {token}"}
            return await client.request(method, f"/admin/v1{path}", headers=headers, **options)

    return asyncio.run(send())


def make_scene(folder: Path, issuer: Issuer) -> Scene:
    oidc = {"issuer": issuer.url, "audience": AUDIENCE, "roles_claim": "groups", "roles": ROLES}
    scene = Scene(folder, f"control: {json.dumps({'oidc': oidc})}\n")
    scene.refresh()
    return scene


def test_its_holders_act_in_their_roles_beside_those_of_our_own_tokens(
    tmp_path: Path, issuer: Issuer
) -> None:
    scene = make_scene(tmp_path, issuer)
    subject = "8f14e45f-ceea-467f-a9e1-2b0b6e7c7d11"
    claims = {"sub": subject, "preferred_username": "ada"}
    operator = issuer.make_token(RSA, "RS256", "rsa-1", groups=["deployers"], **claims)
    viewer = issuer.make_token(EC, "ES256", "ec-1", groups=["readers"])
    nobody = issuer.make_token(EC, "ES256", "ec-1", groups=["x"])
    made = call(scene, "POST", "/keys", operator, json={"name": "k"})
    assert made.status_code == 201
    assert call(scene, "GET", "/keys", viewer).status_code == 200
    refused = call(scene, "POST", "/keys", viewer, json={"name": "k"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "role_too_low")
    assert call(scene, "GET", "/tokens", operator).status_code == 403
    assert call(scene, "GET", "/keys", nobody).status_code == 403
    expired = issuer.make_token(RSA, "RS256", "rsa-1", groups=["admins"], exp=1)
    answer = call(scene, "GET", "/keys", expired)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "expired" in answer.json()["error"]["message"]
    own = call(scene, "POST", "/tokens", json={"name": "bot", "role": "viewer"}).json()["token"]
    assert call(scene, "GET", "/keys", own).status_code == 200
    events = call(scene, "GET", "/audit").json()["data"]
    assert [event["actor"] for event in events if event["action"] == "key.create"] == [
        {"id": f"oidc:{subject}", "name": "ada", "issuer": issuer.url}
    ]
    assert [event["actor"]["issuer"] for event in events if event["action"] == "token.create"] == [None]
    scene.close()


def test_a_provider_that_is_down_leaves_our_own_tokens_alone(tmp_path: Path, issuer: Issuer) -> None:
    scene = make_scene(tmp_path, issuer)
    issuer.stop()
    answer = call(scene, "GET", "/keys", issuer.make_token(RSA, "RS256", "rsa-1", groups=["admins"]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "issuer_unavailable")
    assert answer.headers["retry-after"] == str(round(RETRY_S))
    assert call(scene, "GET", "/keys").status_code == 200
    scene.close()


def test_where_none_is_configured_its_tokens_open_nothing(tmp_path: Path, issuer: Issuer) -> None:
    scene = Scene(tmp_path)
    token = issuer.make_token(RSA, "RS256", "rsa-1", roles=["admins"])
    assert call(scene, "GET", "/status", token).status_code == 401
    assert issuer.asked == []
    scene.close()


def test_a_running_control_plane_takes_tokens_from_an_edit_on_and_logs_none(
    tmp_path: Path, issuer: Issuer
) -> None:
    live = LiveControl(tmp_path, "version: 1\n")
    try:
        token = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"], note="x" * 5000)
        url, headers = f"{live.url}/admin/v1/teams", {"authorization": f"Bearer {token}"}
        assert httpx.get(url, headers=headers, timeout=30).status_code == 401
        oidc = {"issuer": issuer.url, "audience": AUDIENCE, "roles": ROLES}
        live.file.write_text(f"control: {json.dumps({'oidc': oidc})}\n")
        live.wait_for(lambda: httpx.get(url, headers=headers, timeout=30).status_code == 200, 30)
        assert live.status()["config"]["restart_needed"] == []
        issuer.stop()
        unknown = issuer.make_token(OTHER_RSA, "RS256", "rsa-2", roles=["readers"])
        answer = httpx.get(url, headers={"authorization": f"Bearer {unknown}"}, timeout=30)
        assert answer.status_code in (401, 503), "503 once it may be asked again"
        assert httpx.get(url, headers=headers, timeout=30).status_code == 200
        for part in (token, unknown):
            assert part.split(".")[2] not in live.log.read_text()
    finally:
        live.close()
