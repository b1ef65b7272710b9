"""No credential crosses the gateway in either direction, and none is ever written down."""

import base64
import ssl
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trustme
from gateway_stage import NARROW_KEY, UPSTREAM_SECRET, Stage

from forebay.core.routes import Endpoint, Route
from forebay.testing.answers import answer, chunk, json_answer, redirect, sse_answer, sse_head
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_key, make_route
from forebay.testing.openai import DONE, chat_chunk, error, error_answer, event, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Close, Reset, Script, Send, Sleep
from forebay.testing.threaded import ThreadedUpstream
from forebay.testing.upstream import UpstreamSettings

ASK: dict[str, Any] = {"model": "secret", "messages": []}
JSON = [("content-type", "application/json")]
#: Every header in which some client or proxy sends a key.
CARRIERS = [
    "x-api-key", "api-key", "x-goog-api-key", "x-auth-token", "proxy-authorization", "cookie", "referer",
    "x-amz-security-token", "x-forwarded-authorization", "authorization-info", "x-custom", "user-agent",
    "openai-organization", "traceparent-key", "from", "x-stainless-helper",
]  # fmt: skip


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_gateways_key_never_reaches_a_target(
    client: httpx.Client, upstream: Stage, path: str, stream: bool
) -> None:
    headers = dict.fromkeys(CARRIERS, f"k={TEST_KEY}")
    answer = client.post(
        f"/{path}?api_key={TEST_KEY}", json=ASK | {"input": "x", "stream": stream}, headers=headers
    )
    assert answer.status_code == 200
    seen = upstream.request
    assert TEST_KEY not in f"{seen.target} {seen.headers}"
    assert TEST_KEY.encode() not in seen.body
    assert seen.header("authorization") == f"Bearer {UPSTREAM_SECRET}"
    assert [name.lower() for name, _ in seen.headers].count("authorization") == 1


def test_a_target_without_credentials_gets_none(client: httpx.Client, upstream: Stage) -> None:
    client.post("/chat/completions", json=ASK | {"model": "m"})
    assert upstream.request.header("authorization") is None


def test_a_caller_cannot_set_what_a_target_trusts(client: httpx.Client, upstream: Stage) -> None:
    forged = {
        "host": "metadata.internal",
        "x-request-id": "forged",
        "connection": "x-request-id, authorization",
    }
    client.post("/chat/completions", json=ASK, headers=forged)
    seen = upstream.request
    assert seen.header("host") == f"127.0.0.1:{upstream.upstream.port}"
    assert seen.header("x-request-id") != "forged"
    assert seen.header("connection") is None
    assert seen.header("authorization") == f"Bearer {UPSTREAM_SECRET}"


# --- what a target repeats ----------------------------------------------------------------------------------


def echo_error(status: int) -> Any:
    """A debugging server: its error tells the headers that it got."""

    def handle(request: RecordedRequest) -> Script:
        return json_answer(error(f"no luck with {dict(request.headers)}"), status=status)

    return handle


def echo_text(request: RecordedRequest) -> Script:
    return answer(
        f"<pre>{request.headers}</pre>".encode(), status=500, headers=[("content-type", "text/html")]
    )


def echo_page(request: RecordedRequest) -> Script:
    return answer(f"<pre>{request.headers}</pre>".encode(), headers=[("content-type", "text/html")])


def echo_headers(request: RecordedRequest) -> Script:
    secret = request.header("authorization") or ""
    headers = [(name, secret) for name in ("authorization", "x-debug", "set-cookie", "www-authenticate")]
    return json_answer(error("no"), status=400, headers=headers)


def echo_redirect(request: RecordedRequest) -> Script:
    return redirect(f"http://127.0.0.1:9/?token={request.header('authorization')}")


def echo_early(request: RecordedRequest) -> Script:
    return sse_answer([event(error(f"bad key {request.header('authorization')}")), DONE])


def echo_retry_after(request: RecordedRequest) -> Script:
    return json_answer(
        error("no"), status=429, headers=[("retry-after", request.header("authorization") or "")]
    )


ECHOES = {
    **{f"an error of {status}": echo_error(status) for status in (400, 401, 403, 404, 422, 429, 500, 503)},
    "text": echo_text,
    "headers": echo_headers,
    "a redirect": echo_redirect,
    "the first event": echo_early,
    "the time to wait": echo_retry_after,
}


@pytest.mark.parametrize("name", ECHOES)
@pytest.mark.parametrize("stream", [False, True])
def test_credentials_that_a_target_repeats_do_not_reach_the_caller(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, name: str, stream: bool
) -> None:
    upstream.answer = ECHOES[name]
    answer = client.post("/chat/completions", json=ASK | {"stream": stream})
    assert answer.status_code >= (200 if name == "the first event" and not stream else 400)
    assert UPSTREAM_SECRET not in answer.text
    assert UPSTREAM_SECRET not in str(answer.headers)
    assert UPSTREAM_SECRET not in str(gateway.wait_record(answer.headers["x-request-id"]))


