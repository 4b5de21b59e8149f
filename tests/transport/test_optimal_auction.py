"""Menus against the known optimal mechanisms, and what buyers and sellers are told."""

import importlib
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import qmc

from assay.certificate import CertificateError
from assay.transport import QuadraticProductionCost, bundle_grid, optimal_auction
from assay.transport.generalized_convex import GCFLayer
from assay.transport.menu_ascent import soft_revenue_and_slope
from assay.transport.optimal_auction import _seller_best, _Training

# the function of the same name hides the module
optimal_auction_module = importlib.import_module("assay.transport.optimal_auction")


def uniform(k, m=10, seed=0):
    return qmc.Sobol(k, rng=seed).random(2**m)


class TestKnownOptima:
    def test_one_good(self):
        result = optimal_auction(uniform(1), test_types=uniform(1, 14, 1), max_iter=400, rng=0)
        assert result.revenue == pytest.approx(0.25, abs=5e-4)
        assert result.revenue <= 0.2501
        # buyers between no good and the whole one get a lottery, if any, at its fair share of the posted price
        assert result.price[result.menu[:, 0] == 1.0][0] == pytest.approx(0.5, abs=0.03)

    def test_two_uniform_goods(self):
        result = optimal_auction(uniform(2, 11), test_types=uniform(2, 15, 1), max_iter=400, rng=0)
        optimum = (12 + 2 * math.sqrt(2)) / 27
        assert optimum - 2e-3 <= result.revenue <= optimum + 5e-4

    def test_vertices_recover_the_straight_jacket_prices(self):
        menu = bundle_grid(2, [0, 1])
        result = optimal_auction(uniform(2, 12), menu=menu, test_types=uniform(2, 14, 1), max_iter=600, rng=0)
        prices = {tuple(bundle): price for bundle, price in zip(result.menu.tolist(), result.price, strict=True)}
        assert prices[1.0, 0.0] == pytest.approx(2 / 3, abs=0.03)
        assert prices[0.0, 1.0] == pytest.approx(2 / 3, abs=0.03)
        assert prices[1.0, 1.0] == pytest.approx((4 - math.sqrt(2)) / 3, abs=0.03)

    def test_production_costs_raise_the_price(self):
        # one good, cost c: the price is (1 + c) / 2 and earns (1 - c)^2 / 4
        result = optimal_auction(
            uniform(1),
            menu=[[1.0]],
            cost=QuadraticProductionCost(0.2),
            test_types=uniform(1, 13, 1),
            rng=0,
            max_iter=400,
        )
        assert result.price[1] == pytest.approx(0.6, abs=0.02)
        assert result.revenue == pytest.approx(0.16, abs=1e-3)
        # u = E (x - 0.6)_+ = 0.08
        assert result.utility == pytest.approx(0.08, abs=0.01)
        assert result.surplus == pytest.approx(result.revenue + result.utility)

    def test_quality_with_quadratic_costs(self):
        # Mussa and Rosen: q(x) = (2 x - 1)_+ / (2 beta), profit = E (2 x - 1)_+^2 / (4 beta) = 1 / (24 beta)
        result = optimal_auction(
            uniform(1, 11),
            menu=np.linspace(0, 1, 21)[:, None],
            cost=QuadraticProductionCost(0.5),
            test_types=uniform(1, 14, 1),
            max_iter=800,
            rng=0,
        )
        assert result.revenue == pytest.approx(1 / 12, rel=0.02)


@pytest.fixture(scope="module")
def result():
    return optimal_auction(uniform(2), test_types=uniform(2, 12, 1), max_iter=100, rng=0)


