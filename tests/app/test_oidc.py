"""Tokens of an identity provider at the admin API: whom they let in, which are refused, what it is asked."""

import asyncio
import base64
import hmac
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import trustme
from control_scene import TOKEN, LiveControl, Scene
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from oidc_issuer import AUDIENCE, Issuer, make_ec, make_jwk, make_rsa

from forebay.app.config_oidc import OidcConfig
from forebay.app.control_oidc import OidcDoor
from forebay.app.control_roles import Principal, RoleTooLow
from forebay.app.oidc_fetch import FetchFailed
from forebay.app.oidc_keys import FRESH_S, RETRY_S, STALE_MAX_S, IssuerUnavailable, fetch_keys, read_keys
from forebay.app.oidc_token import find_values
from forebay.core.errors import Unauthenticated
from forebay.gateway.tenancy import Actor, Role
from forebay.testing.clock import VirtualClock

RSA = make_rsa()
OTHER_RSA = make_rsa()
EC = make_ec()
ROLES = {"viewer": ["readers"], "operator": ["deployers"], "owner": ["admins"]}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        issuer.add("rsa-1", RSA)
        issuer.add("ec-1", EC)
        yield issuer


class Door:
    """One door to the admin API, in one event loop, with a clock of its own."""

    def __init__(self, issuer: Issuer, **settings: Any) -> None:
        self.config = make_config(issuer, **settings)
        self.clock = VirtualClock()
        self.door = OidcDoor(lambda: self.config, self.clock)
        self.runner = asyncio.Runner()

    def identify(self, token: str) -> Principal | None:
        return self.runner.run(self.door.identify(token))

    def refuses(self, token: str) -> str:
        with pytest.raises(Unauthenticated) as caught:
            self.identify(token)
        return caught.value.message


def make_config(issuer: Issuer, **settings: Any) -> OidcConfig:
    section = {"issuer": issuer.url, "audience": AUDIENCE, "roles": ROLES, **settings}
    return OidcConfig.model_validate_json(json.dumps(section, default=str))


@pytest.fixture
def door(issuer: Issuer) -> Iterator[Door]:
    door = Door(issuer)
    yield door
    door.runner.close()


# --- whom it lets in ----------------------------------------------------------------------------------------


def test_keys_of_each_kind_verify_and_the_highest_role_holds(issuer: Issuer, door: Door) -> None:
    edwards = ed25519.Ed25519PrivateKey.generate()
    issuer.add("ed-1", edwards)
    for key, algorithm, kid in (
        (RSA, "RS256", "rsa-1"),
        (RSA, "PS512", "rsa-1"),
        (EC, "ES256", "ec-1"),
        (edwards, "EdDSA", "ed-1"),
    ):
        token = issuer.make_token(key, algorithm, kid, roles=["readers", "deployers", "x"])
        found = door.identify(token)
        assert found == Principal(
            actor=Actor(id="oidc:u-1", name="u-1", issuer=issuer.url), role=Role.OPERATOR
        ), algorithm
    assert issuer.asked == ["/realm/.well-known/openid-configuration", "/realm/keys"], "once for all"


def test_each_role_can_be_given(issuer: Issuer) -> None:
    door = Door(issuer, roles={role.value: [f"is-{role.value}"] for role in Role})
    for role in Role:
        found = door.identify(issuer.make_token(EC, "ES256", "ec-1", roles=[f"is-{role.value}"]))
        assert found is not None
        assert found.role is role
    door.runner.close()


def test_the_holder_is_named_as_people_know_them(issuer: Issuer, door: Door) -> None:
    claims = {"roles": ["admins"], "email": "ada@example.org\n", "name": "Ada", "aud": ["x", AUDIENCE]}
    found = door.identify(issuer.make_token(EC, "ES256", "ec-1", sub="s" * 255, **claims))
    assert found is not None
    assert (found.actor.id, found.actor.name) == ("oidc:" + "s" * 255, "ada@example.org")


def test_a_token_without_a_role_is_no_way_in(issuer: Issuer, door: Door) -> None:
    for claims in ({}, {"roles": []}, {"roles": ["other"]}, {"roles": {"admins": True}}, {"roles": 7}):
        with pytest.raises(RoleTooLow, match="roles"):
            door.identify(issuer.make_token(RSA, "RS256", "rsa-1", **claims))


