"""What happens to a request before it is sent anywhere: whose it is, its body, and whether it may go.

It owns the account of body bytes in flight, so that no crowd of callers can fill the memory.
"""

from forebay.core.clock import Clock
from forebay.core.errors import BodyTooLarge, Overloaded, Unauthenticated
from forebay.core.keys import compute_key_digest
from forebay.core.routes import Endpoint
from forebay.gateway.call import BodyOverflow, Call
from forebay.gateway.model import Dialect, Exchange, KeyState, State
from forebay.gateway.policy.admit import explain_refusal
from forebay.gateway.policy.attempt import Attempts

KNOWN_MAX = 10_000  #: keys whose digest need not be computed again


class Intake:
    """See the module."""

    def __init__(self, dialect: Dialect, clock: Clock) -> None:
        self._dialect = dialect
        self._monotonic_ns = clock.monotonic_ns
        self._memory = 0  # bytes of bodies held

    def admit(self, exchange: Exchange, key: KeyState) -> None:
        """Reads what the request wants, and makes its plan; raises the refusal if it may not have it."""
        view = self._dialect.read_request(exchange.body)
        model, endpoint, state = view.model, exchange.endpoint, exchange.state
        route = state.routes.get(model)
        if route is None or model not in key.allowed or endpoint not in route.cells:
            raise explain_refusal(model, endpoint, route.route if route else None, key.allowed)
        exchange.view = view
        exchange.model = model
        exchange.route = route
        exchange.cells = route.cells[endpoint]
        exchange.stream = view.stream is True and endpoint is not Endpoint.EMBEDDINGS
        exchange.tries = Attempts(
            made=0, limit=state.snapshot.table.attempts_max, targets_left=len(route.targets)
        )

    def authenticate(self, state: State, call: Call) -> KeyState:
        """Whose request it is.

        Raises:
            Unauthenticated: no key, or none that we know.
        """
        credential = call.headers.get(b"authorization")
        key = state.known.get(credential) if credential is not None else None
        if key is not None:
            return key
        if credential is None:
            state.cells.count_refusal("unauthenticated")
            raise Unauthenticated("no API key: send it as `Authorization: Bearer fb-…`")
        scheme, _, secret = credential.partition(b" ")
        key = state.find_key(compute_key_digest(secret.strip())) if scheme.lower() == b"bearer" else None
        if key is None:
            state.cells.count_refusal("unauthenticated")
            raise Unauthenticated("the API key is wrong, expired or revoked")
        if len(state.known) < KNOWN_MAX:
            state.known[credential] = key
        return key

    def is_whole(self, exchange: Exchange) -> bool:
        """Whether the body is here already, as small ones are, and has been taken into account."""
        call = exchange.call
        if not call.body_done:
            return False
        limits = exchange.state.snapshot.limits
        return call.received <= limits.body_max_bytes and self._reserve(
            exchange, call.received, limits.memory_max_bytes
        )

    async def read_body(self, exchange: Exchange) -> bytes:
        call = exchange.call
        limits = exchange.state.snapshot.limits
        size_max = limits.body_max_bytes
        call.body_max = size_max
        if call.length is None:
            # Of unknown length, so each piece is taken into account before it is held.
            call.grow = lambda more: self._reserve(exchange, more, limits.memory_max_bytes)
        elif call.length > size_max:
            raise _too_large(size_max)
        if not self._reserve(exchange, call.length or call.received, limits.memory_max_bytes):
            raise Overloaded("too many bytes are in flight; try again shortly", retry_after_s=1)
        begun = self._monotonic_ns()
        try:
            body = await call.body()
        except BodyOverflow:
            if call.received > size_max:
                raise _too_large(size_max) from None
            raise Overloaded("too many bytes are in flight; try again shortly", retry_after_s=1) from None
        finally:
            exchange.waited_ns += self._monotonic_ns() - begun
        return body

    def release(self, exchange: Exchange) -> None:
        """Gives the body's bytes back, once the request has ended."""
        self._memory -= exchange.body_bytes

    def _reserve(self, exchange: Exchange, more: int, memory_max: int) -> bool:
        """Takes bytes of a body into account before they are held; False when that would be too many."""
        if self._memory + more > memory_max:
            return False
        self._memory += more
        exchange.body_bytes += more
        return True


def _too_large(size_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {size_max} bytes (gateway.body_max_bytes)")
