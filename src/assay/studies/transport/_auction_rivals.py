"""How menus are made without gradients: prices in closed form, a linear program on a grid of types, simplex search."""

from __future__ import annotations

import itertools

import numpy as np

__all__ = ["best_bundle_price", "best_prices_by_size", "best_separate_prices", "menu_revenue", "program_on_a_grid"]

# Buyers who are indifferent up to this much take what is best for the seller.
TIE = 1e-12


def menu_revenue(menu: np.ndarray, price: np.ndarray, types: np.ndarray) -> float:
    """Mean payment of types who take their best bundle of a menu, or nothing."""
    menu, price = np.vstack([np.zeros(menu.shape[1]), menu]), np.concatenate([[0.0], price])
    order = np.argsort(-price, kind="stable")  # of several best bundles the first one found is the dearest
    menu, price = menu[order], price[order]
    total, block = 0.0, max(64, 2**20 // len(menu))
    for first in range(0, len(types), block):
        utility = types[first : first + block] @ menu.T - price
        near = utility >= utility.max(axis=1, keepdims=True) - TIE
        total += price[near.argmax(axis=1)].sum()
    return float(total / len(types))


def _posted_price(values: np.ndarray) -> float:
    """The price that earns most when everyone whose value is at least as high buys."""
    ordered = np.sort(values)
    return float(ordered[np.argmax(ordered * np.arange(len(values), 0, -1))])


def best_bundle_price(types: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All goods together, at the best price."""
    return np.ones((1, types.shape[1])), np.array([_posted_price(types.sum(axis=1))])


def best_separate_prices(types: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every good by itself, at its best price: the menu of all bundles at the sums of these."""
    single = np.array([_posted_price(column) for column in types.T])
    menu = np.array(list(itertools.product((0.0, 1.0), repeat=types.shape[1])))[1:]
    return menu, menu @ single


def best_prices_by_size(types: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prices that depend on the number of goods, by the simplex search of scipy on the revenue of the sample."""
    from scipy.optimize import minimize

    k = types.shape[1]
    menu = np.array(list(itertools.product((0.0, 1.0), repeat=k)))[1:]
    size = menu.sum(axis=1).astype(int) - 1
    # A buyer who takes m goods takes the best m: k scores for each type instead of 2^k.
    ordered = np.cumsum(-np.sort(-types, axis=1), axis=1)

    def loss(prices: np.ndarray) -> float:
        utility = ordered - prices
        best = utility.argmax(axis=1)
        buys = utility[np.arange(len(ordered)), best] >= 0.0
        return -float(np.where(buys, prices[best], 0.0).mean())

    found = minimize(loss, 0.55 * np.arange(1, k + 1), method="Nelder-Mead", options={"maxiter": 500 * k})
    return menu, found.x[size]


def program_on_a_grid(n_goods: int, points: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The optimal mechanism when types are the midpoints of a grid, uniformly, by HiGHS.

    Returns
    -------
    menu : numpy.ndarray of shape (n, k)
    price : numpy.ndarray of shape (n,)
    value : float
        Revenue from the types of the grid.
    """
    import scipy.sparse as sp
    from scipy.optimize import linprog

    axis = (np.arange(points) + 0.5) / points
    types = np.array(list(itertools.product(axis, repeat=n_goods)))
    n = len(types)
    i, j = (index[~np.eye(n, dtype=bool)] for index in np.indices((n, n)))
    rows = np.arange(len(i))
    # u_j + q_j (x_i - x_j) - u_i <= 0
    blocks = [sp.coo_array((np.ones(len(i)), (rows, j)), shape=(len(i), n)) - _pick(rows, i, n)]
    blocks += [sp.coo_array((types[i, good] - types[j, good], (rows, j)), shape=(len(i), n)) for good in range(n_goods)]
    objective = np.concatenate([np.ones(n), -types.T.ravel()]) / n
    found = linprog(
        objective,
        A_ub=sp.hstack(blocks, format="csr"),
        b_ub=np.zeros(len(i)),
        bounds=[(0, None)] * n + [(0, 1)] * (n * n_goods),
        method="highs",
    )
    utility, share = found.x[:n], found.x[n:].reshape(n_goods, n).T
    return share, (share * types).sum(axis=1) - utility, float(-found.fun)


def _pick(rows: np.ndarray, columns: np.ndarray, n: int):
    import scipy.sparse as sp

    return sp.coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(rows), n))
