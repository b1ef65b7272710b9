"""Reads what an engine says of its load: its metrics page, its slots, its list of models.  Pure.

A page is data from elsewhere: whatever is on it, reading it costs little and never fails.  A line that can't
be read, and a value that can't be what it says it is, are as if they were not there; and what is not there is
unknown, never 0.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from math import isfinite
from typing import Final

import msgspec

from forebay.engines.load_names import ADAPTER_LABELS, ADAPTERS_INFO, LOAD_NAMES, EngineKind, LoadNames

READ_MAX_CHARS: Final = 262_144  #: of the load's own lines that are read of one page
LINE_MAX_CHARS: Final = 16_384
COUNT_MAX: Final = 1_000_000  #: requests; a larger count is no count
SHARE_MAX: Final = 1.01  #: of a cache, for what rounding adds
ENGINES_MAX: Final = 64  #: that share a page, of which adapters are read
ADAPTERS_MAX: Final = 256  #: of one engine
ADAPTER_MAX_CHARS: Final = 256

_KIND_BY_NAME: Final = {name: kind for kind, names in LOAD_NAMES.items() for name in names.names} | {
    ADAPTERS_INFO: EngineKind.VLLM
}
#: A line of one of these names, as Prometheus writes it: labels, value, perhaps a time.  Nothing in it can be
#: read in two ways, so a line costs what it is long and no more, whatever is on it.
_LABEL: Final = r'([A-Za-z_]\w*+)[ \t]*+=[ \t]*+"((?:[^"\\\n]|\\[^\n])*+)"'
_LINES: Final = re.compile(
    rf"^({'|'.join(map(re.escape, _KIND_BY_NAME))})(?![\w:])[ \t]*+"
    r'(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\[^\n])*+")*+)\}[ \t]*+)?'
    r"([^\s{}]++)(?:[ \t]++-?\d++)?[ \t\r]*+$",
    re.MULTILINE,
)
_LABELS: Final = re.compile(rf"[ \t]*+(?:{_LABEL}[ \t]*+(?:,[ \t]*+|\Z))*+")
_ONE_LABEL: Final = re.compile(_LABEL)
_ESCAPED: Final = re.compile(r"\\(.)")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of one model at one moment; None where it does not say."""

    running: int | None = None
    waiting: int | None = None
    kv_cache_used: float | None = None
    queue_sum_s: float | None = None  #: that requests have spent in its queue, since it began to count
    queue_count: int | None = None  #: of those requests
    generated: float | None = None  #: a counter that rises while it generates
    adapters: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing of load."""
        return self.running is None and self.waiting is None and self.kv_cache_used is None


class _Sample:
    """A line; most labels are never looked at."""

    def __init__(self, text: str, value: float) -> None:
        self._text = text
        self.value = value

    @cached_property
    def labels(self) -> Mapping[str, str]:
        return _read_labels(self._text)


class LoadPage:
    """One page, of which each model's part can be read.

    Attributes:
        kind: the engine that it is of, by its names; None where it has none of them.
    """

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[_Sample]] = {}
        self._by_model: dict[str, dict[str, list[float]]] = {}
        self._newest: list[_Sample] = []  # lines of adapters
        for name, sample in _list_samples(text):
            self._take(name, sample)
        names = [*self._samples, *([ADAPTERS_INFO] if self._newest else ())]
        kinds = [_KIND_BY_NAME[name] for name in names]
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
            generated=_add(self._find(names, names.generated, model)),
            adapters=self._adapters,
        )

    def _find(self, names: LoadNames, candidates: tuple[str, ...], model: str) -> list[float] | None:
        """The usable values of the first name on the page."""
        for name in candidates:
            samples = self._samples.get(name)
            if samples:
                own = self._sort(name, names.model_label).get(model)
                values = own or [each.value for each in samples]
                return [value for value in values if isfinite(value) and value >= 0] or None
        return None

    def _sort(self, name: str, label: str) -> Mapping[str, list[float]]:
        """The values of a name by the models that they are of; a replica may have hundreds."""
        found = self._by_model.get(name)
        if found is None:
            found = self._by_model[name] = {}
            for each in self._samples[name]:
                found.setdefault(each.labels.get(label, ""), []).append(each.value)
        return found

    @cached_property
    def _adapters(self) -> tuple[str, ...]:
        """Those of the newest line; several are equally new where several engines share the page."""
        lists = (each.labels.get(label, "") for each in self._newest for label in ADAPTER_LABELS)
        return clean_adapters(name for names in lists for name in names.split(","))

    def _take(self, name: str, sample: _Sample) -> None:
        if name == ADAPTERS_INFO:  # a line for each set of adapters that there ever was, by its time
            newest = self._newest[0].value if self._newest else sample.value
            if isfinite(sample.value) and sample.value >= newest:
                self._newest = [*(self._newest if sample.value == newest else ()), sample][-ENGINES_MAX:]
            return
        self._samples.setdefault(name, []).append(sample)


def _list_samples(text: str) -> Iterator[tuple[str, _Sample]]:
    """A page of vLLM has many hundred lines, of which a dozen are read: only those are parsed."""
    left = READ_MAX_CHARS
    for found in _LINES.finditer(text):
        name, labels, value = found.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        if name != ADAPTERS_INFO:  # of which the newest alone is looked at
            left -= found.end() - found.start()
            if left < 0 or (labels and not _LABELS.fullmatch(labels)):
                continue
        yield name, _Sample(labels or "", number)


def _read_labels(text: str) -> dict[str, str]:
    if len(text) > LINE_MAX_CHARS or not _LABELS.fullmatch(text):
        return {}
    found = _ONE_LABEL.findall(text)
    return {name: _ESCAPED.sub(_unescape, value) if "\\" in value else value for name, value in found}


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


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
