r"""Watch a SPECTRA optimizer: what its updates and weights really measure.

:class:`SpectraCertificate` attaches itself to an optimizer by torch's step hooks and, every so many steps, takes the
spectral norm of the difference that the step made to the weights. It knows nothing of how the optimizer clips.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.certificate import Certificate
from assay.optim.spectra_rule import TOLERANCE, PlannedStep, SpectralOptimizer, weight_norm_certificate
from assay.optim.spectral import spectral_norm
from assay.optim.spectral_kernels import exact_dtype
from assay.result import Result
from assay.validation import check_integer

__all__ = ["SpectraCertificate", "SpectraReport"]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SpectraReport(Result):
    """What a :class:`SpectraCertificate` has seen, one row per check and one column per clipped parameter.

    Parameters
    ----------
    names : tuple of str
        The clipped parameters.
    norms : array of shape (checks, parameters)
        Spectral norm of the weights after the step.
    bounds : array of shape (checks, parameters)
        What the weight-norm invariant allows.
    update_norms : array of shape (checks, parameters)
        Spectral norm of the applied update, decay aside; nan for a parameter that did not step.
    update_caps : array of shape (checks, parameters)
        ``lr * scale * clip`` of that step.
    holds : bool
        Whether every update is below its cap and every weight below its bound.
    max_update_norm : float
        Largest of ``update_norms``; nan if an update was not finite.
    frobenius : array of shape (checks,)
        Frobenius norm of all clipped parameters together.
    clipped_fraction : float
        Part of the observed updates whose largest singular value exceeded the threshold before the clip.
    """

    names: tuple[str, ...]
    norms: Float[np.ndarray, "checks parameters"]
    bounds: Float[np.ndarray, "checks parameters"]
    update_norms: Float[np.ndarray, "checks parameters"]
    update_caps: Float[np.ndarray, "checks parameters"]
    holds: bool
    max_update_norm: float
    frobenius: Float[np.ndarray, " checks"]
    clipped_fraction: float


@dataclass
class _Check:
    """What one check measured, by the position of the parameter in the tracker."""

    step: int
    norms: dict[int, float]
    bounds: dict[int, float]
    update_norms: dict[int, float]
    caps: dict[int, float]
    roundings: dict[int, float]
    n_clipped: int
    frobenius: float


class SpectraCertificate:
    r"""Measure the updates and weights of a SPECTRA optimizer while it trains.

    In every step that is checked, the weights are copied before it, and after it the spectral norm of
    :math:`X_{k+1} - (1-\lambda\eta_k) X_k` is taken by an SVD in float64 and compared with the cap
    :math:`\alpha\eta_k c_k`. The bound on the weights,
    :math:`B_{k+1} = |1-\lambda\eta_k| B_k + \alpha\eta_k c_k`, starts at the exact spectral norm of the weights and
    follows every step. Attach it before the first step to be watched; an optimizer without it pays nothing.

    Parameters
    ----------
    optimizer : Spectra, SpectraAdamW or SpectraSignum
        Its :meth:`certificates` will include the cap on the updates.
    every : int, default=50
        Check the first step and then every so many.

    Raises
    ------
    TypeError
        If the optimizer does not clip spectra.
    ValueError
        If ``every`` is less than 1.

    Notes
    -----
    A check costs two SVDs per clipped matrix and a copy of the weights during that step.

    References
    ----------
    .. [1] X. Jiang, A. Semenov, S. U. Stich. Enhancing LLM Training via Spectral Clipping. ICML 2026,
       arXiv:2603.14315.

    Examples
    --------
    >>> import torch
    >>> from assay.optim.spectra import SpectraAdamW
    >>> from assay.optim.spectra_certificate import SpectraCertificate
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(8, 4)
    >>> optimizer = SpectraAdamW(model.parameters(), lr=3e-2, clip=1.0)
    >>> tracker = SpectraCertificate(optimizer, every=2)
    >>> for _ in range(5):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(2, 8)).square().mean().backward()
    ...     optimizer.step()
    >>> report = tracker.result()
    >>> report.holds, report.norms.shape, len(optimizer.certificates())
    (True, (3, 1), 3)
    """

    def __init__(self, optimizer: SpectralOptimizer, *, every: int = 50):
        if not isinstance(optimizer, SpectralOptimizer):
            raise TypeError(
                f"optimizer must be a Spectra, SpectraAdamW or SpectraSignum, got {type(optimizer).__name__}"
            )
        self.every = check_integer(every, "every", minimum=1)
        self._optimizer = optimizer
        self._names: list[str] = []
        self._position: dict[Tensor, int] = {}
        self._bounds: dict[int, float] = {}
        self._checks: list[_Check] = []
        self._n_steps = 0
        self._planned: list[PlannedStep] = []
        self._before: list[Tensor] | None = None
        self._hooks = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        )
        optimizer.attach(self)

    def close(self) -> None:
        """Stop watching; what was seen stays."""
        for hook in self._hooks:
            hook.remove()
        self._optimizer.detach(self)

    def __enter__(self) -> SpectraCertificate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def certificates(self) -> tuple[Certificate, ...]:
        """Certificates of what was seen; empty before the first step."""
        if not self._checks:
            return ()
        parameters = list(self._position)
        weights = [
            (check.norms[i], check.bounds[i], parameters[i]) for check in self._checks for i in sorted(check.norms)
        ]
        norms, bounds, owners = map(list, zip(*weights, strict=True))
        invariant = weight_norm_certificate(norms, bounds, owners)
        updates = self._update_certificate()
        return (invariant,) if updates is None else (updates, invariant)

    def result(self) -> SpectraReport:
        """Everything that was seen so far.

        Returns
        -------
        SpectraReport
            With no rows before the first step.
        """
        checks, columns = self._checks, range(len(self._names))

        def table(field: str) -> np.ndarray:
            rows = [[getattr(check, field).get(i, math.nan) for i in columns] for check in checks]
            return np.array(rows, dtype=float).reshape(len(checks), len(columns))

        update_norms, caps, certificates = table("update_norms"), table("caps"), self.certificates()
        measured = update_norms[np.isfinite(caps)]
        frobenius = np.array([check.frobenius for check in checks], dtype=float)
        return SpectraReport(
            names=tuple(self._names),
            norms=table("norms"),
            bounds=table("bounds"),
            update_norms=update_norms,
            update_caps=caps,
            holds=bool(certificates) and all(c.holds for c in certificates),
            max_update_norm=float(measured.max()) if measured.size else math.nan,
            frobenius=frobenius,
            clipped_fraction=sum(check.n_clipped for check in checks) / measured.size if measured.size else math.nan,
            certificates=certificates,
            history={"step": np.array([check.step for check in checks], dtype=int), "frobenius": frobenius},
        )

    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        self._planned = self._optimizer.planned_steps()
        for plan in self._planned:
            if plan.parameter not in self._position:
                self._position[plan.parameter] = len(self._names)
                self._names.append(plan.name)
            if self._position[plan.parameter] not in self._bounds:
                self._bounds[self._position[plan.parameter]] = spectral_norm(plan.parameter.detach())
        checking = self._n_steps % self.every == 0
        self._before = [plan.parameter.detach().clone() for plan in self._planned] if checking else None

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        # A step of length zero or without a gradient leaves a parameter, and its bound, where it is.
        moved = [plan.parameter.grad is not None and plan.lr > 0 for plan in self._planned]
        for plan, has_moved in zip(self._planned, moved, strict=True):
            if has_moved:
                position = self._position[plan.parameter]
                self._bounds[position] = abs(1.0 - plan.lr * plan.decay) * self._bounds[position] + plan.cap
        watched = {plan.parameter for plan in self._planned}
        for parameter, position in self._position.items():
            if parameter not in watched and parameter.grad is not None:  # it moved unclipped, and its bound ends here
                self._bounds.pop(position, None)
        if self._before is not None:
            self._checks.append(self._measure(self._before, moved))
        self._before, self._planned = None, []
        self._n_steps += 1

    def _measure(self, before: list[Tensor], moved: list[bool]) -> _Check:
        check = _Check(self._n_steps, {}, {}, {}, {}, {}, 0, 0.0)
        square_sum = 0.0
        for plan, start, has_moved in zip(self._planned, before, moved, strict=True):
            position, weights = self._position[plan.parameter], plan.parameter.detach()
            exact = exact_dtype(weights)
            length = float(torch.linalg.vector_norm(weights.to(exact)))
            square_sum += length**2
            check.norms[position] = spectral_norm(weights)
            check.bounds[position] = self._bounds[position]
            if has_moved:
                applied = spectral_norm(weights.to(exact) - (1.0 - plan.lr * plan.decay) * start.to(exact))
                check.update_norms[position] = applied
                check.caps[position] = plan.cap
                # The weights are rounded after the decay and after the update, each by at most half a spacing.
                check.roundings[position] = torch.finfo(weights.dtype).eps * (
                    length + float(torch.linalg.vector_norm(start.to(exact)))
                )
                check.n_clipped += applied > plan.cap * _output_at_threshold(plan.method)
        check.frobenius = math.sqrt(square_sum)
        return check

    def _update_certificate(self) -> Certificate | None:
        """The update that is largest in proportion to its cap, after the rounding of the weights."""
        seen = [
            (check.update_norms[i], check.caps[i], check.roundings[i])
            for check in self._checks
            for i in check.update_norms
            if check.caps[i] > 0
        ]
        if not seen:
            return None

        def excess(update: tuple[float, float, float]) -> float:
            norm, cap, rounding = update
            return math.inf if math.isnan(norm) else (norm - rounding) / cap

        norm, cap, rounding = max(seen, key=excess)
        return Certificate(
            f"spectral norm of the applied updates over lr * scale * clip, largest of {len(seen)} (by an SVD)",
            norm / cap,
            1.0 + TOLERANCE + rounding / cap,
        )


def _output_at_threshold(method: str) -> float:
    """Singular value, in units of the threshold, that a clip gives to one at the threshold itself."""
    return {"hard": 1.0 - TOLERANCE, "normalize": 0.0}.get(method, math.sqrt(0.5))
