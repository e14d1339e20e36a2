"""Non-negative least squares on the last few hundred samples."""

from __future__ import annotations

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

Coefficients = tuple[float, float, float, float]
Sums = list[float]
"""The normal equations: the upper triangle of X'WX by rows, and after each row its element of X'Wy."""


class NonNegative(Remembering):
    """y = c0 + c1 a + c2 b + c3 c, fitted so that the *relative* error is small, with every coefficient >= 0.

    The weight of a sample is 1 / (expected value)^2. Each coefficient is shrunk towards its prior (ridge regression).
    Sums are made block by block and old blocks are dropped whole. No sum is ever subtracted from another, so rounding
    errors do not add up.
    """

    __slots__ = ("_blocks", "_new", "_priors", "coefficients", "samples")

    def __init__(self, priors: Coefficients) -> None:
        self._priors = priors
        self._blocks: list[Sums] = []
        self._new: list[tuple[float, float, float, float, float]] = []
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

    def add(self, a: float, b: float, c: float, y: float, weight: float) -> None:
        """Learn a sample: the features, and the value `y` (> 0) that was measured. `weight` (0-1]: confidence in the
        sample.
        """
        self._new.append((a, b, c, y, weight))
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
        matrix = [[0.0] * 4 for _ in range(4)]
        target = [0.0] * 4
        at = iter(sums)
        for i, prior in enumerate(self._priors):
            for j in range(i, 4):
                matrix[i][j] = matrix[j][i] = next(at)
            target[i] = next(at)
            ridge = NOISE * NOISE / (prior * prior)
            matrix[i][i] += ridge
            target[i] += ridge * prior
        c0, c1, c2, c3 = nnls(matrix, target)
        self.coefficients = (c0, c1, c2, c3)

    def _sum_up(self) -> Sums:
        """Sums of the samples since the last full block. The sums are written out for speed: this is the only loop over
        all samples.
        """
        s11 = s1a = s1b = s1c = s1y = saa = sab = sac = say = sbb = sbc = sby = scc = scy = 0.0
        for a, b, c, y, weight in self._new:
            # If weights were computed from y, samples that are short by chance would weigh more. So y only bounds the
            # expected value.
            expected = min(max(self.predict(a, b, c), y / 3.0), y * 3.0)
            w = weight / (expected * expected)
            wa, wb, wc = w * a, w * b, w * c
            s11 += w
            s1a += wa
            s1b += wb
            s1c += wc
            s1y += w * y
            saa += wa * a
            sab += wa * b
            sac += wa * c
            say += wa * y
            sbb += wb * b
            sbc += wb * c
            sby += wb * y
            scc += wc * c
            scy += wc * y
        return [s11, s1a, s1b, s1c, s1y, saa, sab, sac, say, sbb, sbc, sby, scc, scy]


def nnls(matrix: list[list[float]], target: list[float]) -> list[float]:
    """Returns the x >= 0 that minimises x'Mx/2 - t'x. M is `matrix`, which must be positive definite; t is `target`
    (Lawson and Hanson 1974, chapter 23).
    """
    n = len(target)
    x = solve(matrix, target, list(range(n)))
    if min(x) >= 0.0:
        return x  # the unconstrained solution is feasible, as almost always
    x = [0.0] * n
    passive: list[int] = []
    for _ in range(3 * n):
        entering, steepest = -1, 0.0
        for i in range(n):
            if i not in passive:
                slope = target[i] - sum(matrix[i][j] * x[j] for j in passive)
                # The slope is scaled by the diagonal, so that the unit of a feature does not matter.
                slope /= matrix[i][i] ** 0.5
                if slope > steepest + 1e-9 * abs(target[i]):
                    entering, steepest = i, slope
        if entering < 0:
            break
        passive.append(entering)
        solution = solve(matrix, target, passive)
        while min(solution) <= 0.0:
            # Go towards the solution until a variable reaches zero. That variable leaves the passive set.
            pairs = list(zip(passive, solution, strict=True))
            step, leaving = min((x[i] / (x[i] - s) if x[i] > s else 0.0, i) for i, s in pairs if s <= 0.0)
            for i, s in pairs:
                x[i] += step * (s - x[i])
            x[leaving] = 0.0
            passive.remove(leaving)
            if not passive:
                return x
            solution = solve(matrix, target, passive)
        for i, s in zip(passive, solution, strict=True):
            x[i] = s
    return x


def solve(matrix: list[list[float]], target: list[float], chosen: list[int]) -> list[float]:
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