def test_nor_do_those_in_a_page_that_is_no_error(client: httpx.Client, upstream: Stage) -> None:
    upstream.answer = echo_page
    answer = client.post("/chat/completions", json=ASK)
    assert "[redacted]" in answer.text
    assert UPSTREAM_SECRET not in answer.text


def test_nor_do_those_in_an_error_in_mid_stream(client: httpx.Client, upstream: Stage) -> None:
    content = event(chat_chunk({"content": "Hel"}))

    def handle(request: RecordedRequest) -> Script:
        leak = event(error(f"bad key {request.header('authorization')}"))
        return [*sse_head(), chunk(content), Sleep(0.05), chunk(leak + DONE), Send(b"0\r\n\r\n")]

    for asked in ({}, {"stream_options": {"include_usage": True}}):
        upstream.answer = handle
        answer = client.post("/chat/completions", json=ASK | {"stream": True} | asked)
        assert answer.content.startswith(content)
        assert b"bad key" in answer.content
        assert UPSTREAM_SECRET not in answer.text


def test_credentials_are_not_sent_to_where_a_target_points(
    client: httpx.Client, upstream: Stage, fallback: Stage
) -> None:
    for status in (301, 302, 303, 307, 308):
        upstream.answer = redirect(fallback.url + "/chat/completions", status)
        assert client.post("/chat/completions", json=ASK).status_code == 502
    assert not fallback.requests


# --- what is written down -----------------------------------------------------------------------------------

CANARIES = [TEST_KEY, NARROW_KEY, UPSTREAM_SECRET, "fb-wrong-canary-key", "sk-canary-of-the-caller"]


def written_by(gateway: GatewayProcess) -> dict[str, bytes]:
    """Every byte that the worker has left on disk or tells on its metrics page."""
    files = {str(path): path.read_bytes() for path in gateway.folder.rglob("*") if path.is_file()}
    return files | {"/metrics": gateway.get("/metrics")[1]}


def test_no_secret_is_written_down(tmp_path: Path, upstream: Stage) -> None:
    """Each way to go wrong, each with a secret in its hands; then everything on disk is searched."""
    folder = tmp_path / "data"
    (tmp_path / "bad-secret").write_text("sk-canary-upstream-0123456789\x01")
    routes = [
        make_route("secret", upstream.url, api_key="env:TEST_UPSTREAM_SECRET"),
        make_route("odd", upstream.url, api_key=f"file:{tmp_path / 'bad-secret'}"),
        make_route("userinfo", upstream.url.replace("http://", f"http://user:{UPSTREAM_SECRET}@")),
    ]
    process = GatewayProcess(
        routes,
        folder=folder,
        keys=[make_key(), make_key(NARROW_KEY, id="narrow", models=["m"])],
        environment={"TEST_UPSTREAM_SECRET": UPSTREAM_SECRET},
    )
    with process, httpx.Client(base_url=process.url, verify=False) as client:
        said = []
        for key in (TEST_KEY, NARROW_KEY, "fb-wrong-canary-key"):
            headers = {"authorization": f"Bearer {key}", "x-api-key": "sk-canary-of-the-caller"}
            for script in (
                [Reset()],
                [Close()],
                echo_error(500),
                echo_text,
                echo_early,
                [Send(b"boom\r\n\r\n")],
            ):
                upstream.next.append(script)
                for body in (
                    ASK | {"stream": True},
                    ASK | {"model": "odd"},
                    ASK | {"model": "userinfo"},
                    ASK | {"model": key},
                ):
                    said.append(client.post("/chat/completions", json=body, headers=headers).text)
            said.append(client.post("/chat/completions", content=key.encode(), headers=headers).text)
            said.append(client.get(f"/models/{key}?key={key}", headers=headers).text)
            said.append(client.get(f"/nothing?key={key}", headers=headers).text)
        process.write_snapshot(b"no snapshot")
        process.until(lambda: "of no use" in process.log)
        written = written_by(process)
        process.terminate()
        process.wait()
    written |= {"the log": process.log.encode()}
    assert any("seg" in name for name in written)
    for canary in CANARIES:
        encoded = base64.b64encode(canary.encode()).rstrip(b"=")[:-1]
        for name, data in written.items():
            if name.endswith("snapshot.msgpack"):
                continue
            assert canary.encode() not in data, name
            assert encoded not in data, name
    assert not any(UPSTREAM_SECRET in text for text in said)
    snapshot = next(data for name, data in written.items() if name.endswith("snapshot.msgpack"))
    assert TEST_KEY.encode() not in snapshot


def test_a_snapshot_holds_digests_and_references_alone(gateway: GatewayProcess) -> None:
    data = (gateway.run_dir / "snapshot.msgpack").read_bytes()
    for canary in CANARIES:
        assert canary.encode() not in data


