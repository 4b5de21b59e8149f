"""The study of menus and maps, in small pieces."""

import numpy as np
import pytest

from assay.lab import Measurement
from assay.studies.transport import generalized_convex as study_module
from assay.studies.transport._auction_rivals import (
    best_bundle_price,
    best_prices_by_size,
    best_separate_prices,
    menu_revenue,
    program_on_a_grid,
)
from assay.studies.transport._convex_layer_costs import measure_forward, measure_growth
from assay.studies.transport.generalized_convex import AuctionCase, GeneralizedConvexStudy, Problem, TransportCase

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def problem():
    types, fresh = RNG.random((400, 2)), RNG.random((2000, 2))
    auctions = [
        AuctionCase("uniform k=2", types, fresh),
        AuctionCase("exchangeable k=2", types, fresh, exchangeable=True),
    ]
    X, Y = RNG.normal(size=(40, 2)), RNG.normal(size=(40, 2))
    transports = [TransportCase(f"gaussian n=40 power {power:g}", X, Y, power) for power in (2.0, 1.5)]
    return Problem(auctions, transports, RNG.normal(size=(20, 2)), {"steps": 60, "times": ()})


def scalars(measurement, metric):
    return {s.case: s.value for s in measurement.scalars if s.metric == metric}


class TestRivals:
    def test_revenue_of_a_menu(self):
        types = np.array([[0.6, 0.1], [0.9, 0.9], [0.2, 0.2]])
        menu, price = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([0.5, 1.0])
        assert menu_revenue(menu, price, types) == pytest.approx((0.5 + 1.0) / 3)
        # the indifferent take the dearer bundle
        assert menu_revenue(np.eye(2), np.array([0.9, 0.8]), np.array([[0.9, 0.8]])) == 0.9

    def test_posted_prices(self):
        types = (np.arange(1000) + 0.5)[:, None] / 1000
        menu, price = best_bundle_price(types)
        assert price[0] == pytest.approx(0.5, abs=1e-3)
        assert menu_revenue(menu, price, types) == pytest.approx(0.25, abs=1e-3)
        pairs = RNG.random((20000, 2))
        assert menu_revenue(*best_separate_prices(pairs), pairs) == pytest.approx(0.5, abs=0.01)
        assert menu_revenue(*best_bundle_price(pairs), pairs) == pytest.approx((2 / 3) ** 1.5, abs=0.01)

    def test_prices_by_size(self):
        types = RNG.random((20000, 2))
        menu, price = best_prices_by_size(types)
        np.testing.assert_allclose(price, [2 / 3, 2 / 3, (4 - np.sqrt(2)) / 3], atol=0.05)
        assert menu_revenue(menu, price, types) == pytest.approx((12 + 2 * np.sqrt(2)) / 27, abs=0.01)

    def test_program_of_one_good(self):
        # midpoints of four cells: 3/8 sells to three of four, 5/8 to two
        menu, price, value = program_on_a_grid(1, 4)
        assert value == pytest.approx(max(3 / 8 * 3 / 4, 5 / 8 / 2))
        assert menu_revenue(menu, price + 0.0, (np.arange(4)[:, None] + 0.5) / 4) == pytest.approx(value, abs=1e-6)

    def test_program_is_above_every_menu_on_its_grid(self):
        value = program_on_a_grid(2, 4)[2]
        axis = (np.arange(4) + 0.5) / 4
        types = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
        for make in (best_bundle_price, best_separate_prices, best_prices_by_size):
            assert menu_revenue(*make(types), types) <= value + 1e-9


@pytest.mark.parametrize("contender", [c.name for c in GeneralizedConvexStudy.contenders])
def test_every_contender_can_be_measured(problem, contender, monkeypatch):
    if contender == study_module.EMD:
        pytest.importorskip("ot")
    monkeypatch.setattr(study_module, "measure_forward", lambda m, *a, **k: measure_forward(m, 300, 8, repeats=1))
    monkeypatch.setattr(study_module, "GRID", {2: 3})
    measurement = GeneralizedConvexStudy().measure(contender, problem, np.random.default_rng(3))
    assert measurement.scalars
    assert all(
        certificate.holds for case, certificate in measurement.certificates if "gap" not in certificate.statement
    )
    if contender == study_module.LOOP:
        assert scalars(measurement, "forward_difference")["S=300 J=8 d=8"] < 1e-5
        return
    if contender == study_module.EMD:
        bounds = scalars(measurement, "bound")
        for case in problem.transports:
            assert bounds[case.name] > 0
        assert set(scalars(measurement, "hard_map_error")) == {"gaussian n=40 power 2"}
        return
    assert all(0.4 < revenue < 0.65 for revenue in scalars(measurement, "revenue").values())
    if contender == study_module.OURS:
        assert max(scalars(measurement, "grid_error_deviation").values()) < 0.01
        assert scalars(measurement, "separable_error")[""] < 0.03
        assert len(scalars(measurement, "bound")) == 2
        assert {curve.name for curve in measurement.curves} == {
            "revenue while training",
            "gap of plan and dual",
            "error of half a square",
        }


def test_problem_is_the_same_for_all_contenders():
    study = GeneralizedConvexStudy()
    first, second = (study.problem("quick", study.problem_rng("quick", 0)) for _ in range(2))
    assert [case.name for case in first.auctions] == ["uniform k=1", "sample k=1", "uniform k=2", "sample k=2"]
    for one, other in zip(first.auctions, second.auctions, strict=True):
        np.testing.assert_array_equal(one.train, other.train)
    for one, other in zip(first.transports, second.transports, strict=True):
        np.testing.assert_array_equal(one.X, other.X)


def test_matrix_of_costs_is_the_kernel(problem):
    import torch

    from assay.transport.transport_kernels import check_kernel, kernel_scores

    for case in problem.transports:
        scores = kernel_scores(check_kernel(case.cost), torch.tensor(case.X), torch.tensor(case.Y))
        np.testing.assert_allclose(scores.numpy(), case.matrix, rtol=1e-12)


def test_growth_is_measured():
    measurement = Measurement()
    measure_growth(measurement, 200, (4, 8))
    assert set(scalars(measurement, "growth")) == {""}


def test_declarations_and_demonstration():
    GeneralizedConvexStudy.check_declarations()
    assert all(certificate.holds for certificate in GeneralizedConvexStudy().demonstrate())
