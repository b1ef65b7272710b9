"""Which dialects there are, and what lies between each endpoint and each of them.  Holds no translation.

A dialect of targets has a wire for the endpoints that it speaks itself, a translator for chat, or both; an
endpoint of callers that is not OpenAI's has a dialect of its own, and a caller translator for all targets
that do not speak it.
"""

from functools import lru_cache

from forebay.core.routes import Endpoint, ForcedCalls
from forebay.providers.anthropic_dialect import SPOKEN as _ANTHROPIC
from forebay.providers.anthropic_dialect import MessagesDialect
from forebay.providers.anthropic_wire import AnthropicWire
from forebay.providers.azure import AzureWire
from forebay.providers.chat_to_anthropic import ChatToAnthropic
from forebay.providers.chat_to_bedrock import ChatToBedrock
from forebay.providers.chat_to_gemini import ChatToGemini
from forebay.providers.embeddings_to_gemini import EmbeddingsToGemini
from forebay.providers.forced_tools import ForcedTools
from forebay.providers.inference_protocol import InferenceDialect, InferenceWire
from forebay.providers.media_dialect import SPOKEN as _MEDIA
from forebay.providers.media_dialect import MediaDialect
from forebay.providers.messages_to_chat import MessagesToChat
from forebay.providers.openai_scores import ScoresDialect
from forebay.providers.openai_wire import OpenAIWire
from forebay.providers.responses_dialect import ResponsesDialect
from forebay.providers.responses_to_chat import ResponsesToChat
from forebay.providers.translation import CallerTranslator, TargetTranslator, TargetWire, Way

#: What the callers of an endpoint speak where that is not OpenAI's chat or like it.
SPOKEN: dict[
    Endpoint, MessagesDialect | ResponsesDialect | ScoresDialect | InferenceDialect | MediaDialect
] = {
    **_ANTHROPIC,
    **_MEDIA,
    Endpoint.RESPONSES: ResponsesDialect(),
    Endpoint.RERANK: ScoresDialect(),
    Endpoint.SCORE: ScoresDialect(),
    Endpoint.INFER: InferenceDialect(),
}

#: By the `dialect` of a target.
_WIRES: dict[str, TargetWire] = {
    "anthropic": AnthropicWire(),
    "azure": AzureWire(),
    "oip": InferenceWire(),
    "openai": OpenAIWire(),
    "openai-responses": OpenAIWire(Endpoint.RESPONSES),
}
_TARGETS: dict[str, TargetTranslator] = {
    "anthropic": ChatToAnthropic(),
    "bedrock": ChatToBedrock(),
    "gemini": ChatToGemini(),
    "vertex": ChatToGemini(is_vertex=True),
}
#: By how a forced call is met at a target that speaks OpenAI's chat, for requests that force one.
_FORCED: dict[str, TargetTranslator] = {
    ForcedCalls.SCHEMA: ForcedTools(),
    ForcedCalls.REFUSE: ForcedTools(refuses=True),
}
#: By the dialect too, for callers of embeddings.
_EMBEDDERS: dict[str, TargetTranslator] = {
    "gemini": EmbeddingsToGemini(),
}
#: By the endpoint of a caller.
_CALLERS: dict[Endpoint, CallerTranslator] = {
    Endpoint.MESSAGES: MessagesToChat(is_extended=True),
    Endpoint.RESPONSES: ResponsesToChat(is_extended=True),
}
#: Those that stand before a server of OpenAI's chat itself, where that differs from one before a translator.
_LAST_CALLERS: dict[Endpoint, CallerTranslator] = {
    Endpoint.MESSAGES: MessagesToChat(),
    Endpoint.RESPONSES: ResponsesToChat(),
}


@lru_cache(maxsize=1024)
def find_way(endpoint: Endpoint, dialect: str) -> Way | None:
    """What lies between the callers of an endpoint and targets of a dialect, None if they can't meet."""
    wire = _WIRES.get(dialect)
    if wire is not None and wire.build_path("", endpoint.value, "m") is not None:
        return Way(wire=wire)
    if endpoint is Endpoint.EMBEDDINGS and dialect in _EMBEDDERS:
        return Way(target=_EMBEDDERS[dialect])
    caller = _CALLERS.get(endpoint)
    if caller is None and endpoint is not Endpoint.CHAT:
        return None
    target = _TARGETS.get(dialect)
    if target is not None:
        return Way(caller=caller, target=target)
    if caller is None or wire is None or wire.build_path("", Endpoint.CHAT.value, "m") is None:
        return None
    return Way(wire=wire, caller=_LAST_CALLERS.get(endpoint, caller))


def find_forced_way(endpoint: Endpoint, forced: str) -> Way | None:
    """What lies between callers who force a call of a tool and targets of chat that do not enforce it.

    Args:
        forced: how it is met there; one of `ForcedCalls`.
    """
    target = _FORCED.get(forced)
    if target is None:
        return None
    if endpoint is Endpoint.CHAT:
        return Way(target=target)
    caller = _LAST_CALLERS.get(endpoint)
    return None if caller is None else Way(caller=caller, target=target)


def can_answer(dialect: str, endpoint: Endpoint) -> bool:
    """Whether a target of a dialect can answer an endpoint; tokens are counted here if not there."""
    if endpoint is Endpoint.COUNT_TOKENS:
        return find_way(Endpoint.MESSAGES, dialect) is not None
    return find_way(endpoint, dialect) is not None


def list_dialects() -> list[str]:
    """What `dialect` of a target may be."""
    return sorted({*_TARGETS, *_WIRES})