class TestResult:
    def test_first_row_is_the_outside_option(self, result):
        np.testing.assert_array_equal(result.menu[0], 0.0)
        assert result.price[0] == 0.0
        assert result.menu.shape == (25, 2)
        assert result.share.sum() == pytest.approx(1.0)

    def test_selling_to_the_test_types_again(self, result):
        types = uniform(2, 12, 1)
        bundles, payments = result.sell(types)
        assert payments.mean() == pytest.approx(result.revenue)
        assert ((types * bundles).sum(1) - payments).mean() == pytest.approx(result.utility)
        assert ((types * bundles).sum(1) - payments).min() >= -1e-12
        shares = [(bundles == bundle).all(1).mean() for bundle in result.menu]
        np.testing.assert_allclose(shares, result.share)
        low, high = result.revenue_interval
        assert high - low == pytest.approx(2 * 1.96 * payments.std(ddof=1) / 64, rel=1e-4)

    def test_certificates(self, result):
        assert result.certified
        assert result.ic_violation <= 1e-12
        assert result.ir_violation <= 1e-12
        assert [a.satisfied for c in result.certificates for a in c.assumptions] == [True, True]
        assert result.soft_hard_gap == pytest.approx(result.history["soft"].max() - result.revenue, abs=0.1)
        assert result.train_revenue >= result.history["hard"].max() - 1e-12

    def test_repr_dict_and_pickle(self, result):
        assert "certificates: 2 of 2 hold" in repr(result)
        assert result.to_dict()["revenue"] == result.revenue
        assert pickle.loads(pickle.dumps(result)).revenue == result.revenue

    def test_is_deterministic(self, result):
        again = optimal_auction(uniform(2), test_types=uniform(2, 12, 1), max_iter=100, rng=0)
        np.testing.assert_array_equal(again.price, result.price)

    def test_callback(self):
        rows = []
        result = optimal_auction(uniform(1), max_iter=60, rng=0, callback=rows.append)
        assert [row["iteration"] for row in rows] == [0, 25, 50, 60] == result.history["iteration"].tolist()


class TestTraining:
    def make(self, **options):
        arguments = {
            "kernel": "dot",
            "cost": None,
            "types": uniform(2, 5),
            "bundles": bundle_grid(2)[1:],
            "away": (np.zeros(2), 0.0),
            "learn_y": False,
            "y_bounds": (0.0, 1.0),
            "lr": 0.02,
            "exchangeable": False,
            "generator": np.random.default_rng(0),
        } | options
        arguments["kernel"] = GCFLayer(arguments["kernel"], [[0.0]]).kernel
        return _Training(**arguments)

    def test_first_prices(self):
        training = self.make(types=uniform(2, 12))
        size = bundle_grid(2)[1:].sum(1)
        np.testing.assert_allclose(training.menu()[1][1:], 0.55 * size, atol=0.08)
        assert training.unit == pytest.approx(1.0, rel=1e-2)

    def test_soft_revenue_by_the_formula(self):
        training = self.make()
        menu, price = training.menu()
        scores = (uniform(2, 5) @ menu.T - price) / training.unit
        spread = np.maximum(np.ptp(scores, axis=1, keepdims=True), 1e-3)
        weights = np.exp(np.clip(30.0 / spread, 30.0, 5000.0) * (scores - scores.max(1, keepdims=True)))
        weights /= weights.sum(1, keepdims=True)
        assert float(training._revenues(30.0)[0].detach()) == pytest.approx((weights @ price).mean(), rel=1e-10)

    @pytest.mark.parametrize("temperature", [10.0, 200.0])
    @pytest.mark.parametrize("cost", [None, QuadraticProductionCost(0.3)])
    def test_fast_pass_is_automatic_differentiation(self, temperature, cost):
        training = self.make(cost=cost)
        soft, hard = training._revenues(temperature)
        soft.backward()
        price = training.menu()[1]
        fast = soft_revenue_and_slope(
            training.scores, price, price - training.production, training.unit, temperature, 1e-3, 5000.0, 1e-13
        )
        assert fast[0] == pytest.approx(float(soft.detach()), rel=1e-12)
        assert fast[1] == pytest.approx(hard, rel=1e-12)
        np.testing.assert_allclose(fast[2][1:], training.layer.intercept.grad.numpy(), rtol=1e-9, atol=1e-14)

    def test_both_ways_to_train_agree(self, monkeypatch):
        options = {"types": uniform(2, 9), "test_types": uniform(2, 12, 1), "max_iter": 60, "rng": 0}
        fast = optimal_auction(**options)
        monkeypatch.setattr(optimal_auction_module, "_KEPT", 0)
        plain = optimal_auction(**options)
        np.testing.assert_allclose(plain.price, fast.price, atol=1e-6)

    @pytest.mark.parametrize("max_iter", [0, 3, 42])
    def test_trained_bundles_are_judged_at_the_first_and_the_last_step(self, max_iter):
        rows = []
        result = optimal_auction(uniform(2, 6), learn_y=True, max_iter=max_iter, rng=0, callback=rows.append)
        assert np.isfinite(result.history["hard"]).all()
        assert rows[-1]["iteration"] == max_iter
        assert result.train_revenue >= result.history["hard"].max() - 1e-12

    def test_revenues_of_one_pass_in_chunks(self, monkeypatch):
        training = self.make(types=uniform(2, 6), learn_y=True)
        soft, hard = (float(revenue) for revenue in training._revenues(30.0))
        menu, price = training.menu()
        index = (uniform(2, 6) @ menu.T - price).argmax(1)
        assert hard == pytest.approx(price[index].mean(), rel=1e-12)
        monkeypatch.setattr(optimal_auction_module, "_CHUNK", 7)
        assert [float(revenue) for revenue in training._revenues(30.0)] == pytest.approx([soft, hard], rel=1e-12)

    @pytest.mark.parametrize("learn_y", [False, True])
    def test_what_buyers_value_is_not_trained(self, learn_y):
        class Shared(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))

            def forward(self, x, y):
                return (self.weight * x * y).sum(-1)

        kernel = Shared()
        result = optimal_auction(uniform(2), kernel=kernel, learn_y=learn_y, max_iter=20, rng=0)
        assert result.certified
        assert kernel.weight.tolist() == [1.0, 1.0]

    def test_ties_are_broken_for_the_seller(self):
        scores = torch.tensor([[0.0, 0.0, -1.0], [1.0, 1.0 + 1e-14, 1.0]], dtype=torch.float64)
        index, utility = _seller_best(scores, torch.tensor([0.0, 0.5, 0.7], dtype=torch.float64))
        assert index.tolist() == [1, 2]
        assert utility.tolist() == [0.0, 1.0]


