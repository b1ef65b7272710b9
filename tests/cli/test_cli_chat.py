"""`forebay chat` against a scripted gateway: streams, remembers, and says what is wrong."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import ESCAPE, command, environment, forebay, in_terminal

from forebay.app.supervisor_state import RunState, save_run_state
from forebay.cli import gateway_client
from forebay.testing.answers import chunk, json_answer, last_chunk, sse_answer, sse_head
from forebay.testing.openai import (
    chat_chunk,
    error,
    error_answer,
    event,
    models,
    usage,
    usage_chunk,
    well_behaved,
)
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Close, Gate, Script, Send, Sleep, Stall, Wait
from forebay.testing.threaded import ThreadedUpstream, find_closed_port

Serve = Callable[[RecordedRequest], Script]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FOREBAY_CONFIG", "FOREBAY_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gateway() -> Iterator[ThreadedUpstream]:
    tokens = usage(prompt=9, completion=4)
    with ThreadedUpstream(
        well_behaved("Hel", "lo ", "there.", tokens=tokens, model="smollm2-135m")
    ) as upstream:
        yield upstream


def run_here(folder: Path, upstream: ThreadedUpstream) -> None:
    """As a supervisor of the folder would leave it."""
    run = folder / ".forebay" / "run"
    run.mkdir(parents=True)
    (folder / ".forebay" / "local.key").write_text("fb-local\n")
    state = RunState(pid=1, started_at_s=0, gateway_url=upstream.origin, control_url="http://c", children=())
    save_run_state(run / "state.json", state)


def asked(upstream: ThreadedUpstream) -> list[Any]:
    return [request.json() for request in upstream.requests if request.method == "POST"]


def serving(*answers: Script) -> ThreadedUpstream:
    """A gateway with one model whose chats are answered in this order."""
    left = list(answers)

    def handle(request: RecordedRequest) -> Script:
        return json_answer(models("m")) if request.method == "GET" else left.pop(0)

    return ThreadedUpstream(handle)


def test_the_answer_goes_to_stdout_and_the_rest_to_stderr(gateway: ThreadedUpstream) -> None:
    result = forebay("chat", "Hi!", "--url", gateway.url, "--key", "fb-k")
    assert result.exit_code == 0
    assert result.stdout == "Hello there.\n"
    assert result.stderr.startswith("9 tokens in, 4 out · first token after 0.")
    assert asked(gateway) == [
        {
            "model": "smollm2-135m",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": "Hi!"},
            ],
            "max_tokens": 1000,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    assert {request.header("authorization") for request in gateway.requests} == {"Bearer fb-k"}
    assert {request.path for request in gateway.requests} == {"/v1/models", "/v1/chat/completions"}


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_in_v1_or_not(gateway: ThreadedUpstream, ending: str) -> None:
    assert forebay("chat", "x", "--url", gateway.origin + ending).exit_code == 0


def test_a_model_that_runs_elsewhere_keeps_its_own_temperature(gateway: ThreadedUpstream) -> None:
    """Some take no other."""
    assert forebay("chat", "Hi", "--url", gateway.url, "--model", "other").exit_code == 0
    (request,) = asked(gateway)
    assert "temperature" not in request


def test_options_reach_the_request(gateway: ThreadedUpstream) -> None:
    options = ("--model", "other", "--system", "Be short.", "--max-tokens", "7", "--temperature", "0")
    assert forebay("chat", "Hi", "--url", gateway.url, *options).exit_code == 0
    (request,) = asked(gateway)
    assert request["model"] == "other"
    assert (request["max_tokens"], request["temperature"]) == (7, 0)
    assert [message["role"] for message in request["messages"]] == ["system", "user"]


def test_the_gateway_that_runs_here_and_its_key_are_found(tmp_path: Path, gateway: ThreadedUpstream) -> None:
    run_here(tmp_path, gateway)
    assert forebay("chat", "x").stdout == "Hello there.\n"
    assert gateway.requests[-1].header("authorization") == "Bearer fb-local"


def test_which_key_is_used(
    tmp_path: Path, gateway: ThreadedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(tmp_path, gateway)
    forebay("chat", "x", "--url", gateway.url)
    assert gateway.requests[-1].header("authorization") is None  # the local key goes to no other address
    monkeypatch.setenv("FOREBAY_API_KEY", "fb-env")
    forebay("chat", "x")
    assert gateway.requests[-1].header("authorization") == "Bearer fb-env"
    forebay("chat", "x", "--key", "fb-option")
    assert gateway.requests[-1].header("authorization") == "Bearer fb-option"


@pytest.mark.parametrize("args", [("-",), ()])
def test_the_message_may_come_from_a_pipe(gateway: ThreadedUpstream, args: tuple[str, ...]) -> None:
    options = ("--url", gateway.url, "--system", "")
    assert forebay("chat", *args, *options, input="from a pipe\n").exit_code == 0
    assert asked(gateway)[0]["messages"] == [{"role": "user", "content": "from a pipe\n"}]


@pytest.mark.parametrize("args", [(), ("-",), ("",), (" ",)])
def test_nothing_to_say_is_wrong_use(gateway: ThreadedUpstream, args: tuple[str, ...]) -> None:
    result = forebay("chat", *args, "--url", gateway.url, input=" \n")
    assert result.exit_code == 2
    assert "nothing to say" in result.stderr


def test_the_model_is_the_first_of_the_file_that_chats_and_that_the_key_may_call(tmp_path: Path) -> None:
    target = "targets: [{url: 'https://h/v1'}]"
    lines = [
        f"  {name}: {{endpoints: [{endpoint}], {target}}}"
        for name, endpoint in (
            ("vec", "embeddings"),
            ("hidden", "chat/completions"),
            ("mine", "chat/completions"),
        )
    ]
    (tmp_path / "forebay.yaml").write_text("\n".join(["models:", *lines]))

    def handle(request: RecordedRequest) -> Script:
        good = well_behaved()
        return json_answer(models("vec", "mine", "also")) if request.method == "GET" else good(request)

    with ThreadedUpstream(handle) as upstream:
        run_here(tmp_path, upstream)
        assert forebay("chat", "x").exit_code == 0
        assert asked(upstream)[0]["model"] == "mine"
        result = forebay("chat", "x", "--url", upstream.url)
        assert result.exit_code == 1
        assert "choose with --model: mine, also" in result.stderr


def test_tokens_are_printed_as_they_come(tmp_path: Path) -> None:
    gate = Gate()
    script = [*sse_head(), chunk(event(chat_chunk({"content": "first"}))), Wait(gate)]
    with serving(script) as upstream:
        process = subprocess.Popen(
            command("chat", "x", "--url", upstream.url),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.read(5) == b"first"  # while the answer is not over yet
        finally:
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
            gate.open()


def chunks(*parts: str) -> list[bytes]:
    return [event(chat_chunk({"content": part})) for part in parts]


DONE = b"data: [DONE]\n\n"
FAILURES: list[tuple[str, Script, str, str]] = [
    (
        "unknown key",
        error_answer(401, "No such key.", code="invalid_api_key"),
        "does not accept the key",
        "--key",
    ),
    ("unknown model", error_answer(404, "No model x.", code="model_not_found"), "No model x.", "may call: m"),
    ("overloaded", error_answer(503, "Too busy."), "Too busy.", ""),
    ("no envelope", json_answer({"detail": "?"}, status=500), "HTTP 500", ""),
    ("error in the stream", sse_answer([*chunks("a"), event(error("It broke."))]), "It broke.", ""),
    ("no end", sse_answer(chunks("a")), "broke off", ""),
    (
        "cut off",
        [*sse_head(), Send(b"5\r\ndata:"), Close()],
        "the answer broke off: the gateway closed the connection",
        "",
    ),
    ("not JSON", sse_answer([b"data: {\n\n", DONE]), "not a chat completion", ""),
    ("not an object", sse_answer([b"data: [1]\n\n", DONE]), "not a chat completion", ""),
    ("closed", [Close()], "broke off: the gateway closed the connection", ""),
]


@pytest.mark.parametrize(("script", "words", "hint"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES])
def test_a_failure_is_explained(script: Script, words: str, hint: str) -> None:
    with serving(script) as upstream:
        result = forebay("chat", "x", "--model", "x", "--url", upstream.url, "--key", "fb-k")
    assert result.exit_code == 1
    assert words in result.stderr
    assert hint in result.stderr
    assert "Traceback" not in result.output
    assert "fb-k" not in result.output


def test_what_came_before_a_failure_is_shown() -> None:
    with serving(sse_answer([*chunks("so ", "far"), event(error("It broke."))])) as upstream:
        assert forebay("chat", "x", "--url", upstream.url).stdout == "so far\n"


def test_fields_and_events_that_are_not_known_are_passed_over() -> None:
    odd = [
        b": a comment\n\n",
        b'data: {"choices": [], "x": 1}\n\n',
        b'data: {"choices": [{"delta": {"role": "assistant", "content": null, "tool_calls": []}}]}\n\n',
        *chunks("fine"),
        event(chat_chunk({}, finish_reason="length")),
        event(usage_chunk(usage(prompt=1, completion=2))),
        DONE,
    ]
    with serving(sse_answer(odd)) as upstream:
        result = forebay("chat", "x", "--url", upstream.url)
    assert (result.exit_code, result.stdout) == (0, "fine\n")
    assert "1 tokens in, 2 out" in result.stderr
    assert "ended by length" in result.stderr


def test_nobody_there(tmp_path: Path) -> None:
    port = find_closed_port()
    (tmp_path / "forebay.yaml").write_text(f"gateway: {{port: {port}}}\n")
    for args in ((), ("--url", f"http://127.0.0.1:{port}")):
        result = forebay("chat", "x", *args)
        assert result.exit_code == 1
        assert f"nothing answers at http://127.0.0.1:{port}: Connection refused" in result.stderr
        assert "forebay up" in result.stderr
    result = forebay("chat", "x", "--url", "http://no-such-host.invalid")
    assert "nothing answers at http://no-such-host.invalid" in result.stderr
    assert "forebay up" not in result.stderr


def test_a_plain_port_that_is_asked_for_https_is_said_to_be_plain(gateway: ThreadedUpstream) -> None:
    result = forebay("chat", "x", "--url", f"https://127.0.0.1:{gateway.port}")
    assert result.exit_code == 1
    assert "does not speak https" in result.stderr
    assert f"try --url http://127.0.0.1:{gateway.port}" in result.stderr


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://h", "http://", "http://h:99999", "http://[", "http://h:x"]
)
def test_an_address_that_is_none(url: str) -> None:
    result = forebay("chat", "x", "--url", url)
    assert result.exit_code == 1
    assert "is not an address" in result.stderr


def test_another_kind_of_server_is_said_to_be_one() -> None:
    with ThreadedUpstream(lambda request: json_answer([1, 2])) as upstream:
        result = forebay("chat", "x", "--url", upstream.url)
    assert result.exit_code == 1
    assert "does not answer like a gateway" in result.stderr


def test_a_conversation_remembers(tmp_path: Path, gateway: ThreadedUpstream) -> None:
    run_here(tmp_path, gateway)
    with in_terminal("chat", "--system", "S", cwd=tmp_path) as terminal:
        for turn, line in enumerate(("one", "two"), start=1):
            terminal.wait_for("you> ", turn)
            terminal.say(f"{line}\n")
            terminal.wait_for("tokens in", turn)
        terminal.wait_for("you> ", 3)
        terminal.say("/reset\n")
        terminal.wait_for("forgotten")
        terminal.say("/model smollm2-135\n")
        terminal.wait_for("there is no model smollm2-135 for this key")
        terminal.wait_for("did you mean `smollm2-135m`?")
        terminal.say("/model smollm2-135m\n")
        terminal.wait_for("now smollm2-135m")
        terminal.say("/model\n")
        terminal.wait_for("there is smollm2-135m")
        terminal.say("three\n")
        terminal.wait_for("tokens in", 3)
        terminal.say("/quit\n")
        assert terminal.wait() == 0
        assert ESCAPE in terminal.written
    said = [[message["content"] for message in request["messages"]] for request in asked(gateway)]
    assert said == [["S", "one"], ["S", "one", "Hello there.", "two"], ["S", "three"]]
    assert [request["model"] for request in asked(gateway)] == ["smollm2-135m"] * 3


def test_a_model_that_can_not_chat_is_neither_taken_nor_chosen(tmp_path: Path) -> None:
    def handle(request: RecordedRequest) -> Script:
        return json_answer(models("minilm-l6-v2", "other"))

    with ThreadedUpstream(handle) as upstream:
        run_here(tmp_path, upstream)
        with in_terminal("chat", cwd=tmp_path) as terminal:
            terminal.wait_for("other at http://")
            terminal.say("/model minilm-l6-v2\n")
            terminal.wait_for("minilm-l6-v2 can't chat: it has no endpoint `chat/completions`")
            terminal.wait_for("there is other")
            terminal.say("/quit\n")
            assert terminal.wait() == 0
        with in_terminal("chat", "--url", upstream.url, "--key", "fb-k", cwd=tmp_path) as terminal:
            terminal.wait_for("other at http://")
            terminal.say("/quit\n")
            assert terminal.wait() == 0


def test_the_key_of_another_data_folder_is_said_to_be_one(tmp_path: Path) -> None:
    refusal = error_answer(401, "No such key.", code="invalid_api_key")
    with ThreadedUpstream(lambda _: refusal) as upstream:
        (tmp_path / "forebay.yaml").write_text(f"gateway: {{port: {upstream.port}}}\n")
        for key in (None, "fb-old"):
            result = forebay("chat", "x", *(("--key", key) if key else ()))
            assert result.exit_code == 1
            assert f"{tmp_path}/.forebay is another data folder than the running Forebay's" in result.stderr
            assert "use --config" in result.stderr
            assert "keys create" not in result.stderr


def test_a_conversation_outlives_a_failure_and_ends_with_control_d(tmp_path: Path) -> None:
    good = sse_answer([*chunks("good"), DONE])
    with serving(error_answer(503, "Too busy."), good) as upstream:
        with in_terminal("chat", "--url", upstream.url, cwd=tmp_path) as terminal:
            terminal.wait_for("you> ")
            terminal.say("one\n")
            terminal.wait_for("Too busy.")
            terminal.say("two\n")
            terminal.wait_for("good")
            terminal.wait_for("you> ", 3)
            terminal.say("\x04")
            assert terminal.wait() == 0
        assert [message["content"] for message in asked(upstream)[1]["messages"][1:]] == ["two"]


def test_control_c_stops_the_answer_and_not_the_conversation(tmp_path: Path) -> None:
    gate = Gate()
    endless = [*sse_head(), chunk(chunks("half")[0]), Wait(gate)]
    with serving(endless, sse_answer([*chunks("whole"), DONE])) as upstream:
        with in_terminal("chat", "--url", upstream.url, cwd=tmp_path) as terminal:
            terminal.wait_for("you> ")
            terminal.say("one\n")
            terminal.wait_for("half")
            terminal.process.send_signal(signal.SIGINT)
            terminal.wait_for("stopped")
            terminal.say("two\n")
            terminal.wait_for("whole")
            terminal.wait_for("you> ", 3)
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.wait() == 130
            assert "Traceback" not in terminal.written
        gate.open()
        contents = [message["content"] for message in asked(upstream)[1]["messages"]]
        assert contents[1:] == ["one", "half", "two"]


def test_control_c_ends_one_answer_quietly_and_hangs_up(tmp_path: Path) -> None:
    gate = Gate()
    with serving([*sse_head(), chunk(chunks("half")[0]), Wait(gate)]) as upstream:
        process = subprocess.Popen(
            command("chat", "x", "--url", upstream.url),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.read(4) == b"half"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=90)
        assert (process.returncode, complaint) == (130, b"")
        upstream.wait_until(lambda: upstream.connections_open == 0)
        gate.open()


def test_the_body_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that closes at `[DONE]` counts as one that left."""
    monkeypatch.setattr(gateway_client, "REST_S", 60.0)  # the machine may be busy
    with serving([*sse_head(), *map(chunk, [*chunks("x"), DONE]), Sleep(0.2), last_chunk()]) as upstream:
        assert forebay("chat", "hi", "--url", upstream.url).stdout == "x\n"
        upstream.wait_until(lambda: upstream.connections_open == 0)
        assert upstream.requests[-1].answered_at_s is not None


