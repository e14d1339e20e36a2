"""A sparse linear program, solved by HiGHS. It needs scipy, an optional dependency: `pip install tailgate[sim]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Terms = Sequence[tuple[int, float]]
"""(variable, coefficient) pairs."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The value of the optimum, the values of variables, and the shadow price of each row."""

    value: float
    variables: list[float]
    prices: list[float]


@dataclass(slots=True)
class _Rows:
    at: list[int] = field(default_factory=list)
    variables: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def add(self, terms: Terms, right: float) -> int:
        row = len(self.right)
        self.right.append(right)
        for variable, factor in terms:
            self.at.append(row)
            self.variables.append(variable)
            self.factors.append(factor)
        return row


@dataclass(slots=True)
class Program:
    """Maximises a linear function of variables between 0 and their bounds, under linear constraints."""

    gains: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    _limits: _Rows = field(default_factory=_Rows)
    _equal: _Rows = field(default_factory=_Rows)

    def variable(self, most: float, gain: float = 0.0) -> int:
        """Add a variable between 0 and `most`. Each unit adds `gain` to the objective. Returns its number."""
        self.gains.append(gain)
        self.most.append(most)
        return len(self.most) - 1

    def at_most(self, terms: Terms, right: float) -> int:
        """Add the constraint: sum of terms <= right. Returns the number of the row."""
        return self._limits.add(terms, right)

    def balanced(self, terms: Terms) -> None:
        """Add the constraint: sum of terms = 0."""
        self._equal.add(terms, 0.0)

    def solve(self) -> Solution:
        """Solve the program. Raises RuntimeError if there is no optimum, and ImportError without scipy."""
        if not self.most:
            return Solution(0.0, [], [0.0] * len(self._limits.right))
        import numpy as np
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        def matrix(rows: _Rows) -> object:
            shape = (len(rows.right), len(self.most))
            return csr_array((rows.factors, (rows.at, rows.variables)), shape=shape) if rows.right else None

        found = linprog(
            -np.asarray(self.gains),
            A_ub=matrix(self._limits),
            b_ub=self._limits.right or None,
            A_eq=matrix(self._equal),
            b_eq=self._equal.right or None,
            bounds=np.column_stack([np.zeros(len(self.most)), self.most]),
            method="highs",
        )
        if found.status != 0:
            raise RuntimeError(f"HiGHS found no optimum: {found.message}")
        prices = [-float(price) for price in found.ineqlin.marginals] if self._limits.right else []
        return Solution(-float(found.fun), [float(x) for x in found.x], prices)
