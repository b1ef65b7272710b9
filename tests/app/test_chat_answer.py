"""A streamed chat is read the same, however its bytes are split."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.app.chat_answer import AnswerBroken, ChatAnswer, Finish, Piece, Reason, Spent, Text, read_refusal

CHUNKS = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b": a comment\n\n"
    b'data: {"choices":[{"delta":{"content":"H\xc3\xa9"}}],"usage":null}\r\n\r\n'
    b'data: {"choices":[{"delta":{"content":"llo"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
)
DONE = b"data: [DONE]\n\n"
PIECES = [Text(text="Hé"), Text(text="llo"), Finish(reason="stop"), Spent(input_tokens=7, output_tokens=2)]


def read(data: bytes, cuts: list[int]) -> list[Piece]:
    answer = ChatAnswer()
    bounds = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    pieces = [piece for start, end in pairwise(bounds) for piece in answer.feed(data[start:end])]
    return [*pieces, *answer.finish()]


@given(st.lists(st.integers(0, 400), max_size=20))
def test_any_split_gives_the_same_pieces(cuts: list[int]) -> None:
    assert read(CHUNKS + DONE, cuts) == PIECES
    assert read(CHUNKS + DONE.strip(), cuts) == PIECES, "the last blank line may be missing"
    assert read(CHUNKS + DONE + b"data: nonsense\n\n", cuts) == PIECES, "after the end nothing counts"


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (b"", "broke off"),
        (b"data: [DO", "not a chat completion"),
        (b'data: {"error":{"message":"gone"}}\n\n', "gone"),
        (b'data: {"error":"gone"}\n\n', "gone"),
        (b'data: {"error":{}}\n\n', "without words"),
        (b"data: " + b"x" * (17 << 20), "too large"),
    ],
)
def test_an_answer_that_does_not_end_well_is_broken(rest: bytes, said: str) -> None:
    with pytest.raises(AnswerBroken, match=said):
        read(CHUNKS + rest, [])


def test_a_refusal_is_told_in_its_own_words() -> None:
    assert read_refusal(429, b'{"error":{"message":"Slow down.","code":"x"}}') == Reason(
        message="Slow down.", code="x"
    )
    assert read_refusal(502, b"<html>", "Bad Gateway").message == "HTTP 502 Bad Gateway"
    assert read_refusal(502, b"{}").message == "HTTP 502"
    assert read_refusal(500, b'{"error":"oh"}', "Internal").message == "HTTP 500 oh"
