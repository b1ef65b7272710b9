"""Speculation by n-grams on the real llama.cpp: tokens are guessed, and answers are the same."""

from pathlib import Path
from typing import Any

import msgspec
from engine_process import Engine, run_engine

from forebay.engines.model import EngineSpec, Speculation

ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Repeat: " + "one two three four five six seven eight. " * 4}],
    "max_tokens": 40,
    "temperature": 0,
    "ignore_eos": True,
}


def ask(engine: Engine) -> Any:
    status, body = engine.ask("/v1/chat/completions", ASKED, timeout_s=120)
    assert status == 200
    return msgspec.json.decode(body)


def test_tokens_are_guessed_and_answers_are_the_same(llama: Engine, tmp_path: Path) -> None:
    spec = EngineSpec(
        name="ngram",
        kind="llamacpp",
        context_tokens=512,
        slots=1,
        speculation=Speculation(method="ngram", tokens=8, lookup_max=3),
    )
    with run_engine(spec, tmp_path) as engine:
        guessed = ask(engine)
    plain = ask(llama)
    assert guessed["timings"]["draft_n_accepted"] > 0
    assert "draft_n" not in plain["timings"]
    # All of them are, but for what sums in another order round to; on no machine so early.
    first, second = (each["choices"][0]["message"]["content"] for each in (guessed, plain))
    assert first[:20] == second[:20]
    assert guessed["usage"]["completion_tokens"] == 40
