"""fit_rasch: known values, the fast paths against the plain one, other optimisers, and bad input."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

from assay.data import load_lsat6
from assay.supervised import fit_rasch, rasch_cells
from assay.supervised.rasch_cells import cell_terms
from assay.supervised.rasch_em import RaschProblem, maximize_posterior
from assay.supervised.rasch_responses import check_responses
from assay.validation import ConvergenceWarning

SMALL = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1], [1, 1, 1]])


def simulate(n_users, n_items, rng, missing=0.0):
    theta, beta = rng.normal(size=n_users), rng.normal(size=n_items)
    X = (rng.random((n_users, n_items)) < expit(theta[:, None] - beta)).astype(float)
    X[rng.random(X.shape) < missing] = np.nan
    return X


def log_posterior(X, theta, beta, v_theta, v_beta):
    psi = theta[:, None] - beta
    cells = np.nan_to_num(X) * psi - np.logaddexp(0, psi)
    prior = theta @ theta / (2 * v_theta) + beta @ beta / (2 * v_beta)
    return cells[~np.isnan(X)].sum() - prior


def plain_em(X, v_theta=1.0, v_beta=1.0, n_iter=400):
    """The iteration as it is written down: dense, without groups, chunks or mirrors."""
    M = ~np.isnan(X)
    kappa = np.where(M, np.nan_to_num(X) - 0.5, 0.0)
    k, ell = kappa.sum(axis=1), kappa.sum(axis=0)
    theta, beta = np.zeros(len(X)), np.zeros(X.shape[1])
    values = []
    for _ in range(n_iter):
        values.append(log_posterior(X, theta, beta, v_theta, v_beta))
        psi = theta[:, None] - beta
        omega = np.full(psi.shape, 0.25)
        np.divide(np.tanh(psi / 2), 2 * psi, out=omega, where=np.abs(psi) > 1e-4)
        omega *= M
        r, c = omega.sum(axis=1) + 1 / v_theta, omega.sum(axis=0) + 1 / v_beta
        schur = np.diag(c) - (omega / r[:, None]).T @ omega
        beta = np.linalg.solve(schur, -ell + omega.T @ (k / r))
        theta = (k + omega @ beta) / r
    return theta, beta, np.array(values)


def observed_information(X, theta, beta, v_theta, v_beta):
    p = expit(theta[:, None] - beta)
    W = p * (1 - p) * ~np.isnan(X)
    return np.block([[np.diag(W.sum(1) + 1 / v_theta), -W], [-W.T, np.diag(W.sum(0) + 1 / v_beta)]])


class TestKnownValues:
    def test_lsat6(self):
        fit = fit_rasch(load_lsat6())
        expected = [-2.59475, -0.93956, -0.21482, -1.23465, -1.99512]
        np.testing.assert_allclose(fit.difficulties, expected, atol=6e-6)
        by_score = dict(zip(load_lsat6().sum(axis=1), fit.abilities, strict=True))
        expected = [-1.9314, -1.4443, -0.9599, -0.4591, 0.0798, 0.6831]
        np.testing.assert_allclose([by_score[score] for score in range(6)], expected, atol=6e-5)
        assert fit.log_posterior == pytest.approx(-2207.64569, abs=1e-5)
        assert fit.n_groups == 6
        assert 14 <= fit.n_iter <= 45
        assert fit.gradient_norm <= 1e-6
        assert fit.certified
        assert fit.rate == pytest.approx(0.336, abs=5e-4)
        assert fit.rate_bound == pytest.approx(0.752, abs=5e-4)
        # the bound on the gap after ten iterations
        assert fit.history["gap_bound"][10] == pytest.approx(0.0748, abs=1e-4)
        assert fit.log_posterior - fit.history["log_posterior"][10] == pytest.approx(0.00107, abs=1e-5)

    def test_four_users(self):
        fit = fit_rasch(SMALL)
        np.testing.assert_allclose(fit.abilities, [0.1824391, 0.1824391, -0.3955206, 0.7898192], atol=1e-7)
        np.testing.assert_allclose(fit.difficulties, [-0.4259386, 0.0927005, -0.4259386], atol=1e-7)
        assert fit.log_posterior == pytest.approx(-7.1324469587, abs=1e-10)

    def test_curvature_of_the_minorant(self):
        margins = np.array([0.0, 2.0, -2.0, 9.9e-5, 1.01e-4, 800.0])
        curvature = cell_terms(margins)[2]
        exact = np.append(np.tanh(margins[1:] / 2) / (2 * margins[1:]), 0)
        np.testing.assert_allclose(curvature[1:], exact[:-1], rtol=1e-11)
        assert curvature[0] == 0.25
        assert curvature[1] == pytest.approx(0.1903985, abs=1e-7)
        p = expit(margins)
        np.testing.assert_allclose(cell_terms(margins, True)[2], p * (1 - p), rtol=1e-12)

    @pytest.mark.parametrize("information", [False, True])
    @pytest.mark.parametrize("missing", [0.0, 0.3])
    def test_sums_over_cells(self, missing, information):
        rng = np.random.default_rng(0)
        a, b = 3 * rng.normal(size=9), rng.normal(size=1500)
        a[:4] = b[0], b[1] + 1e-5, 900.0, -900.0
        weights = rng.integers(1, 5, 9).astype(float)
        seen = rng.random((9, 1500)) >= missing
        codes = np.where(seen, 1, -1).astype(np.int8)
        ((_, normalizers, row_tanh, cells, column_tanh),) = rasch_cells.DenseCells(codes, missing == 0).sums(
            a, b, weights, information
        )
        margins = a[:, None] - b
        np.testing.assert_allclose(normalizers, (np.logaddexp(0, margins) * seen).sum(axis=1), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(row_tanh, (np.tanh(margins / 2) * seen).sum(axis=1), atol=1e-10)
        np.testing.assert_allclose(column_tanh, weights @ (np.tanh(margins / 2) * seen), atol=1e-10)
        np.testing.assert_allclose(cells, cell_terms(margins, information)[2] * seen, rtol=1e-12, atol=1e-300)

    def test_user_without_answers_and_item_that_all_solve(self):
        X = np.array([[1, 0, 1], [1, 1, 0], [1, 0, 0], [np.nan] * 3])
        fit = fit_rasch(X)
        assert fit.abilities[3] == 0
        assert fit.se_abilities[3] == pytest.approx(1.0)
        assert np.isfinite(fit.difficulties[0])

    def test_symmetry(self):
        X = simulate(30, 8, np.random.default_rng(0), missing=0.2)
        fit, mirrored = fit_rasch(X), fit_rasch(1 - X)
        np.testing.assert_allclose(fit.abilities, -mirrored.abilities, atol=1e-8)
        np.testing.assert_allclose(fit.difficulties, -mirrored.difficulties, atol=1e-8)

    def test_moment_variance_is_that_of_marginal_likelihood(self):
        fit = fit_rasch(load_lsat6(), v_theta="moment")
        assert fit.v_theta == pytest.approx(0.7551**2, abs=1e-4)


class TestAgainstOthers:
    @pytest.mark.parametrize("shape", [(12, 5), (5, 12), (7, 7)])
    @pytest.mark.parametrize("missing", [0.0, 0.3])
    @pytest.mark.parametrize("variances", [(1.0, 1.0), (0.5, 3.0)])
    def test_general_optimiser(self, shape, missing, variances):
        X = simulate(*shape, np.random.default_rng(1), missing)
        n = shape[0]
        best = minimize(lambda z: -log_posterior(X, z[:n], z[n:], *variances), np.zeros(sum(shape)), method="BFGS")
        fit = fit_rasch(X, v_theta=variances[0], v_beta=variances[1])
        np.testing.assert_allclose(np.r_[fit.abilities, fit.difficulties], best.x, atol=2e-5)
        assert fit.log_posterior >= -best.fun - 1e-9
        assert fit.certified
        errors = np.sqrt(np.diag(np.linalg.inv(observed_information(X, fit.abilities, fit.difficulties, *variances))))
        np.testing.assert_allclose(np.r_[fit.se_abilities, fit.se_difficulties], errors, rtol=1e-8)

    @pytest.mark.parametrize("shape", [(12, 5), (5, 12)])
    def test_errors_of_centred_parameters(self, shape):
        X = simulate(*shape, np.random.default_rng(2), 0.2)
        fit, centred = fit_rasch(X), fit_rasch(X, identification="center")
        n, m = shape
        to_mean = np.eye(n + m) - np.r_[np.zeros(n), np.ones(m) / m]
        covariance = np.linalg.inv(observed_information(X, fit.abilities, fit.difficulties, 1.0, 1.0))
        errors = np.sqrt(np.diag(to_mean @ covariance @ to_mean.T))
        np.testing.assert_allclose(np.r_[centred.se_abilities, centred.se_difficulties], errors, rtol=1e-8)
        assert centred.difficulties.mean() == pytest.approx(0, abs=1e-14)
        np.testing.assert_allclose(centred.abilities + centred.mean_difficulty, fit.abilities, atol=1e-12)
        assert centred.certified

    @pytest.mark.parametrize("missing", [0.0, 0.4])
    def test_plain_iteration(self, missing):
        X = simulate(60, 9, np.random.default_rng(3), missing)
        theta, beta, values = plain_em(X)
        fit = fit_rasch(X)
        np.testing.assert_allclose(fit.abilities, theta, atol=1e-8)
        np.testing.assert_allclose(fit.difficulties, beta, atol=1e-8)
        # the same iterates, not only the same end
        np.testing.assert_allclose(fit.history["log_posterior"], values[: fit.n_iter], rtol=1e-13)

    @pytest.mark.parametrize("settings_", [{"update": "coordinate"}, {"accelerate": True}, {"init": "spectral"}])
    @pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
    def test_all_variants_agree(self, settings_, shape):
        X = simulate(*shape, np.random.default_rng(4), 0.1)
        fit, variant = fit_rasch(X), fit_rasch(X, **settings_)
        np.testing.assert_allclose(variant.abilities, fit.abilities, atol=1e-7)
        np.testing.assert_allclose(variant.difficulties, fit.difficulties, atol=1e-7)
        assert variant.certified
        assert (np.diff(variant.history["log_posterior"]) >= -1e-10 * abs(fit.log_posterior)).all()

    def test_acceleration_takes_fewer_iterations(self):
        assert fit_rasch(load_lsat6(), accelerate=True).n_iter < 0.8 * fit_rasch(load_lsat6()).n_iter

    @pytest.mark.parametrize("missing", ["none", "booklets", "random"])
    @pytest.mark.parametrize("n_users", [9, 300])
    def test_groups_change_nothing(self, missing, n_users):
        rng = np.random.default_rng(5)
        X = simulate(n_users, 12, rng, 0.3 if missing == "random" else 0.0)
        if missing == "booklets":
            X[: n_users // 2, :4] = np.nan
            X[n_users // 2 :, 8:] = np.nan
        responses = check_responses(X)
        ends = []
        for grouped in (True, False):
            problem = RaschProblem(responses, 1.0, 1.0, grouped)
            trace = maximize_posterior(
                problem, *problem.start(None, None), update="joint", accelerate=False, tol=1e-9, max_iter=500
            )
            ends.append((*problem.unpack(trace.a, trace.b), *problem.standard_errors(trace.a, trace.b, True)))
            if grouped and missing != "random" and n_users == 300:
                assert problem.n_groups <= 2 * 13
        for one, other in zip(*ends, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9)

    @pytest.mark.parametrize("missing", [0.0, 0.3])
    def test_chunks_change_nothing(self, missing, monkeypatch):
        X = simulate(50, 10, np.random.default_rng(6), missing)
        whole = fit_rasch(X)
        monkeypatch.setattr(rasch_cells, "_CHUNK_CELLS", 30)
        monkeypatch.setattr(rasch_cells, "_GRAM_ROWS", 8)
        monkeypatch.setattr(rasch_cells, "_STORED_CELLS", 0)
        pieces = fit_rasch(X)
        np.testing.assert_allclose(pieces.abilities, whole.abilities, atol=1e-10)
        np.testing.assert_allclose(pieces.se_difficulties, whole.se_difficulties, atol=1e-12)
        assert pieces.n_iter == whole.n_iter

    @pytest.mark.parametrize("shape", [(40, 7), (7, 40)])
    @pytest.mark.parametrize("update", ["joint", "coordinate"])
    def test_sparse(self, shape, update):
        X = simulate(*shape, np.random.default_rng(7), 0.6)
        X[0] = np.nan
        mask = ~np.isnan(X)
        dense = fit_rasch(X, update=update)
        for table in (sparse.csr_array(np.nan_to_num(X)), sparse.coo_matrix(np.nan_to_num(X))):
            fit = fit_rasch(table, mask=sparse.csc_array(mask), update=update)
            np.testing.assert_allclose(fit.abilities, dense.abilities, atol=1e-9)
            np.testing.assert_allclose(fit.difficulties, dense.difficulties, atol=1e-9)
            np.testing.assert_allclose(fit.se_abilities, dense.se_abilities, atol=1e-10)
            assert fit.log_posterior == pytest.approx(dense.log_posterior, rel=1e-12)
            assert fit.n_responses == mask.sum()
            assert fit.certified

    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 10**6), n=st.integers(2, 9), m=st.integers(2, 9), missing=st.floats(0, 0.8))
    def test_any_table(self, seed, n, m, missing):
        rng = np.random.default_rng(seed)
        X = simulate(n, m, rng, missing)
        if np.isnan(X).all():
            X[0, 0] = 1
        v_theta, v_beta = np.exp(rng.uniform(-3, 3, 2))
        fit = fit_rasch(X, v_theta=v_theta, v_beta=v_beta)
        assert fit.certified
        n_users = len(X)
        best = minimize(
            lambda z: -log_posterior(X, z[:n_users], z[n_users:], v_theta, v_beta), np.zeros(n + m), method="BFGS"
        )
        assert fit.log_posterior >= -best.fun - 1e-7


class TestInfiniteVariances:
    def test_flat_prior_of_difficulties(self):
        fit = fit_rasch(load_lsat6(), v_beta=math.inf)
        p = expit(fit.abilities[:, None] - fit.difficulties)
        # the expected totals are the observed ones
        np.testing.assert_allclose(p.sum(axis=0), load_lsat6().sum(axis=0, dtype=int), atol=1e-4)
        assert fit.certified
        assert fit.certificates[0].assumptions[0].satisfied is None

    def test_flat_prior_of_abilities(self):
        X = simulate(8, 30, np.random.default_rng(8))
        fit = fit_rasch(X, v_theta=math.inf)
        p = expit(fit.abilities[:, None] - fit.difficulties)
        np.testing.assert_allclose(p.sum(axis=1), X.sum(axis=1), atol=1e-5)

    @pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
    def test_no_priors_fix_the_mean_difficulty(self, shape):
        X = simulate(*shape, np.random.default_rng(9))
        X = X[(X.mean(axis=1) > 0) & (X.mean(axis=1) < 1)]
        X = X[:, (X.mean(axis=0) > 0) & (X.mean(axis=0) < 1)]
        fit = fit_rasch(X, v_theta=math.inf, v_beta=math.inf, accelerate=True)
        assert fit.difficulties.mean() == pytest.approx(0, abs=1e-8)
        p = expit(fit.abilities[:, None] - fit.difficulties)
        np.testing.assert_allclose(p.sum(axis=0), X.sum(axis=0), atol=1e-4)
        np.testing.assert_allclose(p.sum(axis=1), X.sum(axis=1), atol=1e-4)

    def test_wide_priors(self):
        X = load_lsat6()[::7]
        for variance in (1e4, 1e8):
            fit = fit_rasch(X, v_beta=variance)
            np.testing.assert_allclose(fit.difficulties, fit_rasch(X, v_beta=math.inf).difficulties, atol=1e-3)

    @pytest.mark.parametrize(
        ("X", "variances", "message"),
        [
            ([[1, 0], [1, 1], [1, 0]], (1.0, math.inf), "item 0 has only right answers"),
            ([[1, np.nan], [0, np.nan]], (1.0, math.inf), "item 1 has no answers"),
            ([[1, 0], [0, 0], [0, 1]], (math.inf, 1.0), "user 1 has only wrong answers"),
            ([[1, 1], [1, 1]], (math.inf, math.inf), "only right answers"),
            ([[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 1]], (math.inf, math.inf), None),
            ([[1, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 0], [0, 1, 1, 0]], (math.inf, math.inf), None),
            ([[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]], (math.inf, math.inf), "can be separated"),
        ],
    )
    def test_names_who_is_to_blame(self, X, variances, message):
        if message is None:
            fit_rasch(X, v_theta=variances[0], v_beta=variances[1], accelerate=True)
            return
        with pytest.raises(ValueError, match=message):
            fit_rasch(X, v_theta=variances[0], v_beta=variances[1])

    def test_names_of_a_frame(self):
        frame = pd.DataFrame({"easy": [1, 1, 1], "hard": [0, 1, 0]}, index=["ann", "bob", "eve"])
        with pytest.raises(ValueError, match="item 'easy' has only right"):
            fit_rasch(frame, v_beta=math.inf)


class TestInput:
    def test_types_give_the_same_answer(self):
        base = fit_rasch(SMALL.astype(float))
        tables = [
            SMALL.tolist(),
            SMALL.astype(bool),
            SMALL.astype(np.float32),
            SMALL.astype(np.int8),
            SMALL.astype(np.uint64),
            SMALL.astype(object),
            np.asfortranarray(SMALL),
            pd.DataFrame(SMALL),
            pd.DataFrame(SMALL).astype("Int8"),
            pd.DataFrame(SMALL).astype("boolean"),
            np.ma.masked_array(SMALL),
        ]
        for table in tables:
            np.testing.assert_array_equal(fit_rasch(table).difficulties, base.difficulties)

    def test_missing_in_every_form(self):
        X = SMALL.astype(float)
        X[2, 1] = np.nan
        base = fit_rasch(X).difficulties
        mask = ~np.isnan(X)
        junk = np.where(mask, X, 7)
        frame = pd.DataFrame(SMALL).astype("Int8").mask(~mask)
        for fit in (
            fit_rasch(SMALL, mask=mask),
            fit_rasch(junk, mask=mask.astype(int)),
            fit_rasch(SMALL.astype(np.int8), mask=sparse.csr_array(mask)),
            fit_rasch(np.ma.masked_array(SMALL, ~mask)),
            fit_rasch(frame),
            fit_rasch(frame.astype(object)),
            fit_rasch(np.where(mask, SMALL.astype(object), None)),
        ):
            np.testing.assert_allclose(fit.difficulties, base, atol=1e-12)
        assert not np.allclose(base, fit_rasch(SMALL).difficulties)

    def test_columns_of_one_name(self):
        frame = pd.DataFrame(SMALL.astype(object), columns=["a", "a", "b"])
        np.testing.assert_array_equal(fit_rasch(frame).difficulties, fit_rasch(SMALL).difficulties)

    def test_does_not_write_to_its_input(self):
        X = SMALL.astype(float)
        X[2, 1] = np.nan
        mask = np.ones(X.shape, dtype=bool)
        for table in (X, SMALL.astype(np.int8)):
            table, copy = table.copy(), table.copy()
            table.flags.writeable = mask.flags.writeable = False
            fit_rasch(table, mask=mask)
            np.testing.assert_array_equal(table, copy)

    def test_names(self):
        frame = pd.DataFrame(SMALL, columns=["a", "b", "c"], index=list("wxyz"))
        fit = fit_rasch(frame)
        assert fit.items().loc["b", "difficulty"] == fit.difficulties[1]
        assert fit.users().loc["z", "ability"] == fit.abilities[3]
        assert fit.to_dict()["item_names"] == ["a", "b", "c"]
        assert len(repr(fit).splitlines()) < 25

    def test_tiny_variances(self):
        fit = fit_rasch(SMALL, v_theta=1e-8, v_beta=1e-8, tol=1e-16)
        np.testing.assert_allclose(fit.difficulties, 1e-8 * (2 - SMALL.sum(axis=0)), rtol=1e-6, atol=1e-15)
        assert fit.certified

    def test_huge_variances_of_a_table_that_is_separated(self):
        # The last user solved everything, and nothing but the prior bounds that ability.
        with pytest.warns(ConvergenceWarning):
            fit = fit_rasch(SMALL, v_theta=1e8, v_beta=1e8, max_iter=200)
        assert np.isfinite(fit.difficulties).all()
        assert fit.abilities[3] > 5
        assert not fit.certified

    def test_constant_tables(self):
        for value in (0, 1):
            fit = fit_rasch(np.full((5, 4), value))
            assert fit.certified
            sign = 1 if value else -1
            assert (sign * fit.abilities > 0).all()
            assert (sign * fit.difficulties < 0).all()

    def test_callback_and_warning(self):
        rows = []
        with pytest.warns(ConvergenceWarning, match="fit_rasch did not reach"):
            fit = fit_rasch(SMALL, max_iter=3, callback=rows.append)
        assert [row["iteration"] for row in rows] == [1, 2, 3]
        assert not fit.converged
        assert fit.n_iter == 3
        for settings_ in ({"accelerate": True}, {"update": "coordinate"}):
            for max_iter in (1, 2, 3, 4):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    assert fit_rasch(SMALL, max_iter=max_iter, **settings_).n_iter == max_iter

    @pytest.mark.parametrize(
        ("X", "error", "message"),
        [
            ([[1, 2], [0, 1]], ValueError, "got 2"),
            ([[1, -1], [0, 1]], ValueError, "got -1"),
            (np.array([[1, -1], [0, 1]], dtype=np.int8), ValueError, "got -1"),
            ([[1, 0.5], [0, 1]], ValueError, "got 0.5"),
            ([[1, np.inf], [0, 1]], ValueError, "infinity"),
            ([[1, 0]], ValueError, "at least 2 users"),
            ([[1], [0]], ValueError, "at least 2 items"),
            (np.zeros((0, 3)), ValueError, "at least 2 users"),
            (np.zeros((3, 0)), ValueError, "at least 2 items"),
            ([1, 0], ValueError, "shape"),
            (np.zeros((2, 2, 2)), ValueError, "shape"),
            ([[1, 0], [1]], ValueError, "different lengths"),
            (np.full((3, 3), np.nan), ValueError, "at least one response"),
            ([["1", "0"], ["0", "1"]], TypeError, "dtype"),
            (np.array([[1, "a"], [0, 1]], dtype=object), TypeError, "another type"),
            (sparse.csr_array(SMALL), TypeError, "mask"),
            (SMALL * 1j, ValueError, "Complex"),
            (pd.DataFrame({"a": ["x", "y"], "b": [0, 1]}), TypeError, "not numeric, 'a'"),
            (pd.DataFrame({"a": ["1", "0"], "b": [0, 1]}, dtype=object), TypeError, "not numeric, 'a'"),
        ],
    )
    def test_bad_tables(self, X, error, message):
        with pytest.raises(error, match=message):
            fit_rasch(X)

    @pytest.mark.parametrize(
        ("settings_", "error", "name"),
        [
            ({"v_theta": 0}, ValueError, "v_theta"),
            ({"v_theta": -1.0}, ValueError, "v_theta"),
            ({"v_theta": "learn"}, ValueError, "v_theta"),
            ({"v_theta": np.nan}, ValueError, "v_theta"),
            ({"v_beta": 0}, ValueError, "v_beta"),
            ({"v_beta": "moment"}, TypeError, "v_beta"),
            ({"update": "both"}, ValueError, "update"),
            ({"init": "ones"}, ValueError, "init"),
            ({"tol": 0}, ValueError, "tol"),
            ({"max_iter": 0}, ValueError, "max_iter"),
            ({"max_iter": 1.5}, TypeError, "max_iter"),
            ({"identification": "mean"}, ValueError, "identification"),
            ({"accelerate": 1}, TypeError, "accelerate"),
            ({"callback": 3}, TypeError, "callback"),
            ({"mask": np.ones((2, 2))}, ValueError, "mask must have the shape"),
            ({"mask": np.full((4, 3), "x")}, TypeError, "mask"),
        ],
    )
    def test_bad_settings(self, settings_, error, name):
        with pytest.raises(error, match=name):
            fit_rasch(SMALL, **settings_)
