"""The page that Prometheus reads costs the worker little, however many ask for it, and is never stale."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forebay.core.routes import RouteTable
from forebay.gateway.metrics import Cells, render_metrics
from forebay.gateway.metrics_layout import compute_layout
from forebay.gateway.metrics_page import PAUSE_FACTOR, MetricsPage
from forebay.testing.gateway import make_route

LAYOUT = compute_layout(RouteTable(routes=tuple(make_route(f"m{n}", "http://a/v1") for n in range(5))))


def run(test: Callable[[MetricsPage, Cells], Awaitable[None]], folder: Path) -> None:
    async def inside() -> None:
        cells = Cells(folder, "w0", LAYOUT)
        async with asyncio.timeout(60):
            await test(MetricsPage(folder), cells)
        cells.close()

    asyncio.run(inside())


def test_all_who_ask_at_once_get_the_same_page(tmp_path: Path) -> None:
    async def test(page: MetricsPage, cells: Cells) -> None:
        pages = await asyncio.gather(*(page.read() for _ in range(50)))
        assert len({id(one) for one in pages}) == 1

    run(test, tmp_path)


def test_whoever_asks_sees_what_was_counted_before(tmp_path: Path) -> None:
    """Also while the page of somebody else is being rendered."""

    async def test(page: MetricsPage, cells: Cells) -> None:
        pending = []
        begun = time.monotonic()
        for number in range(1, 40):
            cells.count_refusal("unknown_url")
            pending.append((number, asyncio.ensure_future(page.read())))
            await asyncio.sleep(0.003)
        for number, reading in pending:
            (line,) = [row for row in (await reading).splitlines() if b'"unknown_url"' in row]
            assert float(line.split()[-1]) >= number
        pages = len({id(reading.result()) for _, reading in pending})
        if time.monotonic() - begun < 0.5:  # else this process stood still between those who asked
            assert pages < 20

    run(test, tmp_path)


def test_rendering_leaves_most_of_the_time_to_others(tmp_path: Path) -> None:
    async def test(page: MetricsPage, cells: Cells) -> None:
        costs = []
        for _ in range(5):
            begun = time.perf_counter()
            render_metrics(tmp_path)
            costs.append(time.perf_counter() - begun)
        await page.read()
        begun = time.perf_counter()
        await page.read()
        # The page before cost no less than a tenth of what one cost here, whatever else the machine did.
        assert time.perf_counter() - begun > PAUSE_FACTOR * min(costs) / 10
        loop = asyncio.get_running_loop()
        before, rendered = loop.time(), page._free_at
        assert rendered > before, "and so it is after each page"

    run(test, tmp_path)


def test_a_reader_that_leaves_takes_the_page_from_nobody(tmp_path: Path) -> None:
    async def test(page: MetricsPage, cells: Cells) -> None:
        first, second = (asyncio.ensure_future(page.read()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert b"forebay_requests_total" in await second

    run(test, tmp_path)


def test_a_page_that_cannot_be_rendered_fails_alone(tmp_path: Path) -> None:
    async def test(page: MetricsPage, cells: Cells) -> None:
        lock = tmp_path / "cells" / ".lock"
        lock.unlink(missing_ok=True)
        lock.mkdir()
        with pytest.raises(OSError, match=r"\.lock"):
            await page.read()
        lock.rmdir()
        assert b"forebay_requests_total" in await page.read()

    run(test, tmp_path / "cells")
