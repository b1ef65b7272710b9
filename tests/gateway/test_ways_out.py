"""A worker in front of targets that are reached through a proxy, or that want a certificate."""

import ssl
from pathlib import Path
from typing import Any

import httpx
import msgspec
import trustme

from forebay.core.routes import Route, Timeouts
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_route
from forebay.testing.openai import well_behaved
from forebay.testing.proxy import TunnelProxy
from forebay.testing.threaded import ThreadedUpstream
from forebay.testing.upstream import UpstreamSettings

BASIC = "Basic dXNlcjphLWNhbmFyeQ=="
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def change(route: Route, **changes: Any) -> Route:
    targets = tuple(msgspec.structs.replace(each, **changes) for each in route.targets)
    return msgspec.structs.replace(route, targets=targets)


def ask(worker: GatewayProcess, model: str = "m") -> httpx.Response:
    headers = {"authorization": f"Bearer {TEST_KEY}"}
    return httpx.post(f"{worker.url}/chat/completions", json=ASK | {"model": model}, headers=headers)


def test_a_target_behind_a_proxy_answers_and_the_proxy_s_credentials_stay_with_it(tmp_path: Path) -> None:
    """Over TLS from end to end, with the certificate that the target wants."""
    ca, clients = trustme.CA(), trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(tls)
    clients.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    cert = tmp_path / "cert.pem"
    clients.issue_cert("gateway.example").private_key_and_cert_chain_pem.write_to_path(str(cert))
    (tmp_path / "secret").write_text("user:a-canary\n")
    with (
        ThreadedUpstream(well_behaved("Hello"), UpstreamSettings(tls=tls)) as upstream,
        TunnelProxy(authorization=BASIC) as proxy,
    ):
        way = {
            "proxy": proxy.url,
            "proxy_credentials": f"file:{tmp_path}/secret",
            "tls_ca": str(tmp_path / "ca.pem"),
            "tls_cert": str(cert),
        }
        route = change(make_route("m", f"https://localhost:{upstream.port}/v1"), **way)
        (tmp_path / "wrong").write_text("user:other-canary")
        refused = change(route, id="refused", proxy_credentials=f"file:{tmp_path}/wrong")
        refused = msgspec.structs.replace(refused, model="refused")
        with GatewayProcess([route, refused], folder=tmp_path / "gateway") as worker:
            answer = ask(worker)
            assert answer.json()["choices"][0]["message"]["content"] == "Hello"
            assert upstream.requests[0].header("proxy-authorization") is None
            assert f"CONNECT localhost:{upstream.port} ".encode() in proxy.heads[0]
            again = ask(worker, "refused")
            assert (again.status_code, again.json()["error"]["code"]) == (503, "upstream_unreachable")
            assert "set `proxy_credentials`" in worker.log
            told = f"{again.text} {again.headers} {worker.log} {worker.records}"
            assert "canary" not in told
            assert BASIC[6:] not in told


HANGS = """
import time
from forebay.net.dialing import Dialer
async def hang(self):
    await self._loop.run_in_executor(None, time.sleep, 60)
Dialer._look_up = hang
"""


def test_a_resolver_that_hangs_does_not_keep_a_worker_from_its_end(tmp_path: Path) -> None:
    """Nothing can take its thread from it."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    route = make_route("m", "http://nowhere.example/v1", timeouts=Timeouts(connect_s=0.2))
    environment = {"PYTHONPATH": str(tmp_path)}
    with GatewayProcess([route], folder=tmp_path / "gateway", environment=environment) as worker:
        answer = ask(worker)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_connect_timeout")
        worker.terminate()
        assert worker.wait() == 0
        (record,) = worker.records()
        assert record.error == "upstream_connect_timeout"


def test_a_target_whose_way_is_of_no_use_says_so_and_another_answers(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        first, second = make_route("m", "https://localhost:1/v1", upstream.url).targets
        bad = [
            msgspec.structs.replace(first, tls_cert=str(tmp_path / "cert.pem")),
            msgspec.structs.replace(first, proxy="http://127.0.0.1:1", proxy_credentials="env:NOT_THERE"),
            msgspec.structs.replace(first, proxy="http://127.0.0.1:1"),
        ]
        for number, each in enumerate(bad):
            route = make_route("m", upstream.url)
            with GatewayProcess(
                [
                    msgspec.structs.replace(route, targets=(each, second)),
                    msgspec.structs.replace(route, model="alone", targets=(each,)),
                ],
                folder=tmp_path / f"gateway-{number}",
            ) as worker:
                assert ask(worker).headers["x-forebay-attempts"] == "2"
                alone = ask(worker, "alone")
                assert alone.status_code == (503, 502, 503)[number]
                assert first.id in alone.json()["error"]["message"]
                assert ("through the proxy 127.0.0.1:1: Connection refused" in worker.log) == (number == 2)
