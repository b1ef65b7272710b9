"""Where a caller and a target speak different dialects, or the way to the target is not OpenAI's.

A `Crossing` belongs to one target and one endpoint, and leads through OpenAI's chat: the caller's translator
on one side, the target's on the other, either of which may be missing.  It holds no state of a request and
does no I/O; what passes here is never the business of requests that pass untouched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from forebay.core.errors import CallerError, InvalidValue, Untranslatable
from forebay.core.metering import Around
from forebay.core.routes import Endpoint, Target
from forebay.core.translation import (
    BindingTranslator,
    CallerTranslator,
    ErrorReader,
    ForeignStreams,
    Headers,
    NamingTranslator,
    SigningTranslator,
    StreamTranslator,
    TargetTranslator,
)
from forebay.gateway.breadth import VALUES_MAX, has_more_values
from forebay.gateway.dialect import Dialect, InnerDialect, Meter, Reading

SSE = b"text/event-stream"
CONTENT_TYPE = "application/json"  #: of requests
SECRET_PART_MIN = 8  #: characters of a part of a credential that is worth hiding on its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """What the signature of a request needs beside its body."""

    signer: SigningTranslator
    host: str
    paths: tuple[str, str]  #: of a whole answer and of a stream
    headers: Headers
    secret: str
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """See the module.

    Attributes:
        endpoint: the caller's.
        inner: OpenAI's dialect, which lies in between.
        heads: of a request for a whole answer and for a stream, up to what differs between requests.
        passed: headers of the caller that go with its request, and what they are if it sends none.
        stream_type: how the content type of the target's streams begins.
        errors: reads of the target's errors what their heads do not say.
    """

    endpoint: Endpoint
    inner: InnerDialect
    caller: CallerTranslator | None
    target: TargetTranslator | None
    heads: tuple[bytes, bytes]
    passed: tuple[tuple[bytes, bytes], ...] = ()
    signing: Signing | None = None
    stream_type: bytes = SSE
    errors: ErrorReader | None = None

    @property
    def is_translated(self) -> bool:
        return self.caller is not None or self.target is not None

    def encode(
        self, speech: Dialect, body: bytes, view: Any, model: str, *, stream: bool
    ) -> bytes | list[bytes | memoryview]:
        """The target's body from the caller's.

        Args:
            speech: what the caller speaks.
            model: its name at the target.

        Raises:
            Untranslatable: it says what the target's dialect, or the one in between, can't.
        """
        if not self.is_translated:
            return speech.encode_request(body, view, self.endpoint, model)
        try:
            self._check_breadth(body)
            chat = speech.write_cap(body, view)
            if self.caller is not None:
                chat = self.caller.decode_request(chat)
            if self.target is not None:
                return self.target.encode_request(chat, model, stream=stream)
            return self.inner.encode_request(chat, self.inner.read_request(chat), Endpoint.CHAT, model)
        except CallerError as error:
            raise Untranslatable(error.message, param=error.param) from error

    def _check_breadth(self, body: bytes) -> None:
        """Raises InvalidValue on a request that would keep a worker from all others while it is built."""
        if not has_more_values(body):
            return
        field = "messages" if self.endpoint in (Endpoint.CHAT, Endpoint.MESSAGES) else "input"
        raise InvalidValue(
            f"`{field}`: the request has more than {VALUES_MAX} values in all (objects, lists, fields and "
            "what lists hold), and it would have to be translated for what serves this model; send fewer "
            "messages, parts and tools",
            param=field,
        )

    def build_head(
        self,
        headers: Mapping[bytes, bytes],
        payload: bytes | list[bytes | memoryview],
        wall_ns: int,
        *,
        stream: bool,
    ) -> bytes:
        """The head of a request, without its length, its id and its end.

        Args:
            headers: the caller's, by lower-case name.

        Raises:
            UpstreamCredentials: they can't sign.
        """
        head = self.heads[stream]
        for name, default in self.passed:
            value = headers.get(name, default)
            if value:
                head += b"%b: %b\r\n" % (name, value)
        signing = self.signing
        if signing is None:
            return head
        body = payload if isinstance(payload, bytes) else b"".join(payload)
        signed = signing.signer.sign(
            "POST",
            signing.paths[stream],
            [("host", signing.host), ("content-type", CONTENT_TYPE), *signing.headers],
            body,
            secret=signing.secret,
            region=signing.region,
            wall_s=wall_ns // 1_000_000_000,
        )
        return head + write_headers(signed)

    def _bind(self, request: bytes) -> CallerTranslator | None:
        """The caller's translator for one request."""
        caller = self.caller
        return cast(BindingTranslator, caller).bind(request) if hasattr(caller, "bind") else caller

    def _name(self, answer_id: str) -> TargetTranslator | None:
        """The target's translator for one answer."""
        target = self.target
        if hasattr(target, "name_answer"):
            return cast(NamingTranslator, target).name_answer(answer_id)
        return target

    def decode_answer(
        self, body: bytes, target: Target, request: bytes = b"", answer_id: str = ""
    ) -> tuple[bytes, Reading]:
        """The caller's whole answer, and what it cost.  Raises UpstreamProtocol on what is no answer.

        Args:
            request: the caller's body.
            answer_id: the answer's, where the target gives it none.
        """
        translator = self._name(answer_id)
        chat = body if translator is None else translator.decode_answer(body, target.model)
        if target.usage and translator is not None:
            reading = self.inner.read_by_rules(target.usage, body, self.inner.read_answer(chat))
        else:
            reading = self.inner.read_ruled_answer(target.usage, chat)
        caller = self._bind(request)
        return (chat if caller is None else caller.encode_answer(chat)), reading

    def decode_error(self, status: int, body: bytes) -> bytes:
        """The caller's error from the target's.  What is an error in no dialect stays as it is."""
        if self.target is not None:
            body = self._hide(self.target.decode_error(status, body))
        if self.caller is not None and self.inner.read_error(body) is not None:
            body = self.caller.encode_error(body, status)
        return body

    def read_error_head(self, status: int, retry_after: bytes, body: bytes) -> tuple[int, bytes]:
        """The status and the `retry-after` of the target's error, where its body says more than its head."""
        if self.errors is None:
            return status, retry_after
        after = None if retry_after else self.errors.read_retry_after_s(body)
        return self.errors.read_status(status, body), retry_after if after is None else b"%d" % after

    def explain_error(self, speech: Dialect, error: bytes, status: int) -> bytes:
        """The caller's error, from the error object that a stream began with."""
        if not self.is_translated:
            return speech.wrap_error(error)
        body = self._hide(self.inner.wrap_error(error))
        return body if self.caller is None else self.caller.encode_error(body, status)

    @property
    def _secret_parts(self) -> list[bytes]:
        if self.signing is None:
            return []
        parts = self.signing.secret.split(":")
        return [part.encode() for part in parts if len(part) >= SECRET_PART_MIN]

    def _hide(self, body: bytes) -> bytes:
        """Without the parts of a credential that is made of several; who sends it hides the whole."""
        return _hide_parts(body, self._secret_parts)

    def new_meter(
        self,
        speech: Dialect,
        target: Target,
        *,
        hide_usage: bool,
        event_max_bytes: int,
        request: bytes = b"",
        answer_id: str = "",
    ) -> Meter:
        """Reads one stream and translates it on its way; for the arguments see `decode_answer`."""
        if not self.is_translated and target.usage:
            return speech.new_ruled_meter(
                target.usage, hide_usage=hide_usage, event_max_bytes=event_max_bytes
            )
        if not self.is_translated:
            return speech.new_meter(hide_usage=hide_usage, event_max_bytes=event_max_bytes)
        caller, translator, rules = self._bind(request), self._name(answer_id), target.usage
        hide = hide_usage and caller is None
        if rules and translator is None:
            meter = self.inner.new_ruled_meter(rules, hide_usage=hide, event_max_bytes=event_max_bytes)
        else:
            meter = self.inner.new_meter(hide_usage=hide, event_max_bytes=event_max_bytes)
        crossed = CrossingMeter(
            meter,
            target=None
            if translator is None
            else translator.new_stream(target.model, event_max_bytes=event_max_bytes),
            caller=None if caller is None else caller.new_stream(event_max_bytes=event_max_bytes),
            secret_parts=self._secret_parts,
        )
        if not rules or translator is None:
            return crossed
        documents = None
        if hasattr(translator, "new_splitter"):
            documents = cast(ForeignStreams, translator).new_splitter(event_max_bytes=event_max_bytes)
        return self.inner.tap_meter(crossed, rules, documents, event_max_bytes=event_max_bytes)


