"""Messages of a chat as those of Bedrock's Converse: each is what AWS's own client would send."""

import base64
import itertools
from typing import Any

import pytest
from bedrock_request import ASK, ASKED, NOW, POINT, refuse, translate

from forebay.core.errors import InvalidValue

PNG = base64.b64encode(b"\x89PNG\r\n").decode()

#: By name: messages, and what becomes of them.
MESSAGES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "system and developer go to the front": (
        [
            {"role": "system", "content": "Be brief."},
            *ASK,
            {"role": "developer", "content": [{"type": "text", "text": "In German."}]},
        ],
        {"system": [{"text": "Be brief."}, {"text": "In German."}], "messages": ASKED},
    ),
    "turns of one role are one": (
        [*ASK, {"role": "user", "content": "again", "name": "Ann"}],
        {"messages": [{"role": "user", "content": [{"text": "Hello"}, {"text": "again"}]}]},
    ),
    "what is blank is left out": (
        [
            *ASK,
            {"role": "assistant", "content": None},
            {"role": "assistant", "content": " \n"},
            {"role": "user", "content": [{"type": "text", "text": ""}]},
        ],
        {"messages": ASKED},
    ),
    "a conversation with tools": (
        [
            *ASK,
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at": "sea", "n": 12345678901234567890}'},
                    },
                    {"id": "c2", "type": "function", "function": {"name": "now", "arguments": ""}},
                ],
            },
            {"role": "user", "content": "Well?"},
            {"role": "tool", "tool_call_id": "c1", "content": "waves"},
            {
                "role": "tool",
                "tool_call_id": "c2",
                "content": [{"type": "text", "text": "noon"}],
                "is_error": True,
            },
            {"role": "tool", "tool_call_id": "c3", "content": ""},
        ],
        {
            "messages": [
                *ASKED,
                {
                    "role": "assistant",
                    "content": [
                        {"text": "I look."},
                        {
                            "toolUse": {
                                "toolUseId": "c1",
                                "name": "look",
                                "input": {"at": "sea", "n": 12345678901234567890},
                            }
                        },
                        {"toolUse": {"toolUseId": "c2", "name": "now", "input": {}}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"toolResult": {"toolUseId": "c1", "content": [{"text": "waves"}]}},
                        {"toolResult": {"toolUseId": "c2", "content": [{"text": "noon"}], "status": "error"}},
                        {"toolResult": {"toolUseId": "c3", "content": []}},
                        {"text": "Well?"},
                    ],
                },
            ]
        },
    ),
    "thinking goes back as it came": (
        [
            *ASK,
            {
                "role": "assistant",
                "content": "So.",
                "reasoning_content": "hm",
                "thinking_blocks": [
                    {"type": "thinking", "thinking": "hm … 😀", "signature": "EqQ+/=="},
                    {"type": "redacted_thinking", "data": "c2VjcmV0"},
                    {"type": "thinking", "thinking": "unsigned"},
                    {"type": "thinking", "thinking": "Google's", "signature": "gemini:text:abc"},
                ],
            },
        ],
        {
            "messages": [
                *ASKED,
                {
                    "role": "assistant",
                    "content": [
                        {"reasoningContent": {"reasoningText": {"text": "hm … 😀", "signature": "EqQ+/=="}}},
                        {"reasoningContent": {"redactedContent": "c2VjcmV0"}},
                        {"text": "So."},
                    ],
                },
            ]
        },
    ),
    "a refusal is text": (
        [
            *ASK,
            {"role": "assistant", "refusal": "No."},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
        ],
        {"messages": [*ASKED, {"role": "assistant", "content": [{"text": "No."}, {"text": "Never."}]}]},
    ),
    "images": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    {
                        "type": "image_url",
                        "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"},
                    },
                    {"type": "image_url", "image_url": {"url": "s3://bucket/some/cat.JPG"}},
                ],
            }
        ],
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"text": "See"},
                        {"image": {"format": "png", "source": {"bytes": PNG}}},
                        {
                            "image": {
                                "format": "jpeg",
                                "source": {"s3Location": {"uri": "s3://bucket/some/cat.JPG"}},
                            }
                        },
                    ],
                }
            ]
        },
    ),
    "sounds and documents": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}},
                    {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PNG}"}},
                    {
                        "type": "file",
                        "file": {
                            "file_data": f"data:text/plain;charset=utf-8;base64,{PNG}",
                            "filename": "docs/My_notes  (v1.2).txt",
                        },
                    },
                    {
                        "type": "file",
                        "file": {
                            "file_data": f"data:text/csv;base64,{PNG}",
                            "filename": "My.notes (v1,2).csv",
                        },
                    },
                ],
            }
        ],
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"audio": {"format": "wav", "source": {"bytes": PNG}}},
                        {"document": {"format": "pdf", "name": "document", "source": {"bytes": PNG}}},
                        {"document": {"format": "txt", "name": "My notes (v1 2)", "source": {"bytes": PNG}}},
                        {
                            "document": {
                                "format": "csv",
                                "name": "My notes (v1 2) 2",
                                "source": {"bytes": PNG},
                            }
                        },
                    ],
                }
            ]
        },
    ),
    "caches": (
        [
            {
                "role": "system",
                "content": [
                    {"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "text",
                        "text": "a",
                        "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"},
                    },
                    {"type": "text", "text": "b", "prompt_cache_breakpoint": {"mode": "explicit"}},
                ],
            },
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
            },
        ],
        {
            "system": [{"text": "Long."}, {"cachePoint": {"type": "default", "ttl": "1h"}}],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"toolResult": {"toolUseId": "c1", "content": [{"text": "x"}]}},
                        POINT,
                        {"text": "a"},
                        {"cachePoint": {"type": "default", "ttl": "1h"}},
                        {"text": "b"},
                        POINT,
                    ],
                }
            ],
        },
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_become_those_of_converse(name: str) -> None:
    messages, sent = MESSAGES[name]
    assert translate(messages=messages) == sent


