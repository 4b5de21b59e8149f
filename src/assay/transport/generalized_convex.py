r"""Functions that are generalized convex by construction, as a layer.

For a surplus :math:`\Phi(x, y)` a function is *generalized convex* when it is the best of a family of affine-like
pieces, :math:`f(x) = \sup_y \Phi(x, y) - g(y)`. With :math:`\Phi(x, y) = \langle x, y\rangle` these are the convex
functions; with another surplus they are the indirect utilities of buyers who choose from a menu; with a cost in place
of the surplus, and the least in place of the best, they are the potentials of optimal transport. The layer holds
finitely many pieces,

.. math:: f(x) = \max_{j \le J} \; \Phi(x, y_j) - b_j,

and two things follow. Whatever the parameters are, ``f`` is generalized convex, and for fixed ``y`` the intercepts
``b`` range over all of :math:`R^J`, a convex set. And the inner problem, a buyer's best response or a c-transform, is a
maximum over ``J`` numbers, so that what is trained around it is one level of plain gradient descent. The gradient of
``f`` is that of the active piece, :math:`\nabla_x \Phi(x, y_{j^*(x)})`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.certificate import Assumption, Certificate
from assay.transport.mechanism_certificates import mechanism_certificates
from assay.transport.transport_kernels import DotKernel, check_kernel, kernel_scores
from assay.validation import check_choice, check_integer, check_real

__all__ = ["GCFLayer"]

# The temperature is divided by the spread of the scores, within these limits.
LEAST_SPREAD = 1e-3
HOTTEST = 5000.0

# A trainable point on the edge of its box starts this share of the box inside, where the sigmoid still has a slope.
_INSIDE = 1e-4

# Scores of this many entries stay in the cache between the operations on them, but few rows cost overhead.
_CACHED = 2**18
_LEAST_ROWS = 64

# Pairs are evaluated in square blocks of this side, of which the diagonal is kept: a kernel promises matrices only.
_PAIR_BLOCK = 64


class GCFLayer(torch.nn.Module):
    r"""Generalized convex (or concave) function of finitely many pieces, and the choices behind it.

    .. math::

        f(x) = \max_j \Phi(x, y_j) - b_j \quad (\text{mode "convex"}), \qquad
        f(x) = \min_j \Phi(x, y_j) - b_j \quad (\text{mode "concave"}).

    Parameters
    ----------
    kernel : str, callable or object
        The surplus or cost: ``"dot"``, ``"hinge"``, ``"neg_sqeuclidean"``, ``"neg_power"``, ``"sqeuclidean"``,
        ``"power"``, a function, or an object with the method ``evaluate`` (see
        :mod:`assay.transport.transport_kernels`). A module is trained together with the layer.
    y : tensor or array_like of shape (J, k)
        The outcomes of the pieces. Its dtype, or the default one for integers, is that of the layer.
    mode : {"convex", "concave"}, default="convex"
        The largest or the smallest of the pieces.
    selection : {"hard", "soft", "ste"}, default="hard"
        ``"hard"`` takes the best piece, the first one of several. ``"soft"`` averages the pieces with softmax
        weights, at the temperature divided by the spread of the scores of the sample. ``"ste"`` has the values of the
        former and the gradients of the latter.
    temperature : float, default=60.0
        Of the soft choice; may be set at any time, see :mod:`assay.transport.temperature_schedules`.
    intercept : tensor or array_like of shape (J,), optional
        The ``b_j``, zero by default. Always trainable.
    learn_y : bool, default=False
        Whether the outcomes are trained too.
    y_bounds : pair, optional
        Lower and upper limits of the outcomes, numbers or vectors of length k, None for no limit. Trainable outcomes
        stay within them, by a sigmoid or, with one limit only, a softplus.
    outside : bool, tensor or pair, optional
        A first piece that is not trained: its outcome (True for zero), or the pair of its outcome and its intercept
        (0 by default).
    chunk_size : int, default=4096
        Samples that are scored at a time; memory is at most twice ``chunk_size * J`` numbers when no gradient is
        recorded.
    lse : bool, default=False
        Whether soft values are ``logsumexp(temperature * scores) / temperature``, an upper (lower) bound of the hard
        ones that is itself convex (concave) in ``b``, instead of averages.

    Raises
    ------
    TypeError, ValueError
        If ``kernel`` has not the method, ``y`` is empty, not finite or outside ``y_bounds``, ``intercept`` has another
        length, ``temperature`` is not positive, or an option is unknown.

    Notes
    -----
    A pass over ``S`` samples takes ``O(S J d)``. Temperatures are clipped to at most 5000 after the division by the
    spread, which is taken as at least 0.001, so that equal scores do no harm.

    The set of intercept vectors in which every piece is tight (see :meth:`lean_`) is not convex; the set of all
    intercept vectors is.

    References
    ----------
    M. Nehzati. Universal Representation of Generalized Convex Functions and their Gradients. ICML 2026.
    arXiv:2509.04477.

    Examples
    --------
    The indirect utility of buyers of one good that costs 0.5:

    >>> import torch
    >>> from assay.transport import GCFLayer
    >>> utility = GCFLayer("dot", [[1.0]], intercept=[0.5], outside=True)
    >>> types = torch.tensor([[0.2], [0.5], [0.9]])
    >>> utility(types).tolist()
    [0.0, 0.0, 0.3999999761581421]
    >>> bundle, index = utility.choose(types)
    >>> index.tolist()
    [0, 0, 1]
    >>> all(promise.holds for promise in utility.certificates(types))
    True
    """

    def __init__(
        self,
        kernel: Any,
        y: Any,
        *,
        mode: str = "convex",
        selection: str = "hard",
        temperature: float = 60.0,
        intercept: Any = None,
        learn_y: bool = False,
        y_bounds: Any = None,
        outside: Any = None,
        chunk_size: int = 4096,
        lse: bool = False,
    ):
        super().__init__()
        self.kernel = check_kernel(kernel)
        self.mode = check_choice(mode, "mode", ("convex", "concave"))
        self.selection = check_choice(selection, "selection", ("hard", "soft", "ste"))
        self.temperature = temperature
        self.chunk_size = check_integer(chunk_size, "chunk_size", minimum=1)
        self.learn_y, self.lse = bool(learn_y), bool(lse)
        points = _as_points(y)
        lower, upper = _as_bounds(y_bounds, points)
        self.register_buffer("_lower", lower)
        self.register_buffer("_upper", upper)
        if self.learn_y:
            self._raw_y = torch.nn.Parameter(_to_raw(points, lower, upper))
        else:
            self.register_buffer("_y", points)
        given = torch.zeros(len(points)) if intercept is None else intercept
        self.intercept = torch.nn.Parameter(_as_vector(given, "intercept", points, len(points)))
        outcome, price = _as_outside(outside, points)
        self.register_buffer("_outside_y", outcome)
        self.register_buffer("_outside_intercept", price)

    @property
    def temperature(self) -> float:
        """Temperature of the soft choice."""
        return self._temperature

    @temperature.setter
    def temperature(self, temperature: float) -> None:
        self._temperature = check_real(temperature, "temperature", above=0)

    @property
    def outside(self) -> bool:
        """Whether the first piece is an outside option."""
        return self._outside_y is not None

    @property
    def y(self) -> Float[Tensor, "J k"]:
        """Outcomes of the pieces, without the outside option."""
        return _from_raw(self._raw_y, self._lower, self._upper) if self.learn_y else self._y

    @property
    def points(self) -> Float[Tensor, "pieces k"]:
        """Outcomes of all pieces; the outside option, if there is one, is the first."""
        return self.y if self._outside_y is None else torch.cat([self._outside_y, self.y])

    @property
    def intercepts(self) -> Float[Tensor, " pieces"]:
        """Intercepts of all pieces, in the order of :attr:`points`."""
        return self.intercept if self._outside_y is None else torch.cat([self._outside_intercept, self.intercept])

    def extra_repr(self) -> str:
        """What ``repr`` says of the layer."""
        pieces, k = self.intercept.shape[0], self._buffers.get("_y", getattr(self, "_raw_y", None)).shape[1]
        return (
            f"{self.kernel if not isinstance(self.kernel, torch.nn.Module) else type(self.kernel).__name__}, "
            f"pieces={pieces}, outcomes of length {k}, mode={self.mode!r}, selection={self.selection!r}, "
            f"learn_y={self.learn_y}, outside={self.outside}"
        )

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """Values of the function.

        Parameters
        ----------
        x : tensor of shape (S, d)
            Samples; leading axes of any number are kept.

        Returns
        -------
        tensor of shape (S,)

        Raises
        ------
        ValueError
            If the kernel returns anything but an (S, J) matrix.
        """
        rows = _as_rows(x)
        return _joined(self._by_chunks(rows, self._values), len(rows)).reshape(x.shape[:-1])

    def choose(self, x: Float[Tensor, "*batch d"]) -> tuple[Float[Tensor, "*batch k"], Int[Tensor, "*batch"]]:
        """Outcomes that are chosen.

        Parameters
        ----------
        x : tensor of shape (S, d)
            Samples; leading axes of any number are kept.

        Returns
        -------
        choice : tensor of shape (S, k)
            The outcome of the best piece or, in soft selection, the weighted average of all outcomes.
        index : tensor of shape (S,)
            The best piece, the first one of several; 0 is the outside option where there is one.
        """
        rows, points, shape = _as_rows(x), self.points, x.shape[:-1]
        if self.selection == "hard":
            index = _joined(self._by_chunks(rows, self._choice), len(rows))
            return points[index].reshape(*shape, points.shape[1]), index.reshape(shape)
        choices, indices = [], []
        for index, weights in self._by_chunks(rows, lambda scores: (self._choice(scores), self.soft_weights(scores))):
            soft = weights @ points
            choices.append(soft if self.selection == "soft" else points[index].detach() + (soft - soft.detach()))
            indices.append(index)
        return torch.cat(choices).reshape(*shape, points.shape[1]), torch.cat(indices).reshape(shape)

    def weights(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch pieces"]:
        """Weights of the pieces in a soft choice, whatever the selection is.

        Parameters
        ----------
        x : tensor of shape (S, d)
            Samples.

        Returns
        -------
        tensor of shape (S, pieces)
            Rows of sum 1; the outside option comes first.
        """
        weights = torch.cat(list(self._by_chunks(_as_rows(x), self.soft_weights)))
        return weights.reshape(*x.shape[:-1], weights.shape[1])

    def gradient(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Gradient of the function, which is that of the kernel at the active piece.

        Parameters
        ----------
        x : tensor of shape (S, d)
            Samples.

        Returns
        -------
        tensor of shape (S, d)
            Where several pieces are active, that of the first. Differentiable in the parameters (where the kernel is
            twice differentiable) unless gradients are switched off.
        """
        rows, record = _as_rows(x), torch.is_grad_enabled()
        slopes = []
        with torch.enable_grad():
            for chunk in rows.split(self.chunk_size) if len(rows) else [rows]:
                leaf = chunk if chunk.requires_grad else chunk.detach().requires_grad_()
                active = self._best(kernel_scores(self.kernel, leaf, self.points) - self.intercepts)
                (slope,) = torch.autograd.grad(active.sum(), leaf, create_graph=record)
                slopes.append(slope)
        return torch.cat(slopes).reshape(x.shape)

    def conjugate(
        self, y: Float[Tensor, "M k"], x_candidates: Float[Tensor, "S d"], refine: bool = False
    ) -> Float[Tensor, " M"]:
        r"""Conjugate: :math:`\max_x \Phi(x, y) - f(x)`, or the c-transform :math:`\min_x \Phi(x, y) - f(x)`.

        Parameters
        ----------
        y : tensor of shape (M, k)
            Outcomes.
        x_candidates : tensor of shape (S, d)
            The set of inputs. The conjugate is exact when it is all there is.
        refine : bool, default=False
            Whether to improve the best candidate of every outcome by L-BFGS (40 iterations, tolerance 1e-6) within the
            box that the candidates span. The better of both is kept.

        Returns
        -------
        tensor of shape (M,)
            Its gradient in the parameters is that of ``f`` at the maximiser, which is held fixed (envelope theorem).

        Raises
        ------
        ValueError
            If there are no candidates.

        Notes
        -----
        ``O(S M d)``, in chunks of the candidates.
        """
        if len(x_candidates) == 0:
            raise ValueError("x_candidates must have at least one row, got none")
        outcomes, candidates = y.to(self.intercept), x_candidates.to(self.intercept)
        with torch.no_grad():
            best, at = None, None
            for chunk in candidates.split(self.chunk_size):
                scores = kernel_scores(self.kernel, chunk, outcomes) - self._hard(chunk).unsqueeze(1)
                value, index = scores.max(0) if self.mode == "convex" else scores.min(0)
                if best is None:
                    best, at = value, chunk[index]
                    continue
                better = value > best if self.mode == "convex" else value < best
                best = torch.where(better, value, best)
                at = torch.where(better.unsqueeze(1), chunk[index], at)
        if refine:
            at = self._refined(outcomes, at, candidates)
        return self._pairs(at, outcomes) - self._hard(at)

    @torch.no_grad()
    def lean_(self, x_candidates: Float[Tensor, "S d"]) -> GCFLayer:
        """Make every piece tight: replace each intercept by the conjugate at its outcome.

        Parameters
        ----------
        x_candidates : tensor of shape (S, d)
            The set of inputs.

        Returns
        -------
        GCFLayer
            Itself. It has the largest values among the functions of these pieces that agree with it on the candidates.
        """
        self.intercept.copy_(self.conjugate(self.y, x_candidates))
        return self

    def certificates(self, types: Float[Tensor, "S d"]) -> tuple[Certificate, ...]:
        """Incentive compatibility (and participation) of the mechanism ``x -> (y_j, b_j)``, evaluated in float64.

        Parameters
        ----------
        types : tensor of shape (S, d)
            Types that report truthfully or as any other of them.

        Returns
        -------
        tuple of Certificate
            No type gains by the report of another; with an outside option, none is worse off than with that.

        Raises
        ------
        ValueError
            In mode ``"concave"``, where the intercepts are not prices.
        """
        if self.mode != "convex":
            raise ValueError(f"mode must be 'convex' for intercepts to be prices, got {self.mode!r}")
        wide, rows = _in_float64(self), _as_rows(types).detach().double()
        with torch.no_grad():
            index = torch.cat(list(wide._by_chunks(rows, wide._choice)))
            points, prices = wide.points, wide.intercepts
            outside = (points[0], float(prices[0])) if self.outside else None
            return mechanism_certificates(wide.kernel, rows, points[index], prices[index], outside=outside)

    def approximation(
        self,
        f: Callable[[Tensor], Tensor],
        x: Float[Tensor, "S d"],
        *,
        lipschitz: float,
        delta: float,
        net_of: Float[Tensor, "N k"] | None = None,
    ) -> Certificate:
        r"""How far the function is from one that it approximates, against what a net of outcomes promises.

        When the outcomes are a ``delta``-net, the intercepts are the conjugates of ``f``, and ``f`` is generalized
        convex, then :math:`0 \le f - f_J \le 2 L \delta` everywhere: the outcome that supports ``f`` at a point has a
        neighbour in the net, and both :math:`\Phi` and the conjugate change by at most :math:`L \delta` on the way.

        Parameters
        ----------
        f : callable
            From float64 inputs of shape (S, d) to values of shape (S,).
        x : tensor of shape (S, d)
            Where the two are compared.
        lipschitz : float
            A Lipschitz constant of the kernel in the outcome.
        delta : float
            Every outcome has a piece within this distance.
        net_of : tensor of shape (N, k), optional
            Outcomes for which that is checked.

        Returns
        -------
        Certificate
            The largest difference on ``x``, against ``2 * lipschitz * delta``.
        """
        check_real(lipschitz, "lipschitz", minimum=0)
        check_real(delta, "delta", minimum=0)
        wide, rows = _in_float64(self), _as_rows(x).detach().double()
        with torch.no_grad():
            target = f(rows)
            if not isinstance(target, Tensor) or target.shape != rows.shape[:1]:
                raise ValueError(f"f must return a tensor of shape ({len(rows)},)")
            error = float((target.double() - wide._hard(rows)).abs().max())
            covered = None
            if net_of is not None:
                reach = torch.cdist(net_of.to(rows), wide.points).amin(1).max()
                covered = float(reach) <= delta * (1.0 + 1e-9)
            sign = 1.0 if self.mode == "convex" else -1.0
            support = torch.stack(
                [sign * (kernel_scores(wide.kernel, rows, p[None])[:, 0] - target) for p in wide.points]
            ).amax(1)
            slack = float((sign * wide.intercepts - support).min())
            below = slack >= -1e-9 * max(1.0, float(target.abs().max()))
        return Certificate(
            "largest difference from the function that is approximated",
            error,
            2.0 * lipschitz * delta,
            assumptions=(
                Assumption("every outcome has a piece within delta", covered),
                Assumption("no intercept is on the wrong side of the conjugate of the function", below),
                Assumption("the function is generalized convex, and lipschitz bounds the kernel", None),
            ),
        )

    def _by_chunks(self, rows: Tensor, read: Callable[[Tensor], Any]) -> Iterator[Any]:
        """What is read off the scores, by chunks of the samples."""
        points, intercepts = self.points, self.intercepts
        size = self.chunk_size
        if not torch.is_grad_enabled():  # nothing is kept, and a matrix that stays in the cache is read for free
            size = min(size, max(_LEAST_ROWS, _CACHED // len(points)))
        fused = isinstance(self.kernel, DotKernel) and not torch.is_grad_enabled()
        offsets, columns = (-intercepts, points.T) if fused else (None, None)
        for chunk in rows.split(size) if len(rows) else [rows]:
            # The scores have no name here: their room, which is in the cache, is free before the next ones are made.
            if fused:  # one pass less over the matrix
                yield read(torch.addmm(offsets, chunk, columns))
            else:
                yield read(kernel_scores(self.kernel, chunk, points) - intercepts)

    def _best(self, scores: Float[Tensor, "S pieces"]) -> Float[Tensor, " S"]:
        if not scores.requires_grad:
            return scores.amax(1) if self.mode == "convex" else scores.amin(1)  # faster than with the index
        # max over an axis gives the gradient to the first of several, amax a share to each
        return (scores.max(1) if self.mode == "convex" else scores.min(1)).values

    def _choice(self, scores: Float[Tensor, "S pieces"]) -> Int[Tensor, " S"]:
        # max over an axis returns the first of several
        return (scores.max(1) if self.mode == "convex" else scores.min(1)).indices

    def _hard(self, rows: Float[Tensor, "S d"]) -> Float[Tensor, " S"]:
        return _joined(self._by_chunks(rows, self._best), len(rows))

    def _values(self, scores: Float[Tensor, "S pieces"]) -> Float[Tensor, " S"]:
        if self.selection == "hard":
            return self._best(scores)
        if self.lse:
            sign = 1.0 if self.mode == "convex" else -1.0
            soft = sign * torch.logsumexp(sign * self.temperature * scores, 1) / self.temperature
        else:
            soft = (self.soft_weights(scores) * scores).sum(1)
        if self.selection == "soft":
            return soft
        return self._best(scores).detach() + (soft - soft.detach())

    def soft_weights(self, scores: Float[Tensor, "S pieces"]) -> Float[Tensor, "S pieces"]:
        """Weights of the pieces in a soft choice, from their scores.

        Parameters
        ----------
        scores : tensor of shape (S, pieces)
            Values of the pieces at each sample.

        Returns
        -------
        tensor of shape (S, pieces)
            Softmax at the temperature divided by the spread of the scores of the sample (at least 0.001), at least the
            temperature itself and at most 5000.
        """
        signed = scores if self.mode == "convex" else -scores
        with torch.no_grad():  # the temperature is a setting, and not differentiated
            best = signed.amax(1, keepdim=True)
            spread = best - signed.amin(1, keepdim=True)
            heat = self.temperature / spread.clamp_min(LEAST_SPREAD)
            heat = heat.clamp(self.temperature, max(HOTTEST, self.temperature))
        # The best score is subtracted before it is multiplied: 16 and 32 bits have no digits for both.
        return torch.softmax(heat * (signed - best), 1)

    def _pairs(self, x: Float[Tensor, "M d"], y: Float[Tensor, "M k"]) -> Float[Tensor, " M"]:
        """Kernel of the first input and the first outcome, the second and the second, and so on."""
        if len(x) == 0:
            return x.new_zeros(0)
        blocks = zip(x.split(_PAIR_BLOCK), y.split(_PAIR_BLOCK), strict=True)
        return torch.cat([kernel_scores(self.kernel, a, b).diagonal() for a, b in blocks])

    def _refined(
        self, outcomes: Float[Tensor, "M k"], start: Float[Tensor, "M d"], candidates: Float[Tensor, "S d"]
    ) -> Float[Tensor, "M d"]:
        """Inputs that are at least as good as ``start`` for the conjugate, in the box of the candidates."""
        low, high = candidates.amin(0), candidates.amax(0)
        sign = -1.0 if self.mode == "convex" else 1.0
        fixed = [p for p in self.parameters() if p.requires_grad]
        moving = start.clone()
        for p in fixed:
            p.requires_grad_(False)
        try:
            with torch.enable_grad():
                # One problem per outcome: together their curvatures would be one.
                for m in range(len(moving)):
                    point = moving[m : m + 1].clone().requires_grad_()
                    search = torch.optim.LBFGS([point], max_iter=40, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

                    def loss(search: Any = search, point: Tensor = point, outcome: Tensor = outcomes[m : m + 1]) -> Any:
                        search.zero_grad()
                        inside = torch.minimum(torch.maximum(point, low), high)
                        value = sign * (kernel_scores(self.kernel, inside, outcome)[0] - self._hard(inside)).sum()
                        value.backward()
                        return value

                    search.step(loss)
                    moving[m] = torch.minimum(torch.maximum(point.detach(), low), high)[0]
        finally:
            for p in fixed:
                p.requires_grad_(True)
        with torch.no_grad():
            before = sign * (self._pairs(start, outcomes) - self._hard(start))
            after = sign * (self._pairs(moving, outcomes) - self._hard(moving))
            return torch.where((after < before).unsqueeze(1), moving, start)  # nan is not less


def _joined(parts: Iterator[Tensor], total: int) -> Float[Tensor, " S"] | Int[Tensor, " S"]:
    """Vectors one after the other.

    Without gradients each is let go before the next is made: results that lie between two large matrices in memory
    would keep the room of the first from being used for the second.
    """
    if torch.is_grad_enabled():
        return torch.cat(list(parts))
    joined, at = None, 0
    for part in parts:
        if len(part) == total:
            return part
        if joined is None:
            joined = part.new_empty(total)
        joined[at : at + len(part)] = part
        at += len(part)
    return joined


def _in_float64(layer: GCFLayer) -> GCFLayer:
    return copy.deepcopy(layer).double()


def _as_rows(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "S d"]:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
        raise TypeError(f"x must be a tensor of floats of shape (S, d), got {getattr(x, 'dtype', type(x).__name__)}")
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _as_points(y: Any) -> Float[Tensor, "J k"]:
    points = torch.as_tensor(y).detach().clone()
    if points.is_complex():
        raise TypeError(f"y must be real, got dtype {points.dtype}")
    if not points.is_floating_point():
        points = points.to(torch.get_default_dtype())
    if points.ndim != 2 or points.numel() == 0:
        raise ValueError(f"y must have shape (J, k) with at least one row, got {tuple(points.shape)}")
    if not bool(torch.isfinite(points).all()):
        raise ValueError("y must be finite, got nan or infinite entries")
    return points


def _as_vector(numbers: Any, name: str, like: Tensor, length: int) -> Tensor:
    vector = torch.as_tensor(numbers).detach().to(dtype=like.dtype, device=like.device, copy=True)
    if vector.shape != (length,):
        raise ValueError(f"{name} must have shape ({length},), got {tuple(vector.shape)}")
    if not bool(torch.isfinite(vector).all()):
        raise ValueError(f"{name} must be finite, got nan or infinite entries")
    return vector


def _as_bounds(bounds: Any, points: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Both limits as vectors of length k, None for those that there are not."""
    if bounds is None:
        return None, None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise TypeError(f"y_bounds must be a pair (lower, upper), got {bounds!r}")
    limits = []
    for bound in bounds:
        if bound is None:
            limits.append(None)
            continue
        limit = torch.as_tensor(bound).detach().to(dtype=points.dtype, device=points.device)
        if limit.ndim > 1 or (limit.ndim == 1 and len(limit) != points.shape[1]):
            raise ValueError(f"y_bounds must be numbers or vectors of length {points.shape[1]}, got {bound!r}")
        limits.append(limit.expand(points.shape[1]).clone())
    lower, upper = limits
    if lower is not None and upper is not None and not bool((lower < upper).all()):
        raise ValueError(f"y_bounds must have every lower limit below the upper one, got {bounds!r}")
    if (lower is not None and bool((points < lower).any())) or (upper is not None and bool((points > upper).any())):
        raise ValueError(
            f"y must be within y_bounds, got a smallest entry of {points.min()} and a largest of {points.max()}"
        )
    return lower, upper


def _as_outside(outside: Any, points: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if outside is None or outside is False:
        return None, None
    if outside is True:
        outside = torch.zeros(points.shape[1])
    outcome, price = outside if isinstance(outside, tuple) and len(outside) == 2 else (outside, 0.0)
    price = check_real(price.item() if isinstance(price, Tensor) else price, "the intercept of outside")
    return _as_vector(outcome, "outside", points, points.shape[1])[None], points.new_full((1,), price)


def _to_raw(points: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """What is trained for these points, so that they stay within the limits."""
    if lower is not None and upper is not None:
        return torch.logit((points - lower) / (upper - lower), eps=_INSIDE)
    if lower is not None:
        return _inverse_softplus(points - lower)
    if upper is not None:
        return -_inverse_softplus(upper - points)
    return points


def _from_raw(raw: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    if lower is not None and upper is not None:
        return lower + (upper - lower) * torch.sigmoid(raw)
    if lower is not None:
        return lower + torch.nn.functional.softplus(raw)
    if upper is not None:
        return upper - torch.nn.functional.softplus(-raw)
    return raw


def _inverse_softplus(positive: Tensor) -> Tensor:
    positive = positive.clamp_min(_INSIDE)
    return positive + torch.log(-torch.expm1(-positive).clamp(max=-math.ulp(0.0)))
