"""Rules that read usage by JSON Pointer: the right place, the right value, and classes that stay disjoint."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.events import Tokens
from forebay.core.pointers import DEPTH_MAX, LENGTH_MAX, parse_pointer
from forebay.core.prices import PART_OF
from forebay.core.usage_rules import UsageRule
from forebay.providers import openai
from forebay.providers.openai_usage import COUNT_MAX, Reading
from forebay.providers.usage_rules import ABSENT, UNUSABLE, RuleTree
from forebay.testing.answers import cut
from forebay.testing.openai import DONE, chat_stream, event, usage_chunk

DOCUMENT = {  # the example of RFC 6901, section 5
    **{"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6, " ": 7},
    "m~n": 8,
}


def of_class(name: str, pointer: str, *, included: bool = False) -> UsageRule:
    return UsageRule(name=name, steps=parse_pointer(pointer), is_included=included)


def of_unit(name: str, pointer: str) -> UsageRule:
    return UsageRule(name=name, steps=parse_pointer(pointer), is_unit=True)


def find(document: object, *pointers: str) -> list[int]:
    tree = RuleTree([of_unit(f"u{number}", pointer) for number, pointer in enumerate(pointers)])
    values = tree.start()
    tree.look(json.dumps(document).encode(), values)
    return values


def read(rules: list[UsageRule], answer: object) -> Reading:
    return openai.read_ruled_answer(tuple(rules), json.dumps(answer).encode())


# --- pointers -----------------------------------------------------------------------------------------------


def test_the_examples_of_the_standard() -> None:
    pointers = ("/", "/a~1b", "/c%d", "/e^f", "/g|h", "/i\\j", '/k"l', "/ ", "/m~0n")
    assert find(DOCUMENT, *pointers) == list(range(9))
    assert find(DOCUMENT, "/foo", "/foo/0", "/foo/2", "/foo/-") == [UNUSABLE, UNUSABLE, ABSENT, ABSENT]
    assert parse_pointer("/~01") == ("~1",), "~01 is ~1, and not /"


@pytest.mark.parametrize("text", ["usage", "#/usage", "/a~", "/a~2b", "/" + "a" * LENGTH_MAX, "/a" * 17])
def test_what_is_no_pointer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"begin with|stands for nothing|characters|steps"):
        parse_pointer(text)
    assert DEPTH_MAX == 16


names = st.text(max_size=4) | st.sampled_from(["usage", "a/b", "~", "é", "0", "01", "-"])
documents = st.recursive(
    st.integers(0, COUNT_MAX),
    lambda inner: st.dictionaries(names, inner, min_size=1) | st.lists(inner, min_size=1, max_size=3),
    max_leaves=12,
)


def list_places(document: Any, steps: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], int]]:
    if isinstance(document, int):
        return [(steps, document)]
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    return [place for name, value in pairs for place in list_places(value, (*steps, str(name)))]


@given(document=st.dictionaries(names, documents, min_size=1), ascii_only=st.booleans(), indent=st.booleans())
def test_every_number_of_any_document_is_found_at_its_place(
    document: dict[str, Any], ascii_only: bool, indent: bool
) -> None:
    places = list_places(document)
    escaped = [
        "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps) for steps, _ in places
    ]
    assert [parse_pointer(pointer) for pointer in escaped] == [steps for steps, _ in places]
    tree = RuleTree([UsageRule(name="x", steps=steps) for steps, _ in places])
    values = tree.start()
    data = json.dumps(document, ensure_ascii=ascii_only, indent=1 if indent else None).encode(
        "utf-8", "surrogatepass"
    )
    assert all(key in data for key in tree.keys), "what is not there is never looked for"
    tree.look(data, values)
    assert values == [value for _, value in places]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("0", 0),
        ("-0", 0),
        (str(COUNT_MAX), COUNT_MAX),
        (str(COUNT_MAX + 1), UNUSABLE),
        ("1" + "0" * 400, UNUSABLE),
        ("-1", UNUSABLE),
        ("1.0", UNUSABLE),
        ("1e3", UNUSABLE),
        ('"5"', UNUSABLE),
        ("true", UNUSABLE),
        ("[5]", UNUSABLE),
        ("{}", UNUSABLE),
        ("null", ABSENT),
    ],
)
def test_only_whole_numbers_within_bounds_count(value: str, found: int) -> None:
    tree = RuleTree([of_unit("u", "/usage/x")])
    values = tree.start()
    tree.look(b'{"usage": {"x": %b}}' % value.encode(), values)
    assert values == [found]


@pytest.mark.parametrize("body", [b"", b"[", b"5", b'"usage"', b'{"usage":', b"\xff", b"[" * 100_000])
def test_what_is_no_document_has_nothing(body: bytes) -> None:
    rules = (of_unit("u", "/usage/x"), of_class("input", "/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0"))
    reading = openai.read_ruled_answer(rules, body)
    assert (reading.tokens, reading.units) == (None, ())
    assert {result for _, result in reading.found} == {"absent"}


# --- classes and units --------------------------------------------------------------------------------------

ANTHROPIC = [
    of_class("input", "/usage/input_tokens"),
    of_class("input_cached", "/usage/cache_read_input_tokens"),
    of_class("input_cache_write", "/usage/cache_creation_input_tokens"),
    of_class("output", "/usage/output_tokens"),
    of_unit("searches", "/usage/server_tool_use/web_search_requests"),
]
HITS = of_class("input_cached", "/usage/prompt_cache_hit_tokens", included=True)
PERPLEXITY = [
    of_class("output_reasoning", "/usage/reasoning_tokens"),
    of_unit("searches", "/usage/num_search_queries"),
    of_unit("citation_tokens", "/usage/citation_tokens"),
]


@pytest.mark.parametrize(
    ("rules", "answer", "tokens", "units"),
    [
        (
            ANTHROPIC,  # whose cached tokens are beside its input tokens
            {
                "usage": {
                    **{"input_tokens": 50, "output_tokens": 100, "cache_creation_input_tokens": 10},
                    **{"cache_read_input_tokens": 5000, "server_tool_use": {"web_search_requests": 2}},
                }
            },
            Tokens(input=50, input_cached=5000, input_cache_write=10, output=100),
            (("searches", 2),),
        ),
        (
            ANTHROPIC,
            {"usage": {"input_tokens": 0, "output_tokens": 1, "server_tool_use": None}},
            Tokens(input=0, output=1),
            (),
        ),
        (
            [HITS],
            {"usage": {"prompt_tokens": 100, "completion_tokens": 7, "prompt_cache_hit_tokens": 60}},
            Tokens(input=40, input_cached=60, output=7),
            (),
        ),
        (
            PERPLEXITY,  # whose reasoning and citations are in no other number
            {
                "usage": {
                    **{"prompt_tokens": 33, "completion_tokens": 7163, "total_tokens": 7196},
                    **{"citation_tokens": 20016, "num_search_queries": 19, "reasoning_tokens": 73920},
                }
            },
            Tokens(input=33, output=7163, output_reasoning=73920),
            (("searches", 19), ("citation_tokens", 20016)),
        ),
        (
            # The dialect takes it for a part of the prompt; the rule knows better.
            [of_class("input_cached", "/usage/prompt_tokens_details/cached_tokens")],
            {
                "usage": {
                    **{"prompt_tokens": 10, "completion_tokens": 1},
                    "prompt_tokens_details": {"cached_tokens": 100},
                }
            },
            Tokens(input=10, input_cached=100, output=1),
            (),
        ),
        (
            [of_class("input", "/x_groq/usage/prompt_tokens"), of_class("output", "/x_groq/usage/out/0")],
            {"x_groq": {"usage": {"prompt_tokens": 40, "out": [25]}}},
            Tokens(input=40, output=25),
            (),
        ),
        ([of_class("output", "/usage/out")], {"usage": {"out": 5}}, Tokens(output=5), ()),
        ([of_unit("searches", "/n")], {"n": 0}, None, (("searches", 0),)),
        (
            [of_unit("searches", "/n")],
            {"n": -1, "usage": {"prompt_tokens": 1}},
            Tokens(input=1, output=0),
            (),
        ),
        ([of_unit("searches", "/n")], {}, None, ()),
    ],
)
def test_rules_correct_what_the_dialect_reads(
    rules: list[UsageRule], answer: object, tokens: Tokens | None, units: object
) -> None:
    reading = read(rules, answer)
    assert (reading.tokens, reading.units) == (tokens, units)


counts = st.none() | st.integers(0, 10**6)
rule_sets = st.lists(
    st.tuples(st.sampled_from(Tokens.__struct_fields__), st.booleans()), unique_by=lambda pair: pair[0]
)
details = st.fixed_dictionaries(
    dict.fromkeys(("cached_tokens", "cache_write_tokens", "audio_tokens"), counts)
)


@given(
    prompt=counts,
    completion=counts,
    detail=details,
    wanted=rule_sets,
    values=st.lists(counts, min_size=7, max_size=7),
)
def test_with_any_rules_the_classes_are_disjoint_and_a_rule_has_its_word(
    prompt: int | None, completion: int | None, detail: object, wanted: Any, values: list[int | None]
) -> None:
    rules = [of_class(name, f"/ruled/{name}", included=part and name in PART_OF) for name, part in wanted]
    said = dict(zip((name for name, _ in wanted), values, strict=False))
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": detail}
    reading = read(rules, {"usage": usage, "ruled": said})
    plain = openai.read_answer(json.dumps({"usage": usage}).encode())
    if not any(value is not None for value in said.values()):
        assert reading.tokens == plain
        return
    tokens = reading.tokens
    assert tokens is not None
    beside = {rule.name for rule in rules if not rule.is_included and rule.name in PART_OF}
    for whole, reported in (("input", prompt), ("output", completion)):
        parts = [name for name in PART_OF if PART_OF[name] == whole]
        inside = sum(
            getattr(tokens, name) or 0 for name in parts if said.get(name) is None or name not in beside
        )
        total = said.get(whole) if said.get(whole) is not None else reported
        own = getattr(tokens, whole)
        if total is not None:
            assert own == max(0, total - inside)
            assert own + inside == max(total, inside), "nothing is counted twice"
    for name, value in said.items():
        if value is not None and name in beside:
            assert getattr(tokens, name) == value


# --- streams ------------------------------------------------------------------------------------------------


def anthropic_like() -> list[bytes]:
    """Usage in pieces: of the prompt at the start, of the answer at the end."""
    first = {"choices": [], "usage": {"input_tokens": 50, "cache_read_input_tokens": 7, "output_tokens": 1}}
    last = {
        "choices": [],
        "usage": {"output_tokens": 90, "server_tool_use": {"web_search_requests": 1}},
    }
    events = chat_stream(include_usage=False, done=False)
    return [event(first), *events, event(last), DONE]


def beside_usage() -> list[bytes]:
    events = chat_stream(include_usage=False, done=False)
    return [*events, event(usage_chunk() | {"choices": [], "searches": 3}), DONE]


@pytest.mark.parametrize("every", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("stream", "rules", "tokens", "units"),
    [
        (anthropic_like, ANTHROPIC, Tokens(input=50, input_cached=7, output=90), (("searches", 1),)),
        (
            beside_usage,
            [of_unit("searches", "/searches")],
            Tokens(input=7, output=5),
            (("searches", 3),),
        ),
    ],
)
def test_any_split_of_a_stream_gives_the_same(
    stream: Callable[[], list[bytes]],
    rules: list[UsageRule],
    tokens: Tokens,
    units: object,
    newline: bytes,
    every: int,
) -> None:
    data = b"".join(stream()).replace(b"\n", newline)
    meter = openai.new_ruled_meter(tuple(rules), hide_usage=False, event_max_bytes=1 << 20)
    out = b"".join(meter.feed(piece) for piece in cut(data, every=every)) + meter.finish()
    assert out == data
    assert meter.ended_well
    assert (meter.reading.tokens, meter.reading.units) == (tokens, units)


def test_rules_change_no_byte_that_a_caller_gets() -> None:
    for stream in (anthropic_like, beside_usage):
        data = b"".join(stream())
        plain = openai.new_meter(hide_usage=True, event_max_bytes=1 << 20)
        ruled = openai.new_ruled_meter(tuple(ANTHROPIC), hide_usage=True, event_max_bytes=1 << 20)
        assert plain.feed(data) + plain.finish() == ruled.feed(data) + ruled.finish()
        assert plain.reading is None
