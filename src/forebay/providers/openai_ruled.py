"""Usage of a target that has usage rules: what the dialect reads, corrected by what the rules find.  Pure.

A rule's number goes before the dialect's own.  What a rule finds to be included in a whole is taken out of
it, all else is beside it, so that the classes are disjoint in either case.
"""

from typing import Final

import msgspec

from forebay.core.events import Tokens
from forebay.core.prices import PART_OF
from forebay.core.usage_rules import UsageRule
from forebay.net.sse import EventSplitter
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.openai_stream import StreamMeter, read_data
from forebay.providers.openai_usage import COUNTED, Counts, Reading, decode_usage, part, read_counts
from forebay.providers.usage_rules import ABSENT, UNUSABLE, RuleTree, plant

_USAGE: Final = b'"usage"'


class _UsageOnly(msgspec.Struct, frozen=True):
    usage: msgspec.Raw = NOTHING


_RESULTS: Final = {ABSENT: "absent", UNUSABLE: "unusable"}
_decode_usage_only = msgspec.json.Decoder(_UsageOnly).decode


class UsageReader:
    """Reads one answer: all of it at once, or event by event."""

    __slots__ = ("_counts", "_tree", "_values")

    def __init__(self, tree: RuleTree) -> None:
        self._tree = tree
        self._values = tree.start()
        self._counts: Counts | None = None

    def may_find(self, data: bytes) -> bool:
        """Whether it is worth to look into a document, or into one of those that stand in these bytes."""
        return _USAGE in data or any(key in data for key in self._tree.keys)

    def may_match(self, document: bytes) -> bool:
        """Whether a rule may find something in a document."""
        return any(key in document for key in self._tree.keys)

    def look_by_rules(self, document: bytes) -> None:
        """The newest number of each rule counts."""
        self._tree.look(document, self._values)

    def note_tokens(self, tokens: Tokens | None) -> None:
        """What the dialect says, where another has read it."""
        self._counts = None if tokens is None else unite(tokens)

    def look(self, document: bytes) -> None:
        """The newest number counts, of the dialect and of each rule."""
        self.look_by_rules(document)
        try:
            raw = _decode_usage_only(document).usage
        except UNREADABLE:
            return
        usage = decode_usage(raw)
        if usage is not None and (usage.prompt_tokens is not None or usage.completion_tokens is not None):
            self._counts = read_counts(usage)

    def finish(self) -> Reading:
        found = list(zip(self._tree.rules, self._values, strict=True))
        return Reading(
            tokens=_combine(self._counts, [pair for pair in found if pair[1] >= 0 and not pair[0].is_unit]),
            units=tuple((rule.name, value) for rule, value in found if value >= 0 and rule.is_unit),
            found=tuple((rule.name, _RESULTS.get(value, "found")) for rule, value in found),
        )


def read_ruled_answer(rules: tuple[UsageRule, ...], body: bytes) -> Reading:
    """What a whole answer says."""
    reader = UsageReader(plant(rules))
    reader.look(body)
    return reader.finish()


class RuledMeter(StreamMeter):
    """Reads the stream of a target that has usage rules; for the arguments see there."""

    __slots__ = ("_reader",)

    def __init__(self, rules: tuple[UsageRule, ...], *, hide_usage: bool, event_max_bytes: int) -> None:
        super().__init__(hide_usage=hide_usage, event_max_bytes=event_max_bytes)
        self._reader = UsageReader(plant(rules))

    @property
    def reading(self) -> Reading:
        """What has come until now says."""
        return self._reader.finish()

    def _absorb(self, block: bytes) -> bytes:
        if self._reader.may_find(block):
            splitter = EventSplitter(len(block) + 1)
            for raw in (*splitter.feed(block), splitter.finish()):
                if raw and self._reader.may_find(raw) and (data := read_data(raw)):
                    self._reader.look(data)
        return super()._absorb(block)


def unite(tokens: Tokens) -> Counts:
    """Disjoint classes as wholes with parts in them, which `part` makes disjoint again."""
    return (
        None if tokens.input is None else tokens.input_total,
        tokens.input_cached,
        tokens.input_audio,
        tokens.input_cache_write,
        None if tokens.output is None else tokens.output_total,
        tokens.output_reasoning,
        tokens.output_audio,
        False,
    )


def _combine(counts: Counts | None, found: list[tuple[UsageRule, int]]) -> Tokens | None:
    """The dialect's counts with those of the rules in their places, disjoint."""
    if counts is None and not found:
        return None
    known: dict[str, int | None] = dict.fromkeys(COUNTED)
    beside: set[str] = set()
    if counts is not None:
        known = dict(zip(COUNTED, counts[:-1], strict=True))
        if counts[-1]:
            beside.add("output_reasoning")
    for rule, value in found:
        known[rule.name] = value
        if rule.is_included:
            beside.discard(rule.name)
        elif rule.name in PART_OF:
            beside.add(rule.name)
    inside = {name: None if name in beside else count for name, count in known.items()}
    tokens = part(
        inside["input"],
        inside["input_cached"],
        inside["input_audio"],
        inside["input_cache_write"],
        inside["output"],
        inside["output_reasoning"],
        inside["output_audio"],
        False,
    )
    return msgspec.structs.replace(tokens, **{name: known[name] for name in beside})
