"""Non-negative least squares on the last few hundred samples, in two stages where a feature depends on the value."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from gateway.core.estimators.memory import Remembering

BLOCK: Final = 40
"""The coefficients are fitted again after each block of this many samples."""
BLOCKS: Final = 10
"""Blocks in the window: the last 400 samples count."""
FIRST: Final = 10
"""Number of samples at the first fit."""
NOISE: Final = 0.3
"""Assumed relative error of one sample. That of the prior is 1. Their ratio sets how soon samples outweigh the prior.
"""
TIMES: Final = 3.0
"""The value that gives a sample its weight is at most this many times off the measured one, and below the usual."""

Coefficients = tuple[float, float, float, float]
Sums = list[float]
"""The normal equations: the upper triangle of Z'WZ by rows, after each row its elements of Z'Wc and Z'Wy. Z has the
columns 1, a, b and the instrument.
"""


class NonNegative(Remembering):
    """y = c0 + c1 a + c2 b + c3 c, fitted so that the *relative* error is small, with every coefficient >= 0.

    The weight of a sample is 1 / (expected value)^2. Each coefficient is shrunk towards its prior (ridge regression).
    Where c was measured with y, an error of y is in both, and least squares would explain y by c alone. An instrument
    varies with c, but has no part in that error. c is projected on 1, a, b and the instrument, and y is fitted with the
    projection (two-stage least squares, Theil 1953).

    Sums are made block by block and old blocks are dropped whole. No sum is ever subtracted from another, so rounding
    errors do not add up.
    """

    __slots__ = ("_blocks", "_new", "_priors", "coefficients", "samples")

    def __init__(self, priors: Coefficients) -> None:
        self._priors = priors
        self._blocks: list[Sums] = []
        self._new: list[tuple[float, float, float, float, float, float]] = []
        self.coefficients = priors
        self.samples = 0
        """Samples added since the start."""

    def remembered(self) -> tuple[str, ...]:
        return "coefficients", "samples", "_blocks"

    def recall(self, memory: object, shift_s: float) -> None:
        super().recall(memory, shift_s)
        self._blocks = [sums for sums in self._blocks if len(sums) == len(self._sum_up())]

    def predict(self, a: float, b: float, c: float) -> float:
        """The fitted value for these features."""
        c0, c1, c2, c3 = self.coefficients
        return c0 + c1 * a + c2 * b + c3 * c

    def add(self, a: float, b: float, c: float, y: float, weight: float, instrument: float | None = None) -> None:
        """Learn a sample: the features, and the value `y` (> 0) that was measured. `weight` (0-1]: confidence in the
        sample. `instrument`: that of c; None if c was not measured with y.
        """
        self._new.append((a, b, c, y, weight, c if instrument is None else instrument))
        self.samples += 1
        if len(self._new) == BLOCK or self.samples == FIRST:
            self._fit()

    def forget(self) -> None:
        """Keep only the newest quarter of the samples, because the older ones are outdated."""
        del self._blocks[: len(self._blocks) - BLOCKS // 4]

    def _fit(self) -> None:
        block = self._sum_up()
        del self._blocks[: 1 - BLOCKS]
        sums = [sum(column) for column in zip(*self._blocks, block, strict=True)]
        if len(self._new) == BLOCK:
            self._blocks.append(block)
            self._new = []
        columns = range(len(self._priors))
        matrix = [[0.0] * len(columns) for _ in columns]
        measured, target = [0.0] * len(columns), [0.0] * len(columns)
        at = iter(sums)
        for i in columns:
            for j in columns[i:]:
                matrix[i][j] = matrix[j][i] = next(at)
            measured[i], target[i] = next(at), next(at)
        if measured != matrix[-1]:  # c is not its own instrument
            _project(matrix, measured, target)
        for i, prior in enumerate(self._priors):
            ridge = NOISE * NOISE / (prior * prior)
            matrix[i][i] += ridge
            target[i] += ridge * prior
        c0, c1, c2, c3 = nnls(matrix, target)
        self.coefficients = (c0, c1, c2, c3)

    def _sum_up(self) -> Sums:
        """Sums of the samples since the last full block."""
        sums = [0.0] * 18
        usual = sorted([y for _, _, _, y, _, _ in self._new])[len(self._new) // 2] if self._new else 0.0
        for a, b, c, y, weight, z in self._new:
            # Weights computed from y would favour samples that are short by chance. So y only bounds the guess.
            expected = max(min(max(self.predict(a, b, c), y / TIMES), y * TIMES), usual / TIMES)
            columns = 1.0, a, b, z, c, y
            at = 0
            for i, row in enumerate(columns[:-2]):
                weighed = weight / (expected * expected) * row
                for column in columns[i:]:
                    sums[at] += weighed * column
                    at += 1
        return sums


def _project(matrix: list[list[float]], measured: list[float], target: list[float]) -> None:
    """Turn the normal equations of the instrument (Z'WZ, Z'Wy) into those of the projection of c, whose products with
    the other columns are those of c. `measured`: Z'Wc.
    """
    columns = range(len(target))
    for i in columns:  # a column may be all zeros, or a multiple of another
        matrix[i][i] += 1e-9 * matrix[i][i] + 1e-300
    share = solve(matrix, measured, columns)
    target[-1] = sum(target[j] * share[j] for j in columns)
    matrix[-1] = [*measured[:-1], sum(measured[j] * share[j] for j in columns)]
    for i in columns[:-1]:
        matrix[i][-1] = measured[i]


def nnls(matrix: list[list[float]], target: list[float]) -> list[float]:
    """Returns the x >= 0 that minimises x'Mx/2 - t'x. M is `matrix`, which must be positive definite; t is `target`.

    Where the minimum is above 0 in some columns, it is the unconstrained minimum in them. So all sets of columns are
    tried: 15 for four coefficients.
    """
    columns = range(len(target))
    best, least = solve(matrix, target, columns), 0.0
    if min(best) >= 0.0:
        return best  # as almost always
    best = [0.0] * len(target)
    for size in columns:
        for chosen in combinations(columns, size):
            solution = solve(matrix, target, chosen)
            value = -sum(target[i] * x for i, x in zip(chosen, solution, strict=True))
            if value < least and min(solution) >= 0.0:
                placed = dict(zip(chosen, solution, strict=True))
                best, least = [placed.get(i, 0.0) for i in columns], value
    return best


def solve(matrix: list[list[float]], target: list[float], chosen: Sequence[int]) -> list[float]:
    """The solution of `matrix x = target` in the chosen rows and columns. The matrix must be positive definite."""
    n = len(chosen)
    rows = [[matrix[i][j] for j in chosen] + [target[i]] for i in chosen]
    for i in range(n):
        pivot = rows[i]
        for row in rows[i + 1 :]:
            factor = row[i] / pivot[i]
            for k in range(i, n + 1):
                row[k] -= factor * pivot[k]
    solution = [0.0] * n
    for i in range(n - 1, -1, -1):
        rest = rows[i][n]
        for k in range(i + 1, n):
            rest -= rows[i][k] * solution[k]
        solution[i] = rest / rows[i][i]
    return solution
