"""What real providers of the OpenAI dialect report, as disjoint token classes.

The objects are made after the providers' public documentation, and after reports of what they send; each
names where its figures are.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.events import Tokens
from forebay.core.limits import Limit, Measure, count_units
from forebay.providers import openai
from forebay.providers.openai_usage import COUNT_MAX
from forebay.testing.openai import DONE, chat_stream, event, usage_chunk

Reported = dict[str, Any]


def openai_like(prompt: int, completion: int, **more: Any) -> Reported:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return counts | more


NO_PREDICTION = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
#: By name: what is reported, and what it means.
GOLDEN: dict[str, tuple[Reported, Tokens | None]] = {
    # developers.openai.com, prompt caching: `cached_tokens` is part of `prompt_tokens`.
    "openai: read from the cache": (
        openai_like(
            *(2006, 300),
            prompt_tokens_details={"cached_tokens": 1920, "audio_tokens": 0},
            completion_tokens_details={"reasoning_tokens": 0, "audio_tokens": 0} | NO_PREDICTION,
        ),
        Tokens(
            **{"input": 86, "input_cached": 1920, "input_audio": 0},
            **{"output": 300, "output_reasoning": 0, "output_audio": 0},
        ),
    ),
    # The same page, from GPT-5.6 on: both are part of `prompt_tokens`, so 200 were neither.
    "openai: read and written": (
        openai_like(2600, 50, prompt_tokens_details={"cached_tokens": 2000, "cache_write_tokens": 400}),
        Tokens(input=200, input_cached=2000, input_cache_write=400, output=50),
    ),
    # "A longer cache write does not bill the already cached tokens again", though it may count them.
    "openai: a write that counts what was read": (
        openai_like(3619, 36, prompt_tokens_details={"cached_tokens": 2921, "cache_write_tokens": 3616}),
        Tokens(input=0, input_cached=2921, input_cache_write=698, output=36),
    ),
    "openai: reasoning": (
        openai_like(
            *(75, 1186),
            prompt_tokens_details={"cached_tokens": 0},
            completion_tokens_details={"reasoning_tokens": 1024} | NO_PREDICTION,
        ),
        Tokens(input=75, input_cached=0, output=162, output_reasoning=1024),
    ),
    "openai: audio": (
        openai_like(
            *(102, 178),
            prompt_tokens_details={"cached_tokens": 0, "text_tokens": 28, "audio_tokens": 74},
            completion_tokens_details={"reasoning_tokens": 0, "text_tokens": 38, "audio_tokens": 140},
        ),
        Tokens(
            **{"input": 28, "input_cached": 0, "input_audio": 74},
            **{"output": 38, "output_reasoning": 0, "output_audio": 140},
        ),
    ),
    "openai: embeddings": ({"prompt_tokens": 8, "total_tokens": 8}, Tokens(input=8, output=0)),
    # api-docs.deepseek.com: hit and miss together are `prompt_tokens`; reasoning is part of the completion.
    "deepseek: hits": (
        openai_like(
            *(150, 45),
            prompt_cache_hit_tokens=60,
            prompt_cache_miss_tokens=90,
            completion_tokens_details={"reasoning_tokens": 30},
        ),
        Tokens(input=90, input_cached=60, output=15, output_reasoning=30),
    ),
    "deepseek: hits, twice": (
        openai_like(
            *(14, 31),
            prompt_tokens_details={"cached_tokens": 0},
            prompt_cache_hit_tokens=0,
            prompt_cache_miss_tokens=14,
        ),
        Tokens(input=14, input_cached=0, output=31),
    ),
    # docs.litellm.ai, prompt caching: `prompt_tokens` are all of the prompt, also with Anthropic behind it.
    "litellm: anthropic": (
        openai_like(
            *(3000, 300),
            prompt_tokens_details={"cached_tokens": 1920, "cache_creation_tokens": 1000},
            completion_tokens_details={"reasoning_tokens": 0},
            cache_creation_input_tokens=1000,
            cache_read_input_tokens=1920,
        ),
        Tokens(input=80, input_cached=1920, input_cache_write=1000, output=300, output_reasoning=0),
    ),
    "litellm: anthropic, without details": (
        openai_like(1000, 5, cache_creation_input_tokens=900, cache_read_input_tokens=0),
        Tokens(input=100, input_cache_write=900, output=5),
    ),
    # openrouter.ai, usage accounting.
    "openrouter": (
        openai_like(
            *(194, 2),
            prompt_tokens_details={"cached_tokens": 0, "cache_write_tokens": 100, "audio_tokens": 0},
            completion_tokens_details={"reasoning_tokens": 0},
            cost=0.95,
            cost_details={"upstream_inference_cost": 19},
        ),
        Tokens(
            **{"input": 94, "input_cached": 0, "input_audio": 0, "input_cache_write": 100},
            **{"output": 2, "output_reasoning": 0},
        ),
    ),
    # alibabacloud.com, context cache: an explicit cache is written within the prompt's tokens.
    "alibaba cloud: explicit cache": (
        openai_like(
            *(1620, 20),
            prompt_tokens_details={
                "cached_tokens": 0,
                "cache_creation_input_tokens": 1605,
                "cache_creation": {"ephemeral_5m_input_tokens": 1605},
                "cache_type": "ephemeral",
            },
        ),
        Tokens(input=15, input_cached=0, input_cache_write=1605, output=20),
    ),
    "new api": (
        openai_like(500, 7, prompt_tokens_details={"cached_tokens": 100, "cached_creation_tokens": 300}),
        Tokens(input=100, input_cached=100, input_cache_write=300, output=7),
    ),
    # docs.x.ai: "reasoning token consumption will be counted separately from completion_tokens".
    "xai: reasoning beside the completion": (
        {
            "prompt_tokens": 10120,
            "completion_tokens": 1499,
            "total_tokens": 14428,
            "prompt_tokens_details": {"cached_tokens": 128},
            "completion_tokens_details": {"reasoning_tokens": 2809},
        },
        Tokens(input=9992, input_cached=128, output=1499, output_reasoning=2809),
    ),
    "xai: no reasoning": (
        openai_like(
            *(125, 48),
            prompt_tokens_details={"text_tokens": 125, "audio_tokens": 0, "cached_tokens": 98},
            completion_tokens_details={"reasoning_tokens": 0, "audio_tokens": 0} | NO_PREDICTION,
            num_sources_used=0,
        ),
        Tokens(
            **{"input": 27, "input_cached": 98, "input_audio": 0},
            **{"output": 48, "output_reasoning": 0, "output_audio": 0},
        ),
    ),
    # Gemini's endpoint for OpenAI's clients: what it thought is in the total alone.
    "gemini: thoughts": (
        {"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": 623},
        Tokens(input=20, output=198, output_reasoning=405),
    ),
    "gemini: nothing but thoughts": (
        {
            "prompt_tokens": 21,
            "completion_tokens": 0,
            "total_tokens": 81,
            "completion_tokens_details": {"reasoning_tokens": 60},
        },
        Tokens(input=21, output=0, output_reasoning=60),
    ),
    # docs.mistral.ai, prompt caching.
    "mistral": (
        openai_like(3019, 104, prompt_audio_seconds=None, prompt_tokens_details={"cached_tokens": 2048}),
        Tokens(input=971, input_cached=2048, output=104),
    ),
    # vLLM, llama.cpp and others tell nothing apart, or say so with null.
    "vllm": (openai_like(9, 3, prompt_tokens_details=None), Tokens(input=9, output=3)),
    # Without rules: what a provider of this dialect reports beside its usage is no token of a known class.
    "perplexity": (
        openai_like(33, 7163, citation_tokens=20016, num_search_queries=19, reasoning_tokens=73920),
        Tokens(input=33, output=7163),
    ),
    # Anthropic's own names are another dialect; `usage` rules of the target read them.
    "anthropic: another dialect": (
        {"input_tokens": 2, "cache_creation_input_tokens": 1133, "output_tokens": 4},
        None,
    ),
}


@pytest.mark.parametrize(("reported", "tokens"), GOLDEN.values(), ids=GOLDEN)
def test_each_providers_usage_becomes_disjoint_classes(reported: Reported, tokens: Tokens | None) -> None:
    assert openai.read_answer(json.dumps({"id": "x", "usage": reported}).encode()) == tokens
    events = chat_stream(include_usage=False, done=False)
    meter = openai.new_meter(hide_usage=True, event_max_bytes=1 << 20)
    out = meter.feed(b"".join([*events, event(usage_chunk() | {"usage": reported}), DONE])) + meter.finish()
    assert meter.tokens == tokens
    assert out == b"".join([*events, DONE]), "the caller did not ask for it"


counts = st.none() | st.integers(0, 10**6)
detail_names = ("cached_tokens", "audio_tokens", "cache_write_tokens", "cached_creation_tokens")


@given(
    prompt=st.integers(0, 10**6),
    completion=st.integers(0, 10**6),
    beyond=st.integers(0, 10**6),
    details=st.none() | st.fixed_dictionaries(dict.fromkeys(detail_names, counts)),
    more=st.none() | st.fixed_dictionaries({"reasoning_tokens": counts, "audio_tokens": counts}),
    names=st.fixed_dictionaries(
        {}, optional={"prompt_cache_hit_tokens": counts, "cache_creation_input_tokens": counts}
    ),
)
def test_the_classes_together_are_what_was_reported(
    prompt: int, completion: int, beyond: int, details: Any, more: Any, names: Reported
) -> None:
    total = prompt + completion + beyond
    reported = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total} | names
    reported |= {"prompt_tokens_details": details, "completion_tokens_details": more}
    tokens = openai.read_answer(json.dumps({"usage": reported}).encode())
    assert tokens is not None
    known = {name: getattr(tokens, name) for name in Tokens.__struct_fields__}
    assert all(count is None or 0 <= count <= COUNT_MAX for count in known.values())
    # Of parts that are more than their whole, all that was read stays; what is written never adds to it.
    within = (tokens.input_cached or 0) + (tokens.input_audio or 0)
    assert tokens.input_total == max(prompt, within)
    spoken = (tokens.output_audio or 0) + (tokens.output_reasoning or 0)
    reasoning = (more or {}).get("reasoning_tokens")
    apart = beyond if beyond and reasoning in (None, beyond) else 0
    assert tokens.output_total == max(completion + apart, spoken)
    limit = Limit(id="l", owner="team t", measure=Measure.TOTAL_TOKENS, amount=1)
    assert count_units(limit, tokens) == tokens.input_total + tokens.output_total


def test_a_zero_that_was_said_stays_and_what_was_not_said_stays_unknown() -> None:
    said = openai_like(5, 0, prompt_tokens_details={"cache_write_tokens": 0})
    tokens = openai.read_answer(json.dumps({"usage": said}).encode())
    assert tokens == Tokens(input=5, input_cache_write=0, output=0)
    assert tokens.input_cached is None
