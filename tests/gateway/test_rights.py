"""What a key may do, over sockets: no byte reaches a target that a filter rejected, and limits are held to.

Every target of the route is the same upstream under a path of its own, so what it saw says who was asked.
"""

import time
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from forebay.core.keys import TIERS, KeyEntry
from forebay.core.routes import Endpoint, Route, RouteTable, Snapshot, Target
from forebay.testing.gateway import GatewayProcess, make_key
from forebay.testing.openai import chat_completion, json_answer, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script
from forebay.testing.threaded import ThreadedUpstream

REGIONS = ("eu", "us", "")
PLACES = [(tier, region) for tier in reversed(TIERS) for region in REGIONS]
NAMED = [tuple(some) for size in range(3) for some in combinations(("eu", "us"), size)]
BOUNDS = [(tier_max, regions) for tier_max, regions in product((None, *TIERS), [*NAMED, ("mars",)])]
SECOND_NS = 10**9


def key_name(tier_max: str | None, regions: tuple[str, ...]) -> str:
    return f"fb-key-{tier_max}-{'-'.join(regions)}"


def make_entry(name: str, **fields: Any) -> KeyEntry:
    return msgspec.structs.replace(make_key(name, id=name), **fields)


def answer(request: RecordedRequest) -> Script:
    """The model `spill` fails everywhere, so that each target that may be tried is."""
    if b'"spill"' in request.body:
        return json_answer({"error": {"message": "no"}}, status=500)
    if b'"stream"' in request.body:
        return well_behaved("Hi")(request)
    return json_answer(chat_completion("Hi"))


@pytest.fixture(scope="module")
def upstream() -> Iterator[ThreadedUpstream]:
    with ThreadedUpstream(answer) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(upstream: ThreadedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    origin = upstream.url.removesuffix("/v1")
    targets = tuple(
        Target(
            id=f"t{number}", pool="p", tier=tier, region=region, url=f"{origin}/t{number}/v1", model="spill"
        )
        for number, (tier, region) in enumerate(PLACES)
    )
    plain = Target(id="plain", pool="p", url=upstream.url, model="plain", region="eu")
    routes = (
        Route(model="spill", endpoints=(Endpoint.CHAT,), targets=targets),
        Route(model="plain", endpoints=tuple(Endpoint), targets=(plain,)),
        Route(model="cloud", endpoints=(Endpoint.CHAT,), targets=(targets[0],)),
        Route(model="waits", endpoints=(Endpoint.CHAT,), targets=()),
    )
    keys = [
        *(
            make_entry(key_name(tier_max, regions), tier_max=tier_max, regions=regions)
            for tier_max, regions in BOUNDS
        ),
        make_entry("fb-chat", endpoints=("chat/completions",)),
        make_entry("fb-nothing", endpoints=("-",)),
        make_entry("fb-both", models=("p*",), project_models=("*n",)),
        make_entry("fb-cap", output_max_tokens=100),
        make_entry("fb-context", context_max_tokens=100),
        make_entry("fb-all"),
    ]
    process = GatewayProcess(routes, folder=tmp_path_factory.mktemp("rights"), keys=keys)
    table = RouteTable(routes=routes, attempts_max=10, retry_budget=10.0)
    process.snapshot = msgspec.structs.replace(process.snapshot, table=table)
    with process:
        yield process


@pytest.fixture
def client(gateway: GatewayProcess, upstream: ThreadedUpstream) -> Iterator[httpx.Client]:
    upstream.requests.clear()
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        yield client
    assert "Traceback" not in gateway.log


def ask(
    client: httpx.Client, key: str, model: str = "plain", path: str = "chat", **more: Any
) -> httpx.Response:
    paths = {"chat": "/chat/completions", "completions": "/completions", "embeddings": "/embeddings"}
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], **more}
    return client.post(paths[path], json=body, headers={"authorization": f"Bearer {key}"})


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("tier_max", "regions"), BOUNDS)
def test_no_byte_reaches_a_target_that_a_filter_rejected(
    client: httpx.Client,
    upstream: ThreadedUpstream,
    gateway: GatewayProcess,
    tier_max: str | None,
    regions: tuple[str, ...],
    stream: bool,
) -> None:
    """All tiers and regions, with every bound of a key: what is left is tried, in order, and nothing else."""
    may = [
        f"/t{number}/v1/chat/completions"
        for number, (tier, region) in enumerate(PLACES)
        if (not regions or region in regions)
        and (tier_max is None or TIERS.index(tier) <= TIERS.index(tier_max))
    ]
    response = ask(client, key_name(tier_max, regions), "spill", stream=stream)
    assert [request.path for request in upstream.requests] == may[:10]
    assert len(may) > 0 or regions == ("mars",)
    record = gateway.wait_record(response.headers["x-request-id"])
    if may:
        assert response.status_code == 500
        tier, region = PLACES[int(may[:10][-1].split("/")[1][1:])]
        assert (record.tier, record.region, record.attempts) == (tier, region, len(may[:10]))
    else:
        told = error_of(response)
        assert (response.status_code, told["code"], told["param"]) == (403, "target_not_allowed", "model")
        assert "mars" in told["message"]
        assert (record.target, record.attempts, record.model) == ("", 0, "spill")


