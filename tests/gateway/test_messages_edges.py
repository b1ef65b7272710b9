"""Messages through a real worker: which of two keys is taken, and what can't be counted."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from forebay.testing.gateway import GatewayProcess, make_key, make_route
from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream

BODY: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
OTHER = "fb-another-key"
FOREIGN = "Bearer sk-ant-oat01-for-others"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with (
        ThreadedUpstream(well_behaved("Hello")) as upstream,
        GatewayProcess(
            [make_route("m", upstream.url)],
            folder=tmp_path_factory.mktemp("edges"),
            keys=[make_key(), make_key(OTHER, id="other")],
        ) as process,
    ):
        yield process


def ask(worker: GatewayProcess, path: str, body: Any, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{worker.url}/{path}", json=body, headers=named, timeout=30)


@pytest.mark.parametrize("path", ["messages", "messages/count_tokens"])
def test_a_key_is_found_beside_a_token_for_others(worker: GatewayProcess, path: str) -> None:
    for _ in range(2):
        assert ask(worker, path, BODY, x_api_key=worker.key).status_code == 200
        assert ask(worker, path, BODY, x_api_key=worker.key, authorization=FOREIGN).status_code == 200
        assert ask(worker, path, BODY, x_api_key=worker.key, authorization="Basic x").status_code == 200


def test_where_both_are_keys_the_first_word_is_authorizations(worker: GatewayProcess) -> None:
    both = ask(worker, "messages", BODY, x_api_key=OTHER, authorization=f"Bearer {worker.key}")
    assert worker.wait_record(both.headers["request-id"]).key == "k1"
    foreign = ask(worker, "messages", BODY, x_api_key=OTHER, authorization=FOREIGN)
    assert worker.wait_record(foreign.headers["request-id"]).key == "other"
    wrong = ask(worker, "messages", BODY, x_api_key="wrong", authorization=f"Bearer {worker.key}")
    assert wrong.status_code == 200


def test_where_neither_is_a_key_nobody_is_let_in(worker: GatewayProcess) -> None:
    refused = ask(worker, "messages", BODY, x_api_key="wrong", authorization=FOREIGN)
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    assert ask(worker, "messages", BODY).status_code == 401


def test_elsewhere_it_is_no_key(worker: GatewayProcess) -> None:
    refused = ask(worker, "chat/completions", BODY, x_api_key=worker.key, authorization=FOREIGN)
    assert refused.status_code == 401


@pytest.mark.parametrize("messages", [..., None, "x", {}, 1])
def test_what_has_no_messages_is_not_counted(worker: GatewayProcess, messages: Any) -> None:
    body = {"model": "m"} if messages is ... else {"model": "m", "messages": messages}
    refused = ask(worker, "messages/count_tokens", body, x_api_key=worker.key)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert "`messages`" in refused.json()["error"]["message"]


def test_what_has_messages_is_counted(worker: GatewayProcess) -> None:
    body = {"model": "m", "messages": BODY["messages"]}
    counted = ask(worker, "messages/count_tokens", body, x_api_key=worker.key)
    assert counted.status_code == 200
    assert counted.json()["input_tokens"] > 0
