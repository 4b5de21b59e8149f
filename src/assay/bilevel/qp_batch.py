r"""A batch of quadratic programs in units that do not depend on how they were stated.

The objective is divided by its largest quadratic coefficient and every row by its norm. Multipliers and slacks then
have the units of the unknowns, so that they can be compared, and tolerances mean the same whatever the scale of the
data. The batch keeps copies: what the user does to the tensors later changes neither gradients nor certificates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from assay.bilevel.qp_ghost import EqualitySystem, QuadraticForm
from assay.bilevel.qp_rows import UnitRows
from assay.bilevel.qp_solvers import QPSolution, QPSolver

__all__ = ["DIMS", "QPBatch"]

DIMS = (2, 1, 2, 1, 2, 1)


class QPBatch:
    r"""Data of a batch; what the instances share is kept once.

    Parameters
    ----------
    arrays : list of numpy.ndarray
        Q, q, G, h, A, b, each with or without a batch dimension.
    size : int
        Number of instances.
    eps : float
        For the factors of the forms.
    """

    def __init__(self, arrays: list[Float[ndarray, " ..."]], size: int, eps: float):
        self.size = size
        self.shared = [array.ndim == dims for array, dims in zip(arrays, DIMS, strict=True)]
        Q, q, G, h, A, b = arrays
        self.forms = _forms(Q, eps)
        self.scale = np.broadcast_to([form.scale for form in self.forms], size).copy()
        linear = np.broadcast_to(np.abs(q).max(axis=-1), size)
        self.scale[self.scale == 0.0] = linear[self.scale == 0.0]  # a linear program
        self.scale[self.scale == 0.0] = 1.0
        self._G, self._A = ([UnitRows.of(one) for one in (part[None] if part.ndim == 2 else part)] for part in (G, A))
        self.norms, self.equality_norms = (np.stack([one.norms for one in kept]) for kept in (self._G, self._A))
        self.q = q / self.scale[:, None]
        self.h = np.broadcast_to(h / self.norms, (size, h.shape[-1]))
        self.b = np.broadcast_to(b / self.equality_norms, (size, b.shape[-1]))
        self.reach = np.maximum.reduce([_size(self.q), _size(self.b), _least_size(self.h)])
        self.reach[self.reach == 0.0] = 1.0
        self.one_matrix = self.shared[2] and self.shared[4]
        self._kept: dict[str, tuple[int, Any]] = {}

    def raw(self, arrays: list[Float[ndarray, " ..."]], index: int) -> list[Float[ndarray, " ..."]]:
        """The data of one instance as they were given."""
        return [array if shared else array[index] for array, shared in zip(arrays, self.shared, strict=True)]

    def normalised(self, found: QPSolution, index: int) -> QPSolution:
        """A solution of the data as they were given, in the units of the batch."""
        norms, equality_norms = (kept[index % len(kept)] for kept in (self.norms, self.equality_norms))
        return replace(
            found,
            multipliers=found.multipliers * norms / self.scale[index],
            equality_multipliers=found.equality_multipliers * equality_norms / self.scale[index],
        )

    def solved_by(self, solver: QPSolver, index: int) -> QPSolution:
        """Solution of an instance, whose vectors are scaled where the solver's absolute tolerances call for it."""
        sizes = [min(1.0, self.reach[index])]
        if self.reach[index] > 1.0:  # only where it does not do without: one large entry would spoil all others
            sizes.append(self.reach[index])
        failure: ValueError | None = None
        for size in sizes:
            try:
                found = solver.solve(self.q[index] / size, self.h[index] / size, self.b[index] / size, index)
            except ValueError as error:
                failure = failure or error
            else:
                return replace(
                    found,
                    point=found.point * size,
                    multipliers=found.multipliers * size,
                    equality_multipliers=found.equality_multipliers * size,
                )
        raise failure

    @property
    def n_equations(self) -> int:
        """Number of equations of every instance."""
        return self.b.shape[1]

    def _once(self, what: str, index: int, make: Callable[[], Any]) -> Any:
        """What the rows determine: made once if all instances share them, otherwise kept for the latest one."""
        index = 0 if self.one_matrix else index
        if what not in self._kept or self._kept[what][0] != index:
            self._kept[what] = index, make()
        return self._kept[what][1]

    def form(self, index: int) -> QuadraticForm:
        """The quadratic form of an instance, over its scale."""
        return self.forms[0 if self.shared[0] else index]

    def rows(self, index: int) -> UnitRows:
        """Equations above inequalities."""
        G, A = (kept[index % len(kept)] for kept in (self._G, self._A))
        return self._once("rows", index, lambda: A.above(G)) if len(A) else G

    def picked(self, active: Int[ndarray, " k"]) -> Int[ndarray, " e"]:
        """Places of the equations and of some inequalities."""
        return np.append(np.arange(self.n_equations), self.n_equations + active) if self.n_equations else active

    def system(self, index: int, active: Int[ndarray, " k"]) -> EqualitySystem:
        """The system of the equations and some inequalities."""
        return EqualitySystem(self.form(index), self.rows(index), self.picked(active))

    def forget(self) -> None:
        """Drop what can be made again."""
        self._kept.clear()

    def values(self, points: Float[ndarray, "k n"], which: Int[ndarray, " k"]) -> Float[ndarray, "k rows"]:
        """Rows times points, of some instances."""
        if self.one_matrix:
            return self.rows(0).times(points)
        pairs = zip(which.tolist(), points, strict=True)
        return np.concatenate([self.rows(index).times(point[None]) for index, point in pairs])

    def _adjoint(self, weights: Float[ndarray, "k rows"], which: Int[ndarray, " k"]) -> Float[ndarray, "k n"]:
        if self.one_matrix:
            return self.rows(0).adjoint(weights)
        pairs = zip(which.tolist(), weights, strict=True)
        return np.concatenate([self.rows(index).adjoint(weight[None]) for index, weight in pairs])

    def _times(self, points: Float[ndarray, "k n"], which: Int[ndarray, " k"]) -> Float[ndarray, "k n"]:
        if self.shared[0]:
            return self.forms[0].times(points)
        return np.stack([self.forms[index].times(point) for index, point in zip(which.tolist(), points, strict=True)])

    def residuals(
        self,
        points: Float[ndarray, "k n"],
        lam: Float[ndarray, "k m"],
        nu: Float[ndarray, "k p"],
        which: Int[ndarray, " k"],
    ) -> tuple[Float[ndarray, " k"], Float[ndarray, "k m"]]:
        """Largest violation of the optimality conditions, relative to the terms that it consists of; and the slacks.

        Of an inequality, what counts is the smaller one of slack and multiplier, and how negative either is.
        """
        q, h, b = self.q[which], self.h[which], self.b[which]
        values = self.values(points, which)
        equal, slack = values[:, : b.shape[1]] - b, h - values[:, b.shape[1] :]
        terms = self._times(points, which), q, self._adjoint(np.concatenate([nu, lam], axis=1), which)
        largest = np.maximum.reduce([np.abs(term) for term in terms])
        force, reach = _size(largest), np.maximum.reduce([_size(points), _size(b), _least_size(h)])
        force, reach = _floor(force, reach), _floor(reach, force)
        both = np.minimum(slack / np.maximum(np.abs(h) + np.abs(slack), reach), lam / force)
        worst = [
            _size(sum(terms) / np.maximum(largest, force)),
            _size(equal / np.maximum(np.abs(b) + np.abs(equal), reach)),
            _size(both),
        ]
        return np.maximum.reduce(worst) + 0.0, slack  # no -0


def _floor(size: Float[ndarray, " k"], other: Float[ndarray, " k"]) -> Float[ndarray, "k 1"]:
    """What small terms are compared with: 1 or the size of all of them, unless that is huge."""
    size = np.where(size > 0, size, np.where(other > 0, other, 1.0))
    return np.maximum(np.minimum(size, 1.0), 1e-6 * size)[:, None]


def _forms(Q: Float[ndarray, "*B n n"], eps: float) -> list[QuadraticForm]:
    if Q.ndim == 2:
        return [QuadraticForm(Q, eps)]
    forms = []
    for index, one in enumerate(Q):
        try:
            forms.append(QuadraticForm(one, eps))
        except ValueError as error:
            raise ValueError(f"{error} for instance {index}") from None
    return forms


def _size(rows: Float[ndarray, "k d"]) -> Float[ndarray, " k"]:
    return np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0))


def _least_size(rows: Float[ndarray, "k d"]) -> Float[ndarray, " k"]:
    """Smallest entry that is not 0; bounds that are there for form only are huge."""
    sizes = np.abs(rows)
    least = np.where(sizes > 0, sizes, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(least), least, 0.0)
