"""How each dialect and engine says that a request is too long, and what is only like it."""

import pytest

from forebay.core.context_overflow import says_too_long

GOLDEN: dict[str, tuple[int, bytes]] = {
    "openai": (
        400,
        b'{"error":{"message":"This model\'s maximum context length is 8192 tokens. However, your messages '
        b'resulted in 9000 tokens.","type":"invalid_request_error","param":"messages",'
        b'"code":"context_length_exceeded"}}',
    ),
    "openai responses": (
        400,
        b'{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input '
        b'and try again.","type":"invalid_request_error","param":"input","code":null}}',
    ),
    "azure": (
        400,
        b'{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}',
    ),
    "vllm": (
        400,
        b'{"object":"error","message":"This model\'s maximum context length is 4096 tokens. However, you '
        b'requested 5000 tokens","type":"BadRequestError","param":null,"code":400}',
    ),
    "vllm prompt": (
        400,
        b'{"error":{"message":"The decoder prompt (length 5000) is longer than the maximum model length of '
        b'4096. Make sure","type":"BadRequestError","code":400}}',
    ),
    "sglang": (
        400,
        b'{"object":"error","message":"The input (9000 tokens) is longer than the model\'s context length '
        b'(8192 tokens).","type":"BadRequest","code":400}',
    ),
    "llama.cpp": (
        400,
        b'{"error":{"code":400,"message":"request (9000 tokens) exceeds the available context size (8192 '
        b'tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9000,'
        b'"n_ctx":8192}}',
    ),
    "llama.cpp, older": (
        500,
        b'{"error":{"code":500,"message":"the request exceeds the available context size. try increasing the '
        b'context size","type":"server_error"}}',
    ),
    "tgi": (
        422,
        b'{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 '
        b'`inputs` tokens and 20 `max_new_tokens`","error_type":"validation"}',
    ),
    "anthropic": (
        400,
        b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 '
        b'tokens > 200000 maximum"}}',
    ),
    "anthropic with an answer": (
        400,
        b'{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` '
        b'exceed context limit: 199211 + 20000 > 200000, decrease input length"}}',
    ),
    "gemini": (
        400,
        b'{"error":{"code":400,"message":"The input token count (1100000) exceeds the maximum number of '
        b'tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}',
    ),
    "bedrock": (400, b'{"message":"Input is too long for requested model."}'),
    "bedrock, others": (
        400,
        b'{"message":"The model returned the following errors: Too many input tokens. Max input tokens: 1"}',
    ),
    "mistral": (
        400,
        b'{"object":"error","message":"Prompt contains 40000 tokens and 0 draft tokens, too large for model '
        b'with 32768 maximum context length","type":"invalid_request_error","code":null}',
    ),
}  # fmt: skip

OTHERS: dict[str, tuple[int, bytes]] = {
    "no error": (200, b'{"choices":[{"message":{"content":"prompt is too long"}}]}'),
    "a rate limit": (429, b'{"error":{"message":"maximum context length of the day"}}'),
    "too many tokens a minute": (
        413,
        b'{"error":{"message":"Request too large for model `x` on tokens per minute (TPM): Limit 6000",'
        b'"code":"rate_limit_exceeded"}}',
    ),
    "another field": (400, b'{"error":{"message":"`max_tokens` must be at least 1","code":null}}'),
    "a page": (502, b"<html>502 Bad Gateway</html>"),
    "a long name": (400, b'{"error":{"message":"the name of the tool is longer than 64 characters"}}'),
    "nothing": (400, b""),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_each_says_so(name: str) -> None:
    assert says_too_long(*GOLDEN[name])


QUOTED = (
    b'{"error":{"message":"1 validation error: messages.0.role: Input should be \'user\' [input_value='
    b"{'role': 'me', 'content': 'What is the maximum context length? The prompt is too long.'}]"
    b'","code":400}}'
)
ASKED = (
    b'{"messages":[{"role":"me","content":"What is the maximum context length? The prompt is too long."}]}'
)


def test_words_of_the_caller_that_an_error_quotes_prove_nothing() -> None:
    assert says_too_long(400, QUOTED)
    assert not says_too_long(400, QUOTED, ASKED)
    assert not says_too_long(400, QUOTED, ASKED, 8192)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_request_of_such_words_may_still_be_too_long(name: str) -> None:
    status, body = GOLDEN[name]
    assert says_too_long(status, body, body * 200, 8192)
    assert says_too_long(status, body, ASKED * 50, 4096)
    assert says_too_long(status, body, b'{"messages":[]}', 4096)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_only_like_it(name: str) -> None:
    assert not says_too_long(*OTHERS[name])
