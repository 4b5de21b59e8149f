r"""A critic for generative models that cannot explode: random Fourier features and a weight vector in a ball.

A generator that minimises a divergence needs a critic that is good at the moment and smooth for ever. Here the critic
is :math:`g(x) = w^\top\phi(h(x)) + c` on fixed random features of the data or of a feature network ``h``, half of them
at a higher scale so that fine structure is seen, with ``w`` brought back to a ball after every step. Its values are
bounded by ``radius * sqrt(2) + offset``, and for a fixed ``h`` its training is a concave problem.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.certificate import Certificate
from assay.transport.alpha_divergence import LARGEST_CRITIC
from assay.transport.amari_divergence import AmariDivergence, CriticDivergence, check_divergence
from assay.transport.random_features import draw_frequencies
from assay.validation import check_integer, check_real

__all__ = ["RFFCritic", "gan_value"]


class RFFCritic(nn.Module):
    r"""Critic on random Fourier features, with its weights in a ball.

    Parameters
    ----------
    in_features : int
        Dimension of the points, or of what ``backbone`` makes of them.
    n_features : int, default=512
        Number of random features.
    length_scale : float, default=1.0
        Of the kernel: the distance at which points begin to differ.
    band : float or None, default=None
        Frequencies are at most ``band / length_scale``.
    radius : float, default=10.0
        Radius of the ball; ``radius * sqrt(2) + offset`` may be 80 at most.
    scales : sequence of float, default=(1.0, 5.0)
        The features are shared out to frequencies of so many times ``1 / length_scale``.
    backbone : torch.nn.Module, optional
        Maps a batch to shape ``(B, in_features)``.
    offset : float, default=5.0
        Bound on the constant.
    learn_frequencies : bool, default=False
        Make the frequencies a parameter; give it a small learning rate in a group of its own.
    generator : torch.Generator, optional
        Where frequencies and phases come from.

    Attributes
    ----------
    weight : torch.nn.Parameter of shape (n_features,)
        The weights, 0 at first.
    bias : torch.nn.Parameter of shape ()
        The constant.
    frequencies : Tensor of shape (in_features, n_features)
        A buffer, or a parameter if they are learned.
    phases : Tensor of shape (n_features,)
        A buffer.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of range.

    Notes
    -----
    ``O(B D d)`` a batch. Call :meth:`project_` after every step of an optimizer, or give it to
    :class:`~assay.transport.ArmijoSGD` as ``project``. Frequencies and phases are buffers: they are in the state dict,
    follow ``.to()``, and are the same in all replicas of distributed training.

    References
    ----------
    J. Wang, F. Zhang, L. Wang. Scalable and Stable Estimation of Amari alpha-Divergence using Random Fourier
    Features. ICML 2026.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import RFFCritic, gan_value
    >>> critic = RFFCritic(2, n_features=64, generator=torch.Generator().manual_seed(0))
    >>> real, fake = torch.zeros(8, 2), torch.ones(8, 2)
    >>> value = gan_value(critic(real), critic(fake), alpha=0.5)
    >>> value.backward()
    >>> with torch.no_grad():
    ...     _ = critic.weight.add_(critic.weight.grad, alpha=1000.0)
    >>> critic.project_()
    >>> round(float(critic.weight.norm()), 4)
    10.0
    """

    def __init__(
        self,
        in_features: int,
        n_features: int = 512,
        length_scale: float = 1.0,
        band: float | None = None,
        radius: float = 10.0,
        scales: Sequence[float] = (1.0, 5.0),
        backbone: nn.Module | None = None,
        *,
        offset: float = 5.0,
        learn_frequencies: bool = False,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.in_features = check_integer(in_features, "in_features", minimum=1)
        self.n_features = check_integer(n_features, "n_features", minimum=1)
        self.length_scale = check_real(length_scale, "length_scale", above=0)
        self.band = None if band is None else check_real(band, "band", above=0)
        self.radius = check_real(radius, "radius", above=0)
        self.offset = check_real(offset, "offset", minimum=0)
        if self.bound > LARGEST_CRITIC:
            raise ValueError(f"radius * sqrt(2) + offset must be at most {LARGEST_CRITIC:g}, got {self.bound:g}")
        if isinstance(scales, str) or not len(scales):
            raise ValueError(f"scales must be one or more positive numbers, got {scales!r}")
        self.scales = tuple(check_real(scale, "scales", above=0) for scale in scales)
        if backbone is not None and not isinstance(backbone, nn.Module):
            raise TypeError(f"backbone must be a torch.nn.Module, got {type(backbone).__name__}")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
        self.backbone = backbone
        frequencies, phases = self._draw(generator)
        if learn_frequencies:
            self.frequencies = nn.Parameter(frequencies)
        else:
            self.register_buffer("frequencies", frequencies)
        self.register_buffer("phases", phases)
        self.weight = nn.Parameter(torch.zeros(self.n_features))
        self.bias = nn.Parameter(torch.zeros(()))

    def _draw(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        if generator is None:
            generator = torch.Generator()
            generator.seed()
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
        band = math.inf if self.band is None else self.band
        sizes = [len(part) for part in np.array_split(np.arange(self.n_features), len(self.scales))]
        blocks = [
            scale * draw_frequencies(self.in_features, size, rng, band=band / scale)
            for scale, size in zip(self.scales, sizes, strict=True)
        ]
        frequencies = np.concatenate(blocks, axis=1) / self.length_scale
        phases = rng.uniform(0.0, 2.0 * math.pi, self.n_features)
        dtype = torch.get_default_dtype()
        return torch.from_numpy(frequencies).to(dtype), torch.from_numpy(phases).to(dtype)

    @property
    def bound(self) -> float:
        """Largest absolute value that the critic can take."""
        return self.radius * math.sqrt(2.0) + self.offset

    def features(self, x: Tensor) -> Tensor:
        """Random features of a batch.

        Parameters
        ----------
        x : Tensor of shape (B, ...)
            Points of ``in_features`` entries, or what the backbone takes.

        Returns
        -------
        Tensor of shape (B, n_features)
        """
        hidden = x if self.backbone is None else self.backbone(x)
        if hidden.ndim != 2 or hidden.shape[1] != self.in_features:
            what = "x" if self.backbone is None else "what backbone returns"
            raise ValueError(f"{what} must have shape (B, {self.in_features}), got {tuple(hidden.shape)}")
        return math.sqrt(2.0 / self.n_features) * torch.cos(hidden @ self.frequencies + self.phases)

    def forward(self, x: Tensor) -> Tensor:
        """Values of the critic.

        Parameters
        ----------
        x : Tensor of shape (B, ...)
            As in :meth:`features`.

        Returns
        -------
        Tensor of shape (B,)
        """
        return self.features(x) @ self.weight + self.bias

    @torch.no_grad()
    def project_(self) -> None:
        """Bring weights, constant and frequencies that are learned back to where they may be.

        They are inside their bounds after it whatever their precision, and unchanged if they were.
        """
        _shorten_(self.weight, self.radius)
        largest = _round_down(self.offset, self.bias.dtype)
        self.bias.clamp_(-largest, largest)
        if self.band is not None and isinstance(self.frequencies, nn.Parameter):
            _shorten_(self.frequencies, self.band / self.length_scale)

    def certificates(self) -> tuple[Certificate, ...]:
        """Certify that the critic is where it may be, up to the rounding of its dtype.

        Returns
        -------
        tuple of Certificate
        """
        rounding = 1.0 + 64.0 * torch.finfo(self.weight.dtype).eps
        norm = float(torch.linalg.vector_norm(self.weight.detach().double()))
        certificates = [
            Certificate("norm of the weights of the critic", norm, self.radius * rounding),
            Certificate("size of the constant of the critic", abs(float(self.bias.detach())), self.offset * rounding),
        ]
        if self.band is not None:
            longest = float(torch.linalg.vector_norm(self.frequencies.detach().double(), dim=0).max())
            certificates.append(
                Certificate("longest frequency of the critic", longest, self.band / self.length_scale * rounding)
            )
        return tuple(certificates)

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return (
            f"in_features={self.in_features}, n_features={self.n_features}, length_scale={self.length_scale:g}, "
            f"band={self.band}, radius={self.radius:g}, scales={self.scales}"
        )


def _shorten_(vectors: Tensor, limit: float) -> None:
    """Bring columns (a vector is one) to a norm of at most ``limit``, also after rounding; others stay as they are."""
    wide = vectors.double()
    norms = torch.linalg.vector_norm(wide, dim=0, keepdim=True)
    short = (wide * (limit / norms)).to(vectors.dtype)
    # Rounding to nearest makes it longer by half a unit at most.
    rounding = 2.0 * torch.finfo(vectors.dtype).eps
    shorter = (wide * (limit / norms * (1.0 - rounding))).to(vectors.dtype)
    short = torch.where(torch.linalg.vector_norm(short.double(), dim=0, keepdim=True) > limit, shorter, short)
    vectors.copy_(torch.where(norms > limit, short, vectors))


def _round_down(number: float, dtype: torch.dtype) -> float:
    """The largest number of a dtype that is not above a positive one."""
    rounded = torch.tensor(number, dtype=dtype)
    if float(rounded) > number:
        rounded = torch.nextafter(rounded, torch.zeros_like(rounded))
    return float(rounded)


def gan_value(
    critic_real: Float[Tensor, " real"], critic_fake: Float[Tensor, " fake"], alpha: float | CriticDivergence = 0.5
) -> Float[Tensor, ""]:
    r"""The functional that the critic maximises and the generator minimises.

    .. math:: J = \operatorname{mean}\, a(g(x_i)) + \operatorname{mean}\, b(g(G(z_j))),

    a lower bound, in expectation, on the divergence between data and generator.

    Parameters
    ----------
    critic_real : Tensor of shape (B,)
        Values of the critic on data.
    critic_fake : Tensor of shape (C,)
        Values on what the generator made.
    alpha : float or object with p_integrand and q_integrand, default=0.5
        Which of Amari's divergences, in ``[0, 1]``, or another divergence.

    Returns
    -------
    Tensor of shape ()
        Differentiable. Half precision is computed in single.

    Raises
    ------
    TypeError, ValueError
        If ``alpha`` is neither, or a batch is empty.

    Examples
    --------
    >>> import torch
    >>> from assay.transport import gan_value
    >>> round(float(gan_value(torch.tensor([0.3, -0.1, 0.8]), torch.tensor([-0.5, 0.2]), alpha=0.3)), 6)
    0.388949
    """
    divergence: Any = AmariDivergence(alpha) if isinstance(alpha, numbers.Real) else check_divergence(alpha, "alpha")
    parts = []
    for name, integrand, values in (
        ("critic_real", divergence.p_integrand, critic_real),
        ("critic_fake", divergence.q_integrand, critic_fake),
    ):
        if not values.numel():
            raise ValueError(f"{name} must have at least one value, got shape {tuple(values.shape)}")
        parts.append(integrand(values.to(torch.promote_types(values.dtype, torch.float32)))[0].mean())
    return parts[0] + parts[1]
