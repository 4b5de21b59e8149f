"""What is seen of a gradient field during training with anchored steps, and what it certifies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from assay.certificate import Assumption, Certificate
from assay.games.goma_certificate import potential_certificate, stochastic_certificate
from assay.games.goma_schedule import PRESETS, STOCHASTIC, Preset, paper_stochastic_bound

__all__ = ["FieldMeasurements"]

_COLUMNS = ("anchor", "iteration", "residual_sq", "potential", "rounding")


class FieldMeasurements:
    """Squared norm and potential of the gradient field at iterates, in the order in which they were measured.

    Parameters
    ----------
    columns : mapping of str to list, optional
        What :meth:`columns` returned.
    """

    def __init__(self, columns: Any = None):
        if columns is None:
            columns = {name: [] for name in _COLUMNS}
        if not isinstance(columns, Mapping) or set(columns) != set(_COLUMNS):
            raise ValueError(f"state_dict['measured'] must have {', '.join(_COLUMNS)}, got {columns!r}")
        self._columns = {name: [float(entry) for entry in columns[name]] for name in _COLUMNS}

    def columns(self) -> dict[str, list[float]]:
        """Plain numbers, for a checkpoint."""
        return {name: list(column) for name, column in self._columns.items()}

    def look(self, groups: Sequence[Mapping[str, Any]], states: Mapping[Tensor, Mapping[str, Any]]) -> float:
        """Measure, with the iterate in the parameters and the gradients there beside them.

        Parameters
        ----------
        groups : sequence of mapping
            Those of the optimizer.
        states : mapping of Tensor to mapping
            Its state, in evaluation mode.

        Returns
        -------
        float
            Squared norm of the gradients.
        """
        there = [
            (group, parameter)
            for group in groups
            for parameter in dict.fromkeys(group["params"])
            if parameter.grad is not None
        ]
        residual_sq = sum(float(parameter.grad.double().square().sum()) for _, parameter in there)
        counts = {states[parameter]["step"] if parameter in states else -1 for _, parameter in there}
        k = counts.pop() if len(counts) == 1 else -1
        name, lr = groups[0]["preset"], groups[0]["lr_used"]
        potential = rounding = math.nan
        if k >= 0 and name != STOCHASTIC and lr:
            potential, rounding = _potential(PRESETS[name], lr, k, there, states)
        row = (groups[0]["anchors"], k, residual_sq, potential, rounding)
        for column, entry in zip(self._columns.values(), row, strict=True):
            column.append(float(entry))
        return residual_sq

    def certify(
        self, groups: Sequence[Mapping[str, Any]], lipschitz: float | None, distance: float | None
    ) -> tuple[Certificate, ...]:
        """Potential and bound of a deterministic preset."""
        if not self._columns["iteration"]:
            return ()
        preset, lr = PRESETS[groups[0]["preset"]], groups[0]["lr_used"]
        assumptions = _assumptions(groups)
        certificates = []
        growth = self._worst_growth()
        if growth is not None:
            proved = None if lipschitz is None else preset.is_proved(lr, lipschitz)
            within = Assumption("the step size is one that the proof covers", proved)
            count = len(self._columns["iteration"])
            certificates.append(potential_certificate(growth, count, (*assumptions, within)))
        k, residual_sq = int(self._columns["iteration"][-1]), self._columns["residual_sq"][-1]
        if lipschitz is None or distance is None or k < 0 or not lr:
            return tuple(certificates)
        if preset.is_proved(lr, lipschitz) and assumptions[1].satisfied:
            known = Assumption(f"the gradient field is {lipschitz:g}-Lipschitz")
            near = Assumption(f"it has a zero within {distance:g} of the anchor")
            bound = preset.residual_bound(k, lr, lipschitz, distance)
            statement = f"squared norm of the gradients at iterate {k}"
            certificates.append(Certificate(statement, residual_sq, bound, assumptions=(*assumptions, known, near)))
        return tuple(certificates)

    def certify_noisy(
        self,
        groups: Sequence[Mapping[str, Any]],
        lipschitz: float | None,
        distance: float | None,
        sigma: float | None,
    ) -> tuple[Certificate, ...]:
        """Bound of the preset for noise, if the numbers for it are known and its step size is that of the theorem."""
        if not self._columns["iteration"] or lipschitz is None or distance is None or sigma is None:
            return ()
        k, lr, kappa = int(self._columns["iteration"][-1]), groups[0]["lr_used"], groups[0]["kappa"]
        assumptions = _assumptions(groups)
        if k < 1 or not math.isclose(lr * lipschitz, 1.0, rel_tol=1e-6) or not assumptions[1].satisfied:
            return ()
        noise = Assumption(f"the gradients are unbiased and E|g|^2 <= {sigma:g}^2 + {kappa:g} |F|^2")
        near = Assumption(f"the gradient field has a zero within {distance:g} of the anchor")
        bound = paper_stochastic_bound(k, lipschitz, kappa, sigma, distance)
        return (stochastic_certificate(self._columns["residual_sq"][-1], bound, (*assumptions, near, noise)),)

    def _worst_growth(self) -> float | None:
        """Largest growth of the potential beyond rounding between measurements with one anchor; None without any."""
        if not all(map(math.isfinite, self._columns["residual_sq"])):
            return math.nan
        rows = zip(*(self._columns[name] for name in ("anchor", "potential", "rounding")), strict=True)
        growths = [
            after - before - error - error_before
            for (anchor, before, error_before), (same_anchor, after, error) in itertools.pairwise(rows)
            if anchor == same_anchor
        ]
        return max((growth for growth in growths if not math.isnan(growth)), default=None)


def _potential(
    preset: Preset,
    lr: float,
    k: int,
    there: Sequence[tuple[Mapping[str, Any], Tensor]],
    states: Mapping[Tensor, Mapping[str, Any]],
) -> tuple[float, float]:
    """The potential at iterate ``k``, and the error that rounding may have made in it."""
    value = drift = distance = point = product = 0.0
    exploration = preset.exploration(k, lr)
    for group, parameter in there:
        state, z = states[parameter], parameter.double()
        gradient = parameter.grad.double() * (-1.0 if group["maximize"] else 1.0)  # type: ignore[union-attr]
        from_anchor = z - state["anchor"].double()
        # The gradient of the step before is what separates the parameters while training from the anchored iterate.
        old = (state["anchored"].double() - state["exploration"].double()) / exploration
        value += float(gradient.square().sum())
        drift += float((gradient - old).square().sum())
        product += float((gradient * from_anchor).sum())
        distance += float(from_anchor.square().sum())
        point += float(z.square().sum())
    inner, square, change = preset.potential_weights(k, lr)
    potential = inner * product + square * value + change * drift
    value, drift, distance, point = (math.sqrt(squared) for squared in (value, drift, distance, point))
    eps = max(torch.finfo(parameter.dtype).eps for _, parameter in there)
    of_point = 4.0 * eps * point
    of_value = max(16.0, math.sqrt(sum(parameter.numel() for _, parameter in there))) * eps * (value + point / lr)
    error = inner * (value * of_point + distance * of_value)
    error += 2.0 * of_value * (square * value + change * drift) + (square + change) * of_value**2
    return potential, error


def _assumptions(groups: Sequence[Mapping[str, Any]]) -> tuple[Assumption, Assumption]:
    lr = groups[0]["lr_used"]
    one = all(group["lr_constant"] and group["lr_used"] in (None, lr) for group in groups)
    return (
        Assumption("the gradient field is monotone"),
        Assumption("one constant step size for all parameters", one),
    )
