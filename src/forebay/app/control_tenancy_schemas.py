"""What the admin API takes and gives about teams, projects, keys, tokens and the audit, as types.

No secret has a field here but `KeyCreated.key` and `TokenCreated.token`, which are shown once.
"""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field, StringConstraints

from forebay.app.control_schemas import KEY_NAME_PATTERN, KeyId, View
from forebay.core.keys import Rights
from forebay.core.routes import Endpoint
from forebay.gateway.repo import OVERLAP_MAX_S
from forebay.gateway.tenancy import PATTERNS_MAX, REGIONS_MAX, TOKENS_MAX, KeyTerms, Role

YEARS_10_S = 10 * 366 * 86_400

Name = Annotated[str, StringConstraints(pattern=KEY_NAME_PATTERN)]
Owner = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
ModelPattern = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
Region = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
TokenId = Annotated[str, StringConstraints(pattern=r"^tok_[0-9a-f]{16}$")]
TierMax = Literal["provisioned", "autoscaled", "quantized", "provider"]
Priority = Literal["interactive", "standard", "batch"]


def refuse_other_types(wanted: str) -> BeforeValidator:
    """Of a number: JSON's `true` and `"1"` are none; its 1.0 is the integer 1."""

    def check(value: object) -> object:
        if isinstance(value, bool | str):
            raise ValueError(f"Input should be a valid {wanted}")
        return value

    return BeforeValidator(check)


_WHOLE = refuse_other_types("integer")  # behind the limits: before them, the document would lack them
TokenCount = Annotated[int, Field(ge=1, le=TOKENS_MAX), _WHOLE]
Lifetime = Annotated[int, Field(ge=1, le=YEARS_10_S), _WHOLE]


Models = Annotated[list[ModelPattern], Field(min_length=1, max_length=PATTERNS_MAX)]
Endpoints = Annotated[list[Endpoint], Field(max_length=len(Endpoint))]
Regions = Annotated[list[Region], Field(max_length=REGIONS_MAX)]


class RightsFields(View):
    """What a key may do, or all keys of a project."""

    models: Models = Field(default=["*"], description="Patterns over public model names; `*` is any text.")
    endpoints: Endpoints = Field(default=[], description="Paths below `/v1/`; empty is all.")
    regions: Regions = Field(
        default=[], description="Regions of targets; empty is all. A target without a region is in none."
    )
    tier_max: TierMax | None = Field(
        default=None, description="The last tier that its requests may spill to; null is any."
    )
    context_max_tokens: TokenCount | None = Field(
        default=None, description="Tokens of one request's prompt; null is what the model takes."
    )
    output_max_tokens: TokenCount | None = Field(
        default=None, description="Tokens of one request's output, all its choices together; null is any."
    )

    def make_rights(self) -> Rights:
        return Rights(
            models=tuple(self.models),
            endpoints=tuple(endpoint.value for endpoint in self.endpoints),
            regions=tuple(self.regions),
            tier_max=self.tier_max,
            context_max_tokens=self.context_max_tokens,
            output_max_tokens=self.output_max_tokens,
        )


class RightsChange(View):
    """What of the rights is to change.  What is left out stays."""

    models: Models | None = Field(
        default=None, description="Patterns over public model names; null is all, as `*` is."
    )
    endpoints: Endpoints | None = Field(default=None, description="Paths below `/v1/`; null or empty is all.")
    regions: Regions | None = Field(default=None, description="Regions of targets; null or empty is all.")
    tier_max: TierMax | None = Field(
        default=None, description="The last tier that its requests may spill to; null is any."
    )
    context_max_tokens: TokenCount | None = Field(
        default=None, description="Tokens of one request's prompt; null is what the model takes."
    )
    output_max_tokens: TokenCount | None = Field(
        default=None, description="Tokens of one request's output, all its choices together; null is any."
    )

    def apply_rights(self, before: Rights) -> Rights:
        """What was named, else as before; null is what something new has."""
        named = self.model_fields_set & set(Rights.__struct_fields__)
        given = {name: value for name in named if (value := getattr(self, name)) is not None}
        wanted = RightsFields.model_validate(given).make_rights()
        return msgspec.structs.replace(before, **{name: getattr(wanted, name) for name in named})


class RightsView(View):
    models: list[str]
    endpoints: list[str]
    regions: list[str]
    tier_max: str | None
    context_max_tokens: int | None
    output_max_tokens: int | None


# --- teams and projects -------------------------------------------------------------------------------------


class TeamPut(View):
    """A team has nothing but its name, which the path gives."""


class TeamView(View):
    name: str
    created_at_s: float


