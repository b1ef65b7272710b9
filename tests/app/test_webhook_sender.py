"""One event to one receiver: signed, bounded, over TLS, and told apart by what came back."""

import asyncio
import base64
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webhook_rig import is_signed, make_secret, make_tls, make_webhook

from forebay.app import webhook_sender
from forebay.app.clock import SystemClock
from forebay.app.config_alerts import WebhookConfig
from forebay.app.webhook_sender import Sent, WebhookSender
from forebay.app.webhook_signing import decode_secret, sign
from forebay.testing.answers import answer, drip, head, json_answer
from forebay.testing.steps import Script, Send, Sleep
from forebay.testing.threaded import find_closed_port
from forebay.testing.upstream import ScriptedUpstream, UpstreamSettings

BODY = b'{"specversion":"1.0"}'


def send_all(
    webhooks: Callable[[ScriptedUpstream], list[WebhookConfig]],
    script: Script | None = None,
    settings: UpstreamSettings | None = None,
) -> tuple[list[Sent], ScriptedUpstream]:
    """One event to each webhook of one receiver."""

    async def scenario() -> tuple[list[Sent], ScriptedUpstream]:
        sender = WebhookSender(SystemClock())
        try:
            async with ScriptedUpstream(script or answer(status=204), settings) as receiver:
                found = [await sender.send(each, "alert_1", BODY) for each in webhooks(receiver)]
                return found, receiver
        finally:
            sender.close()

    return asyncio.run(scenario())


def send(folder: Path, script: Script | None = None, path: str = "/hook") -> tuple[Sent, ScriptedUpstream]:
    (sent,), receiver = send_all(lambda r: [make_webhook(folder, r.origin + path)], script)
    return sent, receiver


def test_an_event_arrives_signed_with_its_id(tmp_path: Path) -> None:
    sent, receiver = send(tmp_path, path="/a/b/")
    assert (sent.status, sent.error) == (204, "")
    (request,) = receiver.requests
    assert (request.method, request.target, bytes(request.body)) == ("POST", "/a/b/", BODY)
    assert request.header("webhook-id") == "alert_1"
    assert request.header("content-type") == "application/cloudevents+json; charset=utf-8"
    assert is_signed(request, tmp_path / "hook.secret", time.time())
    request.body[3] ^= 1
    assert not is_signed(request, tmp_path / "hook.secret", time.time())


def test_a_signature_is_that_of_the_standards_example() -> None:
    """From the reference implementations of Standard Webhooks."""
    key = decode_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "text",
    ["", "secret", "whsec_", "whsec_!!!", f"whsec_{base64.b64encode(b'x' * 23).decode()}",
     f"whsec_{base64.b64encode(b'x' * 65).decode()}", base64.b64encode(b"x" * 32).decode()],
)  # fmt: skip
def test_what_is_no_secret_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match="24 to 64 bytes") as caught:
        decode_secret(text)
    assert len(text) < 7 or text.removeprefix("whsec_") not in str(caught.value)


@given(st.binary(min_size=24, max_size=64))
def test_every_secret_of_a_right_length_is_taken(key: bytes) -> None:
    assert decode_secret(f"whsec_{base64.b64encode(key).decode()}\n") == key


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (500, "answered 500: so sad"),
        (404, "answered 404: so sad"),
        (302, "answered 302: redirects are not followed"),
        (307, "answered 307: redirects are not followed"),
    ],
)
def test_what_came_back_is_told(tmp_path: Path, status: int, words: str) -> None:
    script = answer(b"so\x00sad", status=status, headers=[("location", "http://127.0.0.1/elsewhere")])
    sent, receiver = send(tmp_path, script)
    assert (sent.status, sent.error) == (status, words)
    assert len(receiver.requests) == 1


def test_a_receiver_may_say_when_to_come_back(tmp_path: Path) -> None:
    assert send(tmp_path, json_answer({}, status=503, headers=[("retry-after", "7")]))[0].retry_after_s == 7
    late = json_answer({}, status=503, headers=[("retry-after", "99999999")])
    assert send(tmp_path, late)[0].retry_after_s == webhook_sender.RETRY_AFTER_MAX_S
    date = json_answer({}, status=503, headers=[("retry-after", "Mon, 01 Jan 2029 00:00:00 GMT")])
    assert send(tmp_path, date)[0].retry_after_s == 0


#: How long a receiver has: enough to be asked on a machine that is calm, and on one that is not.
LIMITS_S = (0.3, 3, 20)


