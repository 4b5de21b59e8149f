"""Infit and outfit: their definition cell by cell, their distribution under the model, and what they notice."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit

from assay.supervised import fit_rasch, rasch_fit_statistics


def simulate(n_users, n_items, seed):
    rng = np.random.default_rng(seed)
    theta, beta = rng.normal(size=n_users), rng.normal(size=n_items)
    return (rng.random((n_users, n_items)) < expit(theta[:, None] - beta)).astype(float), theta, beta


def by_hand(x, p):
    """Infit, outfit and standardised forms of one row or column."""
    seen = ~np.isnan(x)
    x, p = x[seen], p[seen]
    W = p * (1 - p)
    C = (1 - p) ** 4 * p + p**4 * (1 - p)
    z2 = (x - p) ** 2 / W
    outfit, infit = z2.mean(), (x - p) @ (x - p) / W.sum()
    q_out = np.sqrt((C / W**2).sum() / len(x) ** 2 - 1 / len(x))
    q_in = np.sqrt((C - W**2).sum()) / W.sum()
    return (
        infit,
        outfit,
        (infit ** (1 / 3) - 1) * 3 / q_in + q_in / 3,
        (outfit ** (1 / 3) - 1) * 3 / q_out + q_out / 3,
    )


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_definition(missing, as_sparse):
    X, theta, beta = simulate(25, 9, 0)
    X[np.random.default_rng(1).random(X.shape) < missing] = np.nan
    table = sparse.csr_array(np.nan_to_num(X)) if as_sparse else X
    fit = rasch_fit_statistics(table, theta, beta, mask=~np.isnan(X) if as_sparse else None)
    p = expit(theta[:, None] - beta)
    for i in range(9):
        got = (fit.item_infit[i], fit.item_outfit[i], fit.item_infit_z[i], fit.item_outfit_z[i])
        np.testing.assert_allclose(got, by_hand(X[:, i], p[:, i]), rtol=1e-8)
    for u in range(25):
        got = (fit.user_infit[u], fit.user_outfit[u], fit.user_infit_z[u], fit.user_outfit_z[u])
        np.testing.assert_allclose(got, by_hand(X[u], p[u]), rtol=1e-8)


def test_distribution_under_the_model():
    X, theta, beta = simulate(1500, 60, 2)
    fit = rasch_fit_statistics(X, theta, beta)
    for z in (fit.user_infit_z, fit.user_outfit_z):
        assert abs(z.mean()) < 0.1
        assert 0.9 < z.std() < 1.1
    np.testing.assert_allclose(fit.item_infit, 1, atol=0.1)
    assert 0.95 < fit.user_outfit.mean() < 1.05


def test_notices_what_does_not_fit():
    X, _, _ = simulate(600, 15, 3)
    rng = np.random.default_rng(4)
    X[:, 2] = rng.integers(0, 2, 600)
    X[5] = X[5].mean() < rng.random(15)
    order = np.argsort(-X.mean(axis=0))
    X[7] = 0
    X[7, order[-8:]] = 1  # solves the hard items only
    fit = fit_rasch(X)
    statistics = rasch_fit_statistics(X, fit.abilities, fit.difficulties)
    assert statistics.item_infit.argmax() == statistics.item_outfit.argmax() == 2
    assert statistics.item_outfit_z[2] > 5
    assert statistics.user_infit.argmax() == 7
    assert statistics.items().shape == (15, 4)
    assert statistics.users().loc[7, "infit"] == statistics.user_infit[7]


def test_coin_flips_fit_by_necessity():
    fit = rasch_fit_statistics([[1, 0], [0, 1]], np.zeros(2), np.zeros(2))
    np.testing.assert_array_equal(fit.item_infit, 1)
    np.testing.assert_array_equal(fit.item_infit_z, 0)


def test_infinite_abilities_and_empty_rows():
    X = np.array([[1, 1, 1], [1, 0, 1], [np.nan] * 3, [0, 1, 0]])
    fit = rasch_fit_statistics(X, [np.inf, 0.5, 0.0, -0.5], [0.1, 0.3, -0.2])
    assert np.isnan(fit.user_outfit[[0, 2]]).all()
    assert np.isfinite(fit.user_outfit[[1, 3]]).all()
    rest = rasch_fit_statistics(X[[1, 3]], [0.5, -0.5], [0.1, 0.3, -0.2])
    np.testing.assert_allclose(fit.item_infit, rest.item_infit)


@pytest.mark.parametrize(
    ("abilities", "difficulties", "name"),
    [
        (np.zeros(3), np.zeros(2), "abilities"),
        (np.zeros(2), np.zeros(3), "difficulties"),
        ([np.nan, 0], [0, 0], "abil"),
    ],
)
def test_bad_input(abilities, difficulties, name):
    with pytest.raises(ValueError, match=name):
        rasch_fit_statistics([[1, 0], [0, 1]], abilities, difficulties)
