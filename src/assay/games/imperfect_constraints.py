r"""Constraints of relaxations over behavioural strategies: the strategies themselves, and first-order conditions.

At a maximum over the strategies of an information set with actions ``a``, the derivatives :math:`D_a` of the payoff
satisfy :math:`\lambda_a = \nu - D_a \ge 0` and :math:`\lambda_a x_a = 0` with :math:`\nu = \sum_a x_a D_a`: the
multipliers of the usual conditions have this closed form, so that the conditions are polynomials in the strategies
alone. They can be added to a relaxation without losing a maximum; and for several players they describe all equilibria
and some more points.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.games.imperfect_polynomials import Polynomial, affine, differentiate, multiply, scaled, total

__all__ = ["first_order_conditions", "strategy_constraints"]


def strategy_constraints(blocks: Sequence[int]) -> list[dict[tuple[int, ...], float]]:
    r"""Polynomials that are non-negative on strategies.

    Besides :math:`x_a \ge 0` and :math:`1 - \sum_a x_a \ge 0` (the last action) there is :math:`x_a - x_a^2 \ge 0`,
    which bounds the relaxation of order 1.

    Parameters
    ----------
    blocks : sequence of int
        Free variables of each information set.

    Returns
    -------
    list of polynomial
    """
    dim, answer, at = sum(blocks), [], 0
    for size in blocks:
        if size == 0:
            continue
        own = range(at, at + size)
        variables = [_variable(dim, k) for k in own]
        answer += variables
        answer.append(affine(1.0, [-1.0 if k in own else 0.0 for k in range(dim)]))
        answer += [total(x, scaled(multiply(x, x), -1.0)) for x in variables]
        at += size
    return answer


def first_order_conditions(
    payoff: Polynomial, blocks: Sequence[int], whose: Sequence[int]
) -> tuple[list[dict[tuple[int, ...], float]], list[dict[tuple[int, ...], float]]]:
    """First-order conditions of a maximum of a payoff over the strategies of some information sets.

    Parameters
    ----------
    payoff : polynomial
        In the free variables of all information sets.
    blocks : sequence of int
        Free variables of each information set.
    whose : sequence of int
        The information sets of those who maximise.

    Returns
    -------
    ineqs : list of polynomial
        Non-negative at a maximum.
    eqs : list of polynomial
        Zero at a maximum; one per free variable, as the one of the last action follows.

    Examples
    --------
    >>> from assay.games.imperfect_constraints import first_order_conditions
    >>> first_order_conditions({(1,): 1.0, (2,): -1.0}, [1], [0])
    ([{(1,): 3.0, (2,): -2.0, (0,): -1.0}, {(1,): 1.0, (2,): -2.0}], [{(2,): 3.0, (3,): -2.0, (1,): -1.0}])
    """
    dim = sum(blocks)
    starts = [sum(blocks[:j]) for j in range(len(blocks))]
    ineqs, eqs = [], []
    for j in whose:
        own = range(starts[j], starts[j] + blocks[j])
        slopes = [differentiate(payoff, k) for k in own]
        if not any(slopes):
            continue
        mean = total(*(multiply(_variable(dim, k), slope) for k, slope in zip(own, slopes, strict=True)))
        for k, slope in zip(own, slopes, strict=True):
            multiplier = _cleaned(total(mean, scaled(slope, -1.0)))
            ineqs.append(multiplier)
            eqs.append(multiply(_variable(dim, k), multiplier))
        ineqs.append(_cleaned(mean))
    return [g for g in ineqs if g], [h for h in eqs if h]


def _variable(dim: int, k: int) -> dict[tuple[int, ...], float]:
    return {tuple(int(i == k) for i in range(dim)): 1.0}


def _cleaned(polynomial: Polynomial) -> dict[tuple[int, ...], float]:
    """Without terms that are rounding errors of others."""
    noise = 1e-13 * max((abs(c) for c in polynomial.values()), default=0.0)
    return {e: c for e, c in polynomial.items() if abs(c) > noise}
