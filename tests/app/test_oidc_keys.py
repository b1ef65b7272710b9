"""The keys of an identity provider: what it is asked, how often, and what holds while it does not answer."""

import asyncio
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from oidc_issuer import Issuer, make_jwk
from oidc_scene import EC, OTHER_RSA, RSA, Door, Hanging, make_config

from forebay.app.control_roles import Principal
from forebay.app.oidc_fetch import FetchFailed, fetch_document
from forebay.app.oidc_keys import FRESH_S, RETRY_S, STALE_MAX_S, WAITING_MAX, IssuerUnavailable, fetch_keys


def test_a_new_key_is_asked_for_once_and_then_rarely_whatever_is_sent(issuer: Issuer, door: Door) -> None:
    door.identify(issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"]))
    issuer.asked.clear()
    issuer.jwks = [make_jwk("rsa-2", OTHER_RSA)]
    rotated = issuer.make_token(OTHER_RSA, "RS256", "rsa-2", roles=["readers"])
    assert "does not list" in door.refuses(rotated), "it was asked a moment ago"
    assert issuer.asked == []
    door.clock.advance(RETRY_S)
    assert door.identify(rotated) is not None
    assert issuer.asked.count("/realm/keys") == 1
    for number in range(20):
        door.refuses(issuer.make_token(RSA, "RS256", f"none-{number}", roles=["readers"]))
    assert issuer.asked.count("/realm/keys") == 1
    assert "does not list" in door.refuses(issuer.make_token(RSA, "RS256", "rsa-1")), (
        "and the old one is gone"
    )


def test_many_at_once_ask_once(issuer: Issuer, door: Door) -> None:
    issuer.delay_s = 0.05
    token = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"])

    async def all_at_once() -> list[Principal | None]:
        return await asyncio.gather(*(door.door.identify(token) for _ in range(20)))

    assert None not in door.runner.run(all_at_once())
    assert issuer.asked.count("/realm/keys") == 1


def test_a_key_that_was_withdrawn_ends_once_it_is_asked_again(issuer: Issuer, door: Door) -> None:
    token = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"])
    assert door.identify(token) is not None
    issuer.jwks = [make_jwk("ec-1", EC)]
    assert door.identify(token) is not None
    door.clock.advance(FRESH_S)
    assert "does not list" in door.refuses(token)


def test_while_the_issuer_is_down_known_keys_go_on_and_others_get_a_503(
    issuer: Issuer, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    known = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"])
    unknown = issuer.make_token(OTHER_RSA, "RS256", "rsa-2", roles=["readers"])
    assert door.identify(known) is not None
    issuer.stop()
    door.clock.advance(FRESH_S)
    assert door.identify(known) is not None
    with pytest.raises(IssuerUnavailable, match="log says") as caught:
        door.identify(unknown)
    assert (caught.value.status, caught.value.retry_after_s) == (503, RETRY_S)
    assert "127.0.0.1" not in caught.value.message, "whoever asks may hold no token at all"
    assert f"{issuer.url}/.well-known/openid-configuration can't be reached" in caplog.text
    issuer.start()
    issuer.add("rsa-2", OTHER_RSA)
    door.clock.advance(RETRY_S)
    assert door.identify(unknown) is not None


def test_while_the_issuer_hangs_no_token_of_a_known_key_waits_for_it(issuer: Issuer) -> None:
    hanging = Hanging()
    door = Door(issuer, hanging)
    known = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"])
    assert door.identify(known) is not None
    hanging.is_hanging = True
    try:
        for _ in range(3):  # it would wait for a minute
            door.clock.advance(FRESH_S)
            assert door.identify(known) is not None
        assert hanging.asked == 1, "and nobody asks twice at a time"
    finally:
        hanging.release()
        door.runner.close()


def test_while_the_issuer_hangs_few_wait_for_an_unknown_key_and_not_for_ever(issuer: Issuer) -> None:
    hanging = Hanging()
    hanging.is_hanging = True
    door = Door(issuer, hanging, timeout_s=2.0)
    token = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"])

    async def ask() -> tuple[int, set[type[BaseException]]]:
        asking = [asyncio.create_task(door.door.identify(token)) for _ in range(WAITING_MAX + 20)]
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)
        first = sum(task.done() for task in asking)
        ended = await asyncio.gather(*asking, return_exceptions=True)
        return first, {type(error) for error in ended}

    try:
        assert door.runner.run(ask()) == (20, {IssuerUnavailable})
        assert hanging.asked == 1
    finally:
        hanging.release()
        door.runner.close()


def test_a_key_does_not_outlive_its_issuer_for_ever(issuer: Issuer, door: Door) -> None:
    known = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"])
    assert door.identify(known) is not None
    issuer.stop()
    door.clock.advance(STALE_MAX_S)
    with pytest.raises(IssuerUnavailable):
        door.identify(known)


@pytest.mark.parametrize(
    ("said", "broken"),
    [
        ("answered 500", {"status": 500}),
        ("answered 302", {"status": 302}),
        ("within 0.2 s", {"delay_s": 10.0}),
        ("no set of keys", {"body": b"<html>"}),
        ("no set of keys", {"body": b'{"keys": 1}'}),
        ("no key that can be used", {"body": b'{"keys": []}'}),
        ("more than", {"body": b" " * 300_000}),
        ("of the issuer", {"discovery": {"issuer": "https://evil.example"}}),
        ("can't be trusted", {"discovery": {"jwks_uri": "http://198.51.100.1/keys"}}),
        ("can't be trusted", {"discovery": {"jwks_uri": "file:///etc/passwd"}}),
        ("no discovery document", {"discovery": {"jwks_uri": 1}}),
    ],
)
def test_an_issuer_that_answers_nonsense_is_told_apart(
    issuer: Issuer, said: str, broken: dict[str, Any]
) -> None:
    for name, value in broken.items():
        setattr(issuer, name, value)
    with pytest.raises(FetchFailed, match=said):
        fetch_keys(make_config(issuer, timeout_s=0.2 if "delay_s" in broken else 5.0))


def test_the_keys_may_lie_at_an_address_of_their_own(issuer: Issuer) -> None:
    door = Door(issuer, jwks_url=f"{issuer.url}/elsewhere")
    assert door.identify(issuer.make_token(RSA, "RS256", "rsa-1", roles=["admins"])) is not None
    assert issuer.asked == ["/realm/elsewhere"]
    door.runner.close()


def test_an_issuer_that_drips_is_given_up_in_time() -> None:
    for part in (b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            is_over = threading.Event()

            def drip(server: socket.socket = server, part: bytes = part) -> None:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.sendall(part)
                    while not is_over.wait(0.02):  # noqa: B023
                        connection.sendall(b"a")

            thread = threading.Thread(target=drip, daemon=True)
            thread.start()
            try:
                with pytest.raises(FetchFailed, match=r"did not answer within 0\.3 s"):
                    fetch_document(f"http://127.0.0.1:{server.getsockname()[1]}/", None, 0.3)
            finally:
                is_over.set()
                thread.join()


def test_a_query_belongs_to_the_address_of_keys(issuer: Issuer) -> None:
    issuer.discovery = {"jwks_uri": f"{issuer.url}/keys?p=b2c_1_sign_in"}
    assert len(fetch_keys(make_config(issuer))) == 2
    assert len(fetch_keys(make_config(issuer, jwks_url=f"{issuer.url}/all?appid=7&x=%20"))) == 2
    assert issuer.asked[1:] == ["/realm/keys?p=b2c_1_sign_in", "/realm/all?appid=7&x=%20"]


def test_over_tls_the_authority_must_be_one_that_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with Issuer(tls=context) as issuer:
        issuer.add("rsa-1", RSA)
        assert len(fetch_keys(make_config(issuer, tls_ca=tmp_path / "ca.pem"))) == 1
        with pytest.raises(FetchFailed, match="not to be trusted"):
            fetch_keys(make_config(issuer))


def test_an_edit_of_the_section_holds_at_once(issuer: Issuer, door: Door) -> None:
    token = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"])
    assert door.identify(token) is not None
    door.config = make_config(issuer, audience="another")
    assert "audience" in door.refuses(token)
    door.config = None  # type: ignore[assignment]
    assert door.identify(token) is None
