"""The `RouteTable`: the immutable answer to "who may send what where", compiled by the control plane.

A snapshot goes down to the workers as one MessagePack file and is swapped in atomically; what it names stays
alive until the last request that started with it ends.  Secrets are references here, never values.
"""

import hashlib
from enum import StrEnum
from typing import Final

import msgspec

from forebay.core.keys import KeyEntry
from forebay.core.limits import Limit, QueueRules, WhenAway
from forebay.core.prices import Price
from forebay.core.usage_rules import UsageRule


class Endpoint(StrEnum):
    """What a caller asks for; the value is the path below `/v1/`."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"  # Anthropic's
    COUNT_TOKENS = "messages/count_tokens"
    RESPONSES = "responses"  # OpenAI's, without state
    RERANK = "rerank"
    SCORE = "score"
    INFER = "infer"  # of the Open Inference Protocol, whose path is `/v2/models/NAME/infer`
    TRANSCRIPTIONS = "audio/transcriptions"
    TRANSLATIONS = "audio/translations"
    SPEECH = "audio/speech"
    IMAGES = "images/generations"
    IMAGE_EDITS = "images/edits"
    IMAGE_VARIATIONS = "images/variations"

    # An enum's own is Python code, and each request looks several things up by its endpoint.
    __hash__ = str.__hash__


#: Whose requests use no tokens.
WITHOUT_TOKENS: Final = frozenset({Endpoint.COUNT_TOKENS, Endpoint.INFER})
#: Whose answers hold nothing that a model has written.
WITHOUT_OUTPUT: Final = frozenset({Endpoint.EMBEDDINGS, Endpoint.RERANK, Endpoint.SCORE})
#: Whose requests bring sound that is to be read.
AUDIO_READERS: Final = frozenset({Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS})
#: Whose requests are forms (`multipart/form-data`); edits of images may come as JSON as well.
FORMS: Final = AUDIO_READERS | {Endpoint.IMAGE_EDITS, Endpoint.IMAGE_VARIATIONS}
#: Of sound and pictures, which pass untouched and cost tokens, seconds, characters or pieces.
MEDIA: Final = FORMS | {Endpoint.SPEECH, Endpoint.IMAGES}


class ForcedCalls(StrEnum):
    """How a target meets a request that forces a call of a tool."""

    NATIVE = "native"  #: its engine enforces it
    SCHEMA = "schema"  #: by a JSON schema of the tools, which its engine does enforce
    REFUSE = "refuse"  #: not at all: its callers are told so


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, for one attempt.  `first_token_s` ends it only while another target is left to try."""

    connect_s: float = 5.0
    first_token_s: float = 60.0
    idle_s: float = 120.0
    total_s: float = 900.0


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Like replicas in one place, as `forebay.yaml` describes them; what a target says itself goes first."""

    name: str
    hardware: str = ""
    engine: str = ""
    precision: str = ""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One place that answers a model: an address, a model name there, and how long to wait for it."""

    id: str  #: stable and unique in the table; a metric label and a ledger field
    pool: str
    tier: str = "provisioned"
    region: str = ""  #: where it is, as `forebay.yaml` says; empty when it says nothing
    dialect: str = "openai"  #: what it speaks; `providers.translators` lists them
    url: str  #: base URL, for OpenAI's dialect up to and including `/v1`, without a slash at the end
    model: str  #: the model's name there
    api_key: str | None = None  #: a reference (`env:NAME` or `file:PATH`), resolved by the worker
    tls_ca: str | None = None  #: path of a PEM file with the authorities to trust instead of the system's
    tls_cert: str | None = None  #: likewise with the certificate to show there
    tls_key: str | None = None  #: likewise with its key; None where that stands in `tls_cert`
    proxy: str | None = None  #: URL of an HTTP proxy to go through; None or `direct` for none
    proxy_credentials: str | None = None  #: a reference to `user:password` for it
    connections_max: int = 1024  #: for each worker
    timeouts: Timeouts = Timeouts()
    version: str = ""  #: of the model there, as `forebay.yaml` says; empty when it says nothing
    usage: tuple[UsageRule, ...] = ()  #: by which its answers are counted, beside what the dialect reads
    requests_max: int | None = None  #: that it serves well at once; None if nobody said
    tokens_max: int | None = None  #: of prompts and answers, in flight at once; likewise
    context_window: int | None = None  #: tokens of one request, prompt and answer together; likewise
    capabilities: tuple[str, ...] | None = None  #: of `CAPABILITIES`; None if nobody said
    distance_s: float = 0.0  #: of the network from here, both ways
    price_usd_per_mtok: float | None = None  #: for choosing alone; the bill has its own
    weight: float | None = None  #: its share among those of its tier, instead of what load would say
    shares_quota: bool = False  #: a 429 of it speaks of all targets of its address and `api_key`
    forced_tools: ForcedCalls = ForcedCalls.NATIVE
    slow_start_s: float = 10.0  #: in which it comes to its full share when it is new or has come back


#: What a request may need beyond text, and a place may lack.
CAPABILITIES: Final = ("tools", "images", "audio", "documents", "json_schema")


class Order(StrEnum):
    """By what a request's targets are chosen."""

    LISTED = "listed"  #: always in the order of the file
    LOAD = "load"  #: `gateway.policy.route` says how


class Affinity(StrEnum):
    """Which requests go to the same replica of a pool, while it is not much fuller than the others."""

    PREFIX = "prefix"  #: that begin alike, for the engine's prefix cache
    ADAPTER = "adapter"  #: for one LoRA adapter, so that few replicas hold it
    SESSION = "session"  #: of one session: the header `x-forebay-session`, else the field `user`
    NONE = "none"


