"""What happens to a request before it is sent anywhere: whose it is, its body, and whether it may go.

It takes each byte of a body into account before it is held, and none before it has come.
"""

from hmac import compare_digest

from forebay.core.batch_calls import INNER_PREFIX
from forebay.core.clock import Clock
from forebay.core.errors import BodyTooLarge, ForebayError, Overloaded, Unauthenticated
from forebay.core.keys import KeyEntry, compute_key_digest
from forebay.core.routes import Endpoint
from forebay.gateway.call import BodyOverflow, Call
from forebay.gateway.memory import OVERLOADED, Memory
from forebay.gateway.model import Exchange, KeyState, RequestView, State
from forebay.gateway.policy.admit import explain_refusal
from forebay.gateway.policy.attempt import Attempts

ANTHROPIC_PATHS = "/v1/messages"  #: below it a key may come as Anthropic's clients send it
KNOWN_MAX = 10_000  #: keys whose digest need not be computed again


class Intake:
    """See the module."""

    def __init__(self, clock: Clock, memory: Memory) -> None:
        self._monotonic_ns = clock.monotonic_ns
        self._memory = memory
        self.batch_secret = b""  #: of the process that runs batches; empty: there is none

    def admit(self, exchange: Exchange, key: KeyState) -> None:
        """Reads what the request wants, and makes its plan; raises the refusal if it may not have it."""
        view = exchange.dialect.read_request(exchange.body)
        model, endpoint = view.model, exchange.endpoint
        exchange.stream = view.stream is True and endpoint is not Endpoint.EMBEDDINGS
        route = key.routes.get(model)
        cells = route.cells.get(endpoint) if route is not None else None
        if route is None or cells is None:
            raise self._refuse(exchange, model, key)
        exchange.model = model
        exchange.view = view
        exchange.route = route
        exchange.cells = cells
        if key.is_bounded:
            exchange.view = self._bound(exchange, view, key.entry)
        targets = route.targets
        exchange.tries = Attempts(exchange.state.snapshot.table.attempts_max, len(targets))
        if targets:
            exchange.target_state = targets[0]
        elif not any(map(exchange.redirect, route.route.fallbacks)):
            raise self._refuse(exchange, model, key)

    def _refuse(self, exchange: Exchange, model: str, key: KeyState) -> ForebayError:
        state = exchange.state.routes.get(model)
        if state is None:
            return explain_refusal(model, exchange.endpoint, None, key.entry, key.routes)
        exchange.model = model  # a name from the configuration, also where the request is refused
        return explain_refusal(model, exchange.endpoint, state.route, key.entry, key.routes)

    def _bound(self, exchange: Exchange, view: RequestView, entry: KeyEntry) -> RequestView:
        """The request within the key's limits; raises if it wants more than they allow."""
        body, endpoint = exchange.body, exchange.endpoint
        if entry.context_max_tokens is not None:
            exchange.dialect.check_context(body, endpoint, entry.context_max_tokens)
        if entry.output_max_tokens is not None:
            return exchange.dialect.cap_output(body, view, endpoint, entry.output_max_tokens)
        return view

    def authenticate(self, state: State, call: Call, now_ns: int) -> KeyState:
        """Whose request it is.

        Args:
            now_ns: the wall clock, for keys that end by themselves.

        Raises:
            Unauthenticated: no key, or none that opens anything.
        """
        credential = call.headers.get(b"authorization")
        key = _find_key(state, credential, now_ns, self.batch_secret) if credential is not None else None
        if key is not None:
            return key
        own = call.headers.get(b"x-api-key") if call.path.startswith(ANTHROPIC_PATHS) else None
        if own is not None:
            # Beside it, Anthropic's clients may have sent a token that is for others.
            credential = call.headers[b"authorization"] = b"Bearer " + own
            key = _find_key(state, credential, now_ns)
        if key is None:
            state.cells.count_refusal("unauthenticated")
            if credential is None:
                raise Unauthenticated("no API key: send it as `Authorization: Bearer fb-…`")
            raise Unauthenticated("the API key is wrong, expired or revoked")
        return key

    def take_whole(self, exchange: Exchange) -> bool:
        """Takes a body that is here already, as small ones are; False, with nothing taken, for others."""
        call = exchange.call
        size = call.received
        if not call.body_done or size > exchange.state.snapshot.limits.body_max_bytes:
            return False
        if not self._memory.take(size):
            return False
        exchange.body_bytes = size
        exchange.body = call.take_body()
        exchange.reading = False
        return True

    async def read_body(self, exchange: Exchange) -> bytes:
        call = exchange.call
        call.body_max = size_max = exchange.state.snapshot.limits.body_max_bytes
        announced = call.length or 0
        if announced > size_max:
            raise _too_large(size_max)
        # An announcement reserves nothing, for it costs the caller nothing.
        if not self._memory.has_room_for(announced) or not self._reserve(exchange, call.received):
            raise Overloaded(OVERLOADED, retry_after_s=1)
        call.grow = lambda more: self._reserve(exchange, more)
        begun = self._monotonic_ns()
        try:
            return await call.body()
        except BodyOverflow:
            if call.received > size_max:
                raise _too_large(size_max) from None
            raise Overloaded(OVERLOADED, retry_after_s=1) from None
        finally:
            call.grow = None  # it holds the exchange, which holds the call
            exchange.waited_ns += self._monotonic_ns() - begun

    def _reserve(self, exchange: Exchange, more: int) -> bool:
        """Takes bytes of a body into account before they are held; False when that would be too many."""
        if not self._memory.take(more):
            return False
        exchange.body_bytes += more
        return True


def _find_key(state: State, credential: bytes, now_ns: int, batch_secret: bytes = b"") -> KeyState | None:
    """The key that a credential opens now."""
    key = state.known.get(credential)
    if key is not None:
        return key if now_ns < key.expires_ns else None
    scheme, _, secret = credential.partition(b" ")
    secret = secret.strip()
    key = state.find_key(compute_key_digest(secret)) if scheme.lower() == b"bearer" else None
    if key is None and batch_secret and secret.startswith(INNER_PREFIX):
        key = _find_key_for_batches(state, secret, batch_secret)
    if key is None or now_ns >= key.expires_ns:
        return None
    # In its plain spelling alone: of the others, one key has too many.
    if credential == b"Bearer " + secret and len(state.known) < KNOWN_MAX:
        state.known[credential] = key
    return key


def _find_key_for_batches(state: State, secret: bytes, expected: bytes) -> KeyState | None:
    """The key that a line of a batch is asked for: the process that runs them says which, and who it is."""
    given, _, key_id = secret.partition(b".")
    if not compare_digest(given, expected):
        return None
    return state.find_key_for_batches(key_id.decode("latin-1"))


def _too_large(size_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {size_max} bytes (gateway.body_max_bytes)")
