"""Batches over real sockets, with OpenAI's own client: each line is asked once, and billed to who made it."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from batch_scene import BatchScene
from openai import OpenAI

from forebay.core.events import Kind
from forebay.testing.answers import json_answer
from forebay.testing.gateway import TEST_KEY, make_key, make_route
from forebay.testing.openai import error_answer, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Gate, Script, Wait
from forebay.testing.threaded import ThreadedUpstream

OTHER_KEY = "fb-test-key-of-another-project"
CHAT = "/v1/chat/completions"


class Place:
    """An upstream that answers well, unless a test has said otherwise."""

    def __init__(self) -> None:
        self.good = well_behaved("Hello")
        self.refusals: dict[str, list[Script]] = {}  #: by what the message says
        self.gate: Gate | None = None
        self.free: frozenset[str] = frozenset()  #: what is answered though the gate is closed
        self.upstream = ThreadedUpstream(self._answer)

    def _answer(self, request: RecordedRequest) -> Script:
        said = str(json.loads(request.body).get("messages", [{}])[0].get("content", ""))
        if waiting := self.refusals.get(said):
            return waiting.pop(0)
        answer = self.good(request)
        return answer if self.gate is None or said in self.free else [Wait(self.gate), *answer]

    @property
    def asked(self) -> Counter[str]:
        bodies = [json.loads(request.body) for request in self.upstream.requests]
        return Counter(body["messages"][0]["content"] for body in bodies if "messages" in body)


def make_line(number: int, said: str | None = None, **changes: Any) -> dict[str, Any]:
    message = {"role": "user", "content": said if said is not None else f"line {number}"}
    line = {
        "custom_id": f"c{number}",
        "method": "POST",
        "url": CHAT,
        "body": {"model": "m", "messages": [message]},
    }
    return line | changes


def write(lines: list[Any]) -> bytes:
    return b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )


def submit(client: OpenAI, lines: list[Any], endpoint: Any = CHAT, **more: Any) -> Any:
    file = client.files.create(file=("in.jsonl", write(lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def wait_end(scene: BatchScene, client: OpenAI, batch_id: str) -> Any:
    ended = ("completed", "failed", "expired", "cancelled")

    def look() -> Any:
        batch = client.batches.retrieve(batch_id)
        counts = batch.request_counts
        assert counts.completed + counts.failed <= counts.total
        return batch if batch.status in ended else None

    return scene.until(look)


def read(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    """The lines of a file by their `custom_id`; each stands there once."""
    if file_id is None:
        return {}
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line for line in lines}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    place = Place()
    with place.upstream:
        yield place


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, place: Place) -> Iterator[BatchScene]:
    other = msgspec.structs.replace(make_key(OTHER_KEY, id="k2"), project="other")
    with BatchScene(
        tmp_path_factory.mktemp("batches"),
        [make_route("m", place.upstream.url), make_route("secret", place.upstream.url)],
        keys=[msgspec.structs.replace(make_key(), models=("m",)), other],
        settings={"attempts_max": 2, "grace_s": 0.5, "lines_max": 300},
    ) as scene:
        yield scene


@pytest.fixture
def client(scene: BatchScene, place: Place) -> Iterator[OpenAI]:
    place.upstream.requests.clear()
    place.refusals.clear()
    place.gate = None
    place.free = frozenset()
    with scene.client() as client:
        yield client


def test_L3_a_finished_batch_that_is_read_four_times_is_billed_once_to_its_key(
    scene: BatchScene, place: Place, client: OpenAI
) -> None:
    batch = submit(client, [make_line(n) for n in range(40)], metadata={"job": "nightly"})
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", CHAT)
    done = wait_end(scene, client, batch.id)
    assert done.status == "completed"
    assert (done.request_counts.total, done.request_counts.completed) == (40, 40)
    assert done.metadata == {"job": "nightly"}
    assert done.in_progress_at <= done.finalizing_at <= done.completed_at
    assert done.error_file_id is None
    for _ in range(4):
        answers = read(client, client.batches.retrieve(batch.id).output_file_id)
    assert set(answers) == {f"c{n}" for n in range(40)}
    for answer in answers.values():
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["body"]["choices"][0]["message"]["content"] == "Hello"
    assert place.asked == Counter({f"line {n}": 1 for n in range(40)})
    records = [record for record in scene.gateway.records() if record.batch.startswith(batch.id)]
    assert {record.request_id for record in records} == {
        answer["response"]["request_id"] for answer in answers.values()
    }
    assert len(records) == 40
    assert sorted(record.batch for record in records) == sorted(f"{batch.id}/{n}" for n in range(1, 41))
    assert {(r.key, r.project, r.kind, r.status) for r in records} == {("k1", "test", Kind.BATCH, 200)}


def test_what_is_refused_stands_in_the_error_file(scene: BatchScene, place: Place, client: OpenAI) -> None:
    place.refusals["bad"] = [error_answer(400, "no such thing")]
    place.refusals["ill"] = [error_answer(500, "ill"), error_answer(500, "ill")]
    place.refusals["late"] = [error_answer(500, "ill")]
    lines = [make_line(0), make_line(1, "bad"), make_line(2, "ill"), make_line(3, "late")]
    done = wait_end(scene, client, submit(client, lines).id)
    assert done.status == "completed"
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (4, 2, 2)
    assert set(read(client, done.output_file_id)) == {"c0", "c3"}
    errors = read(client, done.error_file_id)
    assert {name: line["response"]["status_code"] for name, line in errors.items()} == {"c1": 400, "c2": 500}
    assert "no such thing" in errors["c1"]["response"]["body"]["error"]["message"]


def test_a_full_place_is_waited_for(scene: BatchScene, place: Place, client: OpenAI) -> None:
    full = json_answer({"error": {"message": "full"}}, status=429, headers=[("retry-after", "1")])
    place.refusals["line 1"] = [full] * 2
    done = wait_end(scene, client, submit(client, [make_line(n) for n in range(3)]).id)
    assert done.status == "completed"
    assert (done.request_counts.completed, done.request_counts.failed) == (3, 0)
    assert place.asked["line 1"] == 3


@pytest.mark.parametrize(
    ("lines", "code", "line", "param"),
    [
        ([], "empty_file", None, "input_file_id"),
        ([make_line(1), b"{", make_line(2)], "invalid_json_line", 2, None),
        ([make_line(1), make_line(1)], "duplicate_custom_id", 2, "custom_id"),
        ([make_line(1, method="GET")], "invalid_method", 1, "method"),
        ([make_line(1, url="/v1/embeddings")], "invalid_url", 1, "url"),
        ([make_line(1, body={"messages": []})], "invalid_request", 1, "body.model"),
        ([make_line(1, body={"model": "m", "stream": True})], "invalid_request", 1, "body.stream"),
        ([make_line(1, body={"model": "none"})], "model_not_found", 1, "body.model"),
        ([make_line(1, body={"model": "secret"})], "model_not_allowed", 1, "body.model"),
        ([make_line(1, custom_id="")], "invalid_custom_id", 1, "custom_id"),
        ([make_line(1, odd=1)], "invalid_request", 1, "odd"),
        ([make_line(n) for n in range(301)], "too_many_requests", 301, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_wrong_fails_with_its_lines(
    scene: BatchScene, place: Place, client: OpenAI, lines: list[Any], code: str, line: int, param: str
) -> None:
    done = wait_end(scene, client, submit(client, lines or [b""]).id)
    assert done.status == "failed"
    assert [(e.code, e.line, e.param) for e in done.errors.data] == [(code, line, param)]
    assert done.failed_at is not None
    assert (done.output_file_id, done.error_file_id) == (None, None)
    assert not place.upstream.requests


def test_a_batch_that_is_cancelled_hands_out_what_it_has(
    scene: BatchScene, place: Place, client: OpenAI
) -> None:
    place.gate, place.free = Gate(), frozenset({"line 0", "line 1", "line 2"})
    try:
        batch = submit(client, [make_line(n) for n in range(60)])
        scene.until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 3)
        assert client.batches.cancel(batch.id).status == "cancelling"
        with suppress(openai.ConflictError):  # it may have ended meanwhile
            assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        done = wait_end(scene, client, batch.id)
    finally:
        place.gate.open()
    assert done.status == "cancelled"
    answers, errors = read(client, done.output_file_id), read(client, done.error_file_id)
    assert set(answers) | set(errors) == {f"c{n}" for n in range(60)}
    assert set(answers) == {"c0", "c1", "c2"}
    assert len(errors) == 57
    assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (60, len(answers), len(errors))
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_a_batch_ends_with_its_window(scene: BatchScene, place: Place, client: OpenAI) -> None:
    place.gate = Gate()
    try:
        batch = submit(client, [make_line(n) for n in range(5)])
        scene.until(lambda: len(place.upstream.requests) >= 2)
        with scene.database.begin() as connection:
            connection.exec_driver_sql("UPDATE batch_batches SET expires_ns = 1 WHERE id = ?", (batch.id,))
        done = wait_end(scene, client, batch.id)
    finally:
        place.gate.open()
    assert done.status == "expired"
    assert {line["error"]["code"] for line in read(client, done.error_file_id).values()} == {"batch_expired"}
    assert done.request_counts.failed == 5


def test_a_batch_whose_input_is_lost_from_the_disk_waits_and_can_be_cancelled(
    scene: BatchScene, client: OpenAI
) -> None:
    file = client.files.create(file=("in.jsonl", write([make_line(1)])), purpose="batch")
    (scene.folder / "batch" / "files" / file.id).unlink()
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    scene.until(lambda: f"the batch {batch.id} waits: the disk refuses" in scene.log)
    assert client.batches.retrieve(batch.id).status == "validating"
    client.batches.cancel(batch.id)
    assert wait_end(scene, client, batch.id).status == "cancelled"


def test_nothing_of_a_project_is_there_for_another(scene: BatchScene, client: OpenAI) -> None:
    batch = submit(client, [make_line(1)])
    done = wait_end(scene, client, batch.id)
    with scene.client(OTHER_KEY) as theirs:
        assert list(theirs.batches.list()) == []
        for ask in (theirs.batches.retrieve, theirs.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(batch.id)
        with pytest.raises(openai.NotFoundError):
            theirs.files.content(done.output_file_id)
        with pytest.raises(openai.NotFoundError):
            theirs.batches.create(input_file_id=done.input_file_id, endpoint=CHAT, completion_window="24h")


def test_a_list_has_pages(scene: BatchScene, client: OpenAI) -> None:
    ids = [submit(client, [make_line(1)]).id for _ in range(3)]
    page = client.batches.list(limit=2)
    assert [batch.id for batch in page.data] == ids[:0:-1]
    assert [batch.id for batch in client.batches.list(limit=2)][:3] == ids[::-1]
    for batch_id in ids:
        wait_end(scene, client, batch_id)


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint": "/v1/audio/speech"},
        {"completion_window": "1h"},
        {"metadata": {str(n): "" for n in range(17)}},
        {"extra_body": {"odd": 1}},
    ],
    ids=str,
)
def test_what_is_no_batch_is_refused(client: OpenAI, changes: dict[str, Any]) -> None:
    file = client.files.create(file=("in.jsonl", write([make_line(1)])), purpose="batch")
    wanted: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError):
        client.batches.create(**(wanted | changes))


def test_a_file_that_a_batch_reads_stays(scene: BatchScene, place: Place, client: OpenAI) -> None:
    place.gate = Gate()
    try:
        batch = submit(client, [make_line(1)])
        with pytest.raises(openai.ConflictError):
            client.files.delete(batch.input_file_id)
    finally:
        place.gate.open()
    done = wait_end(scene, client, batch.id)
    assert client.files.delete(batch.input_file_id).deleted
    assert set(read(client, done.output_file_id)) == {"c1"}


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
    ],
)
def test_other_endpoints_are_asked_likewise(
    scene: BatchScene, client: OpenAI, endpoint: str, body: dict[str, Any]
) -> None:
    line = make_line(1, url=endpoint, body={"model": "m"} | body)
    done = wait_end(scene, client, submit(client, [line], endpoint).id)
    assert (done.status, done.request_counts.completed) == ("completed", 1), read(client, done.error_file_id)


def test_a_key_that_is_revoked_stops_its_batches(tmp_path: Path, place: Place) -> None:
    place.gate = Gate()
    settings = {"grace_s": 0.5}
    other = make_key(OTHER_KEY, id="k2")
    try:
        with (
            BatchScene(
                tmp_path,
                [make_route("m", place.upstream.url)],
                keys=[make_key(), other],
                settings=settings,
            ) as scene,
            scene.client() as mine,
            scene.client(OTHER_KEY) as sister,
        ):
            batch = submit(mine, [make_line(n) for n in range(5)])
            scene.until(lambda: mine.batches.retrieve(batch.id).status == "in_progress")
            scene.gateway.write_snapshot(msgspec.structs.replace(scene.gateway.snapshot, keys=(other,)))
            done = wait_end(scene, sister, batch.id)
            assert done.status == "failed"
            assert [error.code for error in done.errors.data] == ["key_ended"]
            errors = read(sister, done.error_file_id)
            assert {line["error"]["code"] for line in errors.values()} == {"key_ended"}
            assert len(errors) == 5
    finally:
        place.gate.open()
        place.gate = None


def test_no_line_is_lost_or_written_twice_whatever_is_killed(tmp_path: Path, place: Place) -> None:
    place.upstream.requests.clear()
    place.refusals.clear()
    place.gate = None
    settings = {"requests_max_per_batch": 4}
    with BatchScene(tmp_path, [make_route("m", place.upstream.url)], settings=settings) as scene:
        with scene.client() as client:
            batch = submit(client, [make_line(n) for n in range(100)])
            for more in (1, 25, 50):
                scene.until(lambda more=more: len(place.upstream.requests) >= more)
                scene.kill()
                scene.start()
            scene.until(lambda: len(place.upstream.requests) >= 75)
            scene.gateway.kill()  # a worker likewise: its lines in flight are asked again
            scene.gateway.start()
            done = wait_end(scene, client, batch.id)
            assert done.status == "completed"
            assert (done.request_counts.total, done.request_counts.completed) == (100, 100)
            assert set(read(client, done.output_file_id)) == {f"c{n}" for n in range(100)}
            # At most those in flight at a kill were asked again, and each record says for which line.
            assert sum(count - 1 for count in place.asked.values()) <= 4 * 4
            marks = {record.batch for record in scene.gateway.records() if record.status == 200}
            assert marks == {f"{batch.id}/{n}" for n in range(1, 101)}


def test_a_caller_can_not_pass_for_a_batch(scene: BatchScene, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="m",
        messages=[{"role": "user", "content": "x"}],
        extra_headers={"x-forebay-batch": "batch_1/1"},
    )
    record = scene.gateway.wait_record(raw.headers["x-request-id"])
    assert (record.batch, record.kind) == ("", Kind.REQUEST)


def test_who_asks_as_a_batch_without_its_secret_is_nobody(scene: BatchScene) -> None:
    for credential in ("fbb-.k1", f"fbb-{'0' * 64}.k1", f"{TEST_KEY}.k1"):
        with scene.client(credential) as stranger, pytest.raises(openai.AuthenticationError):
            stranger.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
