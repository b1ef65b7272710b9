"""Reads what an engine says of its load: its metrics page, its slots, its list of models.  Pure.

A page is data from elsewhere: whatever is on it, reading it costs little and never fails.  A line that can't
be read, and a value that can't be what it says it is, are as if they were not there; and what is not there is
unknown, never 0.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from forebay.engines.load_names import ADAPTER_LABELS, ADAPTERS_INFO, LOAD_NAMES, EngineKind, LoadNames

SAMPLES_MAX: Final = 4096  #: of the load's own names that are read of one page
LINE_MAX_CHARS: Final = 16_384
COUNT_MAX: Final = 1_000_000  #: requests; a larger count is no count
SHARE_MAX: Final = 1.01  #: of a cache, for what rounding adds
ADAPTERS_MAX: Final = 256  #: of one engine
ADAPTER_MAX_CHARS: Final = 256

_KIND_BY_NAME: Final = {name: kind for kind, names in LOAD_NAMES.items() for name in names.names} | {
    ADAPTERS_INFO: EngineKind.VLLM
}
_LINES: Final = re.compile(rf"^({'|'.join(map(re.escape, _KIND_BY_NAME))})(?:[{{ \t][^\n]*)$", re.MULTILINE)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of one model at one moment; None where it does not say."""

    running: int | None = None
    waiting: int | None = None
    kv_cache_used: float | None = None
    queue_sum_s: float | None = None  #: that requests have spent in its queue, since it began to count
    queue_count: int | None = None  #: of those requests
    adapters: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing of load."""
        return self.running is None and self.waiting is None and self.kv_cache_used is None


@dataclass(frozen=True, slots=True)
class _Sample:
    labels: Mapping[str, str]
    value: float


class LoadPage:
    """One page, of which each model's part can be read.

    Attributes:
        kind: the engine that it is of, by its names; None where it has none of them.
    """

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[_Sample]] = {}
        for name, sample in _list_samples(text):
            self._samples.setdefault(name, []).append(sample)
        kinds = [_KIND_BY_NAME[name] for name in self._samples]
        self.kind: EngineKind | None = kinds[0] if kinds else None

    def read(self, model: str) -> Reading:
        """What concerns a model: what names it, or all of it where nothing does."""
        if self.kind is None:
            return Reading()
        names = LOAD_NAMES[self.kind]
        running, waiting = self._find(names, names.running, model), self._find(names, names.waiting, model)
        shares = [
            value for value in self._find(names, names.kv_cache_used, model) or () if value <= SHARE_MAX
        ]
        queue_sum = self._find(names, (names.queue_sum,), model)
        queue_count = self._find(names, names.queue_count, model)
        return Reading(
            running=_count(running),
            waiting=_count(waiting),
            # Of several engines behind one address nobody knows which one a request will meet.
            kv_cache_used=min(1.0, sum(shares) / len(shares)) if shares else None,
            queue_sum_s=_add(queue_sum, names.queue_unit_s),
            queue_count=None if (counted := _add(queue_count)) is None else int(counted),
            adapters=self._list_adapters(),
        )

    def _find(self, names: LoadNames, candidates: tuple[str, ...], model: str) -> list[float] | None:
        """The usable values of the first name on the page."""
        for name in candidates:
            samples = self._samples.get(name)
            if samples:
                own = [each for each in samples if each.labels.get(names.model_label) == model]
                values = [each.value for each in own or samples]
                return [value for value in values if isfinite(value) and value >= 0] or None
        return None

    def _list_adapters(self) -> tuple[str, ...]:
        """Those of the newest line; several are equally new where several engines share the page."""
        samples = [each for each in self._samples.get(ADAPTERS_INFO, ()) if isfinite(each.value)]
        newest = max((each.value for each in samples), default=0.0)
        lists = (
            each.labels.get(label, "") for each in samples if each.value == newest for label in ADAPTER_LABELS
        )
        return clean_adapters(name for names in lists for name in names.split(","))


def _list_samples(text: str) -> Iterator[tuple[str, _Sample]]:
    """A page of vLLM has many hundred lines, of which a dozen are read: only those are parsed."""
    for found in islice(_LINES.finditer(text), SAMPLES_MAX):
        name, line = found[1], found[0]
        if len(line) > LINE_MAX_CHARS:
            continue
        try:
            for family in text_string_to_metric_families(line + "\n"):
                for sample in family.samples:
                    if sample.name == name:
                        yield name, _Sample(sample.labels, float(sample.value))
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError):
            continue  # a parser of someone else's, and a line of someone else's


def _add(values: list[float] | None, unit: float = 1.0) -> float | None:
    if values is None:
        return None
    total = sum(values) * unit
    return total if isfinite(total) else None


def _count(values: list[float] | None) -> int | None:
    total = _add(values)
    return None if total is None or total > COUNT_MAX else int(total)


# --- other pages --------------------------------------------------------------------------------------------


class _Slot(msgspec.Struct):
    is_processing: bool | None = None
    state: int | None = None  # of older builds: 0 is idle


class _Model(msgspec.Struct):
    id: str = ""
    parent: str | None = None


class _ModelList(msgspec.Struct):
    data: list[_Model] = []


_decode_slots = msgspec.json.Decoder(list[_Slot]).decode
_decode_models = msgspec.json.Decoder(_ModelList).decode


def read_slots(body: bytes) -> Reading:
    """llama.cpp's `/slots`, for where it has no metrics page."""
    try:
        slots = _decode_slots(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Reading()
    busy = [slot.is_processing if slot.is_processing is not None else slot.state for slot in slots]
    if not busy or None in busy:
        return Reading()
    return Reading(running=sum(map(bool, busy)))


def read_adapters(body: bytes) -> tuple[str, ...]:
    """The adapters in a list of models (`GET /v1/models`): those that have a parent."""
    try:
        models = _decode_models(body).data
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ()
    return clean_adapters(model.id for model in models if model.parent)


def clean_adapters(names: Iterable[str]) -> tuple[str, ...]:
    """In a fixed order, each once, and no more than anybody holds."""
    stripped = {name.strip() for name in names}
    return tuple(sorted(name for name in stripped if 0 < len(name) <= ADAPTER_MAX_CHARS)[:ADAPTERS_MAX])
