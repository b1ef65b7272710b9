"""What engines say of themselves: used where the configuration is silent, held against it where it is not.

Pure.  It never overrides what a person has written: what an engine says otherwise is told to people.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from forebay.app.watched import PlaceKey
from forebay.core.routes import CAPABILITIES, Route, Snapshot, Target
from forebay.engines.facts import ModelFacts

NAMES_SHOWN: Final = 5


def apply_facts(snapshot: Snapshot, facts: Mapping[PlaceKey, ModelFacts]) -> Snapshot:
    """The snapshot with what nobody wrote and engines say; itself where that changes nothing."""
    if not facts:
        return snapshot
    routes = tuple(_fill_route(route, facts) for route in snapshot.table.routes)
    if all(new is old for new, old in zip(routes, snapshot.table.routes, strict=True)):
        return snapshot
    table = msgspec.structs.replace(snapshot.table, routes=routes)
    return msgspec.structs.replace(snapshot, table=table)


def _fill_route(route: Route, facts: Mapping[PlaceKey, ModelFacts]) -> Route:
    keys = ((target.url, target.model, target.api_key) for target in route.targets)
    targets = tuple(_fill(target, facts.get(key)) for target, key in zip(route.targets, keys, strict=True))
    if all(new is old for new, old in zip(targets, route.targets, strict=True)):
        return route
    return msgspec.structs.replace(route, targets=targets)


def _fill(target: Target, facts: ModelFacts | None) -> Target:
    if facts is None:
        return target
    found: dict[str, Any] = {}
    if target.context_window is None and facts.context_window is not None:
        found["context_window"] = facts.context_window
    if target.capabilities is None and facts.lacks:
        found["capabilities"] = tuple(each for each in CAPABILITIES if each not in facts.lacks)
    return msgspec.structs.replace(target, **found) if found else target


def list_contradictions(target: Target, facts: ModelFacts | None) -> list[str]:
    """Where an engine says otherwise than the configuration, for people, each with how to mend it."""
    if facts is None:
        return []
    found = []
    window = facts.context_window
    if window is not None and (target.context_window or 0) > window:
        found.append(
            f"`context_window` says {target.context_window}, the engine {window}: longer requests fail "
            "there; leave the setting out"
        )
    for name in sorted(set(target.capabilities or ()) & set(facts.lacks)):
        found.append(f"`capabilities` names {name}, which the engine says it does not take; remove it")
    if facts.served and target.model not in facts.served:
        names = ", ".join(facts.served[:NAMES_SHOWN])
        more = ", …" if len(facts.served) > NAMES_SHOWN else ""
        found.append(
            f"the engine serves no model {target.model!r} but {names}{more}; correct the target's `model`"
        )
    return found
