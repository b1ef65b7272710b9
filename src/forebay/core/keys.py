"""Keys as the data plane sees them: a digest, an owner, and what the key may do.  Pure.

A key reads `fb-` and 43 characters of base64url (32 random bytes).  Because it holds 256 random bits, one
SHA-256 is enough at rest: there is no dictionary to try.
"""

import hashlib
from fnmatch import fnmatchcase
from typing import Final

import msgspec

KEY_PREFIX: Final = "fb-"
ALL_MODELS: Final = ("*",)
#: Kinds of capacity in the order in which load spills; a key may be barred from the later ones.
TIERS: Final = ("provisioned", "autoscaled", "quantized", "provider")
PRIORITIES: Final = ("interactive", "standard", "batch")
#: What a key and its project share nothing of: no endpoint and no region has this name.
NONE: Final = ("-",)


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """What a key may do.  An empty tuple and None mean "whatever there is"."""

    models: tuple[str, ...] = ALL_MODELS  #: glob patterns over public model names
    endpoints: tuple[str, ...] = ()  #: paths below `/v1/`
    regions: tuple[str, ...] = ()  #: of targets; one without a region is in none of them
    tier_max: str | None = None  #: the last of `TIERS` that its requests may spill to
    context_max_tokens: int | None = None  #: of one request
    output_max_tokens: int | None = None  #: of one request, all its choices together


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One live key in a snapshot, with its project's rights narrowed by its own."""

    id: str
    digest: bytes  #: SHA-256 of the whole key, 32 bytes
    name: str
    prefix: str  #: the first characters, for people to recognise it by
    project: str = "default"
    team: str = "default"
    models: tuple[str, ...] = ALL_MODELS  #: glob patterns over public model names
    project_models: tuple[str, ...] = ALL_MODELS  #: patterns of the project, which must match as well
    expires_ns: int | None = None  #: wall clock from which on it opens nothing
    endpoints: tuple[str, ...] = ()  #: as in `Rights`, and what follows too
    regions: tuple[str, ...] = ()
    tier_max: str | None = None
    context_max_tokens: int | None = None
    output_max_tokens: int | None = None
    priority: str = "standard"  #: one of `PRIORITIES`
    limits: tuple[str, ...] = ()  #: ids of the limits that apply

    def allows(self, model: str) -> bool:
        """Whether it may call the public name, as far as patterns say."""
        return _matches(self.models, model) and _matches(self.project_models, model)

    def allows_endpoint(self, endpoint: str) -> bool:
        return not self.endpoints or endpoint in self.endpoints

    def allows_target(self, tier: str, region: str) -> bool:
        """Whether its requests may be sent to a target of this tier and region."""
        if self.regions and region not in self.regions:
            return False
        return self.tier_max is None or (tier in TIERS and TIERS.index(tier) <= TIERS.index(self.tier_max))


def narrow_rights(project: Rights, own: Rights) -> Rights:
    """What both allow, but for models: patterns have no common part that is one, so `models` are the own."""
    return Rights(
        models=own.models,
        endpoints=_share(project.endpoints, own.endpoints),
        regions=_share(project.regions, own.regions),
        tier_max=_find_lowest_tier(project.tier_max, own.tier_max),
        context_max_tokens=_find_least(project.context_max_tokens, own.context_max_tokens),
        output_max_tokens=_find_least(project.output_max_tokens, own.output_max_tokens),
    )


def compute_key_digest(key: str | bytes) -> bytes:
    """SHA-256 of a key, 32 bytes."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def _matches(patterns: tuple[str, ...], model: str) -> bool:
    return patterns == ALL_MODELS or any(fnmatchcase(model, pattern) for pattern in patterns)


def _share(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    if not one or not other:
        return one or other
    return tuple(each for each in other if each in one) or NONE


def _find_lowest_tier(one: str | None, other: str | None) -> str | None:
    given = [tier for tier in (one, other) if tier is not None]
    return min(given, key=TIERS.index) if given else None


def _find_least(one: int | None, other: int | None) -> int | None:
    given = [limit for limit in (one, other) if limit is not None]
    return min(given) if given else None