def test_tls_targets_are_verified(tmp_path: Path) -> None:
    """A target with a certificate of an unknown authority gets no request, and no credentials."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    pem = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(pem))
    with ThreadedUpstream(well_behaved("Hello"), UpstreamSettings(tls=context)) as target:
        trusted = make_route("trusted", target.url, api_key="env:TEST_UPSTREAM_SECRET")
        known = trusted.targets[0]
        trusted = msgspec.structs.replace(trusted, targets=(msgspec.structs.replace(known, tls_ca=str(pem)),))
        unknown = make_route("unknown", target.url, api_key="env:TEST_UPSTREAM_SECRET")
        secret = {"TEST_UPSTREAM_SECRET": UPSTREAM_SECRET}
        with GatewayProcess([trusted, unknown], folder=tmp_path / "d", environment=secret) as process:
            headers = {"authorization": f"Bearer {TEST_KEY}"}
            with httpx.Client(base_url=process.url, headers=headers, verify=False) as client:
                answer = client.post("/chat/completions", json=ASK | {"model": "unknown"})
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_unreachable")
                assert not target.requests
                for stream in (False, True):
                    answer = client.post(
                        "/chat/completions", json=ASK | {"model": "trusted", "stream": stream}
                    )
                    assert answer.status_code == 200
                assert target.requests[0].header("authorization") == f"Bearer {UPSTREAM_SECRET}"


def replace_file(path: Path, data: str) -> None:
    path.with_suffix(".new").write_text(data)
    path.with_suffix(".new").replace(path)


def test_a_secret_that_was_replaced_is_used_soon(tmp_path: Path, upstream: Stage) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sk-one\n")
    routes = [make_route("secret", upstream.url, api_key=f"file:{secret}")]
    with GatewayProcess(routes, folder=tmp_path / "d") as process:

        def ask() -> str | None:
            headers = {"authorization": f"Bearer {TEST_KEY}"}
            answer = httpx.post(process.url + "/chat/completions", json=ASK, headers=headers, verify=False)
            return upstream.requests[-1].header("authorization") if answer.status_code == 200 else None

        assert ask() == "Bearer sk-one"
        replace_file(secret, "sk-two")
        process.until(lambda: ask() == "Bearer sk-two")
        secret.unlink()
        process.until(lambda: ask() is None)
        replace_file(secret, "sk-three")
        process.until(lambda: ask() == "Bearer sk-three")
        assert "sk-" not in process.log


ENTRA = "eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJodHRwcyJ9."
#: Of each cloud whose credentials end by themselves: two of them, and what a request must say of the second.
PASSING = {
    "azure": (f"{ENTRA}b25l", f"{ENTRA}dHdv", "authorization", f"Bearer {ENTRA}dHdv"),
    "vertex": ("ya29.one", "ya29.two", "authorization", "Bearer ya29.two"),
    "bedrock": ("AKIDONE:secret-1:token-1", "AKIDTWO:secret-2:token-2", "x-amz-security-token", "token-2"),
}  # fmt: skip


def test_tokens_of_clouds_that_were_replaced_are_used_soon(tmp_path: Path, upstream: Stage) -> None:
    upstream.answer = error_answer(400)
    routes = []
    for dialect, (first, *_) in PASSING.items():
        secret = tmp_path / dialect
        secret.write_text(first)
        made = make_route(dialect, upstream.url, dialect=dialect, api_key=f"file:{secret}")
        (known,) = made.targets
        target = msgspec.structs.replace(known, region="eu-central-1")
        routes.append(msgspec.structs.replace(made, endpoints=(Endpoint.CHAT,), targets=(target,)))
    with GatewayProcess(routes, folder=tmp_path / "d") as process:

        def ask(dialect: str, header: str) -> str | None:
            headers = {"authorization": f"Bearer {TEST_KEY}"}
            body = {"model": dialect, "messages": [{"role": "user", "content": "Hi"}]}
            httpx.post(process.url + "/chat/completions", json=body, headers=headers)
            return upstream.requests[-1].header(header)

        seen = []
        for dialect, (first, second, header, wanted) in PASSING.items():
            seen.append(ask(dialect, header))
            assert seen[-1] not in (None, wanted)
            replace_file(tmp_path / dialect, second)
            process.until(lambda: ask(dialect, header) == wanted)  # noqa: B023
            for part in (*first.split(":"), *second.split(":")):
                assert part not in process.log
        assert len(set(seen)) == len(PASSING)


def test_authorities_that_were_replaced_are_trusted_soon(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    new.issue_cert("127.0.0.1").configure_cert(context)
    pem = tmp_path / "ca.pem"
    old.cert_pem.write_to_path(str(pem))
    with ThreadedUpstream(well_behaved("Hello"), UpstreamSettings(tls=context)) as target:
        (known,) = make_route("secret", target.url).targets
        route = Route(
            model="secret",
            endpoints=tuple(Endpoint),
            targets=(msgspec.structs.replace(known, tls_ca=str(pem)),),
        )
        with GatewayProcess([route], folder=tmp_path / "d") as process:

            def ask() -> int:
                headers = {"authorization": f"Bearer {TEST_KEY}"}
                url = process.url + "/chat/completions"
                return httpx.post(url, json=ASK, headers=headers, verify=False).status_code

            assert ask() == 503
            replace_file(pem, new.cert_pem.bytes().decode())
            process.until(lambda: ask() == 200)
            replace_file(pem, old.cert_pem.bytes().decode())
            process.until(lambda: ask() == 503)