QUEUE_WAITS_S: Final = (1.0, 5.0, 60.0)  #: see `Choosing.queue_waits_max_s`


class Hedge(msgspec.Struct, frozen=True, kw_only=True):
    """When a request that is late is sent to a second place as well."""

    after_quantile: float = 0.95  #: of the times to the first token, or of whole answers
    after_min_s: float = 0.0  #: but never sooner
    max_share: float = 0.05  #: of the requests, at most


class Choosing(msgspec.Struct, frozen=True, kw_only=True):
    """How a route's targets are chosen."""

    order: Order = Order.LISTED
    affinity: Affinity = Affinity.PREFIX
    prefix_bytes: int = 256  #: of a prompt that count as its beginning
    spill_at: float = 0.8  #: of a tier's capacity, from where on requests spill to the next one
    price_s_per_usd: float = 0.0  #: seconds of waiting that a USD per million tokens is worth
    queue: QueueRules | None = (
        None  #: how requests wait where all places are full; None: the last tier keeps all
    )
    hedge: Hedge | None = None  #: None: a request is never at two places
    queue_waits_max_s: tuple[float, float, float] = QUEUE_WAITS_S  #: in engines, by class as in `PRIORITIES`


class FillerRules(msgspec.Struct, frozen=True, kw_only=True):
    """Words that begin a stream while the model has said nothing yet."""

    after_s: float  #: from the request's arrival
    texts: tuple[str, ...]  #: of which each request has one
    is_asked: bool = False  #: only where the caller asks for it


class Masking(msgspec.Struct, frozen=True, kw_only=True):
    """What callers of a route's streams get while there is nothing to hand on."""

    keep_alive_s: float = 15.0  #: of silence, after which they are told that the stream goes on; 0 for never
    filler: FillerRules | None = None


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    """A model that gets copies of a route's requests, of whose answers no caller sees anything."""

    model: str  #: its public name
    share: float = 0.05  #: of the requests, more than 0
    requests_max: int = 8  #: copies in flight at once, of all workers
    queue_max: int = 32  #: that wait for that, of all workers
    per_s: float | None = None  #: of all workers
    bytes_max: int = 1 << 20  #: of a request; larger ones are not copied
    timeout_s: float = 60.0  #: for waiting, and again for the attempt
    at_once: bool = False  #: beside the request; else once its caller has the answer


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A public name, what it can do, and its targets.

    Without a target it is a model whose engines do not run yet.
    """

    model: str
    endpoints: tuple[Endpoint, ...]
    targets: tuple[Target, ...]
    created_s: int = 0  #: Unix time, for `GET /v1/models`
    owned_by: str = "forebay"
    choosing: Choosing = Choosing()
    fallbacks: tuple[str, ...] = ()  #: public names that answer where no target of this one does
    mirrors: tuple[Mirror, ...] = ()  #: each of another model
    masking: Masking = Masking()


class RouteTable(msgspec.Struct, frozen=True, kw_only=True):
    routes: tuple[Route, ...]
    pools: tuple[Pool, ...] = ()
    attempts_max: int = 3
    retry_budget: float = 0.2  #: attempts beyond requests' first, as a share of the requests
    retry_budget_min_per_s: float = 10.0  #: that may be made besides, by all workers together

    def compute_hash(self) -> str:
        """12 hex digits that name this table on every record."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:12]


class GatewayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a worker.  For each worker."""

    body_max_bytes: int = 32 * 1024 * 1024
    answer_max_bytes: int = 64 * 1024 * 1024
    memory_max_bytes: int = 512 * 1024 * 1024  #: bodies, whole answers, what callers have not taken
    event_max_bytes: int = 16 * 1024 * 1024  #: one server-sent event
    record_backlog_max: int = 10_000  #: records kept in memory while the disk refuses them
    connections_max: int = 8192  #: open connections of callers; a change needs a restart
    segment_max_bytes: int = 64 * 1024 * 1024  #: a ledger segment; a change needs a restart
    drain_grace_s: float = 0.0  #: from "not ready" to "accepts no more"
    drain_deadline_s: float = 30.0  #: for streams to finish


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker knows."""

    table: RouteTable
    keys: tuple[KeyEntry, ...]
    limits: GatewayLimits = GatewayLimits()
    quotas: tuple[Limit, ...] = ()  #: what keys, projects and teams may use
    quota_when_away: WhenAway = WhenAway.SHARE
    quota_queue: QueueRules = QueueRules()  #: how requests may wait for limits
    quota_workers: int = 1  #: between whom the limits are shared when nobody lends
    quota_allow_unpriced: bool = False  #: requests without a price pass limits of cost
    prices: tuple[Price, ...] = ()  #: the book, where a limit counts cost
    explains_routes: bool = False  #: to any key that asks with the header `x-forebay-debug: route`
    price_book: str = ""  #: digest of the book in force, for the records
    version: int = 1

    def compute_hash(self) -> str:
        """12 hex digits that name all of it: routes, keys and limits."""
        return hashlib.sha256(encode_snapshot(self)).hexdigest()[:12]


def encode_snapshot(snapshot: Snapshot) -> bytes:
    return msgspec.msgpack.encode(snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """Raises msgspec.ValidationError or msgspec.DecodeError on a file that is not a snapshot."""
    return msgspec.msgpack.decode(data, type=Snapshot)
