"""A plot of latency against throughput as SVG, one point for each level.  Pure."""

from collections.abc import Sequence
from html import escape
from typing import Final

from forebay.app.bench_files import BenchResult

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 440, 70, 170, 40, 50
#: Figure, words, colour: told apart in print and by those who see few colours, too.
LINES: Final = (
    ("median_ttft_ms", "TTFT, median", "#0072b2"),
    ("p99_ttft_ms", "TTFT, p99", "#56b4e9"),
    ("median_tpot_ms", "TPOT, median", "#009e73"),
    ("p99_tpot_ms", "TPOT, p99", "#d55e00"),
)
TICKS: Final = 5


def draw_plot(result: BenchResult) -> str:
    """Milliseconds over output tokens a second."""
    levels = sorted(result.levels, key=lambda level: level.figures.get("output_tokens_per_s", 0.0))
    xs = [level.figures.get("output_tokens_per_s", 0.0) for level in levels]
    values = [level.figures[name] for level in levels for name, _, _ in LINES if name in level.figures]
    x_max, y_max = _round_up(max(xs, default=1.0)), _round_up(max(values, default=1.0))

    def place(x: float, y: float) -> tuple[float, float]:
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + wide * x / x_max, HEIGHT - BOTTOM - high * y / y_max

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(result.target)}: latency over throughput</text>',
    ]
    for tick in range(TICKS + 1):
        x, y = x_max * tick / TICKS, y_max * tick / TICKS
        (at_x, floor), (left, at_y) = place(x, 0), place(0, y)
        end = WIDTH - RIGHT
        parts.append(f'<line x1="{left:.1f}" y1="{at_y:.1f}" x2="{end}" y2="{at_y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8:.1f}" y="{at_y + 4:.1f}" text-anchor="end">{y:g}</text>')
        parts.append(f'<text x="{at_x:.1f}" y="{floor + 18:.1f}" text-anchor="middle">{x:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">output tokens a second</text>')
    turned = f'transform="rotate(-90 16 {HEIGHT / 2})" text-anchor="middle"'
    parts.append(f'<text x="16" y="{HEIGHT / 2}" {turned}>ms</text>')
    for row, (name, words, colour) in enumerate(LINES):
        points = [
            place(x, level.figures[name])
            for x, level in zip(xs, levels, strict=True)
            if name in level.figures
        ]
        parts += _draw_line(points, words, colour, row)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_line(points: Sequence[tuple[float, float]], words: str, colour: str, row: int) -> list[str]:
    if not points:
        return []
    listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
    at_x, at_y = WIDTH - RIGHT + 16, TOP + 10 + 20 * row
    return [
        f'<polyline points="{listed}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *dots,
        f'<circle cx="{at_x}" cy="{at_y}" r="4" fill="{colour}"/>',
        f'<text x="{at_x + 10}" y="{at_y + 4}">{escape(words)}</text>',
    ]


def _round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    step = 1.0
    while step < value:
        step *= 10
    while step / 10 >= value > 0:
        step /= 10
    return next(step * part for part in (0.1, 0.2, 0.5, 1.0) if step * part >= value) if value > 0 else 1.0
