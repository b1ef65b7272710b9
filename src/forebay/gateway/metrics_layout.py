"""Which series a worker's counters have: every one is known before the first request.

Labels come from configuration alone, so that no caller can make new ones.
"""

import msgspec

from forebay.core.engine_load import EngineState
from forebay.core.events import Tokens
from forebay.core.keys import PRIORITIES
from forebay.core.routes import Endpoint, RouteTable

DURATION_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
OVERHEAD_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5)
WAIT_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
STATUS_CLASSES = ("2xx", "4xx", "499", "5xx")
TOKEN_CLASSES = Tokens.__struct_fields__
#: How waiting for a limit ended: let in; the deadline came; it can't come in time; no place in the line; the
#: caller left or the gateway ended.
WAIT_RESULTS = ("served", "expired", "too_long", "full", "ended")


class Series(msgspec.Struct, frozen=True, array_like=True):
    """One labelled series and its cells: one, or for a histogram one a bucket, one for the rest, the sum."""

    family: str
    labels: tuple[str, ...]
    offset: int


class Family(msgspec.Struct, frozen=True, array_like=True):
    name: str
    kind: str  #: counter, gauge or histogram
    help: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        return len(self.buckets) + 2 if self.kind == "histogram" else 1


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """Every series of a route table, and where its cells are."""

    families: tuple[Family, ...]
    series: tuple[Series, ...]
    size: int

    def index(self) -> dict[tuple[str, ...], int]:
        return {(entry.family, *entry.labels): entry.offset for entry in self.series}


FAMILIES = (
    Family("forebay_requests", "counter", "Requests by status class.", ("model", "endpoint", "status")),
    Family(
        "forebay_request_duration_seconds",
        "histogram",
        "From the request's head to the last byte handed over.",
        ("model", "endpoint"),
        DURATION_S,
    ),
    Family(
        "forebay_time_to_first_token_seconds",
        "histogram",
        "From the request's head to the first content of a stream.",
        ("model", "endpoint"),
        DURATION_S,
    ),
    Family("forebay_tokens", "counter", "Tokens by disjoint class.", ("model", "endpoint", "type")),
    Family(
        "forebay_estimate_tokens",
        "counter",
        "Tokens of requests under limits of tokens: as estimated before, and as their targets reported.",
        ("endpoint", "type", "source"),
    ),
    Family(
        "forebay_overhead_seconds",
        "histogram",
        "The gateway's own time in a request: duration less the waiting for target and caller.",
        (),
        OVERHEAD_S,
    ),
    Family("forebay_attempts", "counter", "Attempts at a target by result.", ("target", "result")),
    Family(
        "forebay_hedges",
        "counter",
        "Requests that were late: what became of the second attempt, or that there was none.",
        ("model", "result"),
    ),
    Family(
        "forebay_retries",
        "counter",
        "Attempts beyond requests' first that were made, or denied as the budget of retries was spent.",
        ("result",),
    ),
    Family(
        "forebay_usage_rules",
        "counter",
        "What usage rules found in answers of their targets.",
        ("target", "rule", "result"),
    ),
    Family("forebay_fillers", "counter", "Streams that began with a filler.", ("model",)),
    Family("forebay_keep_alives", "counter", "Keep-alives sent in silent streams.", ()),
    Family("forebay_refused", "counter", "Requests refused without a record.", ("reason",)),
    Family("forebay_requests_in_flight", "gauge", "Requests being served.", ()),
    Family("forebay_waiting", "gauge", "Requests that wait for limits.", ("priority",)),
    Family("forebay_waits", "counter", "Requests that might wait for limits.", ("priority", "result")),
    Family(
        "forebay_wait_seconds",
        "histogram",
        "How long requests waited for limits, whatever became of them.",
        ("priority",),
        WAIT_S,
    ),
    Family(
        "forebay_mirrors",
        "counter",
        "Copies of requests for mirrors, by what became of them.",
        ("model", "mirror", "result"),
    ),
    Family(
        "forebay_queue_waiting",
        "gauge",
        "Requests that wait for a place of their model.",
        ("model", "priority"),
    ),
    Family(
        "forebay_queue_waits",
        "counter",
        "Requests that found all places of their model full.",
        ("model", "priority", "result"),
    ),
    Family(
        "forebay_queue_wait_seconds",
        "histogram",
        "How long requests waited for a place, whatever became of them.",
        ("priority",),
        WAIT_S,
    ),
    Family("forebay_records_waiting", "gauge", "Records kept in memory while the disk refuses them.", ()),
    Family("forebay_memory_held_bytes", "gauge", "Counted against gateway.memory_max_bytes.", ()),
    Family("forebay_board_connected", "gauge", "Workers that know the loads of the others.", ()),
    Family("forebay_places", "gauge", "Places that workers choose among, by what engines say.", ("state",)),
    Family("forebay_internal_errors", "counter", "Errors in the gateway itself.", ()),
    Family("forebay_snapshots_refused", "counter", "Snapshots of no use; the one before stayed.", ()),
)
DURATION_SUM, OVERHEAD_SUM = len(DURATION_S) + 1, len(OVERHEAD_S) + 1  #: where the sum of a histogram is
#: Of a prompt; of an answer whose request named no length; of one that did, which is no more than a bound.
ESTIMATE_TYPES = ("input", "output", "output_named")
ESTIMATE_SOURCES = ("estimated", "reported")
#: Of second attempts: it answered, the first did, it failed; denied by the share or the budget.
HEDGE_RESULTS = ("won", "lost", "failed", "denied")
RETRY_RESULTS = ("made", "denied")
REFUSALS = ("unauthenticated", "unknown_url", "method_not_allowed", "ledger_unwritable")


