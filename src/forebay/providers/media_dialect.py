"""OpenAI's audio and images as callers speak them, pure: metered, and passed on as they are.

Bodies pass untouched, but for the model's name; in a form those bytes alone are others.  One dialect is
bound to each request, because the header `content-type` says how its form is to be read, and keeps what it
read.
"""

from forebay.core.errors import ContextTooLong, ForebayError
from forebay.core.events import Tokens
from forebay.core.filler import begin_no_filler
from forebay.core.routes import AUDIO_READERS, FORMS, Endpoint
from forebay.core.usage_rules import UsageRule
from forebay.providers import openai
from forebay.providers.media_meter import MediaMeter, merge
from forebay.providers.media_request import MediaView, read_form, read_json
from forebay.providers.media_usage import list_units, read_told
from forebay.providers.openai import JOINED_MAX_BYTES
from forebay.providers.openai_bounds import BYTES_PER_TOKEN_MAX
from forebay.providers.openai_estimate import BYTES_PER_TOKEN
from forebay.providers.openai_usage import Reading

_UNREAD = MediaView(model="")
_JSON = b"application/json"


class MediaDialect:
    """`forebay.gateway.dialect.Dialect` says what each part is for.

    Args:
        content_type: of the request.
    """

    ERROR_START = openai.ERROR_START
    is_foreign = False
    KEEP_ALIVE = b""  # nobody knows before it comes whether an answer is a stream of events

    begin_filler = staticmethod(begin_no_filler)
    wrap_error_event = staticmethod(openai.wrap_error_event)
    read_error = staticmethod(openai.read_error)
    read_error_status = staticmethod(openai.read_error_status)
    wrap_error = staticmethod(openai.wrap_error)
    encode_error = staticmethod(openai.encode_error)
    name_headers = staticmethod(openai.name_headers)
    encode_model_list = staticmethod(openai.encode_model_list)
    encode_model = staticmethod(openai.encode_model)

    def __init__(self, endpoint: Endpoint, content_type: bytes = b"") -> None:
        self._endpoint = endpoint
        self._content_type = content_type
        self._view = _UNREAD

    def bind_type(self, content_type: bytes) -> "MediaDialect":
        """The same for one request."""
        return MediaDialect(self._endpoint, content_type)

    def read_request(self, body: bytes) -> MediaView:
        """The view of a request.

        Raises:
            InvalidValue, MissingField, InvalidJSON: it can't be read, or names no model.
        """
        endpoint, kind = self._endpoint, self._content_type
        is_json = endpoint is Endpoint.IMAGE_EDITS and kind.strip().lower().startswith(_JSON)
        if endpoint in FORMS and not is_json:
            self._view = read_form(body, kind, endpoint)
        else:
            self._view = read_json(body, endpoint)
        return self._view

    def check_context(self, body: bytes, endpoint: Endpoint, tokens_max: int) -> None:
        """Raises ContextTooLong where the text alone has more tokens, whatever the tokenizer."""
        size = self._view.text_bytes
        if size > tokens_max * BYTES_PER_TOKEN_MAX:
            raise ContextTooLong(
                f"the text has about {size // BYTES_PER_TOKEN} tokens; this key allows {tokens_max} "
                "(`context_max_tokens`)",
                param="input" if endpoint is Endpoint.SPEECH else "prompt",
            )

    def cap_output(self, body: bytes, view: MediaView, endpoint: Endpoint, tokens_max: int) -> MediaView:
        return view  # no such request can say how much is made

    def write_cap(self, body: bytes, view: MediaView) -> bytes:
        return body

    def read_output_max(self, body: bytes) -> int | None:
        return None

    def encode_request(
        self, body: bytes, view: MediaView, endpoint: Endpoint, target_model: str
    ) -> bytes | list[bytes | memoryview]:
        """The caller's own bytes, but for the model's name; of a large form in pieces that lie in it."""
        place = view.model_at
        if place is None:
            return openai.encode_request(body, view, endpoint, target_model)
        if view.model == target_model:
            return body
        whole = memoryview(body)
        parts: list[bytes | memoryview] = [whole[: place[0]], target_model.encode(), whole[place[1] :]]
        return b"".join(parts) if len(body) <= JOINED_MAX_BYTES else parts

    def read_answer(self, body: bytes) -> Tokens | None:
        return read_told(body, self._endpoint).tokens

    def read_ruled_answer(self, rules: tuple[UsageRule, ...], body: bytes) -> Reading:
        told = read_told(body, self._endpoint)
        units = list_units(told)
        if self._endpoint in AUDIO_READERS and not units and told.tokens is None:
            units = self._view.guessed_units
        if self._endpoint is Endpoint.SPEECH:
            units = self._view.guessed_units
        return merge(told.tokens, units, openai.read_ruled_answer(rules, body) if rules else None)

    def estimate_tokens(self, body: bytes, events_seen: int) -> Tokens:
        """What was spent where nobody said it: of what was made, nobody knows."""
        return Tokens(input=self._view.input_tokens, output=events_seen or None)

    def weigh_text(self, body: bytes) -> int:
        return 0

    def new_meter(self, *, hide_usage: bool, event_max_bytes: int) -> MediaMeter:
        return self.new_ruled_meter((), hide_usage=hide_usage, event_max_bytes=event_max_bytes)

    def new_ruled_meter(
        self, rules: tuple[UsageRule, ...], *, hide_usage: bool, event_max_bytes: int
    ) -> MediaMeter:
        return MediaMeter(self._endpoint, rules, self._view.guessed_units, event_max_bytes=event_max_bytes)

    def encode_error_event(self, error: ForebayError) -> bytes:
        return openai.encode_error_event(error)


SPOKEN: dict[Endpoint, MediaDialect] = {
    endpoint: MediaDialect(endpoint) for endpoint in (*sorted(FORMS), Endpoint.SPEECH, Endpoint.IMAGES)
}
