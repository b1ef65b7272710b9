"""What happened, as the ledger keeps it.  Events are append-only; a correction is a new event.

A measurement that was not taken is `None`, never 0.  Durations are nanoseconds.  Fields are added with a
default and never renamed, so that any reader understands any older segment.
"""

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    ABANDONED = "abandoned"  #: the caller left


class UsageSource(StrEnum):
    REPORTED = "reported"  #: the target said it
    ESTIMATED = "estimated"  #: counted by us because the target never came to say it
    NONE = "none"  #: nothing was spent: the request never reached a target


class Kind(StrEnum):
    """Who asked."""

    REQUEST = "request"  #: a caller
    BATCH = "batch"  #: a caller, with a line of a batch
    MIRROR = "mirror"  #: nobody: it is a copy of a caller's request, for comparison


class Tokens(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Disjoint token classes: their sum is the total.  `None` where the class is unknown."""

    input: int | None = None  #: prompt tokens of no other class
    input_cached: int | None = None
    input_audio: int | None = None
    output: int | None = None  #: visible text tokens
    output_reasoning: int | None = None
    output_audio: int | None = None
    input_cache_write: int | None = None  #: prompt tokens that were written to a cache, for later requests

    @property
    def input_total(self) -> int:
        return (
            (self.input or 0)
            + (self.input_cached or 0)
            + (self.input_audio or 0)
            + (self.input_cache_write or 0)
        )

    @property
    def output_total(self) -> int:
        return (self.output or 0) + (self.output_reasoning or 0) + (self.output_audio or 0)


class Finished(msgspec.Struct, frozen=True, tag="finished", omit_defaults=True):
    """One request, whatever became of it.

    Give its fields by name, but where one is made for each request: by position that costs a sixth.
    """

    request_id: str
    at_ns: int  #: wall clock when the request's head had arrived
    key: str  #: key id; empty when the caller was not recognised
    project: str = ""
    team: str = ""
    endpoint: str = ""
    model: str = ""  #: public name; empty when the request named no known model
    target: str = ""  #: the last target tried; empty when none was
    pool: str = ""
    tier: str = ""
    route_hash: str = ""
    stream: bool = False
    status: int = 0  #: what the caller got, 499 when it left
    outcome: Outcome = Outcome.OK
    error: str = ""  #: error code; empty when all went well
    attempts: int = 0
    tokens: Tokens = Tokens()
    usage_source: UsageSource = UsageSource.NONE
    first_token_ns: int | None = None  #: from the head's arrival to the first content, streams only
    duration_ns: int = 0  #: from the head's arrival to the last byte handed over
    overhead_ns: int | None = None  #: duration less the waiting for target and caller
    request_bytes: int = 0
    answer_bytes: int = 0
    experiment: str = ""  #: as the request's `metadata` says
    variant: str = ""  #: of the experiment; likewise
    worker: int = 0
    region: str = ""  #: of the last target tried
    tags: tuple[tuple[str, str], ...] = ()  #: the request's `metadata`, where it is as OpenAI has it
    units: tuple[tuple[str, int], ...] = ()  #: what else the target counted, by the names of its usage rules
    version: str = ""  #: of the model, as `forebay.yaml` says of the last target tried
    asked_model: str = ""  #: the public name that the caller named, where another model answered in its place
    prices: str = ""  #: names the price book by which it is priced; for ingest alone, and in no table
    mirror_of: str = ""  #: id of the request of which this is a copy, for a mirror; both have one `at_ns`
    mirror_same: bool | None = None  #: whether both answers held the same, where they were compared
    mirrors_dropped: int = 0  #: copies that this worker dropped since the mirror's last record
    filler_ns: int | None = None  #: from the head's arrival to a filler before the answer
    queued_ns: int = 0  #: of `duration_ns`, waiting for room in limits and at places
    hedged: str = ""  #: the target that was asked at the same time and did not answer
    hedged_tokens: int = 0  #: prompt tokens that it may have cost, by estimate
    batch: str = ""  #: the line of a batch that was asked, `BATCH/LINE`

    @property
    def kind(self) -> Kind:
        if self.mirror_of:
            return Kind.MIRROR
        return Kind.BATCH if self.batch else Kind.REQUEST


Event = Finished  #: the union of all events, once there are more

encode_event = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Event)


def decode_event(data: bytes) -> Event:
    """Raises msgspec.ValidationError or msgspec.DecodeError on what is not an event."""
    return _decoder.decode(data)
