"""The fixtures of these tests; what they are made of is in `gateway_stage`, which tests may import from."""

from gateway_stage import (
    _client,
    _gateway,
    _stages,
    caller,
    client,
    fallback,
    fresh,
    gateway,
    upstream,
)

__all__ = [
    "_client",
    "_gateway",
    "_stages",
    "caller",
    "client",
    "fallback",
    "fresh",
    "gateway",
    "upstream",
]