class TestOptions:
    def test_trained_bundles(self):
        result = optimal_auction(uniform(2), learn_y=True, max_iter=150, test_types=uniform(2, 12, 1), rng=0)
        assert result.menu.shape == (13, 2)
        assert (result.menu >= 0).all()
        assert (result.menu <= 1).all()
        assert result.certified
        assert result.revenue >= 0.5
        fewer = optimal_auction(uniform(2), learn_y=True, n_pieces=3, max_iter=5, rng=0)
        assert fewer.menu.shape == (4, 2)

    def test_exchangeable_goods(self):
        types = uniform(4)
        result = optimal_auction(types, exchangeable=True, max_iter=300, test_types=uniform(4, 13, 1), rng=0)
        np.testing.assert_array_equal(result.menu[1:], np.tril(np.ones((4, 4))))
        assert 4 * 0.25 < result.revenue < 4 * 0.315
        learned = optimal_auction(types, exchangeable=True, learn_y=True, max_iter=20, rng=0)
        assert (np.diff(learned.menu, axis=1) <= 0).all()
        assert learned.certified

    def test_menus_by_number_of_goods(self):
        assert len(optimal_auction(uniform(3, 5), max_iter=0, rng=0).menu) == 125
        assert len(optimal_auction(uniform(4, 5), max_iter=0, rng=0).menu) == 16
        with pytest.raises(ValueError, match="menu must be given for 11 goods"):
            optimal_auction(uniform(11, 5), max_iter=0)

    @pytest.mark.parametrize("kernel", ["hinge", "neg_sqeuclidean", lambda x, y: (x * y).sum(-1).sqrt()])
    def test_other_kernels_are_incentive_compatible(self, kernel):
        result = optimal_auction(uniform(2), kernel=kernel, max_iter=50, rng=0)
        assert result.certified
        assert result.revenue >= 0.0

    @pytest.mark.parametrize("scale", [1e-8, 1e8])
    def test_any_scale(self, scale):
        plain = optimal_auction(uniform(2), max_iter=200, rng=0)
        scaled = optimal_auction(uniform(2) * scale, max_iter=200, rng=0)
        assert scaled.revenue / scale == pytest.approx(plain.revenue, rel=1e-3)
        assert scaled.certified

    def test_outside_options(self):
        result = optimal_auction(uniform(1), menu=[[1.0]], outside=([0.5], 0.1), max_iter=20, rng=0)
        assert result.menu.tolist() == [[0.5], [1.0]]
        assert result.price[0] == 0.1
        assert result.certified
        with pytest.raises(TypeError, match="outside must be an option"):
            optimal_auction(uniform(1), outside=None)
        entitled = optimal_auction(uniform(1), menu=[[0.2], [1.0]], outside=False, ir=False, max_iter=20, rng=0)
        assert entitled.menu.tolist() == [[0.2], [1.0]]
        assert len(entitled.certificates) == 1

    def test_duplicated_bundles_and_the_outside_one_in_the_menu(self):
        result = optimal_auction(uniform(1), menu=[[0.0], [1.0], [1.0]], max_iter=20, rng=0)
        assert result.menu.tolist() == [[0.0], [1.0], [1.0]]
        assert result.certified

    def test_few_types_are_not_held_out(self):
        for types in ([[0.7]], [[0.7]] * 5):
            result = optimal_auction(types, menu=[[1.0]], max_iter=300, rng=0)
            assert result.price[1] == pytest.approx(0.7, abs=0.05)
            assert result.certificates[0].violated
            assert not result.certified
            with pytest.raises(CertificateError):
                result.require()
        assert math.isnan(optimal_auction([[0.7]], max_iter=0).revenue_se)

    def test_worthless_goods(self):
        assert optimal_auction(np.zeros((20, 2)), max_iter=5, rng=0).revenue == pytest.approx(0.0, abs=0.1)


