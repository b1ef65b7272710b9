"""Compiles a snapshot into what a worker serves by: targets ready to be sent to, routes, keys.

It opens no connection and refuses no snapshot for one target's sake.
"""

import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from forebay.core.errors import TargetError, TargetMisconfigured, UpstreamCredentials
from forebay.core.routes import Endpoint, Snapshot, Target
from forebay.gateway.crossing import Crossing
from forebay.gateway.dialect import FindWay, InnerDialect
from forebay.gateway.loads import Loads
from forebay.gateway.metrics import Cells
from forebay.gateway.model import RouteState, State, TargetState
from forebay.gateway.policy.load import ReplicaLoad
from forebay.gateway.ways import Ways
from forebay.net.client import Address, Client, Origin, parse_address
from forebay.net.dialing import Proxy, parse_proxy

ReadSecret = Callable[[str], str]  #: resolves `env:NAME` or `file:PATH`; raises LookupError with a reason


def build_state(
    snapshot: Snapshot,
    *,
    client: Client,
    cells: Cells,
    read_secret: ReadSecret,
    dialect: InnerDialect,
    find_way: FindWay,
    find_forced_way: FindWay | None = None,
    loads: Loads | None = None,
    now: float | None = None,
) -> State:
    """Compiles a snapshot.  Pools of addresses that stay are kept.

    A target that is of no use has a `problem`, and is no reason to refuse the rest: a key that was revoked
    must stop working whatever else has been edited.

    Args:
        now: the loop's time, from which on places start slowly that are new; None where none does.
    """
    ways = Ways(dialect, find_way, find_forced_way)
    share: dict[Any, Any] = {}
    loads = loads or Loads()
    parts = loads.follow(snapshot.table, snapshot.quota_workers)
    targets: dict[str, TargetState] = {}
    routes: dict[str, RouteState] = {}
    for route in snapshot.table.routes:
        for target in route.targets:
            if target.id not in targets:
                load = parts.replicas.get(target.id)
                targets[target.id] = _build_target(
                    _share_values(target, share), client, cells, read_secret, ways, load
                )
        places = tuple(targets[target.id] for target in route.targets)
        groups = parts.groups.get(route.model, ())
        is_known = all(group.load.has_capacity for group in groups)
        routes[route.model] = RouteState(
            route=route,
            targets=places,
            cells={endpoint: cells.endpoint(route.model, endpoint.value) for endpoint in route.endpoints},
            places=places,
            groups=groups,
            queue=route.choosing.queue if groups and is_known else None,
            hedge=route.choosing.hedge if len(places) > 1 else None,
        )
    state = State(
        snapshot=snapshot,
        table_hash=snapshot.table.compute_hash(),
        routes=routes,
        keys={entry.digest: entry for entry in snapshot.keys},
        known={},
        filtered={},
        cells=cells,
        unknown=cells.endpoint("", ""),
        trouble=loads.trouble,
    )
    client.keep_only(target.origin for target in targets.values())
    loads.commit(parts, now)  # last: a snapshot that is refused leaves the counts of the one in force alone
    return state


def list_problems(state: State) -> list[str]:
    """Why some targets cannot be sent to, each once."""
    found = {
        target.target.id: target.problem.message
        for route in state.routes.values()
        for target in route.targets
        if target.problem is not None
    }
    return list(found.values())


def _share_values(target: Target, known: dict[Any, Any]) -> Target:
    """The same, with the values that many targets have alike kept once: requests go to another target each
    time, and what they read of it is then in the processor's caches all the same."""
    alike = (target.pool, target.tier, target.region, target.model, target.version, target.timeouts)
    pool, tier, region, model, version, timeouts = (known.setdefault(value, value) for value in alike)
    return msgspec.structs.replace(
        target, pool=pool, tier=tier, region=region, model=model, version=version, timeouts=timeouts
    )


def _build_target(
    target: Target,
    client: Client,
    cells: Cells,
    read_secret: ReadSecret,
    ways: Ways,
    load: ReplicaLoad | None,
) -> TargetState:
    problem: TargetError | None = None
    secret = ""
    heads: dict[Endpoint, bytes] = {}
    crossings: dict[Endpoint, Crossing] = {}
    forced: dict[Endpoint, Crossing] = {}
    origin = Origin(client, Address(scheme="http", host="", port=0), 0, None)  # which nobody will ask
    try:
        if target.api_key is not None:
            secret = read_secret(target.api_key)
    except LookupError as error:
        problem = UpstreamCredentials(f"the credentials of target {target.id} are missing: {error}")
    try:
        proxy = find_proxy(target, read_secret)
        address, path = parse_address(target.url, target.tls_ca, target.tls_cert, target.tls_key, proxy)
        if query := urlsplit(target.url).query:
            path += f"?{query}"
        heads, crossings = ways.build(target, address.authority, path, secret)
        forced = ways.build_forced(target, address.authority, path, secret)
        if not heads and not crossings:
            problem = TargetMisconfigured(
                f"the target {target.id} speaks `{target.dialect}`, which this Forebay does not know"
            )
        origin = client.origin(address, target.connections_max, target.id)
    except ValueError:  # its words may hold the URL, and that a password
        problem = TargetMisconfigured(f"the address of target {target.id} is of no use")
    except LookupError as error:
        what = f"the credentials for the proxy of target {target.id} are missing: {error}"
        problem = UpstreamCredentials(what)
    except OSError as error:
        files = {"tls_ca": target.tls_ca, "tls_cert": target.tls_cert}
        names = " or ".join(f"`{name}`" for name, path in files.items() if path is not None)
        reason = "it is not what it should be in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        problem = TargetMisconfigured(f"the file {names} of target {target.id} is of no use: {reason}")
    cell_ok, cell_failed = cells.attempts(target.id)
    return TargetState(
        target=target,
        origin=origin,
        heads=heads,
        crossings=crossings,
        forced=forced,
        secret=secret.encode(),
        problem=problem,
        cell_ok=cell_ok,
        cell_failed=cell_failed,
        load=load,
    )


def find_proxy(target: Target, read_secret: ReadSecret) -> Proxy | None:
    """Through which a target is reached.

    Raises LookupError where its credentials are missing, ValueError for what is no proxy.
    """
    if target.proxy in (None, "direct"):
        return None
    assert target.proxy is not None
    reference = target.proxy_credentials
    return parse_proxy(target.proxy, "" if reference is None else read_secret(reference))
