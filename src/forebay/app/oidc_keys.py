"""The public keys of an identity provider: found by discovery, kept, asked for anew when one is not known.

It is contacted only when a token is to be looked at that names its issuer, and then rarely: an unknown key
costs one question, and questions are `RETRY_S` apart whatever callers send.  While it does not answer, keys
that are known go on, for `STALE_MAX_S` at most: one that was withdrawn must not last for ever.  What nobody
who waits can be told is where the provider is: whoever asks may hold no token at all.  The log tells it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from forebay.app.config_oidc import DISCOVERY, OidcConfig, is_trustworthy
from forebay.app.oidc_fetch import FetchFailed, fetch_document
from forebay.core.clock import Clock
from forebay.core.errors import ForebayError, Unauthenticated
from forebay.providers.json_edit import UNREADABLE

FRESH_S: Final = 600.0  #: for so long nobody asks whether the keys are still the same
RETRY_S: Final = 10.0  #: between two questions
STALE_MAX_S: Final = 86_400.0
#: For so long a token of a known key waits for a provider that has answered so far, so that a key that was
#: withdrawn while nobody used it opens nothing any more.
REFRESH_WAIT_S: Final = 0.5
WAITING_MAX: Final = 100  #: tokens of unknown keys that wait for an answer; others are told to come again
_SPARE_S: Final = 1.0  #: beyond the two questions' time, for what it does not cover, such as a slow resolver
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
ALGORITHMS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
ALL_ALGORITHMS: Final = tuple(name for names in ALGORITHMS.values() for name in names)

logger = logging.getLogger("forebay.control")
Fetch = Callable[[str, Path | None, float], bytes]


class IssuerUnavailable(ForebayError):
    """The provider gives no keys at present, and the token's is not known."""

    status: ClassVar[int] = 503
    code: ClassVar[str] = "issuer_unavailable"


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class _Jwk(msgspec.Struct, frozen=True):
    """RFC 7517, its public part alone: of a private key that somebody published, no more is taken."""

    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: list[str] | None = None
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[msgspec.Raw]


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerKey:
    """One public key, and what it may verify."""

    kid: str | None
    algorithms: tuple[str, ...]
    jwk: Mapping[str, str]


def fetch_keys(config: OidcConfig, fetch: Fetch = fetch_document) -> tuple[IssuerKey, ...]:
    """Asks the provider.  Blocks.  Raises FetchFailed."""
    url = config.jwks_url or _find_keys_url(config, fetch)
    keys = read_keys(fetch(url, config.tls_ca, config.timeout_s), url)
    if not keys:
        raise FetchFailed(f"{url} has no key that can be used: RSA of {RSA_BITS_MIN} bits, EC or Ed25519")
    return keys


def _find_keys_url(config: OidcConfig, fetch: Fetch) -> str:
    url = config.issuer.rstrip("/") + DISCOVERY
    try:
        found = msgspec.json.decode(fetch(url, config.tls_ca, config.timeout_s), type=_Discovery)
    except UNREADABLE:
        raise FetchFailed(f"{url} is no discovery document of OpenID Connect") from None
    if found.issuer != config.issuer:
        raise FetchFailed(f"{url} is of the issuer {found.issuer[:200]!r}, not {config.issuer!r}")
    if not found.jwks_uri.startswith(("http://", "https://")) or not is_trustworthy(found.jwks_uri):
        raise FetchFailed(f"{url} has its keys where they can't be trusted: {found.jwks_uri[:200]!r}")
    return found.jwks_uri


def read_keys(document: bytes, url: str) -> tuple[IssuerKey, ...]:
    """Those that can be used; others, such as of a kind that is not known, are passed over.

    Raises FetchFailed.
    """
    try:
        raw = msgspec.json.decode(document, type=_KeySet).keys[:KEYS_MAX]
    except UNREADABLE:
        raise FetchFailed(f"{url} is no set of keys (JWKS)") from None
    return tuple(key for each in raw if (key := _read_key(each)) is not None)


