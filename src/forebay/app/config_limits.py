"""The section `limits` of `forebay.yaml`, and what it comes to for the owners that there are.

A rule names whom it is for, what it counts, how much of it, and in which time.  Rules for each team, project
or key become one limit for each that has a key.  Pure; `config_model` puts the section in its place.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, StrictFloat, StrictInt, model_validator

from forebay.app.config_values import Section
from forebay.core.keys import KeyEntry
from forebay.core.limits import WEIGHT_UNIT, Kind, Limit, Measure, Period, Weights, WhenAway

AMOUNT_MAX = 10**12


def _check_zone(name: str) -> str:
    if name != "UTC":
        try:
            ZoneInfo(name)
        except (OSError, ValueError):
            raise ValueError(
                "no time zone of that name is known here; take UTC, or one like Europe/Berlin"
            ) from None
    return name


Amount = Annotated[StrictInt, Field(ge=0, le=AMOUNT_MAX)]
Weight = Annotated[StrictFloat, Field(ge=0, le=1000, allow_inf_nan=False)]
Owner = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
ZoneName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_check_zone)]
Pattern = Annotated[str, Field(min_length=1, max_length=200)]

_WHOM = ("team", "project", "key", "each")
_COUNTED = tuple(measure.value for measure in Measure)


class WeightsConfig(Section):
    """How much a token of each class counts; 1 counts whole."""

    input: Weight = Field(default=1.0, description="Prompt tokens that were neither cached nor audio.")
    input_cached: Weight = Field(default=1.0, description="Prompt tokens that the engine had cached.")
    input_audio: Weight = Field(default=1.0, description="Audio in the prompt.")
    output: Weight = Field(default=1.0, description="Visible text of the answer.")
    output_reasoning: Weight = Field(default=1.0, description="Hidden reasoning of the answer.")
    output_audio: Weight = Field(default=1.0, description="Audio in the answer.")


class LimitConfig(Section):
    """One rule: for whom, what, how much, in which time."""

    team: Owner | None = Field(default=None, description="For all keys of a team together.")
    project: Owner | None = Field(default=None, description="For all keys of a project together.")
    key: Owner | None = Field(default=None, description="For one key, by its id.")
    each: Literal["team", "project", "key"] | None = Field(
        default=None, description="For each team, project or key on its own."
    )
    requests: Amount | None = Field(default=None, description="Requests in each period.")
    input_tokens: Amount | None = Field(default=None, description="Tokens of prompts in each period.")
    output_tokens: Amount | None = Field(default=None, description="Tokens of answers in each period.")
    total_tokens: Amount | None = Field(default=None, description="Tokens of both in each period.")
    concurrent_requests: Amount | None = Field(default=None, description="Requests in flight at a time.")
    per: Period | None = Field(
        default=None,
        description="second, minute, hour, day, week or month; not for concurrent requests.",
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

    @model_validator(mode="after")
    def _check(self) -> Self:
        whom = [name for name in _WHOM if getattr(self, name) is not None]
        if len(whom) != 1:
            raise ValueError(f"say for whom: exactly one of {', '.join(_WHOM)}")
        counted = [name for name in _COUNTED if getattr(self, name) is not None]
        if len(counted) != 1:
            raise ValueError(f"say what it counts: exactly one of {', '.join(_COUNTED)}")
        if (self.per is None) != (counted[0] == Measure.CONCURRENT.value):
            raise ValueError(
                "`per` is for requests and tokens, and not for concurrent_requests"
                if self.per
                else "say in which period: `per: minute`, for example"
            )
        return self

    @property
    def measure(self) -> Measure:
        return next(measure for measure in Measure if getattr(self, measure.value) is not None)

    @property
    def amount(self) -> int:
        amount: int = getattr(self, self.measure.value)
        return amount


class LimitsConfig(Section):
    """How much teams, projects and keys may use."""

    when_away: WhenAway = Field(
        default=WhenAway.SHARE,
        description="While the control plane does not answer, each worker goes on with its `share` of every "
        "limit, lets all pass (`open`), or refuses what it holds no loan for (`closed`).",
    )
    rules: Annotated[tuple[LimitConfig, ...], Field(max_length=10_000)] = Field(
        default=(), description="All that apply to a request hold at once."
    )


class CompiledLimits:
    """The limits of a configuration for the keys that there are."""

    def __init__(self, rules: Iterable[LimitConfig], keys: Iterable[KeyEntry]) -> None:
        self.limits: dict[str, Limit] = {}
        self.by_key: dict[str, tuple[str, ...]] = {}
        rules = tuple(rules)
        for key in keys:
            found = dict.fromkeys(limit.id for rule in rules for limit in self._compile(rule, key))
            self.by_key[key.id] = tuple(found)

    def _compile(self, rule: LimitConfig, key: KeyEntry) -> Iterator[Limit]:
        owners = {"team": key.team, "project": key.project, "key": key.id}
        kind: str = rule.each or next(name for name in _WHOM if getattr(rule, name) is not None)
        name = owners[kind]
        if rule.each is None and getattr(rule, kind) != name:
            return
        measure, period = rule.measure, rule.per
        parts = [f"{kind}:{name}", measure.value, period.value if period else "now"]
        parts += [rule.window.value] if rule.window is not Kind.BUCKET else []
        parts += [",".join(rule.models)] if rule.models != ("*",) else []
        limit_id = "/".join(parts)
        limit = Limit(
            id=limit_id,
            owner=f"{kind} {name}",
            measure=measure,
            amount=rule.amount,
            period=period,
            kind=rule.window,
            time_zone=rule.time_zone,
            weights=_compile_weights(rule.weights),
            models=rule.models,
        )
        known = self.limits.get(limit_id)
        if known is None or limit.amount < known.amount:  # of two rules for the same, the narrower one holds
            self.limits[limit_id] = limit
        yield limit


def _compile_weights(weights: WeightsConfig) -> Weights:
    return Weights(**{name: round(value * WEIGHT_UNIT) for name, value in weights})