def test_what_a_key_may_not_call_at_all_is_not_listed(client: httpx.Client) -> None:
    def listed(key: str) -> set[str]:
        found = client.get("/models", headers={"authorization": f"Bearer {key}"}).json()["data"]
        return {model["id"] for model in found}

    assert listed("fb-all") == {"spill", "plain", "cloud", "waits"}
    assert listed(key_name("quantized", ())) == {"spill", "plain", "waits"}, "not the cloud's"
    assert listed(key_name(None, ("mars",))) == {"waits"}
    assert listed("fb-both") == {"plain"}
    assert listed("fb-nothing") == set()
    headers = {"authorization": f"Bearer {key_name('quantized', ())}"}
    assert client.get("/models/cloud", headers=headers).status_code == 404


def test_each_refusal_says_why(client: httpx.Client, upstream: ThreadedUpstream) -> None:
    for key, model, path, status, code in (
        ("fb-chat", "plain", "embeddings", 403, "endpoint_not_allowed"),
        ("fb-chat", "spill", "embeddings", 400, "endpoint_not_supported"),
        ("fb-nothing", "plain", "chat", 403, "endpoint_not_allowed"),
        ("fb-both", "spill", "chat", 403, "model_not_allowed"),
        (key_name("autoscaled", ()), "cloud", "chat", 403, "target_not_allowed"),
        (key_name(None, ("us",)), "plain", "chat", 403, "target_not_allowed"),
        (key_name(None, ("us",)), "waits", "chat", 503, "engine_not_running"),
    ):
        response = ask(client, key, model, path, input="x")
        assert (response.status_code, error_of(response)["code"]) == (status, code), (key, model, path)
    assert upstream.requests == []
    assert ask(client, "fb-chat").status_code == 200
    assert ask(client, "fb-both").status_code == 200


# --- output and context -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_without_a_limit_gets_the_keys_and_no_other_change(
    client: httpx.Client, upstream: ThreadedUpstream, stream: bool
) -> None:
    rest = b'"model" : "plain", "messages":[ {"role":"user","content":"\\u00e9"} ] ,"n":3,"x":1.50'
    options = b',"stream":true,"stream_options":{"include_usage":true}' if stream else b""
    body = b"{" + rest + options + b"}"
    headers = {"authorization": "Bearer fb-cap"}
    assert client.post("/chat/completions", content=body, headers=headers).status_code == 200
    assert upstream.requests[-1].body == b'{"max_tokens":33,' + rest + options + b"}"
    headers = {"authorization": "Bearer fb-all"}
    assert client.post("/chat/completions", content=body, headers=headers).status_code == 200
    assert upstream.requests[-1].body == body, "not where the key has no limit"
    body = b'{"max_completion_tokens":100,' + rest.replace(b',"n":3', b"") + b"}"
    headers = {"authorization": "Bearer fb-cap"}
    assert client.post("/chat/completions", content=body, headers=headers).status_code == 200
    assert upstream.requests[-1].body == body, "not where the caller named a limit that fits"


