"""What a request says to a target, and what reads the answer: untouched where both speak the same.

Decides nothing and sends nothing; how two dialects meet is `crossing`'s.
"""

from collections.abc import Mapping
from typing import cast

from forebay.core.clock import Clock
from forebay.core.errors import Overloaded
from forebay.gateway.crossing import Crossing
from forebay.gateway.dialect import Meter, ToolView
from forebay.gateway.memory import OVERLOADED, Memory
from forebay.gateway.model import Exchange, TargetState

Payload = bytes | list[bytes | memoryview]


def encode_request(exchange: Exchange, target: TargetState, memory: Memory) -> Payload:
    """The body for a target, and with it the exchange's crossing, if there is one.

    Raises:
        Untranslatable: the target can't be told this.
        Overloaded: there is no room for the body in another dialect.
        InvalidJSON, InvalidValue: as the dialect does.
    """
    endpoint, model = exchange.endpoint, target.target.model
    crossing = find_forced(exchange, target) if target.forced else None
    if crossing is None and endpoint in target.heads:
        exchange.crossing = None
        return exchange.dialect.encode_request(exchange.body, exchange.view, endpoint, model)
    crossing = exchange.crossing = crossing or target.find_crossing(endpoint)
    payload = crossing.encode(exchange.dialect, exchange.body, exchange.view, model, stream=exchange.stream)
    if crossing.is_translated:
        memory.held -= exchange.translated_bytes
        exchange.translated_bytes = 0
        size = count_bytes(payload)
        if not memory.take(size):
            raise Overloaded(OVERLOADED, retry_after_s=1)
        exchange.translated_bytes = size
    return payload


def find_forced(exchange: Exchange, target: TargetState) -> Crossing | None:
    """What lies between, where the request forces a call that the engine there would not make."""
    crossing = target.forced.get(exchange.endpoint)
    return crossing if crossing is not None and cast(ToolView, exchange.view).forces_call else None


def write_head(exchange: Exchange, target: TargetState, payload: Payload, clock: Clock) -> bytes:
    """The head for a body.  Raises UpstreamCredentials where they can't sign it."""
    headers, crossing = exchange.call.headers, exchange.crossing
    rest = build_head_rest(exchange.id, count_bytes(payload), headers)
    if crossing is None:
        return target.heads[exchange.endpoint] + rest
    return crossing.build_head(headers, payload, clock.wall_ns(), stream=exchange.stream) + rest


def build_head_rest(request_id: str, size: int, headers: Mapping[bytes, bytes]) -> bytes:
    """What differs between two requests' heads, and the end of the head."""
    trace = headers.get(b"traceparent")
    if trace is None:
        return f"content-length: {size}\r\nx-request-id: {request_id}\r\n\r\n".encode()
    state = headers.get(b"tracestate")
    return b"content-length: %d\r\nx-request-id: %b\r\ntraceparent: %b\r\n%b\r\n" % (
        size,
        request_id.encode(),
        trace,
        b"" if state is None else b"tracestate: %b\r\n" % state,
    )


def count_bytes(payload: Payload) -> int:
    return sum(map(len, payload)) if isinstance(payload, list) else len(payload)


def new_meter(exchange: Exchange) -> Meter:
    """A reader for the stream of the current attempt."""
    hide = not exchange.view.wants_usage
    event_max = exchange.state.snapshot.limits.event_max_bytes
    dialect, target = exchange.dialect, exchange.target_state.target
    if exchange.crossing is not None:
        return exchange.crossing.new_meter(
            dialect,
            target,
            hide_usage=hide,
            event_max_bytes=event_max,
            request=exchange.body,
            answer_id=exchange.id,
        )
    if target.usage:
        return dialect.new_ruled_meter(target.usage, hide_usage=hide, event_max_bytes=event_max)
    return dialect.new_meter(hide_usage=hide, event_max_bytes=event_max)