def _read_key(raw: msgspec.Raw) -> IssuerKey | None:
    try:
        jwk = msgspec.json.decode(raw, type=_Jwk)
    except UNREADABLE:
        return None
    curve = "" if jwk.kty == "RSA" else jwk.crv
    algorithms = ALGORITHMS.get((jwk.kty, curve), ())
    if jwk.alg is not None:
        algorithms = tuple(name for name in algorithms if name == jwk.alg)
    is_to_verify = jwk.use in (None, "sig") and (jwk.key_ops is None or "verify" in jwk.key_ops)
    is_short = jwk.kty == "RSA" and len(jwk.n) * 6 < RSA_BITS_MIN  # base64url: six bits a character
    if not algorithms or not is_to_verify or is_short:
        return None
    parts = {"kty": jwk.kty, "crv": jwk.crv, "n": jwk.n, "e": jwk.e, "x": jwk.x, "y": jwk.y}
    return IssuerKey(
        kid=jwk.kid, algorithms=algorithms, jwk={name: value for name, value in parts.items() if value}
    )


class IssuerKeys:
    """The keys of one provider, for one event loop.

    Args:
        config: where they are.
        clock: for how old they are.
        fetch: asks for a document, in a thread.
    """

    def __init__(self, config: OidcConfig, clock: Clock, fetch: Fetch = fetch_document) -> None:
        self._config = config
        self._clock = clock
        self._fetch = fetch
        self._keys: tuple[IssuerKey, ...] = ()
        self._fetched_ns: int | None = None
        self._tried_ns: int | None = None
        self._error: str | None = None
        # Of many tokens at once, one asks, and the others find what it found.  Held here, so that there is
        # never a second, not even while the first hangs in its thread and nobody waits for it any more.
        self._question: asyncio.Task[None] | None = None
        self._waiting = 0

    async def find(self, kid: str | None, algorithm: str) -> IssuerKey:
        """The key that verifies a token.

        Args:
            kid: as the token names it; None where it names none, which is enough where one key alone fits.
            algorithm: one of `ALL_ALGORITHMS`.

        Raises:
            Unauthenticated: the provider has no such key.
            IssuerUnavailable: it does not say.
        """
        if self._choose(kid, algorithm) is None:
            await self._wait()
        elif self._is_old(FRESH_S) and self._question is None and self._may_ask():
            question = self._ask()
            if self._error is None:
                await asyncio.wait([question], timeout=REFRESH_WAIT_S)
        found = self._choose(kid, algorithm)
        if found is not None:
            return found
        if self._error is not None or self._question is not None:
            raise IssuerUnavailable(
                "the identity provider gives no keys at present, and that of this token is not known. Other "
                "tokens of this API go on. The control plane's log says what is wrong; `forebay doctor` asks "
                "the provider.",
                retry_after_s=round(RETRY_S),
            )
        raise Unauthenticated(
            f"the token is signed with a key that {self._config.issuer} does not list for {algorithm}"
        )

    def _choose(self, kid: str | None, algorithm: str) -> IssuerKey | None:
        if self._is_old(STALE_MAX_S):
            return None
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        if kid is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.kid == kid), None)

    def _is_old(self, limit_s: float) -> bool:
        if self._fetched_ns is None:
            return True
        return self._clock.monotonic_ns() - self._fetched_ns >= limit_s * 1e9

    def _may_ask(self) -> bool:
        return self._tried_ns is None or self._clock.monotonic_ns() - self._tried_ns >= RETRY_S * 1e9

    async def _wait(self) -> None:
        """For the answer to the question that is asked, or that may be asked now; not for ever."""
        if self._question is None and self._may_ask():
            self._ask()
        if self._question is None or self._waiting >= WAITING_MAX:
            return
        self._waiting += 1
        try:
            await asyncio.wait([self._question], timeout=2 * self._config.timeout_s + _SPARE_S)
        finally:
            self._waiting -= 1

    def _ask(self) -> "asyncio.Task[None]":
        """Begins a question, which goes on when whoever needed its answer has left."""
        self._tried_ns = self._clock.monotonic_ns()
        self._question = asyncio.create_task(self._fetch_keys())
        return self._question

    async def _fetch_keys(self) -> None:
        try:
            await self._take_keys()
        finally:
            self._question = None

    async def _take_keys(self) -> None:
        try:
            self._keys = await asyncio.to_thread(fetch_keys, self._config, self._fetch)
        except FetchFailed as error:
            if self._error != str(error):
                logger.warning("the keys of the identity provider can't be had: %s", error)
            self._error = str(error)
            return
        if self._error is not None:
            logger.info("the identity provider gives its keys again")
        self._error, self._fetched_ns = None, self._clock.monotonic_ns()