class TeamList(View):
    data: list[TeamView]


class ProjectPut(RightsFields):
    """No key of the project may do more than this."""


class ProjectChange(RightsChange):
    """No key of the project may do more than this."""


class ProjectView(RightsView):
    team: str
    name: str
    created_at_s: float


class ProjectList(View):
    data: list[ProjectView]


# --- keys ---------------------------------------------------------------------------------------------------


class KeyCreate(RightsFields):
    name: Name = Field(description="For people to recognise the key by.")
    project: Owner = "default"
    team: Owner = "default"
    priority: Priority = Field(default="standard", description="The class of its requests.")
    expires_in_s: Lifetime | None = Field(
        default=None, description="Seconds until it opens nothing any more; null is never."
    )


class KeyChange(RightsChange):
    """What of a key is to change.  Its team and its project are for ever: records bear their names."""

    # A factory, because neither may be null, and a default would be in the document.
    name: Name = Field(default_factory=str, description="For people to recognise the key by.")
    priority: Priority = Field(default_factory=lambda: "standard", description="The class of its requests.")
    expires_in_s: Lifetime | None = Field(
        default=None, description="Seconds from now until it opens nothing any more; null is never."
    )

    def apply(self, before: KeyTerms, now_ns: int) -> KeyTerms:
        """What was named, else as before."""
        named = self.model_fields_set
        expires_ns = None if self.expires_in_s is None else now_ns + self.expires_in_s * 10**9
        return KeyTerms(
            name=self.name if "name" in named else before.name,
            rights=self.apply_rights(before.rights),
            priority=self.priority if "priority" in named else before.priority,
            expires_ns=expires_ns if "expires_in_s" in named else before.expires_ns,
        )


class KeyRotate(View):
    overlap_s: Annotated[int, Field(ge=0, le=OVERLAP_MAX_S), _WHOLE] = Field(
        default=86_400, description="Seconds for which the old key still opens what the new one does."
    )
    expires_in_s: Lifetime | None = Field(
        default=None, description="Seconds until the new key ends; null takes the old one's end."
    )


class KeyView(RightsView):
    id: KeyId
    name: str
    prefix: str = Field(description="The key's first characters.")
    project: str
    team: str
    priority: str
    created_at_s: float
    expires_at_s: float | None
    revoked_at_s: float | None
    rotated_from: str | None = Field(description="Id of the key whose place it takes.")


class ReachView(View):
    """A model that a key may call, with all that holds for its project as well."""

    model: str
    endpoints: list[str]
    targets: list[str] = Field(description="Ids of the targets that its requests may be sent to.")


class KeyDetail(KeyView):
    live: bool = Field(description="Whether it opens anything at present.")
    project_rights: RightsView = Field(description="Which bound it beside its own.")
    reach: list[ReachView] = Field(description="What it may call, as the gateway has it at present.")


class KeyCreated(KeyView):
    key: str = Field(description="The key itself. It is shown this once.")


class KeyList(View):
    data: list[KeyView]


# --- tokens and the audit -----------------------------------------------------------------------------------


class TokenCreate(View):
    name: Name = Field(description="Who or what holds it.")
    role: Role = Field(
        description="`reporter` reports signals, `viewer` reads, `operator` does both and changes "
        "keys and projects, `owner` does all."
    )
    expires_in_s: Lifetime | None = Field(
        default=None, description="Seconds until it opens nothing any more; null is never."
    )


class TokenView(View):
    id: TokenId
    name: str
    prefix: str = Field(description="The token's first characters.")
    role: Role
    created_at_s: float
    expires_at_s: float | None
    revoked_at_s: float | None


class TokenCreated(TokenView):
    token: str = Field(description="The token itself. It is shown this once.")


class TokenList(View):
    data: list[TokenView]


class ActorView(View):
    id: str = Field(
        description="Of a token; `oidc:` and the subject of an identity provider's; `admin.token`, "
        "`command-line` and `forebay` are none."
    )
    name: str
    issuer: str | None = Field(description="The identity provider; null for all others.")


class AuditEventView(View):
    id: int
    at_s: float
    actor: ActorView = Field(description="Who did it.")
    action: str = Field(description="Such as `key.create`.")
    subject: str = Field(description="What was changed: an id or a name.")
    before: dict[str, Any] | None = Field(description="As it was; null for what was made.")
    after: dict[str, Any] | None = Field(description="As it is from then on.")


class AuditPage(View):
    data: list[AuditEventView] = Field(description="The newest first.")
    next_cursor: int | None = Field(description="Null on the last page.")
