r"""Sets from which a player of a bilinear game chooses: what first-order play needs to know of them, and no more.

Projected gradient play asks three things of a feasible set: the closest point to a vector, a vertex that minimises a
linear function, and how far from the origin the set reaches. Anything that answers them can be a player's set; here
are the simplex, the box, the simplex with capped entries, products of these, and a class that takes three functions.

A set may also tell along which directions its points differ (``directions``). What a gradient has across them moves no
projection, so that steps may be longer where payoffs have much in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.games.matrix_game import nearest_distribution
from assay.validation import as_float_array, check_integer, check_real

__all__ = ["Box", "CappedSimplex", "FeasibleSet", "Polytope", "Product", "Simplex"]


@runtime_checkable
class FeasibleSet(Protocol):
    """What a player's set must offer.

    Attributes
    ----------
    size : int
        Dimension of the space it lies in.
    radius : float
        Largest Euclidean norm of its points.
    """

    size: int
    radius: float

    def project(self, point: np.ndarray) -> np.ndarray:
        """The closest point of the set."""

    def minimise(self, loss: np.ndarray) -> np.ndarray:
        """A vertex at which ``loss @ x`` is least."""


@dataclass(frozen=True, eq=False)
class Polytope:
    """A set that is given by functions.

    Parameters
    ----------
    project : callable
        From a vector of length ``size`` to the closest point of the set.
    minimise : callable
        From a vector of length ``size`` to a vertex at which its inner product with the set is least.
    radius : float
        Largest Euclidean norm of a point of the set.
    size : int
        Dimension of the space.

    Raises
    ------
    TypeError, ValueError
        If ``project`` or ``minimise`` cannot be called, or a number is negative or not finite.

    Examples
    --------
    The unit ball of the l1 norm in the plane, through its four vertices:

    >>> import numpy as np
    >>> from assay.games.polytope import Polytope
    >>> vertices = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    >>> def project(point):
    ...     size = np.abs(point)
    ...     excess = max((size.sum() - 1) / 2, size.max() - 1, 0.0)
    ...     return np.sign(point) * np.maximum(size - excess, 0)
    >>> diamond = Polytope(project, lambda loss: vertices[np.argmin(vertices @ loss)], radius=1.0, size=2)
    >>> diamond.project(np.array([1.0, 1.0])), diamond.minimise(np.array([0.0, 3.0]))
    (array([0.5, 0.5]), array([ 0., -1.]))
    """

    project: Callable[[np.ndarray], np.ndarray]
    minimise: Callable[[np.ndarray], np.ndarray]
    radius: float
    size: int

    def __post_init__(self) -> None:
        for name in ("project", "minimise"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function of a vector, got {getattr(self, name)!r}")
        object.__setattr__(self, "radius", check_real(self.radius, "radius", minimum=0.0))
        object.__setattr__(self, "size", check_integer(self.size, "size", minimum=1))


@dataclass(frozen=True)
class Simplex:
    """Distributions over ``size`` actions.

    Parameters
    ----------
    size : int
        Number of actions, at least 1.

    Raises
    ------
    TypeError, ValueError
        If it is not a positive integer.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.polytope import Simplex
    >>> Simplex(3).project(np.array([0.75, 0.75, -3.0]))
    array([0.5, 0.5, 0. ])
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check_integer(self.size, "size", minimum=1))

    @property
    def radius(self) -> float:
        """1, at a vertex."""
        return 1.0

    def project(self, point: np.ndarray) -> np.ndarray:
        """The closest distribution: O(n log n)."""
        return nearest_distribution(point)

    def minimise(self, loss: np.ndarray) -> np.ndarray:
        """The pure strategy of least loss."""
        vertex = np.zeros(self.size)
        vertex[np.argmin(loss)] = 1.0
        return vertex

    def directions(self, vectors: np.ndarray) -> np.ndarray:
        """The part of each column that sums to 0."""
        return vectors - vectors.mean(axis=0)


