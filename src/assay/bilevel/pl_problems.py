r"""Bilevel problems over nodes whose hypergradient is known, with lower losses that are not strongly convex.

Both have a lower loss that satisfies the Polyak-Lojasiewicz inequality
:math:`\|\nabla_y g\|^2 \ge 2\mu(g - \min_y g)` and whole subspaces of minimisers :math:`S(x)`: least squares of
deficient rank, and a sum of :math:`\phi(u) = u^2 + 3\sin^2 u`, whose curvature goes down to -4. The upper loss
chooses among the minimisers, so the value is the optimistic one, :math:`F(x) = \min_{y \in S(x)} f(x, y)`, and since
:math:`S(x) = \{y : Hy = Cx\}` is affine it has a closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.bilevel.decentralized_losses import BatchedLoss
from assay.validation import as_float_array, as_generator, check_integer

__all__ = ["PLProblem", "nonconvex_pl_problem", "quadratic_pl_problem"]

Loss = Callable[..., Any]
Stacked = Float[np.ndarray, "nodes _"]
Blocks = Float[np.ndarray, "nodes _ _"]
Batch = Float[np.ndarray, "nodes 2 _"] | None
Answer = tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]

# What the upper loss charges for the size of x.
_RIDGE = 0.05


@dataclass(frozen=True, eq=False)
class PLProblem:
    r"""A bilevel problem over nodes with a closed form.

    The upper loss of node ``k`` is :math:`f_k(x, y) = \frac12\|y - t_k\|^2 + 0.05\|x\|^2`.

    Parameters
    ----------
    f, g : BatchedLoss
        Upper and lower losses of all nodes, exact for numpy arrays. A batch, if there is one, is an array of shape
        (K, 2, d_x + d_y) that is added to the gradients of ``f`` and of ``g``: noise, the same in both evaluations of
        ``g`` in an iteration.
    f_list, g_list : list of callable
        The same losses, one function per node.
    jacobian : numpy.ndarray of shape (d_y, d_x)
        How the minimisers move with ``x``.
    kernel : numpy.ndarray of shape (d_y, d_y)
        Projection onto the directions in which the lower loss is flat.
    lower_map, upper_map : numpy.ndarray of shape (m, d_y) and (m, d_x)
        The minimisers are the ``y`` with ``lower_map @ y == upper_map @ x``.
    targets : numpy.ndarray of shape (K, d_y)
        The :math:`t_k`.
    mu : float
        Modulus of the Polyak-Lojasiewicz inequality of the mean lower loss (a lower bound if that is not convex).
    L : float
        Lipschitz constant of its gradient in ``y`` (for the one that is not convex, of every node's).
    x_star : numpy.ndarray of shape (d_x,)
        Minimiser of ``F``.

    Examples
    --------
    >>> from assay.bilevel import quadratic_pl_problem
    >>> problem = quadratic_pl_problem(8)
    >>> value, grad = problem.F([0.0] * 5)
    >>> print(f"{value:.7f} {grad @ grad:.6f} {problem.mu:.7f} {problem.L:.7f}")
    7.7891648 9.281625 0.6227988 1.2558751
    """

    f: BatchedLoss
    g: BatchedLoss
    f_list: list
    g_list: list
    jacobian: Float[np.ndarray, "dy dx"]
    kernel: Float[np.ndarray, "dy dy"]
    lower_map: Float[np.ndarray, "m dy"]
    upper_map: Float[np.ndarray, "m dx"]
    targets: Float[np.ndarray, "nodes dy"]
    mu: float
    L: float
    x_star: Float[np.ndarray, " dx"]

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, int]:
        """Dimensions of ``x`` and of ``y``."""
        return self.jacobian.shape[1], self.jacobian.shape[0]

    def F(self, x: ArrayLike) -> tuple[float, Float[np.ndarray, " dx"]]:
        """The upper loss at the best of the minimisers, and its gradient.

        Parameters
        ----------
        x : array_like of shape (d_x,)
            Where.

        Returns
        -------
        tuple
            The value and the gradient.
        """
        point = as_float_array(x, "x", ndim=1)
        if point.shape != self.x_star.shape:
            raise ValueError(f"x must have shape {self.x_star.shape}, got {point.shape}")
        best = self.lower_solution(point)
        value = 0.5 * float(np.mean(((best - self.targets) ** 2).sum(axis=1))) + _RIDGE * float(point @ point)
        return value, self.jacobian.T @ (best - self.targets.mean(axis=0)) + 2.0 * _RIDGE * point

    def lower_solution(self, x: Float[np.ndarray, " dx"]) -> Float[np.ndarray, " dy"]:
        """The minimiser of the mean lower loss that the mean upper loss likes best."""
        return self.jacobian @ x + self.kernel @ self.targets.mean(axis=0)

    def noise(self, scale: float, rng: np.random.Generator) -> Float[np.ndarray, "nodes 2 size"]:
        """A batch: independent normal noise of standard deviation ``scale`` in every entry of the gradients."""
        return scale * rng.normal(size=(self.n_nodes, 2, sum(self.shape)))


def quadratic_pl_problem(
    K: int,
    dx: int = 5,
    d: int = 12,
    rank: int = 7,
    n: int = 20,
    seed: int | np.random.Generator | None = 0,
    heterogeneous: bool = True,
) -> PLProblem:
    r"""Least squares of deficient rank below, squared distance to targets above.

    .. math:: g_k(x, y) = \tfrac12\|A_k y - B_k x\|^2, \qquad f_k(x, y) = \tfrac12\|y - t_k\|^2 + 0.05\|x\|^2

    with all :math:`A_k` of one row space of dimension ``rank``.

    Parameters
    ----------
    K : int
        Number of nodes.
    dx, d : int, default=5, 12
        Dimensions of ``x`` and ``y``.
    rank : int, default=7
        Rank of the lower losses, at most ``d`` and ``n``.
    n : int, default=20
        Rows of the data of a node.
    seed : int or numpy.random.Generator, default=0
        Source of randomness.
    heterogeneous : bool, default=True
        Whether nodes have data of their own; otherwise all have those of the first one.

    Returns
    -------
    PLProblem

    Raises
    ------
    TypeError, ValueError
        If a dimension is not a positive integer, or the rank is too large.

    Examples
    --------
    >>> from assay.bilevel import quadratic_pl_problem
    >>> quadratic_pl_problem(8).x_star.round(4)
    array([-0.7999,  0.2457, -0.3607,  0.4704, -0.3851])
    """
    K, dx, d, rank = _dimensions(K, dx, d, rank)
    if not isinstance(heterogeneous, bool | np.bool_):
        raise TypeError(f"heterogeneous must be True or False, got {heterogeneous!r}")
    n = check_integer(n, "n", minimum=1)
    if rank > n:
        raise ValueError(f"rank must be at most n = {n}, got {rank}")
    rng = as_generator(seed, "seed")
    drawn = K if heterogeneous else 1
    rows = np.linalg.qr(rng.standard_normal((d, rank)))[0].T
    A = np.stack([rng.standard_normal((n, rank)) @ rows / np.sqrt(n) for _ in range(drawn)])
    M = rng.standard_normal((d, dx))
    B = np.stack([A[k] @ M + 0.1 * rng.standard_normal((n, dx)) / np.sqrt(n) for k in range(drawn)])
    targets = np.stack([rng.standard_normal(d) + 1.0 for _ in range(drawn)])
    if not heterogeneous:
        A, B, targets = (np.repeat(array, K, axis=0) for array in (A, B, targets))
    H = np.einsum("kni,knj->ij", A, A) / K
    C = np.einsum("kni,knj->ij", A, B) / K
    rows_of_both = np.concatenate([B, -A], axis=2)
    joint = np.matmul(rows_of_both.transpose(0, 2, 1), rows_of_both)
    # Within the row space, so that no threshold has to tell a small eigenvalue from a zero.
    inner = rows @ H @ rows.T
    eigenvalues = np.linalg.eigvalsh(inner)
    jacobian = rows.T @ np.linalg.solve(inner, rows @ C)

    def lower(part: slice) -> Loss:
        return partial(_least_squares, joint[part])

    L = float(eigenvalues[-1])
    return _problem(lower, (H, C), jacobian, rows, targets, float(eigenvalues[0]), L)


def nonconvex_pl_problem(
    K: int, dx: int = 5, d: int = 12, rank: int = 7, seed: int | np.random.Generator | None = 0
) -> PLProblem:
    r"""A lower loss that is neither convex nor has one minimiser, but has no other stationary points.

    .. math:: g_k(x, y) = \sum_i w_{ki}\,\phi\bigl((Ry - Cx)_i\bigr), \qquad \phi(u) = u^2 + 3\sin^2 u

    and the upper loss of :func:`quadratic_pl_problem`. :math:`\phi` satisfies the inequality with modulus 1/32.

    Parameters
    ----------
    K : int
        Number of nodes.
    dx, d : int, default=5, 12
        Dimensions of ``x`` and ``y``.
    rank : int, default=7
        Number of terms, at most ``d``.
    seed : int or numpy.random.Generator, default=0
        Source of randomness.

    Returns
    -------
    PLProblem

    Raises
    ------
    TypeError, ValueError
        If a dimension is not a positive integer, or the rank is too large.

    Examples
    --------
    >>> from assay.bilevel import nonconvex_pl_problem
    >>> problem = nonconvex_pl_problem(8)
    >>> problem.x_star.round(4), round(problem.L, 4)
    (array([ 0.3207, -0.8681, -0.7111, -0.854 , -0.3914]), 13.8546)
    """
    K, dx, d, rank = _dimensions(K, dx, d, rank)
    rng = as_generator(seed, "seed")
    orthonormal = np.linalg.qr(rng.standard_normal((d, rank)))[0]
    scales = np.linspace(0.6, 1.2, rank)
    R = (orthonormal * scales).T
    C = 0.5 * rng.standard_normal((rank, dx))
    weights = rng.uniform(0.5, 1.5, (K, rank))
    targets = rng.standard_normal((K, d)) + 1.0

    def lower(part: slice) -> Loss:
        return partial(_oscillating, R, C, weights[part])

    jacobian = (orthonormal / scales) @ C
    mu = float(weights.mean(axis=0).min() * scales[0] ** 2 / 32.0)
    L = float(np.linalg.norm((R.T * (8.0 * weights.max(axis=0))) @ R, 2))
    return _problem(lower, (R, C), jacobian, orthonormal.T, targets, mu, L)


def _dimensions(K: int, dx: int, d: int, rank: int) -> tuple[int, int, int, int]:
    sizes = {"K": K, "dx": dx, "d": d, "rank": rank}
    checked = tuple(check_integer(size, name, minimum=1) for name, size in sizes.items())
    if rank > d:
        raise ValueError(f"rank must be at most d = {d}, got {rank}")
    return checked


def _problem(
    lower: Callable[[slice], Loss],
    maps: tuple[Float[np.ndarray, "m dy"], Float[np.ndarray, "m dx"]],
    jacobian: Float[np.ndarray, "dy dx"],
    rows: Float[np.ndarray, "rank dy"],
    targets: Float[np.ndarray, "nodes dy"],
    mu: float,
    L: float,
) -> PLProblem:
    def upper(part: slice) -> Loss:
        return partial(_distance, targets[part])

    n_nodes = len(targets)
    every, each = slice(None), [slice(k, k + 1) for k in range(n_nodes)]
    d, dx = jacobian.shape
    x_star = np.linalg.solve(jacobian.T @ jacobian + 2.0 * _RIDGE * np.eye(dx), jacobian.T @ targets.mean(axis=0))
    return PLProblem(
        f=BatchedLoss(upper(every), n_nodes, smoothness=1.0),
        g=BatchedLoss(lower(every), n_nodes, smoothness=L),
        f_list=[partial(_alone, upper(part)) for part in each],
        g_list=[partial(_alone, lower(part)) for part in each],
        jacobian=jacobian,
        kernel=np.eye(d) - rows.T @ rows,
        lower_map=maps[0],
        upper_map=maps[1],
        targets=targets,
        mu=mu,
        L=L,
        x_star=x_star,
    )


def _distance(targets: Stacked, x: Stacked, y: Stacked, batch: Batch) -> Answer:
    off = y - targets
    values = 0.5 * (off**2).sum(axis=1) + _RIDGE * (x**2).sum(axis=1)
    grads = 2.0 * _RIDGE * x, off
    return values, grads if batch is None else _with_noise(*grads, batch[:, 0])


def _least_squares(joint: Blocks, x: Stacked, y: Stacked, batch: Batch) -> Answer:
    # Half the squared norm of [B, -A] (x, y), from the Gram matrix of [B, -A].
    both = np.concatenate([x, y], axis=1)
    along = np.matmul(joint, both[:, :, None])[:, :, 0]
    grads = along[:, : x.shape[1]], along[:, x.shape[1] :]
    values = 0.5 * (both * along).sum(axis=1)
    return values, grads if batch is None else _with_noise(*grads, batch[:, 1])


def _oscillating(
    R: Float[np.ndarray, "rank dy"],
    C: Float[np.ndarray, "rank dx"],
    weights: Float[np.ndarray, "nodes rank"],
    x: Float[np.ndarray, "nodes dx"],
    y: Float[np.ndarray, "nodes dy"],
    batch: Batch,
) -> Answer:
    off = y @ R.T - x @ C.T
    values = (weights * (off**2 + 3.0 * np.sin(off) ** 2)).sum(axis=1)
    slope = weights * (2.0 * off + 3.0 * np.sin(2.0 * off))
    grads = -slope @ C, slope @ R
    return values, grads if batch is None else _with_noise(*grads, batch[:, 1])


def _with_noise(
    grad_x: Float[np.ndarray, "nodes dx"], grad_y: Float[np.ndarray, "nodes dy"], noise: Float[np.ndarray, "nodes _"]
) -> tuple[Float[np.ndarray, "nodes dx"], Float[np.ndarray, "nodes dy"]]:
    dx = grad_x.shape[1]
    return grad_x + noise[:, :dx], grad_y + noise[:, dx:]


def _alone(
    loss: Loss, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, " dy"], batch: Float[np.ndarray, "2 _"] | None
) -> tuple[np.float64, tuple[np.ndarray, np.ndarray]]:
    """The loss of a single node as a function of vectors."""
    values, (grad_x, grad_y) = loss(x[None], y[None], None if batch is None else batch[None])
    return values[0], (grad_x[0], grad_y[0])
