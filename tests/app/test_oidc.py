"""Tokens of an identity provider at the admin API: whom they let in, which are refused."""

import base64
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from oidc_issuer import AUDIENCE, Issuer, make_ec, make_jwk, make_rsa
from oidc_scene import EC, OTHER_RSA, RSA, Door, encode

from forebay.app.control_roles import Principal, RoleTooLow
from forebay.app.oidc_keys import FRESH_S, read_keys
from forebay.app.oidc_token import find_values
from forebay.core.errors import Unauthenticated
from forebay.gateway.tenancy import Actor, Role

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
            actor=Actor(id="oidc:u-1", name="u-1", issuer=issuer.url), roles=(Role.VIEWER, Role.OPERATOR)
        ), algorithm
    assert issuer.asked == ["/realm/.well-known/openid-configuration", "/realm/keys"], "once for all"


def test_each_role_can_be_given(issuer: Issuer) -> None:
    door = Door(issuer, roles={role.value: [f"is-{role.value}"] for role in Role})
    for role in Role:
        found = door.identify(issuer.make_token(EC, "ES256", "ec-1", roles=[f"is-{role.value}"]))
        assert found is not None
        assert found.roles == (role,)
    door.runner.close()


def test_who_has_several_roles_may_do_what_any_of_them_may(issuer: Issuer) -> None:
    door = Door(issuer, roles={role.value: [f"is-{role.value}"] for role in Role})
    for held, allowed in (
        ({Role.REPORTER}, {Role.REPORTER}),
        ({Role.VIEWER}, {Role.VIEWER}),
        ({Role.REPORTER, Role.VIEWER}, {Role.REPORTER, Role.VIEWER}),
        ({Role.VIEWER, Role.OPERATOR}, {Role.REPORTER, Role.VIEWER, Role.OPERATOR}),
        ({Role.REPORTER, Role.OWNER}, set(Role)),
    ):
        values = [f"is-{role.value}" for role in held]
        found = door.identify(issuer.make_token(EC, "ES256", "ec-1", roles=values))
        assert found is not None
        assert {role for role in Role if found.may(role)} == allowed
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


def test_the_examples_of_wrong_tokens_are_read_as_such() -> None:
    """So that what is refused above is refused for its fault, and not because it can't be read."""
    claims = {"a": 1}
    token = jwt.encode(claims, RSA, algorithm="RS256")
    assert jwt.decode(token, RSA.public_key(), algorithms=["RS256"]) == claims