class Box:
    """Vectors between two bounds.

    Parameters
    ----------
    lower, upper : array_like of shape (n,)
        ``lower <= upper``, finite.

    Raises
    ------
    TypeError, ValueError
        If the bounds are not finite vectors of one length in the right order.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.polytope import Box
    >>> box = Box([0, 0], [1, 2])
    >>> box.project(np.array([0.5, 3.0])), box.minimise(np.array([1.0, -1.0])), round(box.radius, 4)
    (array([0.5, 2. ]), array([0., 2.]), 2.2361)
    """

    def __init__(self, lower: ArrayLike, upper: ArrayLike):
        self.lower = as_float_array(lower, "lower", ndim=1).copy()
        self.upper = as_float_array(upper, "upper", ndim=1).copy()
        if self.lower.shape != self.upper.shape:
            raise ValueError(f"upper must have the length of lower, {self.lower.size}, got {self.upper.size}")
        if np.any(self.lower > self.upper):
            index = int(np.argmax(self.lower > self.upper))
            raise ValueError(
                f"lower must be at most upper, got {self.lower[index]:g} > {self.upper[index]:g} at {index}"
            )
        self.size = int(self.lower.size)
        self.radius = _norm(np.maximum(np.abs(self.lower), np.abs(self.upper)))

    def __repr__(self) -> str:
        return f"Box(size={self.size})"

    def project(self, point: np.ndarray) -> np.ndarray:
        """Entry by entry."""
        return np.clip(point, self.lower, self.upper)

    def minimise(self, loss: np.ndarray) -> np.ndarray:
        """The upper bound where the loss is negative, the lower one elsewhere."""
        return np.where(loss < 0, self.upper, self.lower)

    def directions(self, vectors: np.ndarray) -> np.ndarray:
        """The entries that are not fixed."""
        return ((self.lower < self.upper) * vectors.T).T


class CappedSimplex:
    """Vectors with entries between 0 and ``cap`` that sum to ``total``.

    Parameters
    ----------
    size : int
        Number of entries.
    cap : float
        Largest value of an entry; ``size * cap`` must be at least ``total``.
    total : float, default=1.0
        Sum of the entries.

    Raises
    ------
    TypeError, ValueError
        If an argument is not positive, or the set is empty.

    Examples
    --------
    At least two of three assets:

    >>> import numpy as np
    >>> from assay.games.polytope import CappedSimplex
    >>> CappedSimplex(3, 0.5).project(np.array([2.0, 0.25, 0.0]))
    array([0.5  , 0.375, 0.125])
    """

    def __init__(self, size: int, cap: float, total: float = 1.0):
        self.size = check_integer(size, "size", minimum=1)
        self.cap = check_real(cap, "cap", above=0.0)
        self.total = check_real(total, "total", above=0.0)
        if self.size * self.cap < self.total * (1 - 1e-12):
            raise ValueError(f"cap must be at least total / size = {self.total / self.size:g}, got {self.cap:g}")
        self.radius = _norm(self.minimise(np.zeros(self.size)))

    def __repr__(self) -> str:
        return f"CappedSimplex(size={self.size}, cap={self.cap:g}, total={self.total:g})"

    def project(self, point: np.ndarray) -> np.ndarray:
        """Exact, by bisection over the places where an entry enters or leaves its bounds: O(n log n)."""
        corners = np.unique(np.concatenate((point - self.cap, point)))
        mass = lambda shift: float(np.clip(point - shift, 0.0, self.cap).sum())  # noqa: E731
        low, high = 0, corners.size - 1  # mass falls from size * cap at the first corner to 0 at the last
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if mass(corners[middle]) >= self.total else (low, middle)
        above, below = mass(corners[low]), mass(corners[high])
        share = (above - self.total) / (above - below) if above > below else 0.0
        return np.clip(point - (corners[low] + share * (corners[high] - corners[low])), 0.0, self.cap)

    def minimise(self, loss: np.ndarray) -> np.ndarray:
        """Fill the entries of least loss to the cap."""
        vertex = np.zeros(self.size)
        before = self.cap * np.arange(self.size)
        vertex[np.argsort(loss, kind="stable")] = np.clip(self.total - before, 0.0, self.cap)
        return vertex

    def directions(self, vectors: np.ndarray) -> np.ndarray:
        """The part of each column that sums to 0."""
        return vectors - vectors.mean(axis=0)


