"""A small identity provider for tests: real HTTP, real keys, tokens as asked for, right or wrong."""

import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from forebay.testing.threaded import find_closed_port

AUDIENCE = "forebay"
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def make_rsa(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def make_ec() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def make_jwk(kid: str | None, key: PrivateKey, **fields: Any) -> dict[str, Any]:
    public: Any = key.public_key()
    kind: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    if isinstance(key, ed25519.Ed25519PrivateKey):
        kind = OKPAlgorithm
    jwk: dict[str, Any] = json.loads(kind.to_jwk(public))
    jwk.pop("key_ops", None)
    return {**jwk, **({} if kid is None else {"kid": kid}), **fields}


class Issuer:
    """Serves its discovery document and its keys, and counts who asks."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.jwks: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.discovery: dict[str, Any] = {}  #: what is not as it should be
        self.status = 200
        self.delay_s = 0.0
        self.body: bytes | None = None  #: instead of the keys
        self._tls = tls
        self._port = find_closed_port()  # which nobody else takes while it is down
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        scheme, host = ("https", "localhost") if self._tls else ("http", "127.0.0.1")
        return f"{scheme}://{host}:{self._port}/realm"

    def start(self) -> None:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                time.sleep(issuer.delay_s)
                if self.path == "/realm/.well-known/openid-configuration":
                    found = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys", **issuer.discovery}
                    body = json.dumps(found).encode()
                else:
                    body = issuer.body or json.dumps({"keys": issuer.jwks}).encode()
                self.send_response(issuer.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Nobody listens there from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def add(self, kid: str | None, key: PrivateKey, **fields: Any) -> None:
        self.jwks.append(make_jwk(kid, key, **fields))

    def make_token(
        self,
        key: PrivateKey | str | bytes | None,
        algorithm: str | None,
        kid: str | None = None,
        **claims: Any,
    ) -> str:
        """Valid for five minutes unless the claims say otherwise; one that is None is left out."""
        now = int(time.time())
        whole = {"iss": self.url, "aud": AUDIENCE, "sub": "u-1", "iat": now, "exp": now + 300, **claims}
        given = {name: value for name, value in whole.items() if value is not None}
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(given, key, algorithm=algorithm, headers=headers)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