class CrossingMeter(Around):
    """A meter of chat between the two translators of a stream: what it reads is chat, whoever speaks what.

    Args:
        secret_parts: of a credential, which are hidden where the stream tells an error.
    """

    __slots__ = ("_caller", "_inner", "_secret_parts", "_target")

    def __init__(
        self,
        meter: Meter,
        *,
        target: StreamTranslator | None,
        caller: StreamTranslator | None,
        secret_parts: Sequence[bytes] = (),
    ) -> None:
        super().__init__(meter)
        self._inner = meter
        self._secret_parts = secret_parts
        self._target = target
        self._caller = caller

    @property
    def reading(self) -> Reading | None:
        return self._inner.reading

    def feed(self, data: bytes) -> bytes:
        """What may go out now.  Raises EventTooLarge, UpstreamProtocol."""
        if self._target is not None:
            data = self._target.feed(data)
        out = self._hide(self._meter.feed(data)) if data else b""
        return self._caller.feed(out) if self._caller is not None and out else out

    def finish(self) -> bytes:
        """The rest, once the answer has ended on the wire.  Raises as `feed`."""
        rest = b"" if self._target is None else self._target.finish()
        out = self._meter.feed(rest) if rest else b""
        out = self._hide(out + self._meter.finish())
        if self._caller is None:
            return out
        return (self._caller.feed(out) if out else b"") + self._caller.finish()

    def _hide(self, out: bytes) -> bytes:
        return out if self._meter.error is None else _hide_parts(out, self._secret_parts)


def _hide_parts(data: bytes, parts: Sequence[bytes]) -> bytes:
    for part in parts:
        data = data.replace(part, b"[redacted]")
    return data


def write_headers(headers: Headers) -> bytes:
    """Header lines.  Raises ValueError on what a head can't carry."""
    text = "".join(f"{name}: {value}\r\n" for name, value in headers)
    if text.count("\r\n") != len(headers) or text.count("\n") != len(headers) or "\0" in text:
        raise ValueError("a header with a line break")
    return text.encode("ascii")
