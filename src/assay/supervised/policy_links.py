r"""Policy links: what a policy's probabilities mean as rewards.

A policy that maximises utility minus ``beta`` times a separable Bregman divergence from a reference satisfies
:math:`\beta (H(\pi(y)) - H(\pi_0(y))) = u(y) + \mathrm{const}`, where ``H`` is the derivative of the generator of the
divergence. ``H = log`` belongs to the Kullback-Leibler divergence and gives DPO; powers belong to Tsallis divergences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.supervised.preference_psi import parse_name
from assay.validation import check_real

__all__ = ["LogLink", "PolicyLink", "PowerLink", "resolve_link"]


class PolicyLink:
    """Base of the policy links; an object with these two methods will do as well.

    - ``of_log(log_probability)``: the link of a probability given by its logarithm, increasing, in torch operations;
    - ``inverse(value)``: the probability with that link, 0 below the link of 0.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.policy_links import LogLink
    >>> LogLink().of_log(torch.tensor([-1.0]))
    tensor([-1.])
    """

    name: str = "user-defined"

    def of_log(self, log_probability: Tensor) -> Tensor:
        """Link of a probability given by its logarithm."""
        raise NotImplementedError("a policy link must define of_log(log_probability)")

    def inverse(self, value: Tensor) -> Tensor:
        """Probability with that link."""
        raise NotImplementedError("a policy link must define inverse(value)")

    def __repr__(self) -> str:
        return f"<policy link {self.name}>"


class LogLink(PolicyLink):
    """The logarithm, of the Kullback-Leibler divergence.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.policy_links import LogLink
    >>> LogLink().inverse(torch.tensor([0.0]))
    tensor([1.])
    """

    name = "log"

    def of_log(self, log_probability: Tensor) -> Tensor:
        """The logarithm as it is."""
        return log_probability

    def inverse(self, value: Tensor) -> Tensor:
        """Exponential."""
        return torch.exp(value)


@dataclass(frozen=True, repr=False)
class PowerLink(PolicyLink):
    r"""Powers, :math:`H(p) = (p^{q-1} - 1)/(q - 1)`, of Tsallis divergences; ``q = 2`` is linear.

    Parameters
    ----------
    q : float
        Positive; 1 would be the logarithm.

    Examples
    --------
    >>> import torch
    >>> from assay.supervised.policy_links import PowerLink
    >>> PowerLink(2.0).of_log(torch.tensor([0.25]).log())
    tensor([-0.7500])
    """

    q: float

    def __post_init__(self) -> None:
        q = check_real(self.q, "q", above=0)
        if q == 1.0:
            raise ValueError("q must not be 1, got 1: use the link 'log'")
        object.__setattr__(self, "q", q)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name with the power."""
        return "linear" if self.q == 2.0 else f"tsallis({self.q:g})"

    def of_log(self, log_probability: Tensor) -> Tensor:
        """Link of a probability given by its logarithm."""
        return torch.expm1((self.q - 1.0) * log_probability) / (self.q - 1.0)

    def inverse(self, value: Tensor) -> Tensor:
        """Probability with that link; 0 below the least one, infinite above the largest one."""
        power = 1.0 + (self.q - 1.0) * value
        if self.q > 1.0:
            return power.clamp_min(0.0) ** (1.0 / (self.q - 1.0))
        return torch.where(power > 0.0, power.clamp_min(1e-300) ** (1.0 / (self.q - 1.0)), math.inf)


def resolve_link(link: Any) -> PolicyLink:
    """Return the policy link of that name, or the link itself.

    Parameters
    ----------
    link : str or object
        ``"log"``, ``"linear"``, ``"tsallis(q)"``, or an object with the methods ``of_log`` and ``inverse``.

    Returns
    -------
    PolicyLink

    Raises
    ------
    ValueError
        If there is no such name.
    TypeError
        If a method is missing.

    Examples
    --------
    >>> from assay.supervised.policy_links import resolve_link
    >>> resolve_link("tsallis(0.5)")
    <policy link tsallis(0.5)>
    """
    if isinstance(link, str):
        name, parameter = parse_name(link)
        if name == "tsallis" and parameter is not None:
            return LogLink() if parameter == 1.0 else PowerLink(parameter)
        if name in ("log", "linear") and parameter is None:
            return LogLink() if name == "log" else PowerLink(2.0)
        raise ValueError(f"link must be one of log, linear, tsallis(number), or an object, got {link!r}")
    missing = [name for name in ("of_log", "inverse") if not callable(getattr(link, name, None))]
    if missing or isinstance(link, type):
        raise TypeError(
            f"link must be an object with the methods 'of_log' and 'inverse', got {type(link).__name__}"
            + (f" without {', '.join(map(repr, missing))}" if missing else "")
        )
    return link
