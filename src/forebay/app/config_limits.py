"""The section `limits` of `forebay.yaml`, and what it comes to for the owners that there are.

A rule names whom it is for, what it counts, how much of it, and in which time.  Rules for each team, project
or key become one limit for each that has a key.  Pure; `config_model` puts the section in its place.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo

import msgspec
from pydantic import AfterValidator, ConfigDict, Field, StrictFloat, StrictInt, WithJsonSchema

from forebay.app.config_authority import AuthorityPlace
from forebay.app.config_queue import QueueConfig
from forebay.app.config_signals import (
    AMOUNT_MAX,
    SIGNALS_MAX,
    Amount,
    SignalConfig,
    SignalName,
    Usd,
    compile_signals,
    compute_amount,
)
from forebay.app.config_values import Label, ModelName, Seconds, Section
from forebay.core.expressions import combine
from forebay.core.keys import ALL_MODELS, KeyEntry
from forebay.core.limits import (
    NANO_PER_USD,
    WEIGHT_UNIT,
    Exceeded,
    Kind,
    Limit,
    Measure,
    Period,
    Weights,
    WhenAway,
    spell_usd,
)
from forebay.gateway.policy.signals import SignalRule

WHOM: Final = ("team", "project", "key", "each")
COUNTED: Final = tuple(measure.value for measure in Measure)

EACH: Final = "*"  #: in the place of a name: all of them, each on its own
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
_PROJECT = rf"{_NAME}/{_NAME}"
_KEY = r"key_[0-9a-f]{16}"
_PATTERN = r"[!-+\--~]{1,200}"  # no comma: ids list patterns with one between them


def _check_project(name: str) -> str:
    if not re.fullmatch(_PROJECT, name):
        raise ValueError("a project is named with its team: `project: TEAM/PROJECT`")
    return name


def _check_key(name: str) -> str:
    if not re.fullmatch(_KEY, name):
        raise ValueError("a key is named by its id, which `forebay keys list` shows, never by the key itself")
    return name


def _check_pattern(pattern: str) -> str:
    if not re.fullmatch(_PATTERN, pattern):
        raise ValueError("a pattern is a public name in which `*` is any text, without blanks and commas")
    return pattern


def _check_zone(name: str) -> str:
    if name != "UTC":
        try:
            ZoneInfo(name)
        except (OSError, ValueError, KeyError):  # the last is what an unknown one raises
            raise ValueError(
                "no time zone of that name is known here; take UTC, or one like Europe/Berlin"
            ) from None
    return name


def _text(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


Share = Annotated[StrictFloat, Field(gt=0, le=100, allow_inf_nan=False)]
Weight = Annotated[StrictFloat, Field(ge=0, le=1000, allow_inf_nan=False)]
Team = Annotated[str, Field(pattern=f"^{_NAME}$")]
Project = Annotated[str, AfterValidator(_check_project), _text(_PROJECT)]
KeyId = Annotated[str, AfterValidator(_check_key), _text(_KEY)]
ZoneName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_check_zone)]
Pattern = Annotated[str, AfterValidator(_check_pattern), _text(_PATTERN)]


def _exactly_one(names: Iterable[str]) -> dict[str, Any]:
    return {"oneOf": [{"required": [name]} for name in names]}


class WeightsConfig(Section):
    """How much a token of each class counts; 1 counts whole."""

    input: Weight = Field(default=1.0, description="Prompt tokens of no other class.")
    input_cached: Weight = Field(default=1.0, description="Prompt tokens that the engine had cached.")
    input_audio: Weight = Field(default=1.0, description="Audio in the prompt.")
    input_cache_write: Weight = Field(
        default=1.0, description="Prompt tokens that the target wrote to its cache."
    )
    output: Weight = Field(default=1.0, description="Visible text of the answer.")
    output_reasoning: Weight = Field(default=1.0, description="Hidden reasoning of the answer.")
    output_audio: Weight = Field(default=1.0, description="Audio in the answer.")


class GraceConfig(Section):
    """How much more may be used for a while, before a limit that is exceeded takes effect."""

    for_s: Seconds = Field(description="Seconds, from when it was first exceeded in a period.")
    share: Share = Field(description="So much more, as a part of the amount; 0.1 is a tenth.")


class ThrottleConfig(Section):
    """At which rate requests pass once a limit is exceeded."""

    requests: Annotated[StrictInt, Field(ge=1, le=AMOUNT_MAX)] = Field(description="Requests in each period.")
    per: Literal["second", "minute", "hour", "day"] = Field(description="In which time.")


class ExceededConfig(Section):
    """What becomes of requests once a limit is exceeded, in place of a refusal: one of the two."""

    model_config = ConfigDict(json_schema_extra=_exactly_one(("throttle", "downgrade")))

    throttle: ThrottleConfig | None = Field(
        default=None, description="They pass at a slower rate, and are counted."
    )
    downgrade: ModelName | None = Field(
        default=None, description="They go to this model, which should be a cheaper one, and are counted."
    )


class LimitConfig(Section):
    """One rule: for whom, what, how much, in which time.  `config_checks` holds its settings together."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                _exactly_one(WHOM),
                _exactly_one(COUNTED),
                _exactly_one((Measure.CONCURRENT.value, "per")),
            ]
        }
    )

    team: Team | None = Field(default=None, description="For all keys of a team together.")
    project: Project | None = Field(
        default=None, description="For all keys of a project together, as `TEAM/PROJECT`."
    )
    key: KeyId | None = Field(default=None, description="For one key, by its id.")
    each: Literal["team", "project", "key"] | None = Field(
        default=None, description="For each team, project or key on its own."
    )
    requests: Amount | None = Field(default=None, description="Requests in each period.")
    input_tokens: Amount | None = Field(default=None, description="Tokens of prompts in each period.")
    output_tokens: Amount | None = Field(default=None, description="Tokens of answers in each period.")
    total_tokens: Amount | None = Field(default=None, description="Tokens of both in each period.")
    concurrent_requests: Amount | None = Field(default=None, description="Requests in flight at a time.")
    cost_usd: Usd | None = Field(
        default=None, description="USD in each period, by the price book in `prices`."
    )
    per: Period | None = Field(
        default=None,
        description="In which time; none for `concurrent_requests`.",
    )
    window: Kind = Field(
        default=Kind.BUCKET,
        description="`bucket` fills evenly all the time, `calendar` is full again with each new period.",
    )
    time_zone: ZoneName = Field(
        default="UTC", description="In which days, weeks and months begin, for `window: calendar`."
    )
    models: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=100)] = Field(
        default=("*",), description="Patterns over the public names that it counts; `*` is all of them."
    )
    weights: WeightsConfig = Field(
        default=WeightsConfig(), description="How much a token of each class counts."
    )
    alert_at: Annotated[tuple[Share, ...], Field(max_length=20)] = Field(
        default=(),
        description="Parts of the amount at whose use an alert is raised, such as `[0.5, 0.8, 1.0]`; for "
        "`window: calendar`.",
    )
    grace: GraceConfig | None = Field(
        default=None,
        description="How much more may be used, and how long, after it was exceeded; for `window: calendar`.",
    )
    when_exceeded: ExceededConfig | None = Field(
        default=None, description="What becomes of requests then; without it they are refused."
    )

    @property
    def measure(self) -> Measure:
        return next(measure for measure in Measure if getattr(self, measure.value) is not None)

    @property
    def written(self) -> int | Decimal | str:
        """The amount, as it was written: text is an expression."""
        amount: int | Decimal | str = getattr(self, self.measure.value)
        return amount

    @property
    def expression(self) -> str:
        """Empty where the amount is fixed."""
        return self.written if isinstance(self.written, str) else ""

    def compute_amount(self, signals: Mapping[str, SignalRule]) -> int:
        """In the measure's units: of cost, nano-USD; of an expression, where nothing has been reported."""
        amount = self.written
        if isinstance(amount, str):
            return compute_amount(amount, self.measure, signals)
        return amount if isinstance(amount, int) else int(amount * NANO_PER_USD)


