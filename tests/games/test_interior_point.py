import numpy as np
import pytest
import scipy.sparse as sp

from assay.games.interior_point import CentralPath
from assay.games.matrix_game import duality_gap
from assay.games.semismooth_newton import GameSplitting


def follow(payoff, target=1e-12, most=60):
    """Strategies of rows and columns with the smallest gap on the path, and the number of steps."""
    splitting = GameSplitting(payoff)
    path = CentralPath(splitting)
    best, steps = (path.gap, *splitting.players(path.x, path.y)), 0
    while path.gap > target and steps < most and path.advance():
        steps += 1
        assert min(path.x.min(), path.y.min()) > 0
        assert path.x.sum() == pytest.approx(1, abs=1e-12)
        assert path.y.sum() == pytest.approx(1, abs=1e-12)
        if path.gap < best[0]:
            best = (path.gap, *splitting.players(path.x, path.y))
    return *best[1:], steps


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (25, 25), (2, 40), (70, 90)])
@pytest.mark.parametrize("seed", range(2))
def test_the_path_leads_to_the_equilibrium(shape, seed):
    payoff = np.random.default_rng(seed).uniform(-1, 1, shape)
    x, y, steps = follow(payoff)
    assert duality_gap(payoff, x, y) <= 1e-12
    assert steps <= 40


def test_the_gap_of_the_path_is_the_gap():
    payoff = np.random.default_rng(0).uniform(-1, 1, (12, 9))
    splitting = GameSplitting(payoff)
    path = CentralPath(splitting)
    for _ in range(8):
        assert path.gap == pytest.approx(duality_gap(payoff, *splitting.players(path.x, path.y)), abs=1e-14)
        assert path.advance()


@pytest.mark.parametrize("density", [0.05, 0.4])
@pytest.mark.parametrize("shape", [(40, 60), (60, 40)])
def test_sparse_equals_dense(density, shape):
    rng = np.random.default_rng(0)
    sparse = sp.random_array(shape, density=density, rng=rng, format="csr", data_sampler=rng.standard_normal)
    paths = [CentralPath(GameSplitting(payoff)) for payoff in (sparse, sparse.toarray())]
    for _ in range(4):
        for path in paths:
            assert path.advance()
        np.testing.assert_allclose(paths[0].x, paths[1].x, rtol=1e-6)
        np.testing.assert_allclose(paths[0].y, paths[1].y, rtol=1e-6)


def test_the_unit_of_a_row_does_not_matter():
    units = np.logspace(-8, 0, 12)
    x, y, steps = follow(np.diag(units), target=1e-18)
    expected = (1 / units) / (1 / units).sum()
    np.testing.assert_allclose(x, expected, rtol=1e-3)
    np.testing.assert_allclose(y, expected, rtol=1e-3)
    assert steps <= 20


@pytest.mark.parametrize("payoff", [np.outer(np.arange(1.0, 9), np.arange(-3.0, 5)) / 32, np.tile(np.eye(3), (3, 4))])
def test_a_rank_deficient_game_is_no_obstacle(payoff):
    x, y, _ = follow(payoff)
    assert duality_gap(payoff, x, y) <= 1e-10


def test_without_a_step_nothing_changes():
    path = CentralPath(GameSplitting(np.array([[0.0, 1.0], [1.0, 0.0]])))
    path._loss_x = np.array([np.inf, 1.0])
    before = path.x.copy(), path.y.copy(), path.gap
    assert not path.advance()
    np.testing.assert_array_equal(path.x, before[0])
    np.testing.assert_array_equal(path.y, before[1])
    assert path.gap == before[2]
