"""Least squares by hand, for a handful of unknowns: Levenberg and Marquardt's way.  Pure.

The functions that are fitted are simulations, which are not quite smooth, so steps of the derivatives are
large, and a step is only taken if it helps.
"""

from collections.abc import Callable, Sequence

Vector = list[float]
STEP = 0.02  #: of each unknown, for derivatives
DAMPING, DAMPING_MAX = 1e-2, 1e8
ENOUGH = 1e-3  #: by which share the sum must shrink, or else it is at its end


def fit(
    compute: Callable[[Vector], Vector], start: Sequence[float], rounds: int = 20
) -> tuple[Vector, float]:
    """The unknowns for which the sum of the squares of what `compute` says is least, and that sum."""
    at = list(start)
    errors = compute(at)
    least, damping = _add_squares(errors), DAMPING
    for _ in range(rounds):
        slopes = [_derive(compute, at, errors, which) for which in range(len(at))]
        before = least
        while damping < DAMPING_MAX:
            there = [x + step for x, step in zip(at, _find_step(slopes, errors, damping), strict=True)]
            found = compute(there)
            total = _add_squares(found)
            if total < least:
                at, errors, least, damping = there, found, total, damping / 5
                break
            damping *= 4
        if before - least <= ENOUGH * before:
            break
    return at, least


def _derive(compute: Callable[[Vector], Vector], at: Vector, errors: Vector, which: int) -> Vector:
    there = list(at)
    there[which] += STEP
    return [(new - old) / STEP for new, old in zip(compute(there), errors, strict=True)]


def _find_step(slopes: Sequence[Vector], errors: Vector, damping: float) -> Vector:
    """(JᵀJ + damping · diag) step = -Jᵀ errors."""
    size = len(slopes)
    matrix = [[_multiply(slopes[row], slopes[column]) for column in range(size)] for row in range(size)]
    for at in range(size):
        matrix[at][at] += damping * max(matrix[at][at], 1e-6)
    return solve(matrix, [-_multiply(slope, errors) for slope in slopes])


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> Vector:
    """The solution of linear equations, by Gauss with pivots; the matrix must have an inverse."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for at in range(size):
        best = max(range(at, size), key=lambda row: abs(rows[row][at]))
        rows[at], rows[best] = rows[best], rows[at]
        for below in range(at + 1, size):
            share = rows[below][at] / rows[at][at]
            rows[below] = [a - share * b for a, b in zip(rows[below], rows[at], strict=True)]
    found = [0.0] * size
    for at in reversed(range(size)):
        known = sum(rows[at][after] * found[after] for after in range(at + 1, size))
        found[at] = (rows[at][size] - known) / rows[at][at]
    return found


def _multiply(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _add_squares(values: Sequence[float]) -> float:
    return sum(value * value for value in values)
