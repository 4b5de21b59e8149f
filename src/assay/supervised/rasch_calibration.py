"""What the classical estimators of Rasch models share: their result, when there is one, and how a maximum is found."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.sparse.csgraph import connected_components

from assay.certificate import Certificate
from assay.result import Result
from assay.supervised.rasch_responses import Responses
from assay.validation import warn_not_converged

__all__ = [
    "ItemCalibration",
    "certified_calibration",
    "hessian_of",
    "minimize_smooth",
    "require_comparable_items",
    "require_mixed_answers",
]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ItemCalibration(Result):
    """Difficulties by one of the classical methods, and abilities that go with them.

    Parameters
    ----------
    difficulties, se_difficulties : numpy.ndarray of shape (n_items,)
        Estimates, and their standard errors (nan where the method gives none).
    abilities, se_abilities : numpy.ndarray of shape (n_users,)
        Estimates given the difficulties; infinite for perfect and zero scores unless the method integrates.
    log_likelihood : float
        Of the kind that was maximised; nan for the spectral method.
    ability_scale : float
        Standard deviation of the abilities, of marginal likelihood; else nan.
    n_iter : int
        Iterations.
    converged : bool
        Whether ``tol`` was reached.
    item_names : list or None
        Labels, when the responses had them.
    """

    difficulties: Float[np.ndarray, " items"]
    se_difficulties: Float[np.ndarray, " items"]
    abilities: Float[np.ndarray, " users"]
    se_abilities: Float[np.ndarray, " users"]
    log_likelihood: float = math.nan
    ability_scale: float = math.nan
    n_iter: int = 0
    converged: bool = True
    item_names: list[Any] | None = None

    def items(self) -> pd.DataFrame:
        """Table with a row per item."""
        return pd.DataFrame({"difficulty": self.difficulties, "se": self.se_difficulties}, index=self.item_names)


def require_comparable_items(responses: Responses) -> Float[np.ndarray, "items items"]:
    """Check that no group of items was always solved before the others, and return the counts of comparisons.

    Parameters
    ----------
    responses : Responses
        The table.

    Returns
    -------
    numpy.ndarray of shape (n_items, n_items)
        How many users answered the row's item rightly and the column's item wrongly.

    Raises
    ------
    ValueError
        If the directed graph of these comparisons is not strongly connected: then the estimates are not finite.
    """
    wins = responses.comparisons()
    n_parts, part = connected_components(wins > 0, directed=True, connection="strong")
    if n_parts > 1:
        smallest = np.flatnonzero(part == np.bincount(part).argmin())
        names = ", ".join(responses.name_of_item(int(one)) for one in smallest[:5])
        more = f" and {len(smallest) - 5} more" if len(smallest) > 5 else ""
        raise ValueError(
            f"X must compare all items with each other, but {names}{more} can be separated from the rest: no chain of "
            "users who solved one item and not the next leads there and back, and without priors the estimates are "
            "infinite"
        )
    return wins


def require_mixed_answers(responses: Responses, *, items: bool) -> None:
    """Refuse a table in which an item (or a user) has only right or only wrong answers.

    Parameters
    ----------
    responses : Responses
        The table.
    items : bool
        Whether to look at items, or at users.

    Raises
    ------
    ValueError
        With the first such item or user.
    """
    user_counts, user_right, item_counts, item_right = responses.totals
    counts, right = (item_counts, item_right) if items else (user_counts, user_right)
    same = np.flatnonzero((right == 0) | (right == counts))
    if len(same):
        one = int(same[0])
        name = responses.name_of_item(one) if items else responses.name_of_user(one)
        what = "no" if counts[one] == 0 else "only wrong" if right[one] == 0 else "only right"
        side = "item" if items else "user"
        raise ValueError(
            f"X must have a right and a wrong answer of every {side}, but {name} has {what} answers: without a prior "
            "its estimate is not finite"
        )


def minimize_smooth(
    objective: Callable[[np.ndarray], Any],
    start: np.ndarray,
    tol: float,
    max_iter: int,
    last_bounds: tuple[float, float] | None = None,
) -> Any:
    """Minimise a convex function, whose value and gradient ``objective`` returns, by L-BFGS."""
    bounds = None if last_bounds is None else [(None, None)] * (len(start) - 1) + [last_bounds]
    return minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": max_iter, "maxfun": 20 * max_iter, "maxcor": 30, "ftol": 0.0, "gtol": 0.3 * tol},
    )


def hessian_of(gradient: Callable[[np.ndarray], np.ndarray], point: np.ndarray) -> Float[np.ndarray, "n n"]:
    """Hessian by central differences of a gradient."""
    steps = 1e-4 * np.eye(len(point))
    hessian = np.stack([(gradient(point + step) - gradient(point - step)) / 2e-4 for step in steps])
    return 0.5 * (hessian + hessian.T)


def certified_calibration(
    responses: Responses, answer: Any, statement: str, reached: float, tol: float, name: str, **fields: Any
) -> ItemCalibration:
    """Put a result together, and warn when what was to vanish is above ``tol``."""
    certificate = Certificate(statement, reached, tol)
    if not certificate.holds:
        warn_not_converged(name, int(answer.nit), reached, tol, stacklevel=4)
    return ItemCalibration(
        n_iter=int(answer.nit),
        converged=certificate.holds,
        item_names=responses.item_names,
        certificates=(certificate,),
        **fields,
    )