class LimitsConfig(Section):
    """How much teams, projects and keys may use."""

    authority: AuthorityPlace | None = Field(
        default=None,
        description="A Redis or Valkey over which several machines share all limits: an address like "
        "`redis://host:6379/0`, `rediss://…` or `unix:///path`, or a reference (`env:NAME`, `file:PATH`) to "
        "one with its password; null: each machine has limits of its own.",
    )
    fleet: Label = Field(
        default="forebay", description="Name that all machines use whose limits are the same, there."
    )
    when_away: WhenAway = Field(
        default=WhenAway.SHARE,
        description="While the control plane does not answer, each worker goes on with its `share` of every "
        "limit, lets all pass (`open`), or refuses what it holds no loan for (`closed`).",
    )
    unpriced: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="Whether requests to a model without a price pass where a limit of `cost_usd` applies; "
        "`allow` counts them as free.",
    )
    signals: Annotated[Mapping[SignalName, SignalConfig], Field(max_length=SIGNALS_MAX)] = Field(
        default={},
        description="What applications may report of their projects, by the names that expressions use.",
    )
    queue: QueueConfig = Field(
        default=QueueConfig(), description="How requests may wait for limits, in each worker."
    )
    rules: Annotated[tuple[LimitConfig, ...], Field(max_length=10_000)] = Field(
        default=(), description="All that apply to a request hold at once."
    )


