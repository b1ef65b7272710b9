"""Gives requests that wait for places those of another table, as if they had just come.

It changes what a request knows of where it may go, and nothing of how long it has waited or may wait; who
stands where is `crowd`'s.
"""

from forebay.core.routes import Endpoint
from forebay.gateway.model import RouteState, State
from forebay.gateway.place_line import Turn
from forebay.gateway.policy.crowd import list_eligible
from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.wants import read_want

Known = tuple[Fleet, bytes, Endpoint]


class Retargeting:
    """See the module.

    Args:
        state: with the table that is in force now.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._found: dict[Known, RouteState | None] = {}  # for most who wait the answer is the same

    def move(self, turn: Turn) -> bool:
        """Whether there are other places for a request than those for which it waits.

        Nothing is changed where there are not, or none at all: a request whose key or model is gone was let
        in while they were there, and keeps to what it has.
        """
        exchange = turn.exchange
        assert exchange.key is not None
        known = turn.fleet, exchange.key.digest, exchange.endpoint
        if known not in self._found:
            self._found[known] = self._find(turn)
        route = self._found[known]
        if route is None:
            return False
        fleet = route.find_fleet(exchange.endpoint)
        want = read_want(exchange, fleet)
        exchange.state, exchange.route, exchange.cells = self._state, route, route.cells[exchange.endpoint]
        exchange.target_state = route.targets[0]
        turn.fleet, turn.tiers, turn.want = fleet, list_eligible(fleet, want), want
        return True

    def _find(self, turn: Turn) -> RouteState | None:
        """What the key may use of the model now, where that is something else."""
        exchange = turn.exchange
        assert exchange.key is not None
        key = self._state.find_key(exchange.key.digest)
        route = None if key is None else key.routes.get(turn.model)
        if route is None or not route.groups or route.queue is None or exchange.endpoint not in route.cells:
            return None
        fleet = route.find_fleet(exchange.endpoint)
        return None if set(fleet.loads) == set(turn.fleet.loads) else route
