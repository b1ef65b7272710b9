"""What workers are told in the end is the sum of all the others, whatever happens in whatever order."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.engine_load import EngineLoad, EngineState
from forebay.gateway.board_wire import decode_from_board, encode_frame
from forebay.gateway.frames import FRAME_MAX_BYTES
from forebay.gateway.policy.merging import PLACES_MAX, SAID_MAX, BoardFull, Merging
from forebay.gateway.policy.news import (
    ADAPTERS_MAX,
    ENGINES_MAX,
    PART_MAX,
    WORD_MAX_S,
    EngineNews,
    News,
    PlaceCount,
    SaidUse,
    SaidWord,
    cut,
    shorten,
)

NOW = 100.0
NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), NAMES),
        st.tuples(st.just("leave"), NAMES),
        st.tuples(st.just("take"), NAMES),
        st.tuples(st.just("count"), NAMES, st.integers(0, 3), st.integers(0, 5), st.integers(0, 900)),
        st.tuples(st.just("word"), NAMES, st.integers(0, 2), st.integers(1, 9), st.integers(0, 99)),
        st.tuples(st.just("use"), NAMES, st.integers(0, 2), st.integers(1, 9), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(STEPS)
def test_all_are_told_the_sums_of_the_others_and_the_newest_words(steps: list[tuple[Any, ...]]) -> None:
    merging = Merging()
    has: dict[str, Counter[tuple[int, str]]] = {}
    heard: dict[str, dict[tuple[int, str], int]] = {}
    words: dict[str, dict[int, SaidWord]] = {}
    newest: dict[int, SaidWord] = {}

    def take(name: str) -> None:
        news = merging.take(name)
        assert news.workers == len(has)
        for count in news.counts:
            heard[name][count.place, "requests"] = count.requests
            heard[name][count.place, "tokens"] = count.tokens
        for word in news.words:
            words[name][word.whose] = word

    for kind, name, *rest in steps:
        if kind == "join":
            merging.join(name)
            has[name], heard[name], words[name] = Counter(), {}, {}
        elif kind == "leave":
            merging.leave(name)
            has.pop(name, None)
        elif name not in has:
            continue
        elif kind == "take":
            take(name)
        elif kind == "count":
            place, requests, tokens = rest
            merging.note(name, News(counts=(PlaceCount(place, requests, tokens),)), NOW)
            has[name][place, "requests"], has[name][place, "tokens"] = requests, tokens
        elif kind == "word":
            whose, said_at, retry_at = rest
            word = SaidWord(whose, float(said_at), float(retry_at))
            merging.note(name, News(words=(word,)), NOW)
            if whose not in newest or newest[whose].said_at < said_at:
                newest[whose] = word
                words[name][whose] = word  # whoever says it knows it
        else:
            account, said_at, used = rest
            merging.note(name, News(uses=(SaidUse(account, float(said_at), 200.0, used / 9),)), NOW)
    for name in has:
        take(name)
        others: Counter[tuple[int, str]] = Counter()
        for other in has:
            if other != name:
                others.update(has[other])
        assert {key: value for key, value in heard[name].items() if value} == {
            key: value for key, value in others.items() if value
        }
        for whose, word in newest.items():
            assert words[name].get(whose) == word
        assert merging.take(name) == News(workers=len(has)), "nothing is told twice"


def test_who_says_too_much_is_heard_no_more() -> None:
    merging = Merging()
    merging.join("a")
    many = tuple(PlaceCount(place, 1, 1) for place in range(PLACES_MAX + 1))
    with pytest.raises(BoardFull):
        merging.note("a", News(counts=many), NOW)
    merging.leave("a")
    merging.join("b")
    assert merging.take("b").counts == ()
    old = tuple(SaidWord(whose, 1.0, 50.0) for whose in range(SAID_MAX))
    merging.note("b", News(words=old), 40.0)
    merging.note("b", News(words=(SaidWord(SAID_MAX, 1.0, 200.0),)), NOW)  # the others have passed


def test_who_says_too_much_of_others_costs_nobody_a_line_and_the_newest_is_kept() -> None:
    merging = Merging()
    for name in ("bad", "good"):
        merging.join(name)
    words = tuple(SaidWord(whose, 1.0, 1e11) for whose in range(3 * SAID_MAX))
    uses = tuple(SaidUse(whose, 1.0, 1e11, 1e11) for whose in range(3 * SAID_MAX))
    merging.note("bad", News(words=words, uses=uses), NOW)
    new = News(words=(SaidWord(1 << 40, NOW - 1, 200.0),), uses=(SaidUse(1 << 40, NOW - 1, 200.0, 0.5),))
    merging.note("good", new, NOW)
    told = merging.take("bad")
    assert (told.words, told.uses) == (new.words, new.uses)
    assert len(merging.read().words) <= SAID_MAX
    assert len(merging.read().uses) <= SAID_MAX


def test_a_word_of_the_future_keeps_nobody_from_a_newer_one() -> None:
    merging = Merging()
    for name in ("bad", "good"):
        merging.join(name)
    merging.note("bad", News(words=(SaidWord(1, 1e11, 1e11),), uses=(SaidUse(1, 1e11, 1e11, 1e11),)), NOW)
    told = merging.take("good")
    assert told.words == (SaidWord(1, NOW, NOW + WORD_MAX_S),)
    assert told.uses == (SaidUse(1, NOW, NOW + 86_400, 1.0),)
    new = News(words=(SaidWord(1, NOW + 1, NOW + 5),), uses=(SaidUse(1, NOW + 1, NOW + 5, 0.1),))
    merging.note("good", new, NOW + 2)
    told = merging.take("bad")
    assert (told.words, told.uses) == (new.words, new.uses)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_time_that_is_none_is_not_passed_on(seconds: float) -> None:
    merging = Merging()
    merging.join("a")
    merging.join("b")
    merging.note("a", News(words=(SaidWord(1, 1.0, seconds), SaidWord(1, seconds, 5.0))), NOW)
    merging.note("a", News(uses=(SaidUse(1, 1.0, seconds, 0.5), SaidUse(1, 1.0, 5.0, seconds))), NOW)
    assert merging.take("b") == News(workers=2)


def test_all_parts_of_large_news_fit_into_frames_and_are_complete() -> None:
    adapters = tuple(f"{'a' * 120}{number}" for number in range(500))
    engine = shorten(EngineLoad("m@p#0", EngineState.READY, 1, 2, 0.5, 0.1, (*adapters, "x" * 1000)))
    assert len(engine.adapters) == ADAPTERS_MAX
    news = News(
        counts=tuple(
            PlaceCount((1 << 64) - 1 - place, 1 << 40, 1 << 40) for place in range(PART_MAX * 2 + 1)
        ),
        words=(SaidWord(1, 1.0, 2.0),),
        engines=(EngineNews(engine, 1.0),) * (ENGINES_MAX + 1),
        workers=3,
    )
    parts = list(cut(news))
    assert len(parts) == 3
    assert all(len(encode_frame(part)) < FRAME_MAX_BYTES for part in parts)
    assert [decode_from_board(encode_frame(part)[4:]) for part in parts] == parts
    assert sum((part.counts for part in parts), ()) == news.counts
    assert sum((part.engines for part in parts), ()) == news.engines
    assert list(cut(News())) == [News()]


@pytest.mark.parametrize("count", [PlaceCount(1, -1, 0), PlaceCount(-1, 0, 0), PlaceCount(1, 0, 1 << 50)])
def test_counts_that_are_none_are_refused(count: PlaceCount) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_from_board(encode_frame(News(counts=(count,)))[4:])