def test_roles_stand_in_a_list_or_a_text_at_a_name_or_a_path() -> None:
    assert find_values({"roles": ["a", 1, "b c"]}, "roles") == {"a", "b c"}
    assert find_values({"scope": "a b"}, "scope") == {"a", "b", "a b"}
    assert find_values({"realm_access": {"roles": ["a"]}}, "realm_access.roles") == {"a"}
    assert find_values({"https://x.example/roles": ["a"]}, "https://x.example/roles") == {"a"}
    for claims in ({}, {"a": "b"}, {"a": {"b": {}}}, {"a": None}):
        assert find_values(claims, "a.b") == frozenset()


def test_a_token_that_names_no_key_takes_one_that_fits_alone(issuer: Issuer, door: Door) -> None:
    assert door.identify(issuer.make_token(EC, "ES256", roles="readers")) is not None
    issuer.add("ec-2", make_ec())
    door.clock.advance(FRESH_S)
    assert "does not list" in door.refuses(issuer.make_token(EC, "ES256", roles="readers"))


# --- what is refused ----------------------------------------------------------------------------------------


def test_what_is_wrong_with_a_token_is_said(issuer: Issuer, door: Door) -> None:
    now = int(time.time())
    for said, claims in (
        ("expired", {"exp": now - 60}),
        ("not valid yet", {"nbf": now + 90}),
        ("not valid yet", {"iat": now + 90}),
        ("audience", {"aud": "another"}),
        ("another issuer", {"iss": "https://other.example"}),
        ("another issuer", {"iss": issuer.url + "/"}),
        ("another issuer", {"iss": None}),
        ("'aud'", {"aud": None}),
        ("'exp'", {"exp": None}),
        ("'sub'", {"sub": None}),
        ("sub", {"sub": ""}),
        ("sub", {"sub": "a\nb"}),
        ("sub", {"sub": "s" * 256}),
        ("can't be used", {"exp": "soon"}),
    ):
        token = issuer.make_token(RSA, "RS256", "rsa-1", roles=["admins"], **claims)
        assert said in door.refuses(token), claims


def test_the_clocks_may_differ_a_little(issuer: Issuer, door: Door) -> None:
    now = int(time.time())
    token = issuer.make_token(RSA, "RS256", "rsa-1", roles=["admins"], exp=now - 5, nbf=now + 15)
    assert door.identify(token) is not None
    strict = Door(issuer, leeway_s=0.0)
    assert "expired" in strict.refuses(issuer.make_token(RSA, "RS256", "rsa-1", exp=now - 5))
    strict.runner.close()