def test_the_end_of_the_body_is_not_awaited_for_long() -> None:
    with serving([*sse_head(), *map(chunk, [*chunks("x"), DONE]), Stall()]) as upstream:
        began = time.monotonic()
        result = forebay("chat", "hi", "--url", upstream.url)
    assert (result.exit_code, result.stdout) == (0, "x\n")
    assert time.monotonic() - began < 50


def test_an_answer_that_nobody_reads_ends_quietly(tmp_path: Path) -> None:
    gate = Gate()
    script = [
        *sse_head(),
        chunk(chunks("a")[0]),
        Wait(gate),
        *map(chunk, chunks("b", "c")),
        chunk(DONE),
        last_chunk(),
    ]
    with serving(script) as upstream:
        process = subprocess.Popen(
            command("chat", "x", "--url", upstream.url),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"a"
        process.stdout.close()
        gate.open()
        assert process.wait(90) == 141
        assert process.stderr.read() == b""
        process.stderr.close()


EVIL = "safe\x1b]0;title\x07\x1b[31m\x9b2Jend\n\tin"


def test_a_model_can_not_steer_the_terminal(tmp_path: Path) -> None:
    with serving(sse_answer([*chunks(EVIL), DONE])) as upstream:
        with in_terminal("chat", "x", "--url", upstream.url, cwd=tmp_path) as terminal:
            assert terminal.wait() == 0
            terminal.wait_for("in all")
            answer = terminal.written.split("first token")[0]
    assert "safe]0;title[31m2Jend\r\n" in answer


def test_a_pipe_gets_what_the_model_said(tmp_path: Path) -> None:
    with serving(sse_answer([*chunks(EVIL), DONE])) as upstream:
        done = subprocess.run(
            command("chat", "x", "--url", upstream.url), cwd=tmp_path, env=environment(), capture_output=True
        )
    assert done.stdout.decode() == EVIL + "\n"


def test_a_message_that_is_no_text_is_refused(tmp_path: Path, gateway: ThreadedUpstream) -> None:
    words = [part.encode() for part in command("chat", "--url", gateway.url)]
    done = subprocess.run([*words, b"\xff\xfe"], cwd=tmp_path, env=environment(), capture_output=True)
    assert done.returncode == 1
    assert b"not UTF-8 text" in done.stderr