class CompiledLimits:
    """The limits of a configuration for the keys that there are.

    Attributes:
        limits: by id.  Of two rules for the same, as one for each team and one for this team may be, both
            hold, which is to say the narrower one.  Amounts are those where nothing has been reported.
        by_key: ids of the limits that apply, by a key's id.
    """

    def __init__(
        self,
        rules: Iterable[LimitConfig],
        keys: Iterable[KeyEntry],
        signals: Mapping[str, SignalConfig] | None = None,
    ) -> None:
        self._signals = compile_signals(signals or {})
        self.limits: dict[str, Limit] = {}
        self.by_key: dict[str, tuple[str, ...]] = {}
        self._amounts: dict[int, int] = {}  # of rules
        self._compiled: set[tuple[str, int]] = set()  # limits and the rules that they hold
        self._rules: dict[tuple[str, str], list[LimitConfig]] = {}
        for rule in rules:
            self._rules.setdefault(_find_scope(rule), []).append(rule)
        for key in keys:
            self.by_key[key.id] = tuple(dict.fromkeys(self._compile_all(key)))

    def _compile_all(self, key: KeyEntry) -> Iterator[str]:
        owners = (("team", key.team), ("project", f"{key.team}/{key.project}"), ("key", key.id))
        for kind, name in owners:
            for scope in ((kind, name), (kind, EACH)):
                for rule in self._rules.get(scope, ()):
                    yield self._compile(rule, kind, name)

    def _compile(self, rule: LimitConfig, kind: str, name: str) -> str:
        limit_id = make_limit_id(rule, kind, name)
        if (limit_id, id(rule)) in self._compiled:
            return limit_id
        self._compiled.add((limit_id, id(rule)))
        amount = self._amounts.get(id(rule))
        if amount is None:
            amount = self._amounts[id(rule)] = rule.compute_amount(self._signals)
        limit = _make_limit(rule, amount, limit_id, f"{kind} {name}")
        if limit_id in self.limits:
            limit = _combine(self.limits[limit_id], limit)
        self.limits[limit_id] = limit
        if limit.throttle:
            self.limits[limit.throttle] = _make_throttle(rule, limit)
        return limit_id


def _make_limit(rule: LimitConfig, amount: int, limit_id: str, owner: str) -> Limit:
    grace, exceeded = rule.grace, rule.when_exceeded
    way, throttle, downgrade_to = Exceeded.REFUSE, "", ""
    if exceeded is not None and exceeded.throttle is not None:
        way, throttle = Exceeded.THROTTLE, f"{limit_id}/throttle"
    elif exceeded is not None and exceeded.downgrade is not None:
        way, downgrade_to = Exceeded.DOWNGRADE, exceeded.downgrade
    return Limit(
        id=limit_id,
        owner=owner,
        measure=rule.measure,
        amount=amount,
        expression=rule.expression,
        period=rule.per,
        kind=rule.window,
        time_zone=rule.time_zone,
        weights=_compile_weights(rule.weights),
        models=rule.models,
        exceeded=way,
        throttle=throttle,
        downgrade_to=downgrade_to,
        grace_units=0 if grace is None else int(amount * grace.share),
        grace_ns=0 if grace is None else int(grace.for_s * 1e9),
        alert_at=tuple(sorted({round(share * 1000) for share in rule.alert_at})),
    )


def _combine(one: Limit, other: Limit) -> Limit:
    """The narrower one of two that are one limit, at any time."""
    narrower = other if other.amount < one.amount else one
    if not one.expression and not other.expression:
        return narrower
    return msgspec.structs.replace(narrower, expression=combine(_spell_amount(one), _spell_amount(other)))


def _spell_amount(limit: Limit) -> str:
    if limit.expression:
        return limit.expression
    return spell_usd(limit.amount) if limit.measure is Measure.COST else str(limit.amount)


def _make_throttle(rule: LimitConfig, limit: Limit) -> Limit:
    """The limit that holds beside one that is exceeded."""
    assert rule.when_exceeded is not None
    assert rule.when_exceeded.throttle is not None
    throttle = rule.when_exceeded.throttle
    what = f"all of {limit.expression}" if limit.expression else limit.spell(limit.amount)
    return Limit(
        id=limit.throttle,
        owner=f"{limit.owner}, now that {what} of this {rule.per} are used up,",
        measure=Measure.REQUESTS,
        amount=throttle.requests,
        period=Period(throttle.per),
    )


def _find_scope(rule: LimitConfig) -> tuple[str, str]:
    if rule.each is not None:
        return rule.each, EACH
    return next((kind, name) for kind in WHOM if (name := getattr(rule, kind)) is not None)


def make_limit_id(rule: LimitConfig, kind: str, name: str) -> str:
    """Unique, and the same while the rule counts the same: not of its amount, time zone and weights."""
    parts = [f"{kind}:{name}", rule.measure.value]
    if rule.per is not None:
        parts += [rule.per.value, rule.window.value]
    if rule.models != ALL_MODELS:
        parts.append(f"models:{','.join(sorted(set(rule.models)))}")
    return "/".join(parts)


def _compile_weights(weights: WeightsConfig) -> Weights:
    return Weights(**{name: round(value * WEIGHT_UNIT) for name, value in weights})
