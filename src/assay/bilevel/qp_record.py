"""A batch of quadratic programs, and what a layer keeps of a call for its backward pass and its certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from assay.bilevel.ffo_faces import ActiveRule
from assay.bilevel.qp_ghost import EqualitySystem, QuadraticForm, SingleRows, first_order_move
from assay.bilevel.qp_solvers import QPSolution
from assay.validation import warn_not_converged

__all__ = [
    "DIMS",
    "QPBatch",
    "QPOptions",
    "QPRecord",
    "active_set",
    "form_of",
    "norms_of",
    "polished_solution",
    "products_of",
    "residual_of",
    "system_of",
]

DIMS = (2, 1, 2, 1, 2, 1)
_LARGEST_DENSE = 300
_POLISHED = 1e-9


@dataclass(frozen=True)
class QPOptions:
    """What the constructor was given."""

    delta: float
    eps: float
    rule: ActiveRule
    polish: bool
    inner: str
    central: bool
    solver: str | Callable[..., Any]
    solver_args: Mapping[str, Any]
    tol: float
    max_iter: int


class QPBatch:
    """Data of a batch; matrices without a batch dimension are kept once."""

    def __init__(self, arrays: list[Float[ndarray, " ..."]], size: int):
        self.arrays, self.size = arrays, size
        self.shared = [array.ndim == dims for array, dims in zip(arrays, DIMS, strict=True)]
        self._kept: dict[tuple[str, int], Any] = {}

    def at(self, index: int) -> tuple[Float[ndarray, " ..."], ...]:
        """Data of one instance."""
        return tuple(array if shared else array[index] for array, shared in zip(self.arrays, self.shared, strict=True))

    def once(self, what: str, positions: tuple[int, ...], index: int, make: Callable[[], Any]) -> Any:
        """What depends on some of the data: made once if all of them are shared, otherwise for every instance."""
        key = (what, 0 if all(self.shared[position] for position in positions) else index)
        if key not in self._kept:
            self._kept = {kept: value for kept, value in self._kept.items() if kept[0] != what}
            self._kept[key] = make()
        return self._kept[key]

    def forget(self, *names: str) -> None:
        """Drop what was kept under these names."""
        self._kept = {kept: value for kept, value in self._kept.items() if kept[0] not in names}


@dataclass(eq=False)
class QPRecord:
    """Solutions of a batch, and what the backward pass needs."""

    data: QPBatch
    options: QPOptions
    points: Float[ndarray, "B n"]
    multipliers: Float[ndarray, "B m"]
    equality_multipliers: Float[ndarray, "B p"]
    active: list[Int[ndarray, " ..."]]
    systems: list[EqualitySystem | None]
    statuses: tuple[str, ...]
    accurate: Bool[ndarray, " B"]
    polished: Bool[ndarray, " B"]
    capped: Bool[ndarray, " B"]
    iterations: Int[ndarray, " B"]
    upstream: Float[ndarray, "B n"] | None = field(default=None)

    @property
    def delta(self) -> float:
        """Size of the perturbation."""
        return self.options.delta

    @property
    def central(self) -> bool:
        """Whether differences are central."""
        return self.options.central

    @property
    def exact_in_delta(self) -> bool:
        """Whether gradients do not depend on ``delta``."""
        return self.central and self.options.inner == "direct"

    @property
    def output_shape(self) -> tuple[int, int]:
        """Shape of an upstream gradient."""
        return self.points.shape[0], self.points.shape[1]

    def measured(self) -> dict[str, Float[ndarray, " B"]]:
        """Residual, independence, margin and number of active constraints, by instance."""
        columns: dict[str, list[float]] = {"residual": [], "independence": [], "margin": [], "n_active": []}
        for index, (point, lam, nu) in enumerate(
            zip(self.points, self.multipliers, self.equality_multipliers, strict=True)
        ):
            data = self.data.at(index)
            norms = norms_of(self.data, index)
            form = form_of(self.data, index, self.options.eps)
            rows = products_of(self.data, index)
            columns["residual"].append(residual_of(data, form, rows, norms, point, lam, nu))
            slack = (data[3] - data[2] @ point) / norms
            columns["margin"].append(float(np.maximum(slack, lam * norms).min(initial=np.inf)))
            rows = np.vstack([data[4], data[2][self.active[index]]])
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows / np.where(norms > 0, norms, 1.0)
            least = np.inf if not len(rows) else float(np.linalg.svd(rows, compute_uv=False)[-1])
            columns["independence"].append(0.0 if len(rows) > rows.shape[1] else least)
            columns["n_active"].append(len(rows))
        return {name: np.array(column, dtype=float) for name, column in columns.items()}

    def moves(
        self, upstream: Float[ndarray, "B n"]
    ) -> tuple[Float[ndarray, "B n"], Float[ndarray, "B m"], Float[ndarray, "B p"]]:
        """Minimisers and multipliers of the ghost problems, over ``delta``; they are linear in it."""
        step, lam, nu = np.zeros(self.points.shape), np.zeros(self.multipliers.shape), self.equality_multipliers * 0.0
        unfinished, n_equations = 0.0, nu.shape[1]
        for index, row in enumerate(upstream):
            if not row.any():
                continue
            active = self.active[index]
            if self.options.inner == "direct":
                step[index], multipliers = self._system(index).solve(row)
            else:
                data = self.data.at(index)
                form = form_of(self.data, index, self.options.eps)
                rows = np.vstack([data[4], data[2][active]])
                step[index], multipliers, self.iterations[index], residual = first_order_move(
                    form, rows, row, self.options.tol, self.options.max_iter
                )
                unfinished = max(unfinished, residual)
            nu[index], lam[index, active] = multipliers[:n_equations], multipliers[n_equations:]
        if unfinished > self.options.tol:
            warn_not_converged("FFOQPLayer", int(self.iterations.max()), unfinished, self.options.tol, stacklevel=5)
        return step, lam, nu

    def _system(self, index: int) -> EqualitySystem:
        if self.systems[index] is None:
            self.systems[index] = system_of(self.data, index, self.active[index], self.options.eps)
        return self.systems[index]

    def gradients(
        self, upstream: Float[ndarray, "B n"], delta: float, needed: tuple[bool, ...] = (True,) * 6
    ) -> list[Float[ndarray, " ..."] | None]:
        """Gradients by the six data, summed over the batch for those that it shares."""
        step, lam, nu = self.moves(upstream)
        # Central differences: the mean of both sides, in which the second-order term of Q cancels.
        bend = 0.0 if self.central else 0.5 * delta
        middle = self.points + bend * step
        return self._products(step, middle, lam, nu, needed)

    def _products(
        self,
        step: Float[ndarray, "B n"],
        middle: Float[ndarray, "B n"],
        lam: Float[ndarray, "B m"],
        nu: Float[ndarray, "B p"],
        needed: tuple[bool, ...],
    ) -> list[Float[ndarray, " ..."] | None]:
        makers: tuple[Callable[[bool], Float[ndarray, " ..."]], ...] = (
            lambda shared: _two_outer(0.5 * step, middle, middle, 0.5 * step, shared),
            lambda shared: _total(step, shared),
            lambda shared: _two_outer(self.multipliers, step, lam, self.points, shared),
            lambda shared: -_total(lam, shared),
            lambda shared: _two_outer(self.equality_multipliers, step, nu, self.points, shared),
            lambda shared: -_total(nu, shared),
        )
        return [
            make(shared) if wanted else None
            for make, shared, wanted in zip(makers, self.data.shared, needed, strict=True)
        ]

    def gradient(self, upstream: Float[ndarray, "B n"], delta: float) -> Float[ndarray, " k"]:
        """All gradients in a row."""
        return np.concatenate([np.ravel(part) for part in self.gradients(upstream, delta)])

    def implicit_gradient(self, upstream: Float[ndarray, "B n"]) -> Float[ndarray, " k"]:
        """The same by implicit differentiation with a dense system."""
        if self.points.shape[1] > _LARGEST_DENSE:
            raise ValueError(f"check_gradient must have at most {_LARGEST_DENSE} unknowns, got {self.points.shape[1]}")
        solved = [
            _dense_kkt(self.data.at(index), *row)
            for index, row in enumerate(
                zip(self.points, self.multipliers, self.equality_multipliers, upstream, strict=True)
            )
        ]
        step, lam, nu = (np.stack(parts) for parts in zip(*solved, strict=True))
        return np.concatenate([np.ravel(part) for part in self._products(step, self.points, lam, nu, (True,) * 6)])


def _two_outer(
    one: Float[ndarray, "B k"],
    by_one: Float[ndarray, "B n"],
    other: Float[ndarray, "B k"],
    by_other: Float[ndarray, "B n"],
    shared: bool,
) -> Float[ndarray, " ..."]:
    """Sum of two outer products, by instance or over the batch; nothing of its size is made besides."""
    left, right = np.stack([one, other], axis=1), np.stack([by_one, by_other], axis=1)
    if shared:
        size = 2 * len(one)
        return left.reshape(size, one.shape[1]).T @ right.reshape(size, by_one.shape[1])
    return left.mT @ right


def _total(rows: Float[ndarray, "B k"], shared: bool) -> Float[ndarray, " ..."]:
    return rows.sum(axis=0) if shared else rows


def _dense_kkt(
    data: tuple[Float[ndarray, " ..."], ...],
    point: Float[ndarray, " n"],
    lam: Float[ndarray, " m"],
    nu: Float[ndarray, " p"],
    upstream: Float[ndarray, " n"],
) -> tuple[Float[ndarray, " n"], Float[ndarray, " m"], Float[ndarray, " p"]]:
    """Implicit differentiation of all optimality conditions; it does not look at an active set."""
    Q, _, G, h, A, _ = data
    n, m, p = point.size, lam.size, nu.size
    matrix = np.block(
        [
            [0.5 * (Q + Q.T), G.T * lam, A.T],
            [G, np.diag(G @ point - h), np.zeros((m, p))],
            [A, np.zeros((p, m)), np.zeros((p, p))],
        ]
    )
    found = np.linalg.lstsq(matrix, np.concatenate([-upstream, np.zeros(m + p)]), rcond=1e-14)[0]
    return found[:n], lam * found[n : n + m], found[n + m :]


def _row_norms(rows: Float[ndarray, "m n"]) -> Float[ndarray, " m"]:
    norms = np.linalg.norm(rows, axis=1)
    return np.where(norms > 0, norms, 1.0)


def residual_of(
    data: tuple[Float[ndarray, " ..."], ...],
    form: QuadraticForm,
    rows: Any,
    norms: Float[ndarray, " m"],
    point: Float[ndarray, " n"],
    lam: Float[ndarray, " m"],
    nu: Float[ndarray, " p"],
) -> float:
    """Largest violation of the optimality conditions, relative to the terms that they consist of."""
    _, q, _, h, _, b = data
    values = rows @ point
    pieces = (form.times(point), q, rows.T @ np.concatenate([nu, lam]))
    size = 1.0 + max(_most(piece) for piece in pieces)
    slack, weight = (h - values[b.size :]) / norms, lam * norms
    reach = 1.0 + _most(point) + _most(h) + _most(b)
    strength = 1.0 + _most(weight)
    return max(
        _most(pieces[0] + pieces[1] + pieces[2]) / size,
        -float(slack.min(initial=0.0)) / reach,
        _most(values[: b.size] - b) / reach,
        -float(weight.min(initial=0.0)) / strength,
        _most(slack * weight) / (reach * strength),
    )


def _most(vector: Float[ndarray, " k"]) -> float:
    return max(float(vector.max()), -float(vector.min())) if vector.size else 0.0


def norms_of(data: QPBatch, index: int) -> Float[ndarray, " m"]:
    """Norms of the rows of ``G``, 1 for a row of zeros."""
    return data.once("norms", (2,), index, lambda: _row_norms(data.at(index)[2]))


def form_of(data: QPBatch, index: int, eps: float) -> QuadraticForm:
    """The form, with its factor."""
    return data.once("form", (0,), index, lambda: QuadraticForm(data.at(index)[0], eps))


def _rows_of(data: QPBatch, index: int) -> Float[ndarray, "rows n"]:
    _, _, G, _, A, _ = data.at(index)
    return data.once("rows", (2, 4), index, lambda: np.vstack([A, G])) if len(A) else G


def products_of(data: QPBatch, index: int) -> Any:
    """``A`` above ``G`` for products: sparse where that is faster."""

    def make() -> Any:
        rows = _rows_of(data, index)
        return sp.csr_array(rows) if np.count_nonzero(rows) < 0.1 * rows.size else rows

    return data.once("products", (2, 4), index, make)


def system_of(data: QPBatch, index: int, active: Int[ndarray, " k"], eps: float) -> EqualitySystem:
    """The system of an active set."""
    n_equations = len(data.at(index)[4])
    rows = _rows_of(data, index)
    singles = data.once("singles", (2, 4), index, lambda: SingleRows.of(rows))
    picked = np.concatenate([np.arange(n_equations), n_equations + active])
    return EqualitySystem(form_of(data, index, eps), rows, singles.column, picked)


def active_set(
    rule: ActiveRule, slack: Float[ndarray, " m"], weight: Float[ndarray, " m"], room: int
) -> tuple[Int[ndarray, " k"], bool]:
    """Active rows, the strongest ones if there are more than ``room``; and whether that was so."""
    active = np.flatnonzero(rule.active(slack, weight))
    if active.size <= room:
        return active, False
    return np.sort(active[np.argsort(-weight[active], kind="stable")[:room]]), True


def polished_solution(
    data: tuple[Float[ndarray, " ..."], ...],
    rows: Any,
    norms: Float[ndarray, " m"],
    solution: QPSolution,
    active: Int[ndarray, " k"],
    system: EqualitySystem,
) -> QPSolution | None:
    """The solution on the active rows, if it is feasible in the primal and the dual."""
    q, h, b = data[1], data[3], data[5]
    point, multipliers = system.solve(q, np.concatenate([b, h[active]]))
    lam = np.zeros(h.size)
    lam[active] = multipliers[b.size :]
    nu = multipliers[: b.size]
    if not np.isfinite(point).all() or residual_of(data, system.form, rows, norms, point, lam, nu) > _POLISHED:
        return None
    return QPSolution(point, np.maximum(lam, 0.0), nu, solution.status, solution.accurate)