#: What became of a copy: its answer, or why it was not sent.  `gateway.mirrors` explains them.
MIRROR_RESULTS = (
    *("ok", "failed", "barred", "too_large", "too_many", "queue_full", "late", "target_busy", "memory_full"),
    *("gateway_busy", "records_unwritable", "ended"),
)

FOUND, ABSENT, UNUSABLE = "found", "absent", "unusable"  #: what became of a usage rule in an answer


def _list_usage_rules(table: RouteTable) -> set[tuple[str, str]]:
    """Target and name of each."""
    targets = [target for route in table.routes for target in route.targets]
    return {(target.id, rule.name) for target in targets for rule in target.usage}


def compute_layout(table: RouteTable) -> Layout:
    """The layout for a table's models and targets, and for requests that name no known model."""
    pairs = [(route.model, endpoint.value) for route in table.routes for endpoint in route.endpoints]
    pairs.append(("", ""))
    targets = sorted({target.id for route in table.routes for target in route.targets})
    queued = [route.model for route in table.routes if route.choosing.queue is not None]
    rows: dict[str, list[tuple[str, ...]]] = {
        "forebay_requests": [(*pair, status) for pair in pairs for status in STATUS_CLASSES],
        "forebay_request_duration_seconds": list(pairs),
        "forebay_time_to_first_token_seconds": list(pairs),
        "forebay_tokens": [(*pair, token_class) for pair in pairs for token_class in TOKEN_CLASSES],
        "forebay_estimate_tokens": [
            (endpoint.value, kind, source)
            for endpoint in Endpoint
            for kind in ESTIMATE_TYPES
            for source in ESTIMATE_SOURCES
        ],
        "forebay_attempts": [(target, result) for target in targets for result in ("ok", "failed")],
        "forebay_hedges": [
            (route.model, result)
            for route in table.routes
            if route.choosing.hedge is not None
            for result in HEDGE_RESULTS
        ],
        "forebay_retries": [(result,) for result in RETRY_RESULTS],
        "forebay_places": [(state.value,) for state in EngineState],
        "forebay_waiting": [(priority,) for priority in PRIORITIES],
        "forebay_waits": [(priority, result) for priority in PRIORITIES for result in WAIT_RESULTS],
        "forebay_wait_seconds": [(priority,) for priority in PRIORITIES],
        "forebay_queue_waiting": [(model, priority) for model in queued for priority in PRIORITIES],
        "forebay_queue_waits": [
            (model, priority, result)
            for model in queued
            for priority in PRIORITIES
            for result in WAIT_RESULTS
        ],
        "forebay_queue_wait_seconds": [(priority,) for priority in PRIORITIES],
        "forebay_usage_rules": [
            (*rule, result)
            for rule in sorted(_list_usage_rules(table))
            for result in (FOUND, ABSENT, UNUSABLE)
        ],
        "forebay_mirrors": [
            (route.model, mirror.model, result)
            for route in table.routes
            for mirror in route.mirrors
            for result in MIRROR_RESULTS
        ],
        "forebay_fillers": [(route.model,) for route in table.routes if route.masking.filler is not None],
        "forebay_refused": [(reason,) for reason in REFUSALS],
    }
    series: list[Series] = []
    offset = 0
    for family in FAMILIES:
        for labels in rows.get(family.name, [()]):
            series.append(Series(family.name, labels, offset))
            offset += family.width
    return Layout(FAMILIES, tuple(series), offset)
