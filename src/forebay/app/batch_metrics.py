"""What batches are doing, for Prometheus: a page on disk, which the gateway's `/metrics` ends with.

It is written anew each second and counts while it is young: of a process that is gone nothing is known.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

from forebay.app.atomic_file import write_atomically
from forebay.batch.runner import Runner, Standing
from forebay.core.clock import Clock
from forebay.gateway.metrics_page import BATCH_PAGE

INTERVAL_S: Final = 1.0

logger = logging.getLogger("forebay.batch")


class BatchMetrics:
    """See the module.

    Args:
        folder: where the workers keep their counters.
    """

    def __init__(self, runner: Runner, folder: Path, clock: Clock) -> None:
        self._runner = runner
        self._path = folder / BATCH_PAGE
        self._clock = clock

    async def run(self) -> None:
        """Until it is cancelled."""
        is_told = False
        while True:
            page = write_page(self._runner.measure(), self._clock.wall_ns())
            try:
                await asyncio.to_thread(write_atomically, self._path, page, durable=False)
                is_told = False
            except OSError as error:
                if not is_told:
                    logger.error("the metrics of batches can't be written: %s", error)
                is_told = True
            await asyncio.sleep(INTERVAL_S)


def write_page(standing: Standing, now_ns: int) -> bytes:
    """Pure."""
    oldest_ns = standing.oldest_ns
    age_s = 0.0 if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / 1e9)
    lines: list[str] = []
    for name, kind, words, samples in (
        ("forebay_batches_unfinished", "gauge", "Batches that have not ended.", {"": standing.batches}),
        ("forebay_batch_oldest_age_seconds", "gauge", "Of the oldest of them.", {"": round(age_s, 3)}),
        (
            "forebay_batch_lines",
            "gauge",
            "Lines of batches that run, by state.",
            {
                '{state="waiting"}': standing.waiting,
                '{state="in_flight"}': standing.in_flight,
                '{state="unwritten"}': standing.unwritten,
            },
        ),
        (
            "forebay_batch_lines_written_total",
            "counter",
            "Lines that were written since this process began, by file.",
            {'{file="output"}': standing.completed, '{file="error"}': standing.failed},
        ),
    ):
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{labels} {value}" for labels, value in samples.items()]
    return ("\n".join(lines) + "\n").encode()
