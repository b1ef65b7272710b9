"""Messages in chat as Gemini's contents: parts, calls and their results, signatures."""

import json

import pytest
from gemini_request import (
    ASKED,
    GEMINI,
    USER,
    VERTEX,
    assistant,
    call,
    encode,
    encode_messages,
    refusal,
    result,
    signed,
    user,
)

from forebay.providers.chat_to_bedrock import ChatToBedrock
from forebay.providers.gemini_signatures import FOREIGN


def test_system_and_developer_messages_are_one_instruction() -> None:
    made = encode(
        messages=[
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        ]
    )
    assert made["systemInstruction"] == {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]}
    assert made["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]


def test_images_sound_and_files_in_the_request_or_by_their_address() -> None:
    parts = [
        {"type": "text", "text": "Look."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0=", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.JPG?size=3"}},
        {"type": "image_url", "image_url": {"url": "gs://bucket/a.webp"}},
        {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBE", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "https://generativelanguage.googleapis.com/v1beta/files/x"}},
    ]
    (made,) = encode_messages(user(*parts))
    assert made["parts"] == [
        {"text": "Look."},
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0="}},
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.com/a.JPG?size=3"}},
        {"fileData": {"mimeType": "image/webp", "fileUri": "gs://bucket/a.webp"}},
        {"inlineData": {"mimeType": "audio/wav", "data": "UklG"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBE"}},
        {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/x"}},
    ]


def test_vertex_wants_the_type_of_what_lies_at_an_address() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/picture"}}
    asked = ASKED | {"messages": [user(image)]}
    assert refusal(asked, translator=VERTEX) == "messages[0].content[0].image_url.url"
    assert encode(asked)["contents"][0]["parts"] == [{"fileData": {"fileUri": "https://example.com/picture"}}]


HISTORY = (
    USER,
    assistant(call("a", ""), call("b", '{"q":"x"}', name="other"), content="So."),
    result("b", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], is_error=True),
    USER,
    result("a"),
)


def test_parallel_calls_and_their_results_stand_in_one_turn_each_in_order() -> None:
    made = encode_messages(*HISTORY, model="gemini-2.5-pro")
    assert made[1] == {
        "role": "model",
        "parts": [
            {"text": "So."},
            {"functionCall": {"id": "a", "name": "look_up", "args": {}}},
            {"functionCall": {"id": "b", "name": "other", "args": {"q": "x"}}},
        ],
    }
    results = [
        {"functionResponse": {"id": "a", "name": "look_up", "response": {"output": "found"}}},
        {"functionResponse": {"id": "b", "name": "other", "response": {"error": "onetwo"}}},
    ]
    assert made[2:] == [{"role": "user", "parts": [*results, {"text": "hi"}]}]


def test_vertex_is_sent_no_ids_but_the_same_order() -> None:
    made = encode_messages(*HISTORY, model="gemini-2.5-pro", translator=VERTEX)
    assert "id" not in json.dumps(made)
    assert [part["functionResponse"]["name"] for part in made[2]["parts"][:2]] == ["look_up", "other"]


def test_a_tools_result_may_hold_an_image() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
    made = encode_messages(USER, assistant(call("a")), result("a", [{"type": "text", "text": "t"}, image]))
    assert made[2]["parts"][0]["functionResponse"] == {
        "id": "a",
        "name": "look_up",
        "response": {"output": "t"},
        "parts": [{"inlineData": {"mimeType": "image/png", "data": "iVBO"}}],
    }


def test_arguments_go_on_as_they_were_spelled() -> None:
    spelled = '{"big": 123456789012345678901234567890, "e":1E+2,"é":"\\u00e9"}'
    body = json.dumps(ASKED | {"messages": [USER, assistant(call("a", spelled))]}).encode()
    assert spelled.encode() in GEMINI.encode_request(body, "m", stream=False)


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_empty_messages_are_left_out_and_their_neighbours_merged(role: str, content: object) -> None:
    made = encode(messages=[USER, {"role": role, "content": content}, USER])
    assert made == {"contents": [{"role": "user", "parts": [{"text": "hi"}, {"text": "hi"}]}]}


def test_what_clients_send_back_of_an_answer_is_taken() -> None:
    dumped = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "reasoning_content": "Hm.",
    }
    assert encode_messages(USER, dumped)[1]["parts"] == [{"text": "x"}]
    assert encode_messages(USER, {"role": "assistant", "content": None, "refusal": "No."})[1]["parts"] == [
        {"text": "No."}
    ]


# --- signatures ---------------------------------------------------------------------------------------------


def test_a_signature_comes_back_to_the_part_that_it_is_of() -> None:
    blocks = [signed("thought", "VA==", "Hm."), signed("text", "VGU="), signed("call1", "QzE=")]
    made = encode_messages(
        USER, assistant(call("a"), call("b"), content="So.", thinking_blocks=blocks), model="gemini-3"
    )
    thought, text, first, second = made[1]["parts"]
    assert thought == {"text": "Hm.", "thought": True, "thoughtSignature": "VA=="}
    assert text == {"text": "So.", "thoughtSignature": "VGU="}
    assert "thoughtSignature" not in first
    assert second["thoughtSignature"] == "QzE="


def test_what_google_signed_goes_to_nobody_else() -> None:
    body = json.dumps(
        {
            "messages": [
                USER,
                {"role": "assistant", "content": "x", "thinking_blocks": [signed("text", "VGU=")]},
            ]
        }
    ).encode()
    made = json.loads(ChatToBedrock().encode_request(body, "m", stream=False))
    assert made["messages"][1]["content"] == [{"text": "x"}]


def test_a_signature_beside_a_call_goes_before_one_in_a_thought() -> None:
    extra = {"extra_content": {"google": {"thought_signature": "bmV3"}}}
    made = encode_messages(
        USER, assistant(call("a", **extra), thinking_blocks=[signed("call0", "b2xk")], **extra)
    )
    assert made[1]["parts"] == [
        {"text": "", "thoughtSignature": "bmV3"},
        {"functionCall": {"id": "a", "name": "look_up", "args": {}}, "thoughtSignature": "bmV3"},
    ]


def test_calls_that_another_model_made_have_the_signature_that_google_names_for_them() -> None:
    theirs = {"type": "thinking", "thinking": "x", "signature": "EqQBsomebody"}
    message = assistant(
        call("a"), call("b"), thinking_blocks=[theirs, {"type": "redacted_thinking", "data": "x"}]
    )
    for translator in (GEMINI, VERTEX):
        first, second = encode_messages(USER, message, translator=translator)[1]["parts"]
        assert first["thoughtSignature"] == FOREIGN == "skip_thought_signature_validator"
        assert "thoughtSignature" not in second
    assert "thoughtSignature" not in json.dumps(encode_messages(USER, message, model="gemini-2.5-pro"))
