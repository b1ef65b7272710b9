"""The settings of a pool about its engines: where their load is read, how they are warmed up, what they hold.

Pure; `config_pools` puts them in their place.  What they mean together with other settings
`config_pools_checks` looks at.
"""

import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, Field, StrictInt, WithJsonSchema, model_validator

from forebay.app.config_values import ResolvedPath, Seconds, SecondsOrZero, Section, check_url
from forebay.core.routes import Endpoint
from forebay.engines.load_names import EngineKind

AUTO: Final = "auto"
OFF: Final = "off"
_PATH = re.compile(r"(?::(?P<port>[0-9]{1,5}))?(?P<path>/[!-~]*)")
KINDS: Final = ", ".join(EngineKind)
#: With which a replica is warmed up: the first that its model answers.
WARMED_ENDPOINTS: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS)
PROMPTS_MAX_BYTES: Final = 1 << 20
WARM_UP_PROMPT: Final = "Say hello."


def _check_metrics(value: str) -> str:
    if value in (AUTO, OFF):
        return value
    if value.startswith(("http:", "https:")):
        return check_url(value)
    found = _PATH.fullmatch(value)
    if not found or "?" in value or "#" in value or int(found["port"] or 1) not in range(1, 65536):
        raise ValueError("give `auto`, `off`, a path such as /metrics or :8002/metrics, or an address")
    return value


MetricsPlace = Annotated[
    str,
    AfterValidator(_check_metrics),
    WithJsonSchema({"type": "string", "pattern": "^(auto|off|:[0-9]+/|/|https?:)"}),
]
Prompt = Annotated[str, Field(min_length=1, max_length=100_000)]
AdapterName = Annotated[str, Field(min_length=1, max_length=256)]


class WarmUpConfig(Section):
    """Requests that a new replica answers before it gets callers'."""

    requests: Annotated[StrictInt, Field(ge=1, le=100)] = Field(
        default=3, description="How many have to be answered well, one after the other."
    )
    prompt: Prompt | None = Field(default=None, description=f"What they ask; null asks `{WARM_UP_PROMPT}`.")
    prompts_file: ResolvedPath | None = Field(
        default=None,
        description="Text file with a prompt a line, which are asked in turn; instead of `prompt`. At most 1 "
        "MiB.",
    )
    prompts: Annotated[tuple[Prompt, ...], Field(max_length=100)] = Field(
        default=(), description="Several that are asked in turn; instead of `prompt`."
    )
    output_tokens: Annotated[StrictInt, Field(ge=1, le=4096)] = Field(
        default=16, description="Tokens of each answer at most."
    )
    timeout_s: Seconds = Field(
        default=120.0,
        description="Seconds after which a replica gets callers' requests even if its warm-up has not been "
        "answered "
        "well, which the log tells. The time in which its engine says that it is loading does not count.",
    )

    @model_validator(mode="after")
    def _check_prompts(self) -> "WarmUpConfig":
        if sum((self.prompt is not None, self.prompts_file is not None, bool(self.prompts))) > 1:
            raise ValueError("give one of `prompt`, `prompts` and `prompts_file`, not several")
        return self


class LivenessConfig(Section):
    """A real generation now and then: it finds a replica that answers its port and does not generate."""

    interval_s: SecondsOrZero = Field(
        default=60.0,
        description="Seconds without a sign that it generates, after which a replica is asked for one token. "
        "0 turns it off.",
    )
    timeout_s: Seconds = Field(default=30.0, description="Seconds in which that has to be answered.")
    failures_max: Annotated[StrictInt, Field(ge=1, le=100)] = Field(
        default=2, description="After so many checks in a row that failed it is out of service."
    )


def compute_metrics_url(place: str, url: str, default: str | None) -> str | None:
    """Where a replica's metrics page is; None where it has none.

    Args:
        place: the setting `metrics`.
        url: of the replica's API.
        default: where engines of its kind have the page, as a path; None for an unknown kind.
    """
    if place == OFF:
        return None
    if place == AUTO:
        return None if default is None else _join(url, default)
    return place if place.startswith(("http:", "https:")) else _join(url, place)


def join_root(url: str, path: str) -> str:
    """A path at the root of a replica: beside `/v1`, as engines have their own."""
    return _join(url, path)


def _join(url: str, place: str) -> str:
    found = _PATH.fullmatch(place)
    assert found is not None
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    netloc = parts.netloc if found["port"] is None else f"{host}:{found['port']}"
    return str(urlunsplit((parts.scheme, netloc, found["path"], "", "")))


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a file, a line each.  Raises OSError, ValueError."""
    with path.open("rb") as file:
        data = file.read(PROMPTS_MAX_BYTES + 1)
    if len(data) > PROMPTS_MAX_BYTES:
        raise ValueError(f"it is larger than {PROMPTS_MAX_BYTES} bytes")
    prompts = tuple(line.strip() for line in data.decode("utf-8").splitlines() if line.strip())
    if not prompts:
        raise ValueError("it holds no prompt")
    return prompts