def test_a_mark_for_the_whole_request_stands_at_its_end() -> None:
    made = translate(cache_control={"type": "ephemeral", "ttl": "5m"})
    assert made["messages"][-1]["content"][-1] == {"cachePoint": {"type": "default", "ttl": "5m"}}


def part(**more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [more]}]


@pytest.mark.parametrize(
    ("param", "messages"),
    [
        ("messages", []),
        ("messages", [{"role": "user", "content": ""}]),
        ("messages[0].role", [{"role": "function", "content": "x", "name": "f"}]),
        ("messages[0].odd", [{"role": "user", "content": "x", "odd": 1}]),
        ("messages[0].content[0].type", part(type="video_url", text="x")),
        (
            "messages[0].content[0].image_url.url",
            part(type="image_url", image_url={"url": "https://example.com/cat.png"}),
        ),
        (
            "messages[0].content[0].image_url.url",
            part(type="image_url", image_url={"url": "data:image/tiff;base64,AA=="}),
        ),
        (
            "messages[0].content[0].image_url.url",
            part(type="image_url", image_url={"url": "s3://bucket/cat"}),
        ),
        ("messages[0].content[0].file.file_data", part(type="file", file={"file_id": "file-1"})),
        (
            "messages[0].content[0].file.file_data",
            part(type="file", file={"file_data": "data:image/png;base64,AA=="}),
        ),
        (
            "messages[0].content[0].input_audio.format",
            part(type="input_audio", input_audio={"data": "AA==", "format": "opus"}),
        ),
        (
            "messages[0].content[0].prompt_cache_breakpoint.ttl",
            part(type="text", text="x", prompt_cache_breakpoint={"mode": "explicit", "ttl": "12h"}),
        ),
        ("messages[0].content[0].type", [{"role": "system", "content": [{"type": "image_url"}]}]),
        ("messages[0].tool_call_id", [{"role": "tool", "content": "x"}]),
        (
            "messages[0].tool_calls[0].function.arguments",
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[1]"}}],
                }
            ],
        ),
        (
            "messages[0].tool_calls[0].type",
            [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f"}}]}],
        ),
        ("messages[0].content", [{"role": "user", "content": 5}]),
        (
            "messages[0].tool_calls[0].odd",
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}, "odd": 1}]}],
        ),
    ],
)
def test_messages_that_can_t_be_said_are_named(param: str, messages: list[dict[str, Any]]) -> None:
    error = refuse(messages)
    assert isinstance(error, InvalidValue)
    assert error.param == param


def test_no_tool_is_refused_once_one_was_called() -> None:
    called = [*ASK, {"role": "tool", "tool_call_id": "c1", "content": "x"}]
    assert refuse(called, tools=[NOW], tool_choice="none").param == "tool_choice"


def test_two_marks_for_the_cache_are_never_in_a_row() -> None:
    def marked(ttl: str | None = None, **fields: Any) -> dict[str, Any]:
        return fields | {"cache_control": {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})}

    part = {"type": "text", "text": "a"}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for first, second, stays in ((None, "1h", "1h"), ("1h", "5m", "1h"), ("5m", None, "5m")):
        asked = [
            marked(second, role="user", content=[marked(first, **part)]),
            marked(second, role="assistant", content=[marked(first, **part)]),
            {"role": "assistant", "tool_calls": [call]},
            marked(second, role="tool", tool_call_id="c", content=[marked(first, **part)] * 2),
        ]
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        made = translate(messages=asked[:1] + asked[1:], tools=tools, cache_control={"type": "ephemeral"})
        for message in made["messages"]:
            points = ["cachePoint" in block for block in message["content"]]
            assert not points[0]
            assert (True, True) not in itertools.pairwise(points)
        assert made["messages"][-1]["content"][-1]["cachePoint"]["ttl"] == stays