def test_types_from_files_and_other_containers(tmp_path):
    types = uniform(2, 6)
    wanted = optimal_auction(types, max_iter=10, rng=0).revenue
    frame = pd.DataFrame(types, columns=["car", "boat"])
    named, bare = tmp_path / "named.csv", tmp_path / "bare.csv"
    frame.to_csv(named, index=False)
    frame.to_csv(bare, index=False, header=False)
    for form in (named, str(bare), frame, torch.tensor(types), types.tolist()):
        assert optimal_auction(form, max_iter=10, rng=0).revenue == pytest.approx(wanted, rel=1e-9)
    whole = optimal_auction([[0, 1], [1, 0], [1, 1], [2, 3]], max_iter=2, rng=0)
    assert whole.menu.shape == (25, 2)
    (tmp_path / "words.csv").write_text("a,b\n1,x\n")
    with pytest.raises(TypeError, match="types must be a finite 2-D array"):
        optimal_auction(tmp_path / "words.csv")
    (tmp_path / "holes.csv").write_text("a,b\n1,\n2,3\n")
    with pytest.raises(ValueError, match="1 nan"):
        optimal_auction(tmp_path / "holes.csv")
    with pytest.raises(FileNotFoundError):
        optimal_auction(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"types": np.zeros((0, 2))}, ValueError, "types must be a finite 2-D array and not empty"),
        ({"types": [[np.inf, 0.0]]}, ValueError, "types must be a finite 2-D array"),
        ({"types": [0.1, 0.2]}, ValueError, "types must be a finite 2-D array"),
        ({"test_types": [[0.0]]}, ValueError, "test_types must have 2 columns"),
        ({"test_size": 1.0}, ValueError, "test_size must be less than 1"),
        ({"kernel": 1}, TypeError, "kernel must be a name"),
        ({"kernel": "cross"}, ValueError, "kernel must be one of"),
        ({"kernel": lambda x, y: x.sum()}, ValueError, r"kernel must return \(S, J\)"),
        ({"kernel": lambda x, y: (x - 2 + 0 * y).log().sum(-1)}, ValueError, "kernel must be finite"),
        ({"kernel": lambda x, y: 1.0 / (0.0 * x + y).sum(-1)}, ValueError, "kernel must be finite"),
        ({"menu": [[np.nan, 0.0]]}, ValueError, "menu must be a finite"),
        ({"menu": [[0.0, 0.0]]}, ValueError, "menu must have a bundle besides"),
        ({"menu": [[2.0, 0.0]], "learn_y": True}, ValueError, "y must be within y_bounds"),
        ({"y_bounds": 1.0, "learn_y": True}, ValueError, "y_bounds must be a pair"),
        ({"n_pieces": 5}, ValueError, "n_pieces must be left out"),
        ({"outside": [0.0]}, ValueError, "outside must be a bundle of 2 goods"),
        ({"outside": False, "ir": False, "menu": [[1.0, 1.0]]}, ValueError, "at least two bundles"),
        ({"cost": lambda menu: 1.0}, ValueError, "cost must return a tensor"),
        ({"lr": 0.0}, ValueError, "lr must be greater than 0"),
        ({"max_iter": -1}, ValueError, "max_iter must be at least 0"),
    ],
)
def test_bad_input(options, error, message):
    with pytest.raises(error, match=message):
        optimal_auction(**({"types": uniform(2, 4), "max_iter": 1} | options))


def test_bundle_grid():
    assert bundle_grid(1).tolist() == [[0.0], [0.25], [0.5], [0.75], [1.0]]
    assert len(bundle_grid(3, [1, 0, 0])) == 8
    with pytest.raises(ValueError, match="n_goods must be at least 1"):
        bundle_grid(0)