def encode(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def test_a_token_that_was_tampered_with_is_refused(issuer: Issuer, door: Door) -> None:
    good = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"])
    assert door.identify(good) is not None
    head, body, signature = good.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    raised = f"{head}.{encode({**claims, 'roles': ['admins']})}.{signature}"
    assert "signature" in door.refuses(raised)
    assert "signature" in door.refuses(f"{head}.{body}.{signature[:-8]}AAAAAAAA")
    assert door.refuses(f"{head}.{body}.") != ""
    foreign = issuer.make_token(OTHER_RSA, "RS256", "rsa-1", roles=["admins"])
    assert "signature" in door.refuses(foreign)


def test_no_algorithm_but_one_that_the_key_is_for_is_taken(issuer: Issuer, door: Door) -> None:
    unsigned = issuer.make_token(None, "none", "rsa-1", roles=["admins"])
    assert "'none'" in door.refuses(unsigned)
    claims = json.loads(base64.urlsafe_b64decode(unsigned.split(".")[1] + "=="))
    for name in ("None", "NONE", "", None, ["RS256"]):
        assert door.refuses(f"{encode({'alg': name, 'kid': 'rsa-1'})}.{encode(claims)}.")
    # The public key, which anybody has, as the secret of an HMAC.
    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{encode({'alg': 'HS256', 'kid': 'rsa-1'})}.{encode(claims)}"
    mac = base64.urlsafe_b64encode(hmac.digest(public, signed.encode(), "sha256")).rstrip(b"=").decode()
    assert "'HS256'" in door.refuses(f"{signed}.{mac}")
    # A key of another kind, and one that its issuer keeps for something else.
    assert "does not list" in door.refuses(issuer.make_token(EC, "ES256", "rsa-1", roles=["admins"]))
    for number, fields in enumerate(({"use": "enc"}, {"alg": "RS512"}, {"key_ops": ["encrypt"]})):
        issuer.add(f"kept-{number}", OTHER_RSA, **fields)
    door.clock.advance(FRESH_S)
    for number in range(3):
        token = issuer.make_token(OTHER_RSA, "RS256", f"kept-{number}", roles=["admins"])
        assert "does not list" in door.refuses(token)


def test_what_a_token_declares_critical_must_be_understood(issuer: Issuer, door: Door) -> None:
    good = issuer.make_token(RSA, "RS256", "rsa-1", roles=["admins"])
    claims = jwt.decode(good, options={"verify_signature": False})
    headers = {"kid": "rsa-1", "crit": ["x"], "x": 1}
    assert door.refuses(jwt.encode(claims, RSA, algorithm="RS256", headers=headers))


def test_a_key_that_the_token_brings_along_is_not_believed(issuer: Issuer, door: Door) -> None:
    for headers in (
        {"jwk": make_jwk("rsa-1", OTHER_RSA)},
        {"jwk": make_jwk("rsa-1", OTHER_RSA), "kid": "rsa-1"},
        {"jku": f"{issuer.url}/mine", "kid": "mine"},
        {"x5u": f"{issuer.url}/mine", "kid": "mine"},
    ):
        good = issuer.make_token(RSA, "RS256", "rsa-1", roles=["admins"])
        claims = jwt.decode(good, options={"verify_signature": False})
        assert door.refuses(jwt.encode(claims, OTHER_RSA, algorithm="RS256", headers=headers))
    assert f"{issuer.url}/mine" not in issuer.asked


def test_a_symmetric_or_a_short_key_of_the_issuer_is_of_no_use() -> None:
    short = make_jwk("s", make_rsa(1024))
    oct_key = {"kty": "oct", "kid": "o", "k": encode({"a": 1})}
    broken = [{"kty": "RSA"}, {"kty": 1}, "text", None, {"kty": "EC", "crv": "P-1", "x": "", "y": ""}]
    document = json.dumps({"keys": [short, oct_key, *broken, make_jwk("good", EC)]}).encode()
    assert [key.kid for key in read_keys(document, "u")] == ["good"]


@pytest.mark.parametrize(
    "token", ["", "a.b", "a.b.c", "..", "eyJhbGciOiJSUzI1NiJ9.e30.", "x" * 20_000, "ä.b.c"]
)
def test_what_is_no_token_opens_nothing_and_nobody_is_asked(issuer: Issuer, door: Door, token: str) -> None:
    try:
        assert door.identify(token) is None
    except Unauthenticated:
        pass
    assert issuer.asked == []


def test_a_token_of_another_issuer_costs_no_question(issuer: Issuer, door: Door) -> None:
    door.refuses(issuer.make_token(RSA, "RS256", "new", iss="https://other.example"))
    door.refuses(issuer.make_token(b"k" * 32, "HS256", "new"))
    assert issuer.asked == []


# --- its keys -----------------------------------------------------------------------------------------------


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


def test_while_the_issuer_is_down_known_keys_go_on_and_others_get_a_503(issuer: Issuer, door: Door) -> None:
    known = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"])
    unknown = issuer.make_token(OTHER_RSA, "RS256", "rsa-2", roles=["readers"])
    assert door.identify(known) is not None
    issuer.stop()
    door.clock.advance(FRESH_S)
    assert door.identify(known) is not None
    with pytest.raises(IssuerUnavailable, match="can't be reached") as caught:
        door.identify(unknown)
    assert (caught.value.status, caught.value.retry_after_s) == (503, RETRY_S)
    assert issuer.url in caught.value.message
    issuer.start()
    issuer.add("rsa-2", OTHER_RSA)
    door.clock.advance(RETRY_S)
    assert door.identify(unknown) is not None


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
        ("within 0.2 s", {"delay_s": 1.0}),
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


# --- the whole API ------------------------------------------------------------------------------------------


def call(scene: Scene, method: str, path: str, token: str = TOKEN, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=scene.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
            headers = {"authorization": f"Bearer {token}"}
            return await client.request(method, f"/admin/v1{path}", headers=headers, **options)

    return asyncio.run(send())


def make_scene(folder: Path, issuer: Issuer) -> Scene:
    oidc = {"issuer": issuer.url, "audience": AUDIENCE, "roles_claim": "groups", "roles": ROLES}
    scene = Scene(folder, f"control: {json.dumps({'oidc': oidc})}\n")
    scene.refresh()
    return scene


def test_its_holders_act_in_their_roles_beside_those_of_our_own_tokens(
    tmp_path: Path, issuer: Issuer
) -> None:
    scene = make_scene(tmp_path, issuer)
    subject = "8f14e45f-ceea-467f-a9e1-2b0b6e7c7d11"
    claims = {"sub": subject, "preferred_username": "ada"}
    operator = issuer.make_token(RSA, "RS256", "rsa-1", groups=["deployers"], **claims)
    viewer = issuer.make_token(EC, "ES256", "ec-1", groups=["readers"])
    nobody = issuer.make_token(EC, "ES256", "ec-1", groups=["x"])
    made = call(scene, "POST", "/keys", operator, json={"name": "k"})
    assert made.status_code == 201
    assert call(scene, "GET", "/keys", viewer).status_code == 200
    refused = call(scene, "POST", "/keys", viewer, json={"name": "k"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "role_too_low")
    assert call(scene, "GET", "/tokens", operator).status_code == 403
    assert call(scene, "GET", "/keys", nobody).status_code == 403
    expired = issuer.make_token(RSA, "RS256", "rsa-1", groups=["admins"], exp=1)
    answer = call(scene, "GET", "/keys", expired)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "expired" in answer.json()["error"]["message"]
    own = call(scene, "POST", "/tokens", json={"name": "bot", "role": "viewer"}).json()["token"]
    assert call(scene, "GET", "/keys", own).status_code == 200
    events = call(scene, "GET", "/audit").json()["data"]
    assert [event["actor"] for event in events if event["action"] == "key.create"] == [
        {"id": f"oidc:{subject}", "name": "ada", "issuer": issuer.url}
    ]
    assert [event["actor"]["issuer"] for event in events if event["action"] == "token.create"] == [None]
    scene.close()


def test_a_provider_that_is_down_leaves_our_own_tokens_alone(tmp_path: Path, issuer: Issuer) -> None:
    scene = make_scene(tmp_path, issuer)
    issuer.stop()
    answer = call(scene, "GET", "/keys", issuer.make_token(RSA, "RS256", "rsa-1", groups=["admins"]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "issuer_unavailable")
    assert answer.headers["retry-after"] == str(round(RETRY_S))
    assert call(scene, "GET", "/keys").status_code == 200
    scene.close()


def test_where_none_is_configured_its_tokens_open_nothing(tmp_path: Path, issuer: Issuer) -> None:
    scene = Scene(tmp_path)
    token = issuer.make_token(RSA, "RS256", "rsa-1", roles=["admins"])
    assert call(scene, "GET", "/status", token).status_code == 401
    assert issuer.asked == []
    scene.close()


def test_a_running_control_plane_takes_tokens_from_an_edit_on_and_logs_none(
    tmp_path: Path, issuer: Issuer
) -> None:
    live = LiveControl(tmp_path, "version: 1\n")
    try:
        token = issuer.make_token(RSA, "RS256", "rsa-1", roles=["readers"], note="x" * 5000)
        url, headers = f"{live.url}/admin/v1/teams", {"authorization": f"Bearer {token}"}
        assert httpx.get(url, headers=headers, timeout=30).status_code == 401
        oidc = {"issuer": issuer.url, "audience": AUDIENCE, "roles": ROLES}
        live.file.write_text(f"control: {json.dumps({'oidc': oidc})}\n")
        live.wait_for(lambda: httpx.get(url, headers=headers, timeout=30).status_code == 200, 30)
        assert live.status()["config"]["restart_needed"] == []
        issuer.stop()
        unknown = issuer.make_token(OTHER_RSA, "RS256", "rsa-2", roles=["readers"])
        answer = httpx.get(url, headers={"authorization": f"Bearer {unknown}"}, timeout=30)
        assert answer.status_code in (401, 503), "503 once it may be asked again"
        assert httpx.get(url, headers=headers, timeout=30).status_code == 200
        for part in (token, unknown):
            assert part.split(".")[2] not in live.log.read_text()
    finally:
        live.close()


def test_the_examples_of_wrong_tokens_are_read_as_such() -> None:
    """So that what is refused above is refused for its fault, and not because it can't be read."""
    claims = {"a": 1}
    token = jwt.encode(claims, RSA, algorithm="RS256")
    assert jwt.decode(token, RSA.public_key(), algorithms=["RS256"]) == claims
