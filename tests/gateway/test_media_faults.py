"""Audio and images that go wrong: sound that is cut, callers that leave or dawdle, forms of every size."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from gateway_stage import UPSTREAM_SECRET, Stage
from raw_caller import RawCaller

from forebay.core.events import Outcome, UsageSource
from forebay.core.routes import Choosing, Endpoint, GatewayLimits, Mirror, Order
from forebay.testing.answers import Framing, answer, chunk, head, json_answer, sse_answer, sse_head
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_route
from forebay.testing.media import (
    audio_answer,
    image_stream,
    named_event,
    read_form,
    transcription,
    transcription_stream,
    wav,
    well_behaved,
)
from forebay.testing.openai import error
from forebay.testing.steps import Close, Gate, Reset, Send, Stall, Step, Wait
from forebay.testing.threaded import ThreadedUpstream

MIB = 1 << 20
SPEECH: dict[str, Any] = {"model": "m", "voice": "alloy", "input": "Hello"}


def sound_head(kind: str = "audio/mpeg") -> list[Step]:
    return [Send(head(200, [("content-type", kind), ("transfer-encoding", "chunked")]))]


def make_form(data: bytes, model: str = "m", *, boundary: str = "fb", model_last: bool = True) -> bytes:
    file = (
        b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        + data
    )
    name = f'Content-Disposition: form-data; name="model"\r\n\r\n{model}'.encode()
    line = f"--{boundary}\r\n".encode()
    parts = [file, name] if model_last else [name, file]
    return b"".join(line + part + b"\r\n" for part in parts) + f"--{boundary}--\r\n".encode()


FORM_HEADER = {"content-type": "multipart/form-data; boundary=fb"}


def post_form(client: httpx.Client, body: Any, path: str = "/audio/transcriptions") -> httpx.Response:
    return client.post(path, content=body, headers=FORM_HEADER)


def read_to_the_end(caller: RawCaller) -> None:
    """Of a connection that ends in the middle of an answer, without a reset that could take bytes with it."""
    while caller.read():
        pass
    assert caller.reply.head_complete
    assert not caller.reply.complete


# --- sound --------------------------------------------------------------------------------------------------


def test_sound_goes_out_as_it_comes(gateway: GatewayProcess, upstream: Stage, caller: RawCaller) -> None:
    gate = Gate()
    upstream.answer = [*sound_head(), chunk(b"first"), Wait(gate), chunk(b"last"), Send(b"0\r\n\r\n")]
    caller.post("audio/speech", SPEECH)
    assert caller.read_until(b"first") == b"first"
    gate.open()
    reply = caller.read_all()
    assert (bytes(reply.body), reply.header("content-type")) == (b"firstlast", "audio/mpeg")
    assert reply.header("transfer-encoding") == "chunked"
    assert gateway.wait_record(reply.id).outcome is Outcome.OK


@pytest.mark.parametrize("end", [[Close()], [Reset()], [Send(b"zz\r\n"), Close()]], ids=["fin", "rst", "bad"])
def test_sound_that_is_cut_has_no_end(
    gateway: GatewayProcess,
    upstream: Stage,
    fallback: Stage,
    caller: RawCaller,
    fresh: Callable[[str], str],
    end: list[Step],
) -> None:
    gate = Gate()
    upstream.answer = [*sound_head(), chunk(b"half"), Wait(gate), *end]
    caller.post("audio/speech", SPEECH | {"model": fresh("two")})
    caller.read_until(b"half")
    gate.open()
    read_to_the_end(caller)
    assert bytes(caller.reply.body) == b"half"
    assert not fallback.requests  # what went out can't be taken back
    record = gateway.wait_record(caller.reply.id)
    assert (record.status, record.outcome) == (200, Outcome.FAILED)
    assert record.error in ("upstream_reset", "upstream_protocol_error")
    assert record.units == (("characters", 5),)


def test_sound_with_a_length_that_is_not_reached(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller
) -> None:
    lines = [("content-type", "audio/wav"), ("content-length", "10")]
    upstream.answer = [Send(head(200, lines) + b"half"), Close()]
    caller.post("audio/speech", SPEECH)
    read_to_the_end(caller)
    assert bytes(caller.reply.body) == b"half"
    record = gateway.wait_record(caller.reply.id)
    assert (record.error, record.answer_bytes) == ("upstream_reset", 4)


def test_sound_until_the_connection_ends(client: httpx.Client, upstream: Stage) -> None:
    upstream.answer = audio_answer([b"a" * 70_000, b"b"], framing=Framing.CLOSE)
    assert client.post("/audio/speech", json=SPEECH).content == b"a" * 70_000 + b"b"


@pytest.mark.parametrize(
    "bad",
    [
        json_answer(error("no room"), status=503),
        answer(b"<html>", headers=[("content-type", "text/html")]),
        answer(b"", headers=[("content-type", "audio/mpeg")]),
        answer(b"x", headers=[("content-type", "audio/mpeg"), ("content-encoding", "gzip")]),
        [Reset()],
        [*sound_head(), Reset()],
        sse_answer(
            [named_event({"type": "error", "error": {"message": "no", "code": "rate_limit_exceeded"}})]
        ),
    ],
    ids=["503", "html", "empty", "gzip", "reset", "head-then-reset", "error-event"],
)
def test_before_the_first_byte_another_target_answers(
    gateway: GatewayProcess,
    client: httpx.Client,
    upstream: Stage,
    fallback: Stage,
    fresh: Callable[[str], str],
    bad: list[Step],
) -> None:
    upstream.answer, fallback.answer = bad, audio_answer([b"good"])
    model = fresh("two")
    got = client.post("/audio/speech", json=SPEECH | {"model": model})
    assert (got.status_code, got.content) == (200, b"good")
    assert got.headers["x-forebay-attempts"] == "2"
    assert gateway.wait_record(got.headers["x-request-id"]).target == f"{model}-1"
    upstream.requests.clear()
    alone = client.post("/audio/speech", json=SPEECH)
    assert alone.status_code >= 400
    assert alone.json()["error"]["message"]


def test_a_target_that_is_silent_is_left_for_another(
    client: httpx.Client, upstream: Stage, fallback: Stage, fresh: Callable[[str], str]
) -> None:
    upstream.answer, fallback.answer = [*sound_head(), Stall()], audio_answer([b"good"])
    assert client.post("/audio/speech", json=SPEECH | {"model": fresh("brief-two")}).content == b"good"


def test_silence_in_the_middle_cuts(gateway: GatewayProcess, upstream: Stage, caller: RawCaller) -> None:
    upstream.answer = [*sound_head(), chunk(b"half"), Stall()]
    caller.post("audio/speech", SPEECH | {"model": "brief"})
    caller.read_until(b"half")
    read_to_the_end(caller)
    assert gateway.wait_record(caller.reply.id).error == "upstream_idle_timeout"


@pytest.mark.parametrize("leave", [RawCaller.close, RawCaller.reset], ids=["fin", "rst"])
def test_a_caller_that_leaves_ends_the_target_within_a_second(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller, leave: Any
) -> None:
    upstream.answer = [*sound_head(), chunk(b"some"), Stall()]
    caller.post("audio/speech", SPEECH)
    caller.read_until(b"some")
    leave(caller)
    upstream.wait_let_go(gateway, upstream.request)
    record = gateway.wait_record(caller.reply.id)
    assert (record.status, record.outcome) == (499, Outcome.ABANDONED)
    assert (record.units, record.usage_source) == ((("characters", 5),), UsageSource.ESTIMATED)
    gateway.wait_idle()


def test_one_that_leaves_before_its_transcription_comes(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller
) -> None:
    upstream.answer = [Stall()]
    body = make_form(wav(2))
    caller.post(
        "audio/transcriptions",
        body,
        headers=(f"authorization: Bearer {TEST_KEY}", f"content-type: {FORM_HEADER['content-type']}"),
    )
    request = upstream.wait_request()
    caller.close()
    upstream.wait_let_go(gateway, request)
    record = gateway.wait_record(request.header("x-request-id") or "")
    assert (record.status, record.units) == (
        499,
        (("audio_seconds", 3),),
    )  # its head is sound to the estimate


def test_a_caller_that_reads_slowly_stops_the_target(gateway: GatewayProcess, upstream: Stage) -> None:
    size, piece = 24 * MIB, b"x" * 65_536
    sent: list[int] = []

    def steps() -> Iterator[Step]:
        yield from sound_head()
        for number in range(size // len(piece)):
            sent.append(number)
            yield chunk(piece)
        yield Send(b"0\r\n\r\n")

    upstream.answer = lambda _: steps()
    before = gateway.rss_bytes
    with RawCaller(gateway.port, receive_buffer=4096) as caller:
        caller.post("audio/speech", SPEECH)
        caller.read_head()
        settled = -1
        while settled != len(sent):  # until nothing more moves
            settled = len(sent)
            time.sleep(0.3)
        assert len(sent) * len(piece) < size // 2
        assert gateway.rss_bytes < before + 8 * MIB
        caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
        while not caller.reply.complete:
            assert caller.read(MIB)
        assert len(caller.reply.body) == size


def test_a_caller_that_never_reads_is_let_go_in_time(gateway: GatewayProcess, upstream: Stage) -> None:
    def steps() -> Iterator[Step]:
        yield from sound_head()
        while True:
            yield chunk(b"x" * 65_536)

    upstream.answer = lambda _: steps()
    with RawCaller(gateway.port, receive_buffer=4096) as caller:
        caller.post("audio/speech", SPEECH | {"model": "total"})
        caller.read_head()
        upstream.wait_closed(upstream.wait_request())
        record = gateway.wait_record(caller.reply.id)
        assert (record.outcome, record.error) == (Outcome.FAILED, "upstream_total_timeout")
        gateway.until(lambda: gateway.metric("forebay_memory_held_bytes") == 0)
        while caller.read(MIB):
            pass
        assert not caller.reply.complete


# --- streams of events --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "events"),
    [("audio/transcriptions", transcription_stream(("Hel", "lo"))), ("images/generations", image_stream(2))],
)
def test_a_stream_of_events_that_is_cut_tells_so(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, path: str, events: list[bytes]
) -> None:
    upstream.answer = [*sse_head(), *map(chunk, events[:-1]), Close()]
    if path.startswith("images"):
        got = client.post(path, json={"model": "m", "prompt": "x", "stream": True})
    else:
        form = {"model": (None, "m"), "stream": (None, "true"), "file": ("a.wav", wav(1))}
        got = client.post(path, files=form)
    assert got.content.startswith(b"".join(events[:-1]))
    told = json.loads(got.content[len(b"".join(events[:-1])) :].removeprefix(b"data: "))
    assert told["error"]["code"] in ("upstream_reset", "upstream_truncated")
    record = gateway.wait_record(got.headers["x-request-id"])
    assert (record.outcome, record.usage_source) == (Outcome.FAILED, UsageSource.ESTIMATED)
    assert record.units  # what was asked for


def test_an_answer_that_is_whole_though_a_stream_was_asked_for(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    """As whisper-1 does."""
    upstream.answer = json_answer(transcription("Hello"))
    got = client.post("/audio/transcriptions", files={"model": (None, "m"), "stream": (None, "true")})
    assert got.json() == {"text": "Hello"}


def test_vllms_chunks_of_a_transcription(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    def part(delta: dict[str, str], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return (
            b"data: " + json.dumps({"object": "transcription.chunk", "choices": [choice]}).encode() + b"\n\n"
        )

    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
    events = [part({"content": "Hel"}, None), part({"content": "lo"}, "stop"), usage, b"data: [DONE]\n\n"]
    upstream.answer = sse_answer(events)
    got = client.post("/audio/transcriptions", files={"model": (None, "m"), "stream": (None, "True")})
    assert got.content == b"".join(events)
    record = gateway.wait_record(got.headers["x-request-id"])
    assert (record.outcome, record.tokens.input, record.tokens.output) == (Outcome.OK, 9, 2)


# --- forms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("model", ["m", "alias"])
@pytest.mark.parametrize("size", [0, 32 * 1024 + 1, 20 * MIB])
def test_forms_of_every_size_arrive_whole(
    client: httpx.Client, upstream: Stage, size: int, model: str, chunked: bool
) -> None:
    upstream.answer = json_answer(transcription())
    body = make_form(b"\r\n--f" * (size // 5), model)
    pieces = (body[at : at + 65_536] for at in range(0, len(body), 65_536))
    got = post_form(client, pieces if chunked else body)
    assert got.status_code == 200
    there = "the-name-there" if model == "alias" else "m"
    assert bytes(upstream.request.body) == make_form(b"\r\n--f" * (size // 5), there)
    assert upstream.request.header("content-type") == FORM_HEADER["content-type"]
    assert upstream.request.header("content-length") == str(len(upstream.request.body))


def test_a_form_of_20_mib_is_held_once(upstream: Stage, tmp_path: Path) -> None:
    """Twice while its pieces are put together, and never again for another name of the model."""
    upstream.answer = json_answer(transcription())
    route = make_route("alias", upstream.url, target_model="the-name-there")
    with GatewayProcess([route], folder=tmp_path) as process:
        headers = {"authorization": f"Bearer {TEST_KEY}"}
        with httpx.Client(base_url=process.url, headers=headers, timeout=60) as client:
            post_form(client, make_form(b"x", "alias"))
            before = process.rss_bytes
            assert post_form(client, make_form(b"x" * (20 * MIB), "alias")).status_code == 200
        assert process.rss_peak_bytes < before + 48 * MIB


def test_a_form_above_the_limit_is_a_413(upstream: Stage, tmp_path: Path) -> None:
    limits = GatewayLimits(body_max_bytes=MIB)
    with GatewayProcess([make_route("m", upstream.url)], folder=tmp_path, limits=limits) as process:
        headers = {"authorization": f"Bearer {TEST_KEY}"}
        with httpx.Client(base_url=process.url, headers=headers, timeout=60) as client:
            for body in (make_form(b"x" * MIB), iter([make_form(b"x" * MIB)])):
                got = post_form(client, body)
                told = got.json()["error"]
                assert (got.status_code, told["code"]) == (413, "request_too_large")
                assert told["type"] == "invalid_request_error"
    assert not upstream.requests


@pytest.mark.parametrize(
    ("content", "headers", "param", "word"),
    [
        (b"{}", {"content-type": "application/json"}, None, "application/json"),
        (b"x", {}, None, "not as nothing"),
        (b"x", FORM_HEADER, None, "does not begin"),
        (make_form(b"").replace(b'"model"', b'"modell"'), FORM_HEADER, "model", "no field `model`"),
        (make_form(b"").replace(b'"file"; filename="a.wav"', b'"model"'), FORM_HEADER, "model", "2 times"),
        (make_form(b"")[:-4], FORM_HEADER, None, "form"),
    ],
)
def test_forms_that_can_not_be_read_are_told_so(
    gateway: GatewayProcess,
    client: httpx.Client,
    upstream: Stage,
    content: bytes,
    headers: dict[str, str],
    param: str | None,
    word: str,
) -> None:
    got = client.post("/audio/transcriptions", content=content, headers=headers)
    told = got.json()["error"]
    assert (got.status_code, told["param"]) == (400, param)
    assert told["type"] == "invalid_request_error"
    assert word in told["message"]
    assert not upstream.requests
    assert gateway.wait_record(got.headers["x-request-id"]).status == 400


def test_a_form_goes_to_the_next_target_whole(
    client: httpx.Client, upstream: Stage, fallback: Stage, fresh: Callable[[str], str]
) -> None:
    upstream.answer, fallback.answer = json_answer(error("busy"), status=429), well_behaved("Hello")
    got = client.post(
        "/audio/transcriptions", files={"model": (None, fresh("two")), "file": ("a.wav", wav(1))}
    )
    assert got.json() == {"text": "Hello"}
    assert upstream.request.body == fallback.request.body
    assert read_form(fallback.request)[1].value == wav(1)


def test_a_page_is_no_answer(
    client: httpx.Client, upstream: Stage, fallback: Stage, fresh: Callable[[str], str]
) -> None:
    upstream.answer = answer(b"<html>", headers=[("content-type", "text/html")])
    fallback.answer = well_behaved("Hello")
    for more in ({}, {"stream": (None, "true")}):
        form: Any = {"model": (None, fresh("two")), "file": ("a.wav", wav(1))} | more
        got = client.post("/audio/transcriptions", files=form)
        assert (got.status_code, got.headers["x-forebay-attempts"]) == (200, "2")
        alone = client.post("/audio/transcriptions", files=form | {"model": (None, "m")})
        assert (alone.status_code, alone.json()["error"]["code"]) == (502, "upstream_protocol_error")
        assert "text/html" in alone.json()["error"]["message"]


def test_a_copy_of_speech_that_is_cut_is_told_apart(upstream: Stage, fallback: Stage, tmp_path: Path) -> None:
    upstream.answer = audio_answer([b"whole"])
    fallback.answer = [*sound_head(), chunk(b"half"), Reset()]
    mirror = make_route("mirror", fallback.url)
    route = msgspec.structs.replace(
        make_route("m", upstream.url), mirrors=(Mirror(model="mirror", share=1.0, timeout_s=10.0),)
    )
    with GatewayProcess([route, mirror], folder=tmp_path) as process:
        headers = {"authorization": f"Bearer {TEST_KEY}"}
        got = httpx.post(f"{process.url}/audio/speech", json=SPEECH, headers=headers)
        assert got.content == b"whole"
        copy = process.wait_for(lambda record: record.mirror_of == got.headers["x-request-id"])
        assert (copy.outcome, copy.error) == (Outcome.FAILED, "upstream_reset")
        assert "Traceback" not in process.log


def test_places_are_chosen_by_what_it_is_and_not_by_its_bytes(
    upstream: Stage, fallback: Stage, tmp_path: Path
) -> None:
    """A megabyte of sound is no prompt of 260,000 tokens, and needs no capability of a chat."""
    upstream.answer = fallback.answer = well_behaved("Hello")
    route = make_route("m", upstream.url, fallback.url)
    small = [
        msgspec.structs.replace(target, context_window=2000, tokens_max=3000, capabilities=())
        for target in route.targets
    ]
    route = msgspec.structs.replace(route, targets=tuple(small), choosing=Choosing(order=Order.LOAD))
    with GatewayProcess([route], folder=tmp_path) as process:
        snapshot = msgspec.structs.replace(process.snapshot, explains_routes=True)
        process.snapshot = snapshot
        process.write_snapshot(snapshot)
        headers = {"authorization": f"Bearer {TEST_KEY}", "x-forebay-session": "one"}
        form: Any = {"model": (None, "m"), "file": ("a.mp3", b"x" * MIB)}
        with httpx.Client(base_url=process.url, headers=headers, timeout=60) as client:
            for _ in range(6):
                assert client.post("/audio/transcriptions", files=form).status_code == 200
            assert sorted((len(upstream.requests), len(fallback.requests))) == [0, 6]  # of one session

            def explain() -> Any:
                got = client.post("/audio/transcriptions", files=form, headers={"x-forebay-debug": "route"})
                return got.json() if "candidates" in got.text else None

            candidates = process.until(explain)["candidates"]
            assert [each["rejected"] for each in candidates] == [None, None]


def test_errors_hide_the_targets_key(client: httpx.Client, upstream: Stage) -> None:
    upstream.answer = json_answer(error(f"bad key {UPSTREAM_SECRET}"), status=400)
    form: Any = {"model": (None, "secret"), "file": ("a.wav", wav(0.1))}
    assert UPSTREAM_SECRET not in client.post("/audio/transcriptions", files=form).text
    assert UPSTREAM_SECRET not in client.post("/audio/speech", json=SPEECH | {"model": "secret"}).text
    upstream.answer = answer(UPSTREAM_SECRET.encode(), headers=[("content-type", "text/plain")])
    assert UPSTREAM_SECRET not in client.post("/audio/transcriptions", files=form).text


def test_models_and_targets_that_do_not_serve_it(
    client: httpx.Client, upstream: Stage, tmp_path: Path
) -> None:
    got = client.post("/audio/speech", json=SPEECH | {"model": "embed/only"})
    assert (got.status_code, got.json()["error"]["code"]) == (400, "endpoint_not_supported")
    assert client.post("/audio/speech", json=SPEECH | {"model": "nothing"}).status_code == 404
    assert client.get("/audio/speech").status_code == 405
    route = make_route("claude", upstream.url, dialect="anthropic", endpoints=tuple(Endpoint))
    with GatewayProcess([route], folder=tmp_path) as process:
        headers = {"authorization": f"Bearer {TEST_KEY}"}
        got = httpx.post(f"{process.url}/audio/speech", json=SPEECH | {"model": "claude"}, headers=headers)
        form: Any = {"model": (None, "claude"), "file": ("a.wav", b"x")}
        heard = httpx.post(f"{process.url}/audio/transcriptions", files=form, headers=headers)
    for told in (got, heard):
        assert told.status_code == 400
        assert "anthropic" in told.json()["error"]["message"]
    assert not upstream.requests


def test_the_end_of_a_worker_cuts_sound(upstream: Stage, tmp_path: Path) -> None:
    upstream.answer = [*sound_head(), chunk(b"half"), Stall()]
    limits = GatewayLimits(drain_deadline_s=0.2)
    with GatewayProcess([make_route("m", upstream.url)], folder=tmp_path, limits=limits) as process:
        with RawCaller(process.port) as caller:
            caller.post("audio/speech", SPEECH)
            caller.read_until(b"half")
            process.terminate()
            read_to_the_end(caller)
            assert bytes(caller.reply.body) == b"half"
        process.wait()
        assert process.wait_record(caller.reply.id).error == "gateway_draining"


def test_sound_for_a_caller_of_an_older_http(upstream: Stage, gateway: GatewayProcess) -> None:
    upstream.answer = audio_answer([b"all"])
    body = json.dumps(SPEECH).encode()
    with RawCaller(gateway.port) as caller:
        lines = f"authorization: Bearer {TEST_KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        caller.send(b"POST /v1/audio/speech HTTP/1.0\r\n" + lines.encode() + body)
        got = b""
        while data := caller.socket.recv(65536):
            got += data
    assert got.endswith(b"\r\n\r\nall")
    assert b"chunked" not in got


def test_sound_that_is_cut_for_such_a_caller(upstream: Stage, gateway: GatewayProcess) -> None:
    """The end of its connection would be a good end, so it is reset."""
    gate = Gate()
    upstream.answer = [*sound_head(), chunk(b"half"), Wait(gate), Close()]
    body = json.dumps(SPEECH).encode()
    with RawCaller(gateway.port) as caller:
        lines = f"authorization: Bearer {TEST_KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        caller.send(b"POST /v1/audio/speech HTTP/1.0\r\n" + lines.encode() + body)
        got = b""
        while not got.endswith(b"half"):
            got += caller.socket.recv(65536)
        gate.open()
        with pytest.raises(ConnectionResetError):
            caller.socket.recv(65536)


def test_many_at_once_are_told_apart(upstream: Stage, gateway: GatewayProcess) -> None:
    """Each caller gets its own sound."""
    upstream.answer = lambda request: audio_answer([request.json()["input"].encode() * 1000])
    callers = [RawCaller(gateway.port) for _ in range(20)]
    for number, caller in enumerate(callers):
        caller.post("audio/speech", SPEECH | {"input": f"<{number}>"})
    for number, caller in enumerate(callers):
        assert bytes(caller.read_all().body) == f"<{number}>".encode() * 1000
        caller.close()


def test_an_upstream_that_reads_no_body_is_not_waited_for(tmp_path: Path) -> None:
    """A target that answers before it has read a large form: its answer counts."""
    refused = json_answer(error("too large"), status=413)
    with (
        ThreadedUpstream(refused) as target,
        GatewayProcess([make_route("m", target.url)], folder=tmp_path) as process,
    ):
        headers = {"authorization": f"Bearer {TEST_KEY}"}
        with httpx.Client(base_url=process.url, headers=headers, timeout=60) as client:
            assert post_form(client, make_form(b"x" * MIB)).status_code == 413
