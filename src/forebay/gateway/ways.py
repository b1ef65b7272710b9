"""The ways from callers to one target, made ready when a snapshot is compiled: heads and crossings.

What a caller sent reaches a target only if it is written into a head here by name, or listed as passed.
"""

import re
from collections.abc import Sequence
from typing import cast

from forebay.core.routes import FORMS, MEDIA, Endpoint, ForcedCalls, Target
from forebay.core.translation import ErrorReader, Headers, SigningTranslator, TargetWire, Way
from forebay.gateway.crossing import CONTENT_TYPE, SSE, Crossing, Signing, write_headers
from forebay.gateway.dialect import FindWay, InnerDialect

_NOT_IN_PATHS = re.compile(r"[\x00-\x20\x7f]")


class Ways:
    """Makes them.

    Args:
        inner: the dialect that lies between two others.
        find_forced_way: likewise by how a target meets a forced call of a tool; None where none has to.
    """

    def __init__(
        self, inner: InnerDialect, find_way: FindWay, find_forced_way: FindWay | None = None
    ) -> None:
        self._inner = inner
        self._find_way = find_way
        self._find_forced_way = find_forced_way

    def build(
        self, target: Target, authority: str, base_path: str, secret: str
    ) -> tuple[dict[Endpoint, bytes], dict[Endpoint, Crossing]]:
        """Heads of requests that pass untouched, and crossings for the others that the target can answer:
        none at all of a dialect that nobody knows.

        Args:
            base_path: with its query.

        Raises:
            ValueError: a part that a head can't carry.
        """
        heads: dict[Endpoint, bytes] = {}
        crossings: dict[Endpoint, Crossing] = {}
        for endpoint in Endpoint:
            way = self._find_way(endpoint, target.dialect)
            if way is None:
                continue
            passed: Headers = getattr(way.wire, "passed", []) if way.caller is None else []
            if endpoint in FORMS:
                passed = [*passed, ("content-type", "")]  # it says where the parts of the form begin
            if way.caller is None and way.wire is not None and not passed:
                path = _write_path(way.wire, endpoint, base_path, target)
                headers = way.wire.build_headers(secret)
                heads[endpoint] = build_head(authority, path, _accept(endpoint, headers))
            else:
                crossings[endpoint] = self._cross(endpoint, way, target, authority, base_path, secret, passed)
        return heads, crossings

    def build_forced(
        self, target: Target, authority: str, base_path: str, secret: str
    ) -> dict[Endpoint, Crossing]:
        """Crossings of requests that force a call which the target does not enforce.  Raises as `build`."""
        found: dict[Endpoint, Crossing] = {}
        if target.forced_tools is ForcedCalls.NATIVE or self._find_forced_way is None:
            return found
        for endpoint in Endpoint:
            way = self._find_forced_way(endpoint, target.forced_tools)
            if way is not None:
                found[endpoint] = self._cross(endpoint, way, target, authority, base_path, secret, [])
        return found

    def _cross(
        self,
        endpoint: Endpoint,
        way: Way,
        target: Target,
        authority: str,
        base_path: str,
        secret: str,
        passed: Headers,
    ) -> Crossing:
        translator = way.target
        signing: Signing | None = None
        if translator is None:
            assert way.wire is not None
            asked = Endpoint.CHAT if way.caller is not None else endpoint
            path = _write_path(way.wire, asked, base_path, target)
            paths = path, path
            headers = _accept(endpoint, way.wire.build_headers(secret))
        else:
            paths = (
                translator.build_path(base_path, target.model, stream=False),
                translator.build_path(base_path, target.model, stream=True),
            )
            headers = translator.build_headers(secret)
            if hasattr(translator, "sign"):
                signer = cast(SigningTranslator, translator)
                signing = Signing(
                    signer=signer,
                    host=authority,
                    paths=paths,
                    headers=headers,
                    secret=secret,
                    region=target.region,
                )
        return Crossing(
            endpoint=endpoint,
            inner=self._inner,
            caller=way.caller,
            target=translator,
            heads=(
                build_head(authority, paths[0], headers, passed),
                build_head(authority, paths[1], headers, passed),
            ),
            passed=tuple((name.encode(), default.encode()) for name, default in passed),
            signing=signing,
            stream_type=getattr(translator, "stream_type", SSE.decode()).encode(),
            errors=cast(ErrorReader, translator) if hasattr(translator, "read_status") else None,
        )


def _accept(endpoint: Endpoint, headers: Headers) -> Headers:
    """With what an answer may be, where that is not JSON or a stream of events alone."""
    return [("accept", "*/*"), *headers] if endpoint in MEDIA else headers


def _write_path(wire: TargetWire, endpoint: Endpoint, base_path: str, target: Target) -> str:
    path = wire.build_path(base_path, endpoint.value, target.model)
    assert path is not None, endpoint
    return path


def build_head(authority: str, path: str, headers: Headers, passed: Sequence[tuple[str, str]] = ()) -> bytes:
    """The head of a request to a target, without its length, its id and its end.

    Args:
        passed: what the caller says itself; it stands here no more.

    Raises:
        ValueError: a part that a head can't carry.
    """
    if not (authority + path).isascii() or _NOT_IN_PATHS.search(authority + path):
        raise ValueError("an address in ASCII, without blanks, is needed")
    fields = {
        "host": authority,
        "content-type": CONTENT_TYPE,
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
        "user-agent": "forebay",
    }
    fields.update(headers)
    for name, _ in passed:
        fields.pop(name, None)
    return f"POST {path} HTTP/1.1\r\n".encode("ascii") + write_headers(list(fields.items()))