def test_a_receiver_that_never_answers_takes_its_time_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script in ([Sleep(600.0)], drip(answer(b"x" * 20_000), pause_s=0.05)):
        for limit_s in LIMITS_S:
            monkeypatch.setattr(webhook_sender, "TOTAL_S", limit_s)
            began = time.monotonic()
            sent, receiver = send(tmp_path, script)
            assert time.monotonic() - began < 300
            assert sent.error == f"no answer within {limit_s:g} s"
            if receiver.requests:
                break
        assert len(receiver.requests) == 1


def test_a_body_that_never_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [Send(head(200, [("content-length", "99")])), Sleep(600.0)]
    for limit_s in LIMITS_S:
        monkeypatch.setattr(webhook_sender, "TOTAL_S", limit_s)
        sent, _ = send(tmp_path, script)
        if sent.status is not None:
            break
    assert (sent.status, sent.error) == (200, "")


def test_an_answer_that_is_none_or_too_long_is_told(tmp_path: Path) -> None:
    assert "was not HTTP" in send(tmp_path, [Send(b"SSH-2.0-hello\r\n\r\n")])[0].error
    sent, _ = send(tmp_path, answer([b"x" * 70_000] * 3))
    assert (sent.status, sent.error, len(sent.answer)) == (200, "", 200)


def test_nobody_at_the_address_is_told(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{find_closed_port()}/x"
    (sent,), _ = send_all(lambda _: [make_webhook(tmp_path, url)])
    assert sent.status is None
    assert sent.error.startswith("cannot connect to http://127.0.0.1:")


def test_tls_is_checked_against_the_authority_of_the_configuration(tmp_path: Path) -> None:
    context, ca = make_tls(tmp_path)

    def webhooks(receiver: ScriptedUpstream) -> list[WebhookConfig]:
        trusting = make_webhook(tmp_path, receiver.origin + "/x", tls_ca=ca)
        return [trusting, make_webhook(tmp_path, receiver.origin + "/y")]

    (good, bad), receiver = send_all(webhooks, settings=UpstreamSettings(tls=context))
    assert (good.status, good.error) == (204, "")
    assert "not to be trusted" in bad.error
    assert [request.path for request in receiver.requests] == ["/x"]
    ca.unlink()
    (lost,), _ = send_all(
        lambda r: [make_webhook(tmp_path, r.origin, tls_ca=ca)], settings=UpstreamSettings(tls=context)
    )
    assert lost.error.startswith("the authorities of tls_ca can't be read")


def test_an_address_may_be_a_secret_that_no_result_and_no_log_shows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place = tmp_path / "hook.url"

    def webhooks(receiver: ScriptedUpstream) -> list[WebhookConfig]:
        place.write_text(f"{receiver.origin}/T0KEN?sig=hidden\n")
        return [make_webhook(tmp_path, f"file:{place}")]

    key = make_secret(tmp_path, "other")
    echo = answer((tmp_path / "other").read_bytes(), status=400)
    (sent,), receiver = send_all(webhooks, echo)
    assert receiver.requests[0].target == "/T0KEN?sig=hidden"
    assert "T0KEN" not in f"{sent}{caplog.text}"
    assert key not in f"{sent}"


@pytest.mark.parametrize("host", ["nobody-4711.invalid", "127.0.0.1:1"])
def test_a_secret_address_is_not_told_by_what_can_not_be_reached(tmp_path: Path, host: str) -> None:
    (tmp_path / "hook.url").write_text(f"http://{host}/x\n")
    (sent,), _ = send_all(lambda _: [make_webhook(tmp_path, f"file:{tmp_path / 'hook.url'}")])
    assert sent.error
    assert host.partition(":")[0] not in sent.error


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"secret": "env:FOREBAY_NO_SUCH"}, "its secret can't be had: the environment variable"),
        ({"url": "env:FOREBAY_NO_SUCH"}, "its address can't be had: the environment variable"),
    ],
)
def test_a_secret_that_is_not_there_is_told(tmp_path: Path, other: dict[str, str], words: str) -> None:
    (sent,), receiver = send_all(
        lambda r: [make_webhook(tmp_path, r.origin).model_copy(update=other)], answer(status=204)
    )
    assert sent.error.startswith(words)
    assert receiver.requests == []


def test_a_secret_that_a_receiver_sends_back_is_shown_to_nobody(tmp_path: Path) -> None:
    webhook: list[WebhookConfig] = []

    def webhooks(receiver: ScriptedUpstream) -> list[WebhookConfig]:
        webhook.append(make_webhook(tmp_path, receiver.origin))
        receiver.enqueue(answer(b"key " + (tmp_path / "hook.secret").read_bytes(), status=401))
        return webhook

    (sent,), _ = send_all(webhooks)
    assert sent.error == "answered 401: key [redacted]"
