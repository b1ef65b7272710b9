"""Fault O2, over everything that exists: nothing that Forebay writes or says holds a secret.

Whoever brings in another secret adds it to `Nest`; another place where things are written is found by itself,
as files are, or is added to `gather`.
"""

import base64
import http.server
import importlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import sqlalchemy as sa
from whole import Whole, running, wait_until

from forebay.testing.answers import answer, chunk, json_answer, redirect, sse_answer, sse_head
from forebay.testing.openai import DONE, chat_chunk, chat_completion, error, event, usage
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Close, Reset, Script, Send
from forebay.testing.threaded import ThreadedUpstream, find_closed_port
from postgres_server import PostgresServer
from redis_server import RedisServer, find_programs

#: These are secrets themselves, for their owner alone to read.
KEPT = {"local.key", "admin.token", "upstream.secret", "hook.secret", "hook.url"}
COMMANDS = [
    ("doctor",), ("config", "show"), ("config", "check"), ("limits",), ("limits", "--json"), ("prices",),
    ("usage", "--since", "all"), ("usage", "--since", "all", "--json"), ("usage", "--since", "all", "--csv"),
    ("bill",), ("bill", "--json"), ("bill", "--csv", "bill.csv"), ("bill", "--parquet", "bill.parquet"),
    ("audit",), ("audit", "--json"), ("keys", "list"), ("keys", "list", "--json"), ("tokens", "list"),
    ("tokens", "list", "--json"), ("teams", "list"), ("projects", "list"), ("alerts", "list"),
    ("alerts", "list", "--json"), ("alerts", "test"), ("ledger", "show"), ("signals", "list"),
]  # fmt: skip


