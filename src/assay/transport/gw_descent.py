r"""One descent from one start: mirror steps on the plan or on a block of it, then the exact finish.

The loop keeps a plan and its product ``C1 X C2`` and makes, every time, a tentative step on the whole plan, which
costs no product. What moved in it decides what is done: if few rows and columns did, and a block of them is worth
it, the step is forgotten and the block is solved with several steps of its own; otherwise the step is taken and the
product computed anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from assay.transport.gw_finish import vertex_finish
from assay.transport.gw_mirror import BlockSolution, MirrorDescent, largest_per_row, movement, smallest_cover
from assay.transport.gw_problem import GWProblem
from assay.transport.gw_products import DenseFactor
from assay.transport.sinkhorn import round_to_marginals, scale_and_round

__all__ = ["Descent", "DescentSettings", "history_of"]

# A step that raises the objective by more than this share of its scale is taken again with twice the temperature.
_RISE = 1e-10

# A plan is settled when this share of its rows keeps its largest entry from one probe to the next.
_SETTLED = 0.98

# Where F is constant up to this share of the scale, every direction is as good as any other.
_FLAT = 1e-15

# A block solve stops when no entry of the plan changes by more than this, in units of 1 / max(n, m).
_BLOCK_TOL = 1e-3

# What is recorded of every update.
_COLUMNS = ("start", "iteration", "seconds", "value", "kind", "multiply_adds", "work")


@dataclass(frozen=True)
class DescentSettings:
    """The options of a descent, as :func:`assay.transport.lobcd_gw` documents them, checked."""

    rho: float
    warm: int
    select: str
    coverage: float
    delta: float | None
    max_frac: float
    inner: int
    max_iter: int
    tol: float
    probe: int
    refresh: int
    finish: bool
    finish_steps: int
    gap_tol: float
    solver: str
    sharpen: bool
    callback: Callable[[Mapping[str, Any]], None] | None


@dataclass
class Descent:
    """One descent from one start: the state of the plan, and the books."""

    mirror: MirrorDescent
    problem: GWProblem
    settings: DescentSettings
    plan: Any
    start: str
    began: float
    product: Any = None
    value: float = float("inf")
    spread: float = 0.0
    best_value: float = float("inf")
    best_plan: Any = None  # None while the current plan is the best
    spare: list = field(default_factory=list)
    n_full: int = 0
    n_local: int = 0
    n_finish: int = 0
    n_backtracks: int = 0
    n_products: int = 0
    active: list[int] = field(default_factory=list)
    multiply_adds: int = 0
    status: str = "max_iter"
    change: float = float("inf")
    gap: float = float("nan")
    rows: list[tuple] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scale = self.problem.scale

    def run(self) -> None:
        """Descend, finish, and leave a plan with exact marginals in ``plan`` and its objective in ``value``."""
        self.product = self._full_product(self.plan)
        inner, low, high = self.mirror.scan(self.plan, self.product)
        self.value, self.spread = self.scale - 2.0 * inner, high - low
        self.best_value = self.value
        self._record("start", self.value, self.multiply_adds, 0)
        if min(self.plan.shape) == 1:
            self.status = "trivial"
            return
        self._mirror_phase(1 if self.settings.solver == "vertex" else self.settings.max_iter)
        if self.best_plan is not None:
            self.plan, self.best_plan, self.value = self.best_plan, None, self.best_value
        self.spare.clear()
        p, q = self.mirror.p, self.mirror.q
        self.plan = round_to_marginals(self.plan, p, q, self.plan)
        if self.settings.finish:
            self.product = self._full_product(self.plan, self.product)
            self._finish()
        elif self.settings.sharpen:
            self._sharpen()
        self.product = None

    def _mirror_phase(self, max_iter: int) -> None:
        options, scale = self.settings, self.scale
        probed, force_full = None, False
        for k in range(max_iter):
            if self.spread <= _FLAT * scale:
                self.status = "stationary"
                return
            before = self.value
            temperature = options.rho * self.spread
            tentative = self.mirror.step(self.plan, self.product, temperature, self._borrow())
            block = None
            if options.solver == "block" and k >= options.warm and not force_full:
                block = self._solve_block(tentative)
            if block is not None:
                self.spare.append(tentative)
                self._write_block(block)
            else:
                self._move_to(tentative, temperature)
            self.change = abs(self.value - before)
            if (k + 1) % options.probe == 0:
                mapping = largest_per_row(self.plan)
                if probed is not None and (mapping == probed).mean() >= _SETTLED:
                    self.status = "settled"
                    return
                probed = mapping
            stalled = self.change <= options.tol * scale
            if stalled and block is None:
                self.status = "stalled"
                return
            # A block at rest says nothing about the rest of the plan: ask a full step before believing it.
            force_full = stalled

    def _solve_block(self, tentative: Any) -> BlockSolution | None:
        """Block update for the rows and columns that move, or None when a full update is better."""
        options, sandwich = self.settings, self.mirror.sandwich
        row_sums, column_sums, row_peaks, column_peaks = movement(tentative, self.plan)
        if options.select == "coverage":
            rows, columns = smallest_cover(row_sums, options.coverage), smallest_cover(column_sums, options.coverage)
        else:
            delta = 1e-2 / max(sandwich.shape) if options.delta is None else options.delta
            rows, columns = np.flatnonzero(row_peaks > delta), np.flatnonzero(column_peaks > delta)
        n, m = sandwich.shape
        if min(len(rows), len(columns)) == 0 or max(len(rows), len(columns)) > options.max_frac * min(n, m):
            return None
        price = sandwich.step_price
        once = price * len(rows) * len(columns) + sandwich.within_block_cost(rows, columns)
        local = options.inner * once + sandwich.add_block_cost(rows, columns)
        if local > 0.5 * (price * n * m + sandwich.full_cost):
            return None
        for rho in (options.rho, 2.0 * options.rho):
            block = self.mirror.solve_block(
                self.plan,
                self.product,
                rows,
                columns,
                rho=rho,
                max_steps=options.inner,
                tol=_BLOCK_TOL / max(n, m),
            )
            if block is None or block.increase <= _RISE * self.scale:
                return block
            self.n_backtracks += 1
        return None

    def _write_block(self, block: BlockSolution) -> None:
        sandwich = self.mirror.sandwich
        if block.increase > 0.0 and self.best_plan is None:
            self.best_plan = self.plan.clone() if isinstance(self.plan, torch.Tensor) else self.plan.copy()
        self.mirror.write_block(self.plan, self.product, block)
        spent = block.multiply_adds + sandwich.add_block_cost(block.rows, block.columns)
        self.multiply_adds += spent
        self.n_products += 1
        self.n_local += 1
        self.active.append(max(len(block.rows), len(block.columns)))
        if self.n_local % self.settings.refresh == 0:
            # Hundreds of small updates drift; the exact product is the guard.
            self.product = self._full_product(self.plan, self.product)
        inner, low, high = self.mirror.scan(self.plan, self.product)
        self._accept(self.scale - 2.0 * inner, high - low)
        steps = block.steps * sandwich.step_price * len(block.rows) * len(block.columns)
        self._record("local", self.value, spent, steps)

    def _move_to(self, tentative: Any, temperature: float) -> None:
        """Full update; taken again with twice the temperature if the objective rises."""
        sandwich = self.mirror.sandwich
        spent = self.multiply_adds
        product = self._full_product(tentative)
        inner, low, high = self.mirror.scan(tentative, product)
        if self.scale - 2.0 * inner > self.value + _RISE * self.scale:
            self.n_backtracks += 1
            tentative = self.mirror.step(self.plan, self.product, 2.0 * temperature, tentative)
            product = self._full_product(tentative, product)
            inner, low, high = self.mirror.scan(tentative, product)
        value = self.scale - 2.0 * inner
        if value > self.value and self.best_plan is None:
            self.best_plan = self.plan
        else:
            self.spare.append(self.plan)
        self.spare.append(self.product)
        self.plan, self.product = tentative, product
        self._accept(value, high - low)
        self.n_full += 1
        n, m = sandwich.shape
        self._record("full", value, self.multiply_adds - spent, sandwich.step_price * n * m)

    def _accept(self, value: float, spread: float) -> None:
        self.value, self.spread = value, spread
        if value <= self.best_value:
            if self.best_plan is not None:
                self.spare.append(self.best_plan)
            self.best_value, self.best_plan = value, None

    def _finish(self) -> None:
        options = self.settings
        end = vertex_finish(
            self.mirror.sandwich,
            self.plan,
            self.product,
            self.problem.p,
            self.problem.q,
            scale=self.scale,
            max_steps=options.finish_steps,
            gap_tol=options.gap_tol,
            record=lambda kind, value, spent: self._record(kind, value, spent, 0),
        )
        self.plan, self.value, self.gap, self.n_finish = end.plan, end.value, end.gap, end.steps
        self.n_products += end.products
        self.multiply_adds += end.multiply_adds
        self.status = "stationary" if end.stationary else "stationary_gap"

    def _sharpen(self) -> None:
        """Raise the plan to the power 1.5 and bring it back; keep it if the objective falls."""
        p, q = self.mirror.p, self.mirror.q
        sharper = (self.plan / self.plan.max()) ** 1.5
        sharper = scale_and_round(sharper, p, q, 20, sharper)
        product = self._full_product(sharper, self.product)
        value = self.scale - 2.0 * self.mirror.scan(sharper, product)[0]
        if value < self.value:
            self.plan, self.value = sharper, value
            self._record("full", value, self.mirror.sandwich.full_cost, 0)

    def _full_product(self, plan: Any, out: Any = None) -> Any:
        """``C1 X C2``, in memory that is free; ``out`` is given back to it."""
        sandwich = self.mirror.sandwich
        self.n_products += 1
        self.multiply_adds += sandwich.full_cost
        first = self._borrow() if out is None else out
        if first is None and isinstance(plan, np.ndarray):
            first = np.empty_like(plan)
        second = self._borrow() if isinstance(sandwich.right, DenseFactor) else None
        product = sandwich.product(plan, first, second)
        self.spare.extend(array for array in (first, second) if array is not None and array is not product)
        return product

    def _borrow(self) -> Any:
        # Tensors come and go through torch's own allocator.
        return self.spare.pop() if self.spare and isinstance(self.plan, np.ndarray) else None

    def _record(self, kind: str, value: float, multiply_adds: int, steps: int) -> None:
        seconds = time.perf_counter() - self.began
        row = (self.start, len(self.rows), seconds, value, kind, multiply_adds, multiply_adds + steps)
        self.rows.append(row)
        if self.settings.callback is not None:
            self.settings.callback(dict(zip(_COLUMNS[:5], row, strict=False)))

    @property
    def converged(self) -> bool:
        """Whether it ended because it was done."""
        return self.status not in ("stationary_gap", "max_iter")


def history_of(descents: list[Descent]) -> dict[str, np.ndarray]:
    """The books of several descents, one after the other, by column."""
    rows = [row for descent in descents for row in descent.rows]
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(_COLUMNS)}
