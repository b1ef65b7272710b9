"""What a translated stream costs: twice as much takes about twice as long, whatever it is made of."""

import time
from typing import Any

import pytest

from forebay.core.translation import CallerTranslator
from forebay.providers.messages_to_chat import MessagesToChat
from forebay.providers.responses_to_chat import ResponsesToChat
from forebay.testing.openai import DONE, chat_chunk, event

MANY = 40_000
#: Of one that grows with the square of the size, it is minutes.
CPU_MAX_S = 20


def call(index: int, **function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": function}]}


STREAMS: dict[str, list[dict[str, Any]]] = {
    "calls": [call(at, name="f", arguments="{") for at in range(MANY)],
    "pieces": [call(at % 1000, name="f", arguments="{") for at in range(2 * MANY)],
    "one delta": [{"tool_calls": [call(at, name="f")["tool_calls"][0] for at in range(MANY)]}],
    "thinking": [
        {"thinking_blocks": [{"type": "thinking", "thinking": "t" * 100, "index": 0}]} for _ in range(MANY)
    ],
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("translator", [MessagesToChat(), ResponsesToChat()], ids=["messages", "responses"])
def test_the_time_grows_with_the_size(translator: CallerTranslator, name: str) -> None:
    stream = translator.new_stream(event_max_bytes=64 << 20)
    chunks = [event(chat_chunk(delta)) for delta in STREAMS[name]]
    chunks += [event(chat_chunk({}, finish_reason="tool_calls")), DONE]
    begun = time.process_time()
    out = b"".join(map(stream.feed, chunks)) + stream.finish()
    assert time.process_time() - begun < CPU_MAX_S
    assert out.endswith(b"\n\n")
    assert len(out) > MANY
