"""Whether a place generates, and not only answers its port: judged by a real generation now and then.

Pure: it absorbs what was seen, with the time at which it was, and says when a check is due and what follows.
A place whose counters rise is evidently generating and is not asked.  What may be no fault of the engine (it
is busy, it wants another key or name) is no opinion.
"""

from dataclasses import dataclass
from typing import Final

from forebay.app.config_engines import LivenessConfig

RETRY_S: Final = 5.0  #: between two checks of a place that failed the last, unless its interval is shorter
PROMPT: Final = "Hi"
OUTPUT_TOKENS: Final = 1


@dataclass(slots=True)
class Liveness:
    """Of one place.

    Attributes:
        rules: how it is checked; None where it is not.
        alive_at: when it was last seen to generate; None if it never was.
        is_stuck: whether it answers and does not generate.
        error: what the last check said, where it failed.
    """

    rules: LivenessConfig | None = None
    alive_at: float | None = None
    is_stuck: bool = False
    error: str = ""
    _failures: int = 0
    _since: float | None = None  #: of the last check, or when it was seen first
    _generated: float | None = None

    def see_counter(self, generated: float | None, now: float) -> None:
        """What an engine says it has generated since it began to count."""
        before, self._generated = self._generated, generated
        if before is not None and generated is not None and generated > before:
            self.note_alive(now)

    def is_due(self, now: float) -> bool:
        """Whether it is time to check."""
        rules = self.rules
        if rules is None or rules.interval_s <= 0:
            return False
        if self._since is None:
            self._since = now
        last = max(self._since, self.alive_at or self._since)
        return now - last >= (min(RETRY_S, rules.interval_s) if self._failures else rules.interval_s)

    def note_alive(self, now: float) -> None:
        self.alive_at, self._failures, self.is_stuck, self.error = now, 0, False, ""

    def note_check(self, error: str, now: float, *, is_opinion: bool) -> None:
        """A check has ended: well where there is no error.

        Args:
            is_opinion: whether an error says that the engine does not generate.
        """
        self._since = now
        if not error:
            self.note_alive(now)
            return
        self.error = error
        if is_opinion and self.rules is not None:
            self._failures += 1
            self.is_stuck = self._failures >= self.rules.failures_max
