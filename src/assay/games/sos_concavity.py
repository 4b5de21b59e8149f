r"""Games that one small semidefinite program settles: payoffs that are concave, and games that are monotone, by proof.

A payoff is concave in a player's own strategy when :math:`-z^\top \nabla^2 u(x) z \ge 0` for all directions ``z``, and
a game is monotone when :math:`-z^\top J(x) z \ge 0`, ``J`` being the Jacobian of all players' gradients. Both are
polynomials in ``(x, z)``, quadratic in ``z``. If one is a sum of squares everywhere, the relaxation of the least order
is exact, and every first-order point of a monotone game is an equilibrium. If it is one with multipliers on strategies
only, then any local maximum is a global one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from assay.certificate import Certificate
from assay.games.imperfect_constraints import strategy_constraints
from assay.games.imperfect_polynomials import (
    CompiledPolynomial,
    Polynomial,
    differentiate,
    polynomial_degree,
    scaled,
    total,
)
from assay.games.imperfect_recall_game import ImperfectRecallGame
from assay.games.imperfect_relaxation import LARGEST_RESIDUAL, LEAST_EIGENVALUE
from assay.games.moment_basis import MatrixMap, MonomialBasis, count_monomials, triangle
from assay.games.sos_program import ConicProgram, relaxation_size
from assay.games.sos_solvers import solve_conic
from assay.result import Result
from assay.validation import check_choice

__all__ = ["ConcavityResult", "is_sos_concave", "is_sos_monotone"]

_STATEMENTS = {
    True: "the payoff is concave in the player's own strategy",
    False: "the game is monotone",
}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ConcavityResult(Result):
    """Answer of :func:`is_sos_concave` and :func:`is_sos_monotone`.

    Attributes
    ----------
    holds : bool
        Whether a sum of squares was found. False is no proof of the contrary, unless ``counterexample`` is given.
    least_eigenvalue : float
        Of the Gram matrices with which the least eigenvalue is largest, for payoffs of at most 1; negative when there
        is no sum of squares.
    residual : float
        Largest coefficient of the difference of the two sides, for payoffs of at most 1.
    counterexample : tuple of numpy.ndarray or None
        A profile at which the form is negative in some direction, if one was found: a proof that the payoff is not
        concave, or the game not monotone.
    curvature : float
        Least eigenvalue of the form (minus the Hessian, or minus the symmetric part of the Jacobian) at the profiles
        that were looked at, for payoffs of at most 1.
    side : int
        Rows of the largest Gram matrix.
    grams : tuple of numpy.ndarray
        The Gram matrices: of the sum of squares, and with ``on="simplex"`` of those that multiply the constraints.
    solve_seconds : float
        Time in the conic solver.
    """

    holds: bool
    least_eigenvalue: float
    residual: float
    counterexample: tuple[np.ndarray, ...] | None
    curvature: float
    side: int
    grams: tuple[np.ndarray, ...]
    solve_seconds: float

    def __bool__(self) -> bool:
        return self.holds


def is_sos_concave(
    game: ImperfectRecallGame, player: int = 0, on: str = "space", *, solver: str = "auto", force: bool = False
) -> ConcavityResult:
    r"""Whether a payoff is concave in the player's own strategy, by a sum of squares.

    Looks for :math:`-z^\top \nabla^2_{x_i} u_i(x) z = v(x, z)^\top Q\, v(x, z)` with ``Q`` positive semidefinite, where
    ``v`` are the monomials of half the degree in ``x`` times those of degree one in ``z``.

    Parameters
    ----------
    game : ImperfectRecallGame
        The game, in the variables without the last action of each information set.
    player : int, default=0
        Whose payoff and strategy.
    on : {"space", "simplex"}, default="space"
        ``"space"``: for all real ``x``, which makes the relaxation of least order exact. ``"simplex"``: on strategies
        only, with sums of squares that multiply their inequalities; any local maximum is then a global one.
    solver : {"auto", "clarabel", "cvxopt", "scs"}, default="auto"
        Conic solver.
    force : bool, default=False
        Whether to try what may not fit into memory.

    Returns
    -------
    ConcavityResult
        True as a condition when a sum of squares was found.

    Raises
    ------
    ValueError
        If there is no such player, the player decides nothing, or an option is unknown.

    Notes
    -----
    One semidefinite program of side ``n_own * binom(n + d, d)`` for n variables of all players, n_own of them the
    player's, and ``d`` half the degree of the Hessian.

    References
    ----------
    .. [1] Zheng, Sim, Varvitsiotis. Solving Imperfect-Recall Games via Sum-of-Squares Optimization. ICML 2026.
       arXiv:2602.21722.
    .. [2] J. W. Helton, J. Nie. Semidefinite Representation of Convex Sets. Mathematical Programming 122, 2010.

    Examples
    --------
    >>> from assay.games.imperfect_recall_game import ImperfectRecallGame
    >>> from assay.games.sos_concavity import is_sos_concave
    >>> driver = ImperfectRecallGame.from_polynomials([{(1, 1): 4.0, (2, 0): 1.0}], [[0, 1]], [0])
    >>> is_sos_concave(driver).holds
    True
    >>> thrice = ImperfectRecallGame.from_polynomials([{(2, 1): 6.0}], [[0, 1]], [0])
    >>> is_sos_concave(thrice).holds
    False
    """
    if not isinstance(game, ImperfectRecallGame):
        raise TypeError(f"game must be an ImperfectRecallGame, got {type(game).__name__}")
    own = [k for j in game.infosets_of(player) for k in game.free_variables[j]]
    if not own:
        raise ValueError(f"player must have a decision, player {player} has none")
    payoff = game.reduced[player]
    form = {(a, b): scaled(differentiate(differentiate(payoff, k), m), -1.0)
            for a, k in enumerate(own) for b, m in enumerate(own) if a <= b}  # fmt: skip
    return _certify(game, form, len(own), True, on, solver, force)


def is_sos_monotone(
    game: ImperfectRecallGame, on: str = "space", *, solver: str = "auto", force: bool = False
) -> ConcavityResult:
    r"""Whether a game is monotone, by a sum of squares.

    The same as :func:`is_sos_concave` for minus the symmetric part of the Jacobian of :math:`x \mapsto (\nabla_{x_i}
    u_i(x))_i`. Every point of a monotone game that satisfies the first-order conditions of all players is an
    equilibrium.

    Parameters
    ----------
    game : ImperfectRecallGame
        The game.
    on : {"space", "simplex"}, default="space"
        Everywhere, or on strategies only.
    solver : {"auto", "clarabel", "cvxopt", "scs"}, default="auto"
        Conic solver.
    force : bool, default=False
        Whether to try what may not fit into memory.

    Returns
    -------
    ConcavityResult
        True as a condition when a sum of squares was found.

    Raises
    ------
    ValueError
        If an option is unknown.

    Notes
    -----
    One semidefinite program of side ``n * binom(n + d, d)``.

    References
    ----------
    .. [1] Zheng, Sim, Varvitsiotis. Solving Imperfect-Recall Games via Sum-of-Squares Optimization. ICML 2026.
       arXiv:2602.21722.

    Examples
    --------
    Matching pennies:

    >>> from assay.games.imperfect_recall_game import ImperfectRecallGame
    >>> from assay.games.sos_concavity import is_sos_monotone
    >>> u = {(1, 0, 1, 0): 1.0, (0, 1, 0, 1): 1.0, (1, 0, 0, 1): -1.0, (0, 1, 1, 0): -1.0}
    >>> game = ImperfectRecallGame.from_polynomials([u, {e: -c for e, c in u.items()}], [[0, 1], [2, 3]], [0, 1])
    >>> is_sos_monotone(game).holds
    True
    """
    if not isinstance(game, ImperfectRecallGame):
        raise TypeError(f"game must be an ImperfectRecallGame, got {type(game).__name__}")
    owner = [infoset.player for infoset, own in zip(game.infosets, game.free_variables, strict=True) for _ in own]
    n = len(owner)
    if n == 0:
        raise ValueError("game must have a decision with two actions")
    slopes = [differentiate(game.reduced[owner[k]], k) for k in range(n)]
    form = {(k, m): scaled(total(differentiate(slopes[k], m), differentiate(slopes[m], k)), -0.5)
            for k in range(n) for m in range(k, n)}  # fmt: skip
    return _certify(game, form, n, False, on, solver, force)


def _certify(
    game: ImperfectRecallGame,
    form: dict[tuple[int, int], Polynomial],
    n_directions: int,
    concave: bool,
    on: str,
    solver: str,
    force: bool,
) -> ConcavityResult:
    """Gram matrices of a form that is quadratic in directions, with the largest least eigenvalue."""
    check_choice(on, "on", ("space", "simplex"))
    check_choice(solver, "solver", ("auto", "clarabel", "cvxopt", "scs"))
    if not isinstance(force, bool | np.bool_):
        raise TypeError(f"force must be True or False, got {force!r}")
    blocks = tuple(len(simplex) - 1 for simplex in game.simplices)
    constraints = []
    if on == "simplex":
        constraints = [g for g in strategy_constraints(blocks) if polynomial_degree(g) == 1]
    half = math.ceil(max(polynomial_degree(entry) for entry in form.values()) / 2)
    side = n_directions * count_monomials(blocks, half)
    size = relaxation_size([side - 1], 1, False, [], [], solver)
    size.refuse_if_too_large(bool(force))
    program = _gram_program(form, n_directions, blocks, constraints, half)
    answer = solve_conic(program, size.solver)
    curvature, where = _least_curvature(game, form, n_directions)
    if answer.multipliers is None:
        least, residual, grams = -math.inf, math.inf, ()
    else:
        # The bound of this program is minus the largest least eigenvalue of Gram matrices of the form.
        grams = tuple(gram - answer.multipliers.bound * np.eye(len(gram)) for gram in answer.multipliers.grams)
        least = min(float(np.linalg.eigvalsh(gram)[0]) for gram in grams)
        residual = float(np.abs(-program.objective - _polynomial_of(program, grams)).max())
    holds = least >= LEAST_EIGENVALUE and residual <= LARGEST_RESIDUAL
    statement = _STATEMENTS[concave] + (" on all strategies" if on == "simplex" else " everywhere")
    return ConcavityResult(
        holds=holds,
        least_eigenvalue=least,
        residual=residual,
        counterexample=where if curvature < LEAST_EIGENVALUE else None,
        curvature=curvature,
        side=side,
        grams=grams,
        solve_seconds=answer.seconds,
        certificates=(
            Certificate(f"{statement}: least eigenvalue of the Gram matrices", least, LEAST_EIGENVALUE, relation=">="),
            Certificate(
                f"{statement}: largest coefficient of the form minus the sums of squares", residual, LARGEST_RESIDUAL
            ),
            Certificate(
                f"{statement}: least eigenvalue of the form at 200 random strategies",
                curvature,
                LEAST_EIGENVALUE,
                relation=">=",
            ),
        ),
    )


def _gram_program(
    form: dict[tuple[int, int], Polynomial],
    n_directions: int,
    blocks: Sequence[int],
    constraints: Sequence[Polynomial],
    half: int,
) -> ConicProgram:
    """Program whose multipliers are the Gram matrices.

    Its unknowns are pseudo-moments of monomials in the strategies times pairs of directions; their matrices are
    positive semidefinite with total trace 1, and minus the form is maximised.
    """
    basis = MonomialBasis(blocks, 2 * half)
    n_monomials = len(basis)
    pairs = {pair: i for i, pair in enumerate((a, b) for a in range(n_directions) for b in range(a, n_directions))}
    objective = np.zeros(len(pairs) * n_monomials)
    for (a, b), entry in form.items():
        # An entry off the diagonal is there twice.
        weight = -1.0 if a == b else -2.0
        at = pairs[a, b] * n_monomials
        objective[at : at + n_monomials] += weight * basis.vector(entry)
    one = {(0,) * basis.dim: 1.0}
    maps, normalisation = [], np.zeros_like(objective)
    for g in [one, *constraints]:
        order = half - math.ceil(polynomial_degree(g) / 2)
        if order < 0:
            continue
        block = _with_directions(basis.localizing(g, order), n_directions, pairs, n_monomials)
        rows, columns = triangle(block.side)
        normalisation += np.asarray(block.entries[rows == columns].sum(axis=0)).ravel()
        maps.append(block)
    return ConicProgram(basis, objective, normalisation, tuple(maps), sp.csr_array((0, len(objective))))


def _with_directions(
    block: MatrixMap, n_directions: int, pairs: dict[tuple[int, int], int], n_monomials: int
) -> MatrixMap:
    """The matrix with a row per direction and monomial."""
    side = n_directions * block.side
    rows, columns = triangle(side)
    first, second = rows // block.side, columns // block.side
    a, b = rows % block.side, columns % block.side
    low, high = np.minimum(a, b), np.maximum(a, b)
    inner = block.entries[high * (high + 1) // 2 + low].tocoo()
    number = np.array([[pairs[min(i, j), max(i, j)] for j in range(n_directions)] for i in range(n_directions)])
    pair = number[first, second]
    shape = (len(rows), len(pairs) * n_monomials)
    moment = pair[inner.row] * n_monomials + inner.col
    return MatrixMap(side, sp.csr_array((inner.data, (inner.row, moment)), shape=shape))


def _polynomial_of(program: ConicProgram, grams: Sequence[np.ndarray]) -> Any:
    return sum(block.adjoint(gram) for block, gram in zip(program.blocks, grams, strict=True))


def _least_curvature(
    game: ImperfectRecallGame, form: dict[tuple[int, int], Polynomial], n_directions: int
) -> tuple[float, tuple[np.ndarray, ...] | None]:
    """Least eigenvalue of the form at random and at pure strategies, and where it is."""
    dim = sum(len(simplex) - 1 for simplex in game.simplices)
    compiled = {pair: CompiledPolynomial(entry, dim) for pair, entry in form.items() if entry}
    rng = np.random.default_rng(0)
    least, where = math.inf, None
    for trial in range(200):
        profile = game.random_strategy(rng)
        if trial % 2:
            profile = tuple(np.eye(len(row))[rng.integers(len(row))] for row in profile)
        point = game.free_part(profile)
        matrix = np.zeros((n_directions, n_directions))
        for (a, b), entry in compiled.items():
            matrix[a, b] = matrix[b, a] = entry(point)
        value = float(np.linalg.eigvalsh(matrix)[0])
        if value < least:
            least, where = value, profile
    return least, where
