"""Which translators there are: one line each.  Holds no translation.

A dialect of targets has a translator, or a wire where only the way to it differs from OpenAI's; an endpoint
of callers that is not OpenAI's has a caller translator.  What is in no table is OpenAI's, and passes as is.
"""

from forebay.core.routes import Endpoint
from forebay.providers.translation import CallerTranslator, TargetTranslator, TargetWire

#: By the `dialect` of a target.
_TARGETS: dict[str, TargetTranslator] = {}
_WIRES: dict[str, TargetWire] = {}
#: By the endpoint of a caller.
_CALLERS: dict[Endpoint, CallerTranslator] = {}


def find_target_translator(dialect: str) -> TargetTranslator | None:
    """That of targets of a dialect; None where their bodies are OpenAI's."""
    return _TARGETS.get(dialect)


def find_target_wire(dialect: str) -> TargetWire | None:
    """How targets of a dialect are addressed; None where as OpenAI's, or where a translator says it."""
    return _WIRES.get(dialect)


def find_caller_translator(endpoint: Endpoint) -> CallerTranslator | None:
    """That of an endpoint; None where its bodies are OpenAI's."""
    return _CALLERS.get(endpoint)


def list_dialects() -> list[str]:
    """What `dialect` of a target may be."""
    return sorted({"openai", *_TARGETS, *_WIRES})
