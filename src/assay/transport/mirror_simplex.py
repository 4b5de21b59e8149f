r"""The probability simplex and the density matrices, with their logarithmic and their entropic barriers.

The logarithmic barrier asks for one number per particle: with :math:`y` given, :math:`x_i = 1/(s - y_i)` for the
:math:`s` at which they sum to one. Newton's method on the harmonic mean of the :math:`s - y_i`, which is concave and
nearly linear in :math:`s`, finds it in a few steps from below and for all particles at once.

The entropy is not self-concordant in dual coordinates: near the boundary the noise is so large that a step jumps
from face to face, and the law is wrong unless the target itself vanishes there. It is what papers use; the default is
the logarithm.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.transport.convex_domain import Domain
from assay.transport.mirror_domains import ENTROPY_CLIP
from assay.validation import check_integer, check_real

__all__ = ["Simplex", "Spectraplex"]


class Simplex(Domain):
    r"""The simplex :math:`\{x \in R^d : x_i > 0, \sum x_i = 1\}`.

    A particle is a row of ``d`` shares; its dual coordinates are ``d - 1``, relative to the last one.

    Parameters
    ----------
    d : int
        Number of shares, at least 2.
    barrier : {"log", "entropy"}, default="log"
        :math:`-\sum \log x_i`, or :math:`\sum x_i \log x_i` (softmax), which is biased unless the target vanishes at
        the boundary.
    repulsion : float, default=0.0
        Declares that the functional has a term :math:`\beta\,E\sum \log(1/x_i)` with this :math:`\beta`. The entropic
        barrier warns unless it is at least 0.4 times the temperature.

    Examples
    --------
    >>> from assay.transport import Simplex
    >>> Simplex(3).inverse([[0.3, -1.2]]).round(6)
    array([[0.396738, 0.248722, 0.35454 ]])
    """

    barriers = ("log", "entropy")

    def __init__(self, d: int, *, barrier: str = "log", repulsion: float = 0.0):
        super().__init__(barrier)
        self.dimension = check_integer(d, "d", minimum=2)
        self.repulsion = check_real(repulsion, "repulsion", minimum=0.0)

    def __repr__(self) -> str:
        return f"Simplex({self.dimension}, barrier={self.barrier!r})"

    @property
    def degrees_of_freedom(self) -> int:
        """One less than the number of shares."""
        return self.dimension - 1

    def _mirror(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d_minus_1"]:
        if self.barrier == "entropy":
            logarithm = x.log()
            return logarithm[:, :-1] - logarithm[:, -1:]
        inverse = x.reciprocal()
        return inverse[:, -1:] - inverse[:, :-1]

    def _inverse(self, y: Float[Tensor, "particles d_minus_1"]) -> Float[Tensor, "particles d"]:
        if self.barrier == "entropy":
            return _with_zero(y).clamp_(-ENTROPY_CLIP, ENTROPY_CLIP).softmax(dim=1)
        x = inverse_shares(_with_zero(y)).reciprocal_()
        return x.div_(x.sum(dim=1, keepdim=True))

    def _noise(
        self, x: Float[Tensor, "particles d"], xi: Float[Tensor, "particles d"]
    ) -> Float[Tensor, "particles d_minus_1"]:
        parts = xi / (x.sqrt() if self.barrier == "entropy" else x)
        return parts[:, :-1] + parts[:, -1:]

    def _diffuse(self, y: Tensor, xi: Tensor, scale: float, near: Tensor) -> Tensor:
        if self.barrier == "entropy":
            return super()._diffuse(y, xi, scale, near)
        parts = inverse_shares(_with_zero(y)).mul_(xi).mul_(scale)
        return y.add_(parts[:, :-1]).add_(parts[:, -1:])

    def _dual_gradient(self, gradient: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d_minus_1"]:
        return gradient[:, :-1] - gradient[:, -1:]

    def _tangent(self, direction: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        return direction - direction.mean(dim=1, keepdim=True)

    def _slack(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, " particles"]:
        return torch.where(_of_sum_one(x), x.amin(dim=1), -torch.inf)

    def _exact_slack(self, x: Tensor) -> Tensor:
        # Rows of float32 sum to one in their own precision only.
        return self._slack(x).double()

    def _project(self, x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
        return project_shares(x)

    def _sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.dirichlet(np.ones(self.dimension), n)

    def _start(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.dirichlet(np.full(self.dimension, 3.0), n)


class Spectraplex(Domain):
    r"""The density matrices :math:`\{\Sigma \in R^{p \times p} : \Sigma \succ 0, \operatorname{tr}\Sigma = 1\}`.

    Particles have the shape (particles, p, p). Dual coordinates are symmetric matrices of trace zero.

    Parameters
    ----------
    p : int
        Number of rows, at least 2.
    barrier : {"log", "entropy"}, default="log"
        :math:`-\log\det\Sigma`, or the von Neumann entropy :math:`\operatorname{tr}\Sigma\log\Sigma`, which is biased
        unless the target vanishes at the boundary.
    repulsion : float, default=0.0
        Declares a term :math:`-\beta\,E\log\det\Sigma` of the functional, as for :class:`Simplex`.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.transport import Spectraplex
    >>> Spectraplex(2).inverse(np.zeros((1, 2, 2)))
    array([[[0.5, 0. ],
            [0. , 0.5]]])
    """

    barriers = ("log", "entropy")
    particle_ndim = 2

    def __init__(self, p: int, *, barrier: str = "log", repulsion: float = 0.0):
        super().__init__(barrier)
        self.dimension = check_integer(p, "p", minimum=2)
        self.repulsion = check_real(repulsion, "repulsion", minimum=0.0)

    def __repr__(self) -> str:
        return f"Spectraplex({self.dimension}, barrier={self.barrier!r})"

    @property
    def degrees_of_freedom(self) -> int:
        """Free entries of a symmetric matrix of trace one."""
        return self.dimension * (self.dimension + 1) // 2 - 1

    def _mirror(self, x: Float[Tensor, "particles p p"]) -> Float[Tensor, "particles p p"]:
        values, vectors = torch.linalg.eigh(x)
        dual = values.log() if self.barrier == "entropy" else values.reciprocal().neg_()
        return _assembled(dual - dual.mean(dim=1, keepdim=True), vectors)

    def _inverse(self, y: Float[Tensor, "particles p p"]) -> Float[Tensor, "particles p p"]:
        values, vectors = torch.linalg.eigh(y)
        shares = self._shares(values)
        # Assembling rounds; an eigenvalue below that would come out as zero or negative.
        floor = 16.0 * self.dimension * torch.finfo(y.dtype).eps
        shares = shares.clamp(min=floor)
        x = _assembled(shares, vectors)
        return x.div_(x.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None])

    def _noise(
        self, x: Float[Tensor, "particles p p"], xi: Float[Tensor, "particles p p"]
    ) -> Float[Tensor, "particles p p"]:
        values, vectors = torch.linalg.eigh(x)
        return self._noise_in(values, vectors, xi)

    def _diffuse(self, y: Tensor, xi: Tensor, scale: float, near: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(y)
        return y.add_(self._noise_in(self._shares(values), vectors, xi), alpha=scale)

    def _shares(self, values: Float[Tensor, "particles p"]) -> Float[Tensor, "particles p"]:
        """Eigenvalues of the matrix from those of its dual coordinates."""
        if self.barrier == "entropy":
            return (values - values.amax(dim=1, keepdim=True)).clamp_(min=-ENTROPY_CLIP).softmax(dim=1)
        shares = inverse_shares(values).reciprocal_()
        return shares.div_(shares.sum(dim=1, keepdim=True))

    def _noise_in(self, values: Tensor, vectors: Tensor, xi: Tensor) -> Tensor:
        # Variance 1 on the diagonal and 1/2 off it; in the eigenbasis, so that the signs of its vectors do not matter.
        gaussian = vectors.mT @ (xi + xi.mT).mul_(0.5) @ vectors
        if self.barrier == "entropy":
            gaussian.mul_(_log_slopes(values).sqrt_())
        else:
            root = values.rsqrt()
            gaussian.mul_(root[:, :, None]).mul_(root[:, None, :])
        noise = vectors @ gaussian @ vectors.mT
        noise = (noise + noise.mT).mul_(0.5)
        return _traceless(noise)

    def _dual_gradient(self, gradient: Float[Tensor, "particles p p"]) -> Float[Tensor, "particles p p"]:
        return self._tangent(gradient)

    def _tangent(self, direction: Float[Tensor, "particles p p"]) -> Float[Tensor, "particles p p"]:
        return _traceless((direction + direction.mT).mul_(0.5))

    def _slack(self, x: Float[Tensor, "particles p p"]) -> Float[Tensor, " particles"]:
        proper = _of_sum_one(x.diagonal(dim1=1, dim2=2))
        proper &= (x - x.mT).abs().amax(dim=(1, 2)) <= torch.finfo(x.dtype).eps ** 0.5
        finite = torch.isfinite(x).all(dim=(1, 2))
        smallest = torch.linalg.eigvalsh(torch.where(finite[:, None, None], x, 0.0))[:, 0]
        return torch.where(proper & finite, smallest, -torch.inf)

    def _exact_slack(self, x: Tensor) -> Tensor:
        # Rows of float32 sum to one in their own precision only.
        return self._slack(x).double()

    def _project(self, x: Float[Tensor, "particles p p"]) -> Float[Tensor, "particles p p"]:
        values, vectors = torch.linalg.eigh((x + x.mT).mul_(0.5))
        return _assembled(project_shares(values), vectors)

    def _wishart(self, n: int, columns: int, rng: np.random.Generator) -> np.ndarray:
        factor = rng.standard_normal((n, self.dimension, columns))
        product = factor @ factor.transpose(0, 2, 1)
        return product / np.trace(product, axis1=1, axis2=2)[:, None, None]

    def _sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        # The density of a Wishart matrix has the determinant to the power (columns - p - 1) / 2.
        return self._wishart(n, self.dimension + 1, rng)

    def _start(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return self._wishart(n, 4 * self.dimension, rng)


def inverse_shares(y: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
    r"""The numbers :math:`s - y_i > 0` whose reciprocals sum to one.

    Parameters
    ----------
    y : Tensor of shape (particles, d)
        One problem per row.

    Returns
    -------
    Tensor of shape (particles, d)

    Notes
    -----
    The harmonic mean :math:`1 / \sum 1/(s - y_i)` is concave and increasing in :math:`s`, so that Newton's method
    approaches the level one from below, and in a single step when all :math:`y_i` are equal.
    """
    gaps = y.amax(dim=1, keepdim=True) - y
    shift = torch.ones_like(gaps[:, :1])
    tolerance = 8.0 * torch.finfo(y.dtype).eps
    for _ in range(60):
        shares = (gaps + shift).reciprocal_()
        total = shares.sum(dim=1, keepdim=True)
        if not bool((total > 1.0 + tolerance).any()):
            break
        shift += total.sub(1.0).mul_(total).div_(torch.linalg.vecdot(shares, shares)[:, None])
    return gaps.add_(shift)


def project_shares(x: Float[Tensor, "particles d"]) -> Float[Tensor, "particles d"]:
    """Nearest point of the closed simplex, by sorting.

    Parameters
    ----------
    x : Tensor of shape (particles, d)
        One point per row.
    """
    ordered = x.sort(dim=1, descending=True).values
    excess = ordered.cumsum(dim=1).sub_(1.0)
    counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device)
    last = (ordered * counts > excess).sum(dim=1, keepdim=True).clamp_(min=1)
    return (x - excess.gather(1, last - 1) / last).clamp_(min=0.0)


def _with_zero(y: Tensor) -> Tensor:
    """All dual coordinates, with that of the last share."""
    return torch.nn.functional.pad(y, (0, 1))


def _of_sum_one(x: Tensor) -> Tensor:
    return (x.sum(dim=1) - 1.0).abs() <= torch.finfo(x.dtype).eps ** 0.5


def _assembled(values: Tensor, vectors: Tensor) -> Tensor:
    product = (vectors * values[:, None, :]) @ vectors.mT
    return (product + product.mT).mul_(0.5)


def _traceless(matrices: Tensor) -> Tensor:
    diagonal = matrices.diagonal(dim1=1, dim2=2)
    diagonal -= diagonal.mean(dim=1, keepdim=True)
    return matrices


def _log_slopes(values: Float[Tensor, "particles p"]) -> Float[Tensor, "particles p p"]:
    """Divided differences of the logarithm, ``1 / values`` on the diagonal."""
    first, second = values[:, :, None], values[:, None, :]
    share = (first - second) / (first + second)
    # log(first / second) = 2 atanh(share); its quotient by share is smooth at 0, where both vanish.
    small = share.abs() < 1e-3
    series = 1.0 + share**2 / 3.0 + share**4 / 5.0
    safe = torch.where(small, 0.5, share)
    quotient = torch.where(small, series, (first.log() - second.log()) / (2.0 * safe))
    return quotient * 2.0 / (first + second)
