"""The parts of the herd benchmark: its engine under load, when its callers come, and what is counted."""

import asyncio
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"


def load(name: str) -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCH))


def make_herd(callers: ModuleType, good: list[float], refused: int = 0, late: int = 0) -> Any:
    herd = callers.Herd(came=len(good) + refused + late, late=late, refused_s=[0.001] * refused)
    herd.good += good
    return herd


@pytest.mark.parametrize(("rate", "ramp_s", "seconds"), [(40, 1.0, 4.0), (800, 1.0, 3.0), (10, 0.5, 2.0)])
def test_a_crowd_comes_at_its_rate_after_its_ramp(rate: float, ramp_s: float, seconds: float) -> None:
    arrivals = list(load("herd_callers").plan_arrivals(rate, ramp_s, seconds))
    assert arrivals == sorted(arrivals)
    assert abs(len(arrivals) - rate * (seconds - ramp_s / 2)) <= 2
    assert abs(sum(at < ramp_s for at in arrivals) - rate * ramp_s / 2) <= 2


def test_more_than_the_engine_serves_at_once_makes_all_slower_and_far_more_of_them_less_in_all() -> None:
    engine = load("herd_engine").Engine(10, 0.25)
    speeds = []
    for count in (1, 10, 20, 40, 200):
        engine.count = count
        speeds.append(engine.compute_speed() * count)
    assert speeds[:3] == [1, 10, 10]
    assert speeds[2] > speeds[3] > speeds[4] > 0


def test_the_engine_answers_all_and_forgets_who_left() -> None:
    parts = load("herd_engine")

    class Peer:
        answered = 0

        def write(self, data: bytes) -> None:
            self.answered += 1

    async def run() -> tuple[list[int], float]:
        engine = parts.Engine(2, 0.05)
        loop = asyncio.get_running_loop()
        began = engine.at = loop.time()
        connections = [parts.Connection(engine) for _ in range(5)]
        for connection in connections:
            connection.transport = Peer()
            connection.data_received(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{")
            connection.data_received(b"}")
        connections[0].connection_lost(None)
        async with asyncio.timeout(60):
            while engine.count:
                await asyncio.sleep(0.005)
        return [connection.transport.answered for connection in connections], loop.time() - began

    answered, taken_s = asyncio.run(run())
    assert answered == [0, 1, 1, 1, 1]
    assert taken_s >= 0.099  # four at half speed


def test_figures_go_by_the_best_of_all_loads_and_the_plot_is_svg() -> None:
    herd, callers = load("herd"), load("herd_callers")
    names = ["forebay", "forebay_without_queue"]
    steady = [4 + number / 40 for number in range(200)]
    herds = {(name, times): make_herd(callers, steady) for name in names for times in herd.TIMES}
    herds["forebay", 20] = make_herd(callers, steady[::2], refused=100, late=50)
    figures = {figure.name: figure for figure in herd.compute_figures(herds, 10.0, names)}
    assert figures["goodput_at_20x_ratio"].value == pytest.approx(0.5, abs=0.02)
    assert figures["goodput_at_20x_ratio"].holds is False
    assert figures["late_at_20x_share"].value == pytest.approx(0.2)
    lines = ET.fromstring(herd.plot(herds, 10.0, names)).findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len(herds)
