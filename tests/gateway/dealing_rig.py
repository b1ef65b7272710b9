"""Workers, a board and places in a time of their own: what is dealt, told late, taken and given back."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from random import Random

from forebay.core.limits import QueueRules
from forebay.core.routes import Choosing, Endpoint, Order, Route, RouteTable, Target
from forebay.gateway.board import hear_news
from forebay.gateway.claims import Claims
from forebay.gateway.loads import Loads
from forebay.gateway.policy.dealing import Dealing
from forebay.gateway.policy.load import PoolLoad
from forebay.gateway.policy.merging import Merging
from forebay.gateway.policy.news import News, PlaceCount

TELL_S, HURRY_S, DEAL_S = 0.2, 0.005, 0.002
TOKENS = 100


class SimWorker:
    """Keeps a line of its own before one pool, and tells what it has in it."""

    def __init__(self, sim: "Simulation", name: str) -> None:
        self.sim, self.name = sim, name
        self.line: deque[tuple[float, float, int]] = deque()  # when it came, how long it takes, its tokens
        self.waits: list[float] = []
        self.served = self.seq = 0
        self.is_alive = True
        self.hurries = self.is_heard = False
        self.told: tuple[int, int] = (0, 0)
        self.loads = Loads()
        parts = self.loads.follow(RouteTable(routes=(sim.route,)), sim.workers)
        self.loads.commit(parts)
        self.pool = parts.groups["m"][0].load
        self.claims = Claims(self.loads, self)
        (self.place,) = self.loads.by_id.values()

    def count_waiting(self, pool: PoolLoad) -> tuple[int, int]:
        return len(self.line), sum(tokens for _, _, tokens in self.line)

    def look_at(self, pools: Iterable[PoolLoad], now: float) -> None:
        self.serve()

    def come(self, seconds: float, tokens: int) -> None:
        was_empty = not self.line
        self.line.append((self.sim.now, seconds, tokens))
        self.serve()
        if was_empty and self.line:
            self.hurry()

    def serve(self) -> None:
        while self.is_alive and self.line and self.pool.has_room(self.sim.now):
            came, seconds, tokens = self.line.popleft()
            self.waits.append(self.sim.now - came)
            self.place.begin(tokens, self.sim.now)
            self.sim.begin(tokens)
            self.sim.after(seconds, lambda tokens=tokens: self.end(tokens))

    def end(self, tokens: int) -> None:
        self.sim.end(tokens)
        if not self.is_alive:
            return
        self.served += 1
        self.place.end(tokens, self.sim.now)
        if self.pool.is_overfilled:
            self.hurry()
        self.serve()

    def hurry(self) -> None:
        if not self.hurries:
            self.hurries = True
            self.sim.after(HURRY_S, self._tell_soon)

    def _tell_soon(self) -> None:
        self.hurries = False
        self.tell()

    def tell_forever(self) -> None:
        if self.is_alive:
            self.tell()
            self.sim.after(TELL_S, self.tell_forever)

    def tell(self) -> None:
        if not self.is_alive:
            return
        own = (
            self.place.requests - self.place.others_requests,
            self.place.tokens - self.place.others_tokens,
        )
        counts = (PlaceCount(self.place.id, *own),) if own != self.told else ()
        self.told = own
        news = News(counts=counts, claims=tuple(self.claims.take(self.sim.now)))
        self.sim.send(f"to board {self.name}", lambda: self.sim.note(self.name, news))

    def hear(self, news: News) -> None:
        if not self.is_alive:
            return
        hear_news(self.loads, news, self.sim.now)
        if not self.is_heard:
            self.is_heard = True
            self.hurry()
        if news.allotments:
            self.claims.hear(news.allotments, self.sim.now)
            self.tell()
        self.serve()


class Simulation:
    """See the module.

    Args:
        delay_s: that a message takes at the most; those of one line keep their order.
    """

    def __init__(
        self,
        workers: int,
        requests_max: int | None,
        seed: int,
        delay_s: float = 0.02,
        tokens_max: int | None = None,
    ) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.workers, self.delay_s = workers, delay_s
        target = Target(
            id="t", pool="p", url="http://t", model="m", requests_max=requests_max, tokens_max=tokens_max
        )
        rules = QueueRules()
        choosing = Choosing(order=Order.LOAD, queue=rules)
        self.route = Route(model="m", endpoints=(Endpoint.CHAT,), targets=(target,), choosing=choosing)
        self.merging, self.dealing = Merging(), Dealing()
        self.busy = self.peak = self.tokens = self.tokens_peak = self.messages = 0
        self.busy_s = self.counted_at = 0.0
        self.by_name: dict[str, SimWorker] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._lines: dict[str, float] = {}
        self._deals = False
        for number in range(workers):
            self.join(f"w{number:02}")
        self.after(0.1, self._tell_forever)

    # --- time -----------------------------------------------------------------------------------------------

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), do))

    def run_until(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = until

    def send(self, line: str, do: Callable[[], None]) -> None:
        self.messages += 1
        at = max(self._lines.get(line, 0.0), self.now + self.random.random() * self.delay_s)
        self._lines[line] = at
        self.after(at - self.now, do)

    # --- places ---------------------------------------------------------------------------------------------

    def begin(self, tokens: int) -> None:
        self._count(1, tokens)
        self.peak, self.tokens_peak = max(self.peak, self.busy), max(self.tokens_peak, self.tokens)

    def end(self, tokens: int) -> None:
        self._count(-1, -tokens)

    def _count(self, more: int, tokens: int) -> None:
        self.busy_s += self.busy * (self.now - self.counted_at)
        self.counted_at = self.now
        self.busy += more
        self.tokens += tokens

    def measure_use(self, seconds: float, capacity: float) -> float:
        """What part of the capacity is in use in the next while."""
        self._count(0, 0)
        before = self.busy_s
        self.run_until(self.now + seconds)
        self._count(0, 0)
        return (self.busy_s - before) / seconds / capacity

    # --- the board ------------------------------------------------------------------------------------------

    def join(self, name: str) -> SimWorker:
        worker = self.by_name[name] = SimWorker(self, name)
        self.merging.join(name)
        self._tell(name)
        self.after(self.random.random() * TELL_S, worker.tell_forever)
        return worker

    def kill(self, name: str) -> None:
        """It dies with all that it has; its requests end soon after."""
        self.by_name.pop(name).is_alive = False
        self.merging.leave(name)
        self.dealing.leave(name)

    def note(self, name: str, news: News) -> None:
        if name not in self.by_name:
            return
        self.merging.note(name, news, self.now)
        self.dealing.note(name, news.claims)
        if news.claims and not self._deals:
            self._deals = True
            self.after(DEAL_S, self._deal)

    def _deal(self) -> None:
        self._deals = False
        for name in self.dealing.deal(self.now):
            self._tell(name)

    def _tell_forever(self) -> None:
        self.dealing.deal(self.now)
        for name in tuple(self.by_name):
            self._tell(name)
        self.after(0.1, self._tell_forever)

    def _tell(self, name: str) -> None:
        taken = self.merging.take(name)
        news = News(counts=taken.counts, workers=taken.workers, allotments=self.dealing.take(name))
        worker = self.by_name[name]
        self.send(f"to {name}", lambda: worker.hear(news))
