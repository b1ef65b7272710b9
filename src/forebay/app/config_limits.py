"""The section `limits` of `forebay.yaml`, and what it comes to for the owners that there are.

A rule names whom it is for, what it counts, how much of it, and in which time.  Rules for each team, project
or key become one limit for each that has a key.  Pure; `config_model` puts the section in its place.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, ConfigDict, Field, StrictFloat, StrictInt, WithJsonSchema

from forebay.app.config_values import Section
from forebay.core.keys import ALL_MODELS, KeyEntry
from forebay.core.limits import WEIGHT_UNIT, Kind, Limit, Measure, Period, Weights, WhenAway

AMOUNT_MAX = 10**12
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


Amount = Annotated[StrictInt, Field(ge=0, le=AMOUNT_MAX)]
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

    input: Weight = Field(default=1.0, description="Prompt tokens that were neither cached nor audio.")
    input_cached: Weight = Field(default=1.0, description="Prompt tokens that the engine had cached.")
    input_audio: Weight = Field(default=1.0, description="Audio in the prompt.")
    output: Weight = Field(default=1.0, description="Visible text of the answer.")
    output_reasoning: Weight = Field(default=1.0, description="Hidden reasoning of the answer.")
    output_audio: Weight = Field(default=1.0, description="Audio in the answer.")


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
    """The limits of a configuration for the keys that there are.

    Attributes:
        limits: by id.  Of two rules for the same, as one for each team and one for this team may be, both
            hold, which is to say the narrower one.
        by_key: ids of the limits that apply, by a key's id.
    """

    def __init__(self, rules: Iterable[LimitConfig], keys: Iterable[KeyEntry]) -> None:
        self.limits: dict[str, Limit] = {}
        self.by_key: dict[str, tuple[str, ...]] = {}
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
        known = self.limits.get(limit_id)
        if known is None or rule.amount < known.amount:
            self.limits[limit_id] = Limit(
                id=limit_id,
                owner=f"{kind} {name}",
                measure=rule.measure,
                amount=rule.amount,
                period=rule.per,
                kind=rule.window,
                time_zone=rule.time_zone,
                weights=_compile_weights(rule.weights),
                models=rule.models,
            )
        return limit_id


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
