"""Costs learned from what was seen: least squares on the last few hundred samples, with no coefficient below zero."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 40
"""Samples after which the coefficients are fitted again."""
BLOCKS = 10
"""Full blocks that are kept: the window is the last 400 samples."""
NOISE = 0.3
"""Relative error that is taken for granted: with the prior's own, of 100%, it says how soon samples outweigh it."""


class NonNegative:
    """y = sum of coefficients x features, fitted so that the *relative* error is small.

    Each sample weighs 1/y^2; each coefficient is drawn to its prior as if that had been seen once with a relative
    error of 1 (ridge). Sums are kept by block of `BLOCK` samples, so that forgetting takes nothing away and no
    rounding error adds up.
    """

    __slots__ = ("_blocks", "_current", "_fill", "_priors", "coefficients", "samples", "size")

    def __init__(self, priors: Sequence[float]) -> None:
        self.size = len(priors)
        self._priors = list(priors)
        self._blocks: list[list[float]] = []
        self._current = self._empty()
        self._fill = 0
        self.coefficients = list(priors)
        self.samples = 0
        """Ever added."""

    def _empty(self) -> list[float]:
        return [0.0] * (self.size * (self.size + 3) // 2)

    def predict(self, features: Sequence[float]) -> float:
        """What the samples seen so far say of these features."""
        total = 0.0
        for i, coefficient in enumerate(self.coefficients):
            total += coefficient * features[i]
        return total

    def add(self, features: Sequence[float], y: float, weight: float = 1.0) -> None:
        """Learn that `features` gave `y` (> 0); `weight` (0-1] says how sure that is."""
        sums = self._current
        weight /= y * y
        k = 0
        for i in range(self.size):
            scaled = weight * features[i]
            for j in range(i, self.size):
                sums[k] += scaled * features[j]
                k += 1
            sums[k] += scaled * y
            k += 1
        self.samples += 1
        self._fill += 1
        if self._fill == BLOCK or self.samples == BLOCK // 4:
            self._fit()

    def halve(self) -> None:
        """Forget the older half: what they say is no longer so."""
        del self._blocks[: (len(self._blocks) + 1) // 2]

    def _fit(self) -> None:
        if self._fill == BLOCK:
            self._blocks.append(self._current)
            self._current = self._empty()
            self._fill = 0
            if len(self._blocks) > BLOCKS:
                del self._blocks[0]
        n = self.size
        sums = [sum(column) for column in zip(*self._blocks, self._current, strict=True)]
        matrix = [[0.0] * n for _ in range(n)]
        target = [0.0] * n
        k = 0
        for i in range(n):
            for j in range(i, n):
                matrix[i][j] = matrix[j][i] = sums[k]
                k += 1
            target[i] = sums[k]
            k += 1
        for i, prior in enumerate(self._priors):
            ridge = NOISE * NOISE / (prior * prior)
            matrix[i][i] += ridge
            target[i] += ridge * prior
        self.coefficients = nnls(matrix, target)


def nnls(matrix: list[list[float]], target: list[float]) -> list[float]:
    """The x >= 0 that minimises x'Mx/2 - t'x, for a positive definite M (Lawson and Hanson 1974, chapter 23)."""
    n = len(target)
    x = [0.0] * n
    passive: list[int] = []
    scale = [max(abs(target[i]), 1e-300) for i in range(n)]
    for _ in range(3 * n):
        best, steepest = -1, 1e-9
        for i in range(n):
            if i not in passive:
                slope = (target[i] - sum(matrix[i][j] * x[j] for j in passive)) / scale[i]
                if slope > steepest:
                    best, steepest = i, slope
        if best < 0:
            break
        passive.append(best)
        while passive:
            solution = _solve(matrix, target, passive)
            if min(solution) > 0.0:
                break
            # Go as far towards the solution as stays feasible; what hits zero on the way leaves.
            pairs = list(zip(passive, solution, strict=True))
            step = min((x[i] / (x[i] - s) if x[i] > s else 0.0) for i, s in pairs if s <= 0.0)
            for i, s in pairs:
                x[i] += step * (s - x[i])
            left = [i for i, s in pairs if s > 0.0 or x[i] > 1e-12 * abs(s)]
            if len(left) == len(passive):
                left = left[:-1]
            for i in passive:
                if i not in left:
                    x[i] = 0.0
            passive = left
        else:
            continue
        for i, s in zip(passive, solution, strict=True):
            x[i] = s
    return x


def _solve(matrix: list[list[float]], target: list[float], chosen: list[int]) -> list[float]:
    """Gauss with diagonal pivots, for the rows and columns that are chosen of a positive definite matrix."""
    n = len(chosen)
    rows = [[matrix[i][j] for j in chosen] + [target[i]] for i in chosen]
    for i in range(n):
        pivot = rows[i]
        for row in rows[i + 1 :]:
            factor = row[i] / pivot[i]
            if factor:
                for k in range(i, n + 1):
                    row[k] -= factor * pivot[k]
    solution = [0.0] * n
    for i in range(n - 1, -1, -1):
        rest = rows[i][n] - sum(rows[i][k] * solution[k] for k in range(i + 1, n))
        solution[i] = rest / rows[i][i]
    return solution