def test_a_large_body_gets_the_limit_as_well(client: httpx.Client, upstream: ThreadedUpstream) -> None:
    text = "x" * 300_000
    assert ask(client, "fb-cap", messages=[{"role": "user", "content": text}]).status_code == 200
    sent = upstream.requests[-1].json()
    assert (sent["max_tokens"], sent["messages"][0]["content"]) == (100, text)


def test_a_request_for_more_output_than_the_key_allows_is_told_field_and_limit(
    client: httpx.Client, upstream: ThreadedUpstream, gateway: GatewayProcess
) -> None:
    for more, field in (
        ({"max_tokens": 101}, "max_tokens"),
        ({"max_completion_tokens": 101}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 101}, "max_completion_tokens"),
        ({"max_tokens": 34, "n": 3}, "max_tokens"),
        ({"n": 101}, "n"),
    ):
        response = ask(client, "fb-cap", **more)
        told = error_of(response)
        assert (response.status_code, told["code"], told["param"]) == (400, "output_limit_exceeded", field)
        assert f"`{field}`" in told["message"] or field == "n"
        assert "100" in told["message"]
        record = gateway.wait_record(response.headers["x-request-id"])
        assert (record.model, record.error, record.attempts) == ("plain", "output_limit_exceeded", 0)
        assert record.route_hash
    assert upstream.requests == []
    assert ask(client, "fb-all", max_tokens=10**9).status_code == 200
    assert ask(client, "fb-cap", path="embeddings", input="x").status_code == 200
    assert b"max_tokens" not in upstream.requests[-1].body, "embeddings have no output"


def test_a_prompt_that_is_too_long_for_sure_is_refused_and_one_in_doubt_is_not(
    client: httpx.Client, upstream: ThreadedUpstream
) -> None:
    def prompt(size: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": "x" * size}]

    assert ask(client, "fb-context", messages=prompt(1400)).status_code == 200, "350 tokens, or 88"
    response = ask(client, "fb-context", messages=prompt(1700))
    told = error_of(response)
    assert (response.status_code, told["code"], told["param"]) == (400, "context_length_exceeded", "messages")
    assert "100" in told["message"]
    assert len(upstream.requests) == 1


# --- expiry -------------------------------------------------------------------------------------------------


def test_a_key_opens_until_its_time_is_over_also_where_it_is_known_already(
    upstream: ThreadedUpstream, tmp_path: Path
) -> None:
    target = Target(id="t", pool="p", url=upstream.url, model="plain")
    route = Route(model="plain", endpoints=(Endpoint.CHAT,), targets=(target,))
    with GatewayProcess([route], folder=tmp_path, keys=[]) as gateway:
        ends_ns = time.time_ns() + 5 * SECOND_NS
        keys = (make_entry("fb-brief", expires_ns=ends_ns), make_entry("fb-over", expires_ns=time.time_ns()))
        gateway.write_snapshot(Snapshot(table=gateway.snapshot.table, keys=keys))
        with httpx.Client(base_url=gateway.url, timeout=60) as client:
            gateway.until(lambda: ask(client, "fb-brief").status_code == 200)
            over = ask(client, "fb-over")
            assert (over.status_code, error_of(over)["code"]) == (401, "invalid_api_key")
            assert "expired" in error_of(over)["message"]
            statuses = []
            while not statuses or statuses[-1][1] == 200:
                before_ns = time.time_ns()
                statuses.append((before_ns, ask(client, "fb-brief").status_code))
                assert before_ns < ends_ns + 30 * SECOND_NS
                time.sleep(0.02)
            assert len(statuses) > 3
            assert statuses[-1][1] == 401
            assert all(before_ns < ends_ns for before_ns, status in statuses if status == 200)
            headers = {"authorization": "Bearer fb-brief"}
            assert client.get("/models", headers=headers).status_code == 401
        assert gateway.metric("forebay_refused_total", reason="unauthenticated") >= 3