class Nest:
    """All canaries of one run, by what they are; of keys and tokens the part behind what people may see."""

    def __init__(self, folder: Path, database: str | None, redis_port: int | None = None) -> None:
        self.folder = folder
        self.canaries = {
            "upstream key of the environment": "sk-canary-environment-0123456789",
            "upstream key of a file": "sk-canary-of-a-file-0123456789",
            "wrong key": "fb-" + "canaryWRONGkeyOfNobody" * 2,
            "key of another provider": "sk-canary-that-a-caller-brought-along",
            "webhook secret": "canaryWebhookSecretcanaryWebhook",
            "webhook address": "canary-path-of-a-webhook",
            "password of the database": "canary-p4ssw0rd-of-the-database",
            "password of the authority": "canary-p4ssw0rd-of-the-authority",
            "signature of an identity provider's token": "canarySignatureOfAnIdentityProvidersTokens42",
        }
        self.environment = {"CANARY_UPSTREAM": self.canaries["upstream key of the environment"]}
        if database is not None:
            url = sa.make_url(database).set(password=self.canaries["password of the database"])
            self.environment["CANARY_DATABASE"] = url.render_as_string(hide_password=False)
        if redis_port is not None:
            password = self.canaries["password of the authority"]
            self.environment["CANARY_AUTHORITY"] = f"redis://:{password}@127.0.0.1:{redis_port}/0"
        (folder / "upstream.secret").write_text(self.canaries["upstream key of a file"])
        (folder / "hook.secret").write_text("whsec_" + self.canaries["webhook secret"])

    def add(self, what: str, secret: str) -> str:
        self.canaries[what] = secret[9:]
        return secret

    def make_signed(self, issuer: str) -> str:
        """A token as an identity provider's, up to its signature; its claims are no secret."""
        parts = ({"alg": "RS256", "kid": "canary"}, {"iss": issuer, "aud": "forebay", "sub": "somebody"})
        head = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
        return ".".join([*head, self.canaries["signature of an identity provider's token"]])

    def write_config(self, upstream: str, hook: str) -> str:
        (self.folder / "hook.url").write_text(f"{hook}/{self.canaries['webhook address']}")
        targets = "[{{url: '{}', api_key: '{}'}}]"
        models = "".join(
            f"  {name}: {{endpoints: [chat/completions], targets: {targets.format(upstream, key)}}}\n"
            for name, key in (("m", "env:CANARY_UPSTREAM"), ("f", "file:upstream.secret"))
        )
        data = "data: {database: 'env:CANARY_DATABASE'}\n" if "CANARY_DATABASE" in self.environment else ""
        authority = "authority: 'env:CANARY_AUTHORITY', " if "CANARY_AUTHORITY" in self.environment else ""
        return (
            f"{data}gateway: {{port: 0, workers: 1}}\n"
            f"control: {{port: 0, oidc: {{issuer: '{hook}', audience: forebay, roles: {{owner: [o]}}}}}}\n"
            f"models:\n{models}"
            "prices: {book: [{model: '*', usd_per_mtok: {input: 1, output: 2}}]}\n"
            f"limits: {{{authority}rules: ["
            "{each: key, requests: 100, per: day, window: calendar, alert_at: [0.01]}]}\n"
            "alerts: {webhooks: [{url: 'file:hook.url', secret: 'file:hook.secret'}]}\n"
        )

    def find_in(self, data: bytes) -> list[str]:
        """What stands there: as it is, in base64 at any offset, in hexadecimal, or for a URL."""
        found = []
        for what, canary in self.canaries.items():
            raw = canary.encode()
            forms = {raw, quote(canary, safe="").encode(), raw.hex().encode(), raw.hex().upper().encode()}
            forms |= {base64.b64encode(raw[at : at + (len(raw) - at) // 3 * 3]) for at in range(3)}
            if any(form in data for form in forms):
                found.append(what)
        return found


def leak(request: RecordedRequest) -> str:
    return f"you sent {dict(request.headers)} with {request.header('authorization')}"


LEAKS = [
    lambda request: json_answer(error(leak(request)), status=400),
    lambda request: json_answer(error(leak(request)), status=401),
    lambda request: json_answer(error(leak(request)), status=500, headers=[("x-debug", leak(request))]),
    lambda request: answer(leak(request).encode(), status=503, headers=[("content-type", "text/plain")]),
    lambda request: sse_answer([event(error(leak(request))), DONE]),
    lambda request: [
        *sse_head(), chunk(event(chat_chunk({"content": "x"}))), chunk(event(error(leak(request)))), Close(),
    ],
    lambda request: redirect(f"http://127.0.0.1:9/?key={request.header('authorization')}"),
    lambda request: json_answer(
        chat_completion(tokens=usage(5, 5)), headers=[("set-cookie", leak(request)), ("x-key", leak(request))]
    ),
    lambda request: [Send(f"HTTP/1.1 200 {leak(request)}\r\nboom\r\n\r\n".encode())],
    lambda _: [Reset()],
]  # fmt: skip


class _Hook(http.server.BaseHTTPRequestHandler):
    """A receiver that says what it got, and fails: its answer may be told to whoever looks after webhooks."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.bodies.append(body)  # type: ignore[attr-defined]
        said = f"{self.path} {dict(self.headers)}".encode()
        self.send_response(500)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def receive_hooks() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hook)
    server.bodies = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.e2e
@pytest.mark.parametrize("store", ["sqlite", "sqlite and no redis", "postgresql and redis"])
def test_O2_no_secret_stands_in_anything_that_is_written_or_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, store: str
) -> None:
    postgres: PostgresServer | None = None
    if "postgresql" in store:
        postgres = request.getfixturevalue("postgres_server")
    redis = find_closed_port() if "redis" in store else None
    nest = Nest(tmp_path, None if postgres is None else postgres.create("template1"), redis)
    for name, value in nest.environment.items():
        monkeypatch.setenv(name, value)
    turns = count()

    def answer_badly(asked: RecordedRequest) -> Script:
        return LEAKS[next(turns) % len(LEAKS)](asked)

    with (
        ThreadedUpstream(answer_badly) as upstream,
        receive_hooks() as hook,
        run_redis(nest, None if "no redis" in store else redis),
        running(tmp_path, nest.write_config(upstream.url, f"http://127.0.0.1:{hook.server_port}")) as whole,
    ):
        keys = make_secrets(whole, nest)
        said = ask_all(whole, nest, keys)
        upstream_saw = [request.header("authorization") for request in upstream.requests]
        kill_a_worker(whole)
        said |= gather(whole, keys[0])
        said |= bring_signed(whole, nest.make_signed(f"http://127.0.0.1:{hook.server_port}"))
        wait_until(lambda: bool(hook.bodies), 30, "a webhook is told, by `alerts test` if by nothing else")  # type: ignore[attr-defined]
        said |= {f"webhook {n}": body for n, body in enumerate(hook.bodies)}  # type: ignore[attr-defined]
    said |= read_database(whole, nest)
    said |= read_files(whole)
    files = {Path(name.removeprefix("file ")).name for name in said if name.startswith("file ")}
    assert {"control.log", "worker-0.log", "snapshot.msgpack", "up.out"} - files == set()
    local = nest.canaries.pop("local key")
    assert [name for name, data in said.items() if local.encode() in data] == ["file up.out"], (
        "shown on purpose"
    )
    leaks = [f"{name}: {found}" for name, data in said.items() if (found := nest.find_in(data))]
    assert "\n".join(leaks) == ""
    assert {f"Bearer {nest.canaries[f'upstream key of {a}']}" for a in ("the environment", "a file")} == set(
        upstream_saw
    ), "each went where it belongs, so each was there to leak"


@contextmanager
def run_redis(nest: Nest, port: int | None) -> Iterator[None]:
    """A server that knows the password and says every command that it does not know; none without a port."""
    program = next(iter(find_programs().values()), None)
    if port is None or program is None:
        yield
        return
    server = RedisServer(program, "--requirepass", nest.canaries["password of the authority"])
    server.port = port
    server.start()
    try:
        yield
    finally:
        server.close()


def make_secrets(whole: Whole, nest: Nest) -> list[str]:
    """Makes keys and tokens in every way there is; the keys."""
    nest.add("local key", whole.key)
    token = nest.add("token of the file", (whole.data / "admin.token").read_text().strip())
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=whole.state.control_url + "/admin/v1", headers=headers, timeout=60) as admin:
        first = admin.post("/keys", json={"name": "canary"}).raise_for_status().json()
        second = admin.post(f"/keys/{first['id']}/rotate", json={}).raise_for_status().json()
        made = admin.post("/tokens", json={"name": "canary", "role": "owner"}).raise_for_status().json()
        nest.add("token of the API", made["token"])
        other = {"authorization": f"Bearer {made['token']}"}
        admin.get("/keys", headers=other).raise_for_status()
        # As a slip would bring it into a log.
        admin.get(f"/{made['token']}", params={"key": first["key"]})
        admin.post("/keys", json={"name": 5, first["key"]: 1})
    shown = whole.command("keys", "create", "canary-cli", "--json")
    third = httpx.Response(200, text=shown.stdout).json()
    keys = [
        nest.add("key of the API", first["key"]),
        nest.add("rotated key", second["key"]),
        nest.add("key of the command line", third["key"]),
    ]
    url, works = whole.url, {"authorization": f"Bearer {third['key']}"}
    wait_until(lambda: httpx.get(f"{url}/models", headers=works).status_code == 200, 30, "the key is known")
    return keys


def ask_all(whole: Whole, nest: Nest, keys: list[str]) -> dict[str, bytes]:
    """Requests that meet each leak with each upstream key, and wrong ones; all answers with their heads."""
    said = {}
    wrong, foreign = nest.canaries["wrong key"], nest.canaries["key of another provider"]
    for model in ("m", "f"):
        for stream in (False, True):
            for number in range(len(LEAKS)):
                body = {"model": model, "messages": [], "stream": stream}
                headers = {"authorization": f"Bearer {keys[number % 3]}", "x-api-key": foreign}
                got = httpx.post(
                    f"{whole.url}/chat/completions?api_key={foreign}", json=body, headers=headers, timeout=30
                )
                said[f"answer {model} {stream} {number}"] = _whole(got)
    good = {"authorization": f"Bearer {keys[2]}"}
    for number, headers in enumerate(
        ({"authorization": f"Bearer {wrong}"}, {"api-key": wrong}, {"authorization": f"Basic {wrong}"})
    ):
        for path in ("models", f"models/{wrong}", f"models?key={wrong}"):
            said[f"refused {number} {path[:7]}"] = _whole(httpx.get(f"{whole.url}/{path}", headers=headers))
        # A path that does not exist is told to whoever asked for it, and to nobody else.
        httpx.get(f"{whole.url}/{wrong}", headers=headers)
        body = {"model": wrong, "messages": [], "metadata": {"tag": "v"}}
        got = httpx.post(f"{whole.url}/chat/completions", json=body, headers=headers)
        said[f"refused {number}"] = _whole(got)
    # A key for a model's name goes back to its own caller, and nowhere else.
    httpx.post(f"{whole.url}/chat/completions", json={"model": wrong, "messages": []}, headers=good)
    return said


def bring_signed(whole: Whole, token: str) -> dict[str, bytes]:
    """A token of an identity provider, in its place, and where a slip may bring it."""
    with httpx.Client(base_url=whole.state.control_url, timeout=60) as admin:
        own = {"authorization": f"Bearer {(whole.data / 'admin.token').read_text().strip()}"}
        got = admin.get("/admin/v1/keys", headers={"authorization": f"Bearer {token}"})
        assert got.status_code == 503, "it was looked at, and its provider asked"
        admin.get(f"/admin/v1/{token}", headers=own)
        admin.get("/admin/v1/keys", params={"token": token}, headers=own)
        admin.post("/admin/v1/keys", json={token: 1}, headers=own)
    at_gateway = httpx.get(f"{whole.url}/models", headers={"authorization": f"Bearer {token}"}, timeout=30)
    return {"signed token at the admin API": _whole(got), "signed token at the gateway": _whole(at_gateway)}


def _whole(got: httpx.Response) -> bytes:
    return f"{got.status_code} {got.headers}".encode() + got.content


def kill_a_worker(whole: Whole) -> None:
    """As a crash would end it, with all that a crash leaves behind."""
    pid = next(child.pid for child in whole.state.children if child.name.startswith("worker"))
    assert pid is not None
    os.kill(pid, 6)
    wait_until(
        lambda: any(
            child.pid not in (None, pid) and child.name.startswith("worker") for child in whole.state.children
        ),
        30,
        "another worker",
    )


def gather(whole: Whole, key: str) -> dict[str, bytes]:
    """What all commands and all pages say."""
    said = {}
    for words in COMMANDS:
        done = whole.command(*words)
        said["command " + " ".join(words)] = (done.stdout + done.stderr).encode()
    assert "canary-cli" in said["command keys list"].decode()
    token = (whole.data / "admin.token").read_text().strip()
    with httpx.Client(
        base_url=whole.state.control_url, headers={"authorization": f"Bearer {token}"}, timeout=60
    ) as admin:
        paths: dict[str, Any] = admin.get("/admin/v1/openapi.json").raise_for_status().json()["paths"]
        for path, methods in paths.items():
            if "get" in methods and "{" not in path:
                said[f"admin {path}"] = _whole(admin.get(path))
    origin = whole.url.removesuffix("/v1")
    for path in ("/metrics", "/healthz", "/readyz", "/v1/models", "/nothing"):
        said[f"gateway {path}"] = _whole(
            httpx.get(origin + path, headers={"authorization": f"Bearer {key}"}, timeout=30)
        )
    said["command lines"] = b"".join(
        Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in [whole.process.pid, *(child.pid for child in whole.state.children if child.pid)]
    )
    return said


def read_database(whole: Whole, nest: Nest) -> dict[str, bytes]:
    """Each table as text.  SQLite's file itself is read with all other files."""
    url = nest.environment.get("CANARY_DATABASE") or f"sqlite:///{whole.data / 'forebay.db'}"
    if url.startswith("sqlite"):
        database = sqlite3.connect(whole.data / "forebay.db")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
    engine = sa.create_engine(url)
    tables = sa.MetaData()
    with engine.connect() as connection:
        tables.reflect(connection)
        said = {
            f"table {name}": repr(connection.execute(sa.select(table)).fetchall()).encode()
            for name, table in tables.tables.items()
        }
    engine.dispose()
    assert any(b"canary-cli" in rows for rows in said.values())
    return said


def read_files(whole: Whole) -> dict[str, bytes]:
    said = {
        f"file {path.relative_to(whole.folder)}": path.read_bytes()
        for path in whole.folder.rglob("*")
        if path.is_file() and path.name not in KEPT
    }
    with suppress(ModuleNotFoundError):  # an extra
        rows = importlib.import_module("pyarrow.parquet").read_table(whole.folder / "bill.parquet")
        said["rows of bill.parquet"] = repr(rows.to_pylist()).encode()
    return said


@pytest.mark.parametrize("form", ["plain", "base64", "hex", "url"])
def test_O2_the_search_finds_what_it_searches_for(tmp_path: Path, form: str) -> None:
    nest = Nest(tmp_path, None)
    canary = nest.canaries["key of another provider"]
    hidden = {
        "plain": canary.encode(),
        "base64": base64.b64encode(f"user:{canary}!".encode()),
        "hex": canary.encode().hex().encode(),
        "url": quote(canary).encode(),
    }[form]
    assert nest.find_in(b"before " + hidden + b" behind") == ["key of another provider"]
    assert nest.find_in(b"before and behind") == []
