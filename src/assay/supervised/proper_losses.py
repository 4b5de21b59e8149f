r"""The proper loss behind a margin loss and a choice model.

For any increasing choice model :math:`F` and any decreasing :math:`\psi` there is a pair of losses of a probability,

.. math:: \ell_1(F(z)) = \psi(z), \qquad
          \ell_0(F(z)) = \int_{-\infty}^z \frac{F(s)}{1 - F(s)} \, (-\psi'(s)) \, ds,

that is proper: :math:`p\,\ell_1(q) + (1-p)\,\ell_0(q)` is smallest at :math:`q = p`. So the loss that preferences are
trained with is one in which the choice model does not appear. The integrals are by Gauss-Legendre quadrature in
margins, on cells that are short near 0 and around kinks, and grow outwards. Where the one from minus infinity
diverges, it starts at -12, and :math:`\ell_0` is known up to a constant, which no minimiser and no regret depends on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from assay.supervised.choice_models import ChoiceModel, resolve_choice
from assay.supervised.preference_psi import MarginLoss, resolve_psi
from assay.validation import as_float_array

__all__ = ["ProperLoss", "proper_loss"]

# Where the integral starts when the one from minus infinity diverges.
LOWER = -12.0

_NODES, _WEIGHTS = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(10))
_PANEL_NODES, _PANEL_WEIGHTS = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(48))

# Cells are equally long in asinh(z), and within this reach refined.
_CELL = 0.05
_MESH_REACH = 24.0
_HALVINGS = 28
# Kinks are few; cells that many still disagree in after some halvings hold rounding, which no halving removes.
_SMOOTH_HALVINGS, _MOST_KINKS = 8, 64
_AGREE = 1e-12
_PANELS = 40
# A power tail whose panels of doubling length shrink by less than this cannot be told from a divergent one.
_SHRINK = 0.9

# Values near the ends of a cell from those at the nodes, by the polynomial through them.
_NEAR_ENDS = torch.tensor([-1.0 + 1e-6, 1.0 - 1e-6], dtype=torch.float64)
_EXTRAPOLATION = torch.linalg.solve(
    torch.tensor(np.polynomial.legendre.legvander(_NODES.numpy(), 9).T),
    torch.tensor(np.polynomial.legendre.legvander(_NEAR_ENDS.numpy(), 9).T),
)
_AGREE_AT_END = 1e-7

Array = np.ndarray | np.floating


class ProperLoss:
    r"""Losses of a probability, ``l1`` when the first response is preferred and ``l0`` when it is not.

    Made by :func:`proper_loss`. All methods take and return arrays of probabilities in (0, 1).

    Parameters
    ----------
    psi : str, callable or MarginLoss
        Loss of a margin.
    choice : str, ChoiceModel or pair of callables
        Choice model.

    Attributes
    ----------
    psi : MarginLoss
        Loss of a margin.
    choice : ChoiceModel
        Choice model.
    constant_known : bool
        Whether the integral from minus infinity converges; if not, ``l0`` is 0 at the probability of margin -12.

    Examples
    --------
    >>> from assay.supervised import proper_loss
    >>> loss = proper_loss("logistic", "btl")  # the logarithmic loss
    >>> [round(float(part([0.25])[0]), 6) for part in (loss.l1, loss.l0)]
    [1.386294, 0.287682]
    """

    def __init__(self, psi: Any, choice: Any = "btl") -> None:
        self.psi: MarginLoss = resolve_psi(psi)
        self.choice: ChoiceModel = resolve_choice(choice)
        self._mesh = self._refined_mesh()
        self._tail = self._integral_from_minus_infinity()
        self.constant_known = self._tail is not None

    def __repr__(self) -> str:
        return f"<proper loss of psi {self.psi.name} and choice {self.choice.name}>"

    def l1(self, q: ArrayLike) -> Array:
        """Loss of the probability ``q`` when the first response is preferred."""
        return self.psi.value(self._margin(q, "q")).detach().numpy()

    def l0(self, q: ArrayLike) -> Array:
        """Loss of the probability ``q`` when the first response is not preferred."""
        return self.l0_of_margin(self._margin(q, "q")).numpy()

    def weight(self, q: ArrayLike) -> Array:
        r"""Curvature of minus the Bayes risk, :math:`-\ell_1'(q) / (1 - q) \ge 0`."""
        margin = self._margin(q, "q")
        with torch.enable_grad():
            at = margin.clone().requires_grad_()
            (density,) = torch.autograd.grad(self.choice.probability(at).sum(), at)
        return (-self.psi.slope(margin) / (density * self.choice.complement(margin))).detach().numpy()

    def risk(self, p: ArrayLike, q: ArrayLike) -> Array:
        """Expected loss of ``q`` when the first response is preferred with probability ``p``."""
        law = _probabilities(p, "p")
        return law * self.l1(q) + (1.0 - law) * self.l0(q)

    def bayes_risk(self, p: ArrayLike) -> Array:
        """Least expected loss."""
        return self.risk(p, p)

    def regret(self, p: ArrayLike, q: ArrayLike) -> Array:
        """Expected loss above the least one, from the losses themselves."""
        return self.risk(p, q) - self.bayes_risk(p)

    def bregman(self, p: ArrayLike, q: ArrayLike) -> Array:
        r"""Bregman divergence of minus the Bayes risk, from its curvature alone.

        :math:`D(p \| q) = \int_q^p (p - t)\, w(t)\, dt`, which the regret equals when the loss is proper. It shares
        neither the losses nor their integrals with :meth:`regret`.
        """
        law, upper, lower = np.broadcast_arrays(
            _probabilities(p, "p"), self._margin(p, "p").numpy(), self._margin(q, "q").numpy()
        )
        ends = torch.tensor(np.stack([lower.ravel(), upper.ravel()], axis=1))
        low, high = ends.amin(1, keepdim=True), ends.amax(1, keepdim=True)
        # Cells of the mesh that lie outside of an interval shrink to a point of its boundary.
        mesh = self._mesh[(self._mesh > ends.min()) & (self._mesh < ends.max())]
        points, lengths = _gauss(torch.cat([low, mesh.expand(len(ends), -1).clamp(low, high), high], dim=1))
        distance = torch.tensor(law.ravel())[:, None, None] - self.choice.probability(points)
        parts = (distance * -self.psi.slope(points) / self.choice.complement(points)).detach()
        total = ((parts @ _WEIGHTS) * lengths).sum(1) * torch.sign(ends[:, 1] - ends[:, 0])
        return total.numpy().reshape(law.shape)[()]

    def l0_of_margin(self, margin: Tensor) -> Tensor:
        """Loss of the probability of a margin when the first response is not preferred; float64."""
        flat, order = torch.sort(margin.detach().double().reshape(-1))
        cumulated = torch.empty_like(flat)
        cumulated[order] = self._tail_at_lower() + self._integrals(LOWER, flat)
        return cumulated.reshape(margin.shape)

    def _margin(self, q: ArrayLike, name: str) -> Tensor:
        return self.choice.inverse(torch.tensor(_probabilities(q, name)))

    def _density(self, points: Tensor) -> Tensor:
        """Slope of l0 as a function of the margin."""
        odds = self.choice.probability(points) / self.choice.complement(points)
        return (odds * -self.psi.slope(points)).detach()

    def _refined_mesh(self) -> Float[Tensor, " breaks"]:
        """Ends of the cells, equally long in asinh(z), and halved where a cell and its halves disagree, as at kinks."""
        reach = np.ceil(np.arcsinh(_MESH_REACH) / _CELL)
        settled = [torch.tensor(np.sinh(_CELL * np.arange(-reach, reach + 1)))]
        cells = torch.stack([settled[0][:-1], settled[0][1:]], dim=1)
        for halving in range(_HALVINGS):
            middle = cells.mean(1, keepdim=True)
            halves = torch.cat([cells[:, :1], middle, cells[:, 1:]], dim=1)
            whole, parts = self._cell_integrals(cells).squeeze(1), self._cell_integrals(halves).sum(1)
            apart = ((whole - parts).abs() > _AGREE * parts.abs() + 1e-16) | self._has_kink_at_an_end(cells)
            if not bool(apart.any()) or (halving >= _SMOOTH_HALVINGS and int(apart.sum()) > _MOST_KINKS):
                break
            settled.append(middle[apart, 0])
            cells = torch.cat([halves[apart, :2], halves[apart, 1:]])
        return torch.unique(torch.cat(settled))

    def _has_kink_at_an_end(self, cells: Tensor) -> Tensor:
        """Whether the polynomial through the nodes misses a value near an end: no node need lie beyond a kink there."""
        middle, half = cells.mean(1, keepdim=True), 0.5 * cells.diff(dim=1)
        at_nodes = self._density(middle + half * _NODES)
        missed = (self._density(middle + half * _NEAR_ENDS) - at_nodes @ _EXTRAPOLATION).abs().amax(1)
        return missed > _AGREE_AT_END * at_nodes.abs().amax(1)

    def _cell_integrals(self, breaks: Tensor) -> Tensor:
        points, lengths = _gauss(breaks)
        return (self._density(points) @ _WEIGHTS) * lengths

    def _integrals(self, lower: float, upper: Tensor) -> Tensor:
        """Integrals from ``lower`` to each of the sorted ``upper``, negative where that is below."""
        start = torch.tensor([lower], dtype=torch.float64)
        low, high = min(lower, float(upper[0])), max(lower, float(upper[-1]))
        outer = torch.tensor(np.sinh(np.arange(np.arcsinh(low), np.arcsinh(high), _CELL)))
        inner = self._mesh[(self._mesh > low) & (self._mesh < high)]
        breaks = torch.unique(torch.cat([start, upper, inner, outer[outer.abs() > _MESH_REACH]]))
        cumulated = torch.cat([torch.zeros(1, dtype=torch.float64), self._cell_integrals(breaks).cumsum(0)])
        return cumulated[torch.searchsorted(breaks, upper)] - cumulated[torch.searchsorted(breaks, start)]

    def _tail_at_lower(self) -> float:
        return 0.0 if self._tail is None else self._tail

    def _integral_from_minus_infinity(self) -> float | None:
        """Integral up to ``LOWER`` by panels of doubling length, or None when they do not shrink."""
        ends = LOWER - 4.0 * (2.0 ** torch.arange(_PANELS + 1, dtype=torch.float64) - 1.0)
        lengths = 0.5 * (ends[:-1] - ends[1:])
        points = 0.5 * (ends[:-1] + ends[1:])[:, None] + lengths[:, None] * _PANEL_NODES
        panels = ((self._density(points) @ _PANEL_WEIGHTS) * lengths).numpy()
        finite = np.isfinite(panels)
        n_finite = len(panels) if finite.all() else int(np.argmin(finite))
        total = float(panels[:n_finite].sum())
        if n_finite < 2:
            return None
        before, last = np.abs(panels[n_finite - 2 : n_finite])
        if last <= 1e-15 * max(abs(total), 1e-300) or last == 0.0:
            return total
        shrink = last / before if before else np.inf
        return total + float(panels[n_finite - 1]) * shrink / (1.0 - shrink) if shrink < _SHRINK else None


def _gauss(breaks: Tensor) -> tuple[Tensor, Tensor]:
    """Points of the quadrature in each cell (one more axis), and half the lengths of the cells."""
    lengths = 0.5 * breaks.diff(dim=-1)
    return 0.5 * (breaks[..., 1:] + breaks[..., :-1])[..., None] + lengths[..., None] * _NODES, lengths


def _probabilities(q: ArrayLike, name: str) -> np.ndarray:
    values = as_float_array(q, name, ndim=(0, 1, 2))
    if values.min() <= 0.0 or values.max() >= 1.0:
        raise ValueError(f"{name} must be in (0, 1), got values in [{values.min():g}, {values.max():g}]")
    return values


def proper_loss(psi: Any, choice: Any = "btl") -> ProperLoss:
    r"""Find the proper loss that a margin loss and a choice model come from.

    Parameters
    ----------
    psi : str, callable or object
        Loss of a margin, see :func:`~assay.supervised.preference_psi.resolve_psi`.
    choice : str, ChoiceModel, object or pair of callables, default="btl"
        Choice model, see :func:`~assay.supervised.choice_models.resolve_choice`.

    Returns
    -------
    ProperLoss
        With ``l1``, ``l0``, ``weight``, ``risk``, ``bayes_risk``, ``regret`` and ``bregman``.

    Raises
    ------
    ValueError, TypeError
        If a name is unknown or an object has not the methods that it needs.

    Notes
    -----
    An unbounded loss has no finite value at the probabilities 0 and 1; the loss is proper on the open interval.
    One call costs about 10 evaluations of the slope per probability, and some thousand more.

    References
    ----------
    W. Zhou, S. Zhang, B. Magdalou, J. Lambert, E. Amid, R. Nock, A. Hard. DPO Unchained: Your Training Algorithm is
    Secretly Disentangled in Human Choice Theory (and its Loss' Convexity is Dispensable). ICML 2026.
    arXiv:2507.07855.

    Examples
    --------
    >>> from assay.supervised import proper_loss
    >>> loss = proper_loss("savage", "thurstone")
    >>> bool(abs(loss.regret(0.3, 0.6) - loss.bregman(0.3, 0.6)) < 1e-12)
    True
    """
    return ProperLoss(psi, choice)