class Product:
    """Several sets side by side: the first entries lie in the first set, the next in the second, and so on.

    Parameters
    ----------
    *parts : FeasibleSet
        At least one.

    Raises
    ------
    TypeError, ValueError
        If there is none, or one lacks a method of a feasible set.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.polytope import Box, Product, Simplex
    >>> both = Product(Simplex(2), Box([-1], [1]))
    >>> both.size, both.minimise(np.array([1.0, 0.0, 2.0]))
    (3, array([ 0.,  1., -1.]))
    """

    def __init__(self, *parts: Any):
        if not parts:
            raise ValueError("parts must be at least one set, got none")
        self.parts = tuple(as_feasible_set(part, f"parts[{i}]") for i, part in enumerate(parts))
        self._ends = np.cumsum([part.size for part in self.parts])[:-1]
        self.size = int(sum(part.size for part in self.parts))
        self.radius = math.hypot(*(part.radius for part in self.parts))

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.parts))})"

    def project(self, point: np.ndarray) -> np.ndarray:
        """Set by set."""
        return np.concatenate([s.project(p) for s, p in zip(self.parts, np.split(point, self._ends), strict=True)])

    def minimise(self, loss: np.ndarray) -> np.ndarray:
        """Set by set."""
        return np.concatenate([s.minimise(c) for s, c in zip(self.parts, np.split(loss, self._ends), strict=True)])

    def directions(self, vectors: np.ndarray) -> np.ndarray:
        """Set by set."""
        pieces = zip(self.parts, np.split(vectors, self._ends), strict=True)
        return np.concatenate([directions_of(part)(piece) for part, piece in pieces])


def as_feasible_set(candidate: Any, name: str, size: int | None = None) -> Any:
    """Check that an object is a feasible set (of this dimension), by asking it for a point."""
    for method in ("project", "minimise"):
        if not callable(getattr(candidate, method, None)):
            raise TypeError(f"{name} must have a method {method!r}, got {type(candidate).__name__} without it")
    for number in ("radius", "size"):
        if not hasattr(candidate, number):
            raise TypeError(f"{name} must have an attribute {number!r}, got {type(candidate).__name__} without it")
    check_real(candidate.radius, f"{name}.radius", minimum=0.0)
    own = check_integer(candidate.size, f"{name}.size", minimum=1)
    if size is not None and own != size:
        raise ValueError(f"{name} must be a set of dimension {size}, got {own}")
    feasible = candidate if type(candidate) in (Simplex, Box, CappedSimplex, Product) else _Checked(candidate, name)
    for method, argument in (("project", 0.0), ("minimise", 0.0), ("minimise", 1.0), ("minimise", -1.0)):
        norm = _norm(getattr(feasible, method)(np.full(own, argument)))
        if norm > candidate.radius * (1 + 1e-9) + 1e-12:
            raise ValueError(
                f"{name}.radius must be the largest norm in the set, got {candidate.radius:g} although "
                f"{name}.{method} returns a point of norm {norm:g}"
            )
    return feasible


class _Checked:
    """A set of the user's own: it gets copies, and what it returns becomes an array of the right shape."""

    def __init__(self, inner: Any, name: str):
        self.inner, self.name = inner, name
        self.size, self.radius = int(inner.size), float(inner.radius)

    def project(self, point: np.ndarray) -> np.ndarray:
        return self._asked("project", point)

    def minimise(self, loss: np.ndarray) -> np.ndarray:
        return self._asked("minimise", loss)

    def directions(self, vectors: np.ndarray) -> np.ndarray:
        return directions_of(self.inner)(vectors)

    def _asked(self, method: str, vector: np.ndarray) -> np.ndarray:
        answer = as_float_array(getattr(self.inner, method)(vector.copy()), f"{self.name}.{method}(vector)", ndim=1)
        if answer.size != self.size:
            raise ValueError(f"{self.name}.{method} must return a vector of length {self.size}, got {answer.size}")
        return answer


def directions_of(feasible: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Projection of a vector, or of the columns of a matrix, on the directions in which points of the set differ."""
    return getattr(feasible, "directions", None) or (lambda vectors: vectors)


def first_point(feasible: Any) -> Float[np.ndarray, " entries"]:
    """Where play starts by default: the point closest to the origin, which is uniform on a simplex."""
    return np.array(feasible.project(np.zeros(feasible.size)), dtype=np.float64)


def is_member(feasible: Any, point: np.ndarray, atol: float) -> bool:
    """Whether a point lies in the set, up to ``atol`` times the size of the set."""
    if not np.all(np.isfinite(point)):
        return False
    return bool(np.abs(feasible.project(point) - point).max() <= atol * max(1.0, feasible.radius))


def _norm(vector: np.ndarray) -> float:
    """Euclidean norm of a vector whose squares may overflow."""
    largest = float(np.abs(vector).max())
    return largest * float(np.linalg.norm(vector / largest)) if largest > 0 else 0.0
