"""What all translations of answers into OpenAI's chat have in common.  Pure."""

from typing import Any

Message = dict[str, Any]


def start_message(content: str | None) -> Message:
    """The assistant's message with the fields that OpenAI says even where there is nothing in them."""
    return {"role": "assistant", "content": content, "refusal": None, "annotations": []}
