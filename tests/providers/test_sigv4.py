"""Signatures are those of AWS: its published examples, and what its own client makes of the same request."""

import calendar
from urllib.parse import quote

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import UpstreamCredentials
from forebay.providers.sigv4 import (
    Credentials,
    Scope,
    parse_credentials,
    sign_request,
    write_canonical_headers,
    write_canonical_request,
)
from forebay.providers.translation import Headers

#: Of AWS's Signature Version 4 test suite.
AKID = Credentials(access_key_id="AKIDEXAMPLE", secret_access_key="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
SUITE = Scope(region="us-east-1", service="service", wall_s=calendar.timegm((2015, 8, 30, 12, 36, 0)))
HOST = ("Host", "example.amazonaws.com")
ALPHABET = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
FORM = "application/x-www-form-urlencoded"
FORM_DIGEST = "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e"

#: By the name in the suite: method, path, headers beside the host, body, names that are signed, signature.
VECTORS: dict[str, tuple[str, str, Headers, bytes, str, str]] = {
    "get-vanilla": (
        *("GET", "/", [], b"", "host;x-amz-date"),
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    ),
    "post-vanilla": (
        *("POST", "/", [], b"", "host;x-amz-date"),
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
    ),
    "get-space": (
        *("GET", "/example space/", [], b"", "host;x-amz-date"),
        "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741",
    ),
    "get-utf8": (
        *("GET", "/ሴ", [], b"", "host;x-amz-date"),
        "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
    ),
    "get-unreserved": (
        *("GET", f"/{ALPHABET}", [], b"", "host;x-amz-date"),
        "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
    ),
    "get-vanilla-empty-query-key": (
        *("GET", "/?Param1=value1", [], b"", "host;x-amz-date"),
        "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
    ),
    "get-vanilla-query-order-key-case": (
        *("GET", "/?Param2=value2&Param1=value1", [], b"", "host;x-amz-date"),
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ),
    "get-vanilla-query-order-encoded": (
        *("GET", "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1", [], b"", "host;x-amz-date"),
        "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
    ),
    "get-vanilla-query-unreserved": (
        *("GET", f"/?{ALPHABET}={ALPHABET}", [], b"", "host;x-amz-date"),
        "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
    ),
    "get-header-value-trim": (
        *("GET", "/", [("My-Header1", " value1"), ("My-Header2", ' "a   b   c"')], b""),
        "host;my-header1;my-header2;x-amz-date",
        "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
    ),
    "post-x-www-form-urlencoded": (
        "POST",
        "/",
        [("Content-Type", FORM), ("Content-Length", "13"), ("x-amz-content-sha256", FORM_DIGEST)],
        b"Param1=value1",
        "content-length;content-type;host;x-amz-content-sha256;x-amz-date",
        "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
    ),
}
TOKENS = {
    "get-vanilla-with-session-token": (
        *("GET", "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"),
        "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
    ),
    "post-sts-header-before": (
        "POST",
        "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqT"
        "flfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9"
        "HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYv"
        "KTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==",
        "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_a_request_of_the_published_suite_has_its_signature(name: str) -> None:
    method, path, headers, body, names, signature = VECTORS[name]
    added = sign_request(method, path, [HOST, *headers], body, credentials=AKID, scope=SUITE)
    assert added == [
        ("x-amz-date", "20150830T123600Z"),
        (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
            f"SignedHeaders={names}, Signature={signature}",
        ),
    ]


@pytest.mark.parametrize("name", TOKENS)
def test_a_session_token_goes_along_and_is_signed(name: str) -> None:
    method, token, signature = TOKENS[name]
    with_token = Credentials(
        access_key_id=AKID.access_key_id, secret_access_key=AKID.secret_access_key, session_token=token
    )
    added = dict(sign_request(method, "/", [HOST], b"", credentials=with_token, scope=SUITE))
    assert added["x-amz-security-token"] == token
    assert "SignedHeaders=host;x-amz-date;x-amz-security-token, " in added["authorization"]
    assert added["authorization"].endswith(f"Signature={signature}")


def test_a_colon_that_is_escaped_on_the_wire_is_escaped_once_more_for_the_signature() -> None:
    path = "/model/anthropic.claude-3-haiku-20240307-v1%3A0/converse"
    request = write_canonical_request("POST", path, "host", "host:h\n", b"")
    assert request.split("\n")[1] == "/model/anthropic.claude-3-haiku-20240307-v1%253A0/converse"


def test_values_of_one_name_are_joined_in_their_order() -> None:
    headers = [("My-Header1", "value4"), ("my-header1", "value1"), ("My-Header1", "value3"), HOST]
    assert write_canonical_headers(headers) == (
        "host;my-header1",
        "host:example.amazonaws.com\nmy-header1:value4,value1,value3\n",
    )


class ClockedAuth(SigV4Auth):  # type: ignore[misc]
    """AWS's signer at a time of our choosing."""

    def __init__(self, credentials: BotoCredentials, scope: Scope) -> None:
        super().__init__(credentials, scope.service, scope.region)
        self._timestamp = scope.timestamp

    def add_auth(self, request: AWSRequest) -> None:
        request.context["timestamp"] = self._timestamp
        self._modify_request_before_signing(request)
        canonical = self.canonical_request(request)
        self._inject_signature_to_request(
            request, self.signature(self.string_to_sign(request, canonical), request)
        )


@given(
    model=st.text("abcXYZ019.:/-_~ äሴ", min_size=1, max_size=40).filter(lambda name: name not in (".", "..")),
    body=st.binary(max_size=200),
    token=st.sampled_from(["", "IQoJb3JpZ2luX2Vj//8=", "a+b/c=="]),
    region=st.sampled_from(["us-east-1", "eu-central-1", "cn-north-1"]),
    wall_s=st.integers(0, 4_000_000_000),
)
def test_what_is_signed_here_is_what_the_client_of_aws_signs(
    model: str, body: bytes, token: str, region: str, wall_s: int
) -> None:
    path = f"/model/{quote(model, safe='')}/converse"
    scope = Scope(region=region, service="bedrock", wall_s=wall_s)
    ours = Credentials(
        access_key_id="AKIDEXAMPLE", secret_access_key=AKID.secret_access_key, session_token=token
    )
    host = f"bedrock-runtime.{region}.amazonaws.com"
    headers = [("host", host), ("content-type", "application/json")]
    added = dict(sign_request("POST", path, headers, body, credentials=ours, scope=scope))
    theirs = AWSRequest(
        method="POST", url=f"https://{host}{path}", data=body, headers={"content-type": "application/json"}
    )
    credentials = BotoCredentials(ours.access_key_id, ours.secret_access_key, token or None)
    ClockedAuth(credentials, scope).add_auth(theirs)
    assert added["authorization"] == theirs.headers["Authorization"]
    assert added.get("x-amz-security-token") == theirs.headers["X-Amz-Security-Token"]


def test_credentials_are_read_from_their_one_form() -> None:
    assert parse_credentials("AKID:sec/ret+") == Credentials(
        access_key_id="AKID", secret_access_key="sec/ret+"
    )
    assert parse_credentials("AKID:secret:tok=").session_token == "tok="
    for wrong in ("", "AKID", "AKID:", ":secret", "a:b:", "a:b:c:d"):
        with pytest.raises(UpstreamCredentials) as raised:
            parse_credentials(wrong)
        assert "ACCESS_KEY_ID:SECRET_ACCESS_KEY" in raised.value.message
