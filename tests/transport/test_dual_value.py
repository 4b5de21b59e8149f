"""The dual value: closed forms, quadrature by an independent library, the three estimates against each other."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from assay.transport import gibbs_reference, worst_case_value
from assay.transport.flow_problem import WorstCaseProblem
from assay.transport.gibbs_reference import _longest_stage, _systematic, gibbs_draws


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def logistic(x, y):
    return torch.nn.functional.softplus(-2.0 * x[:, 0])


def gaussian_value(slope, curvature, x, tau, epsilon):
    """Closed form for f(y) = slope.y + curvature |y|^2 / 2."""
    k, v = 2 * tau / epsilon, epsilon / 2
    q = 1 - k * curvature * v
    return sum(
        (-0.5 * math.log(q) + (k * a * c + k * curvature * c**2 / 2 + k**2 * a**2 * v / 2) / q) / k
        for a, c in zip(slope, x, strict=True)
    )


def quadratic(slope, curvature):
    direction = torch.tensor(slope, dtype=torch.float64)
    return lambda x, y: x @ direction + 0.5 * curvature * x.square().sum(1)


def test_closed_form():
    assert gaussian_value([0.5, -0.3], 0.4, [1.0, 2.0], 1.0, 0.3) == pytest.approx(1.8599571769, abs=1e-9)
    answer = worst_case_value(
        quadratic([0.5, -0.3], 0.4), [[1.0, 2.0]], tau=1.0, epsilon=0.3, draws=2**15, generator=seeded()
    )
    assert answer.methods == ("tempered",)  # of 32768 importance weights about 5 are effective
    assert answer.value == pytest.approx(1.8599571769, abs=0.03)
    mean = torch.tensor([2.5, 17 / 6])
    exact_upper = float(0.5 * 2.5 - 0.3 * mean[1] + 0.2 * (mean.square().sum() + 0.5))
    assert answer.upper == pytest.approx(exact_upper, abs=0.1)
    assert answer.certified


@pytest.mark.parametrize(("d", "epsilon", "draws"), [(1, 0.3, 4096), (20, 0.05, 1024), (2, 0.01, 2048)])
def test_tempering_against_the_closed_form(d, epsilon, draws):
    slope, x = [0.2] * d, [0.1] * d
    answer = worst_case_value(
        quadratic(slope, 0.2), [x], tau=1.0, epsilon=epsilon, draws=draws, method="tempered", generator=seeded()
    )
    assert answer.value == pytest.approx(gaussian_value(slope, 0.2, x, 1.0, epsilon), abs=6 * answer.standard_error)
    assert answer.standard_error < 0.02 * abs(answer.value) + 0.003
    assert answer.ess[0] >= 0.49 * draws


def test_linear_loss_has_the_value_of_the_deterministic_problem():
    slope, x = [0.5, -0.3], [0.0, 0.0]
    expected = 0.5 * 1.0 * (0.25 + 0.09)
    assert gaussian_value(slope, 0.0, x, 1.0, 0.3) == pytest.approx(expected)
    # at x = (1, 2) it is a.x more, -0.1 in total 0.07
    assert gaussian_value(slope, 0.0, [1.0, 2.0], 1.0, 0.3) == pytest.approx(0.07)
    answer = worst_case_value(quadratic(slope, 0.0), [[1.0, 2.0]], tau=1.0, epsilon=0.3, generator=seeded())
    assert answer.methods == ("importance",)
    assert answer.value == pytest.approx(0.07, abs=5 * answer.standard_error)


def test_logistic_by_quadrature():
    answer = worst_case_value(logistic, [[0.3]], tau=0.5, epsilon=0.2, method="quadrature")
    assert answer.value == pytest.approx(0.73562214, abs=1e-8)
    assert answer.upper == pytest.approx(1.1720575, abs=1e-7)
    assert answer.transport == pytest.approx(0.58816277, abs=1e-7)
    assert answer.certified
    for method in ("importance", "tempered"):
        drawn = worst_case_value(
            logistic, [[0.3]], tau=0.5, epsilon=0.2, draws=2**14, method=method, generator=seeded()
        )
        assert drawn.value == pytest.approx(answer.value, abs=6 * drawn.standard_error + 0.002)
        assert drawn.upper == pytest.approx(answer.upper, abs=0.05)


def test_order_of_the_ends():
    """The plain loss is a lower bound for convex losses only."""
    concave = worst_case_value(lambda x, y: -0.5 * x[:, 0] ** 2, [[0.0]], tau=0.5, epsilon=0.5, method="quadrature")
    assert concave.value == pytest.approx(-0.1013662770, abs=1e-9)
    assert concave.lower == pytest.approx(-0.125, abs=1e-12)
    assert concave.plain == 0.0 > concave.value
    wave = worst_case_value(lambda x, y: torch.sin(x[:, 0]), [[1.2]], tau=0.3, epsilon=0.5, method="quadrature")
    assert (wave.lower, wave.value, wave.upper) == pytest.approx((0.8225215, 0.8466452, 0.8672056), abs=5e-7)
    assert wave.plain == pytest.approx(0.9320391, abs=1e-7)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.5])
@pytest.mark.parametrize("tau", [0.05, 0.9])
def test_quadrature_against_scipy(tau, epsilon):
    """A loss that is neither convex nor concave; the peak is found by SciPy alone."""

    def numpy_loss(t):
        return np.sin(3 * t) + 0.3 * np.abs(t)

    def loss(x, y):
        return torch.sin(3 * x[:, 0]) + 0.3 * x[:, 0].abs()

    for centre in (-0.7, 2.0):
        grid = np.linspace(centre - 6, centre + 6, 2_000_001)
        top = np.max(2 * tau * numpy_loss(grid) - (grid - centre) ** 2)
        peaks = grid[np.argmax(2 * tau * numpy_loss(grid) - (grid - centre) ** 2)]
        wide = 60 * math.sqrt(epsilon)

        def integrand(t, centre=centre, top=top):
            return math.exp((2 * tau * float(numpy_loss(t)) - (t - centre) ** 2 - top) / epsilon)

        breaks = sorted({peaks, *np.linspace(max(peaks - wide, centre - 12), min(peaks + wide, centre + 12), 41)})
        mass = sum(quad(integrand, a, b, epsabs=0, epsrel=1e-11)[0] for a, b in pairwise(breaks))
        expected = epsilon / (2 * tau) * (math.log(mass) + top / epsilon - 0.5 * math.log(math.pi * epsilon))
        answer = worst_case_value(loss, [[centre]], tau=tau, epsilon=epsilon, method="quadrature")
        assert answer.value == pytest.approx(expected, abs=2e-6)


def test_small_entropy_is_the_deterministic_worst_case():
    """y = x + tau f'(y) has the solution 0 at x = 0.5, where the penalised loss is log 2 - x^2 / (2 tau)."""
    answer = worst_case_value(logistic, [[0.5]], tau=0.5, epsilon=1e-7, method="auto")
    assert answer.methods == ("quadrature",)
    assert answer.value == pytest.approx(math.log(2) - 0.25, abs=1e-6)


def test_importance_weights_that_fail_say_so():
    options = {"tau": 1.0, "epsilon": 0.01, "draws": 1000}
    answer = worst_case_value(
        quadratic([1.0] * 10, 0.0), np.zeros((3, 10)), method="importance", generator=seeded(), **options
    )
    assert answer.ess.max() < 50
    assert not answer.certified
    exact = gaussian_value([1.0] * 10, 0.0, [0.0] * 10, 1.0, 0.01)
    assert answer.value < exact - 0.5  # biased downwards
    rescued = worst_case_value(quadratic([1.0] * 10, 0.0), np.zeros((3, 10)), generator=seeded(), **options)
    assert rescued.methods == ("tempered",) * 3
    assert rescued.certified
    assert rescued.value == pytest.approx(exact, abs=0.05)


def test_auto_keeps_the_order_of_the_data():
    """Steep on one half of the line, flat on the other: some points need another method."""

    def loss(x, y):
        return y * x[:, 0]

    y = torch.tensor([0.1, 9.0, 0.2, 8.0, 0.3], dtype=torch.float64)
    answer = worst_case_value(loss, torch.zeros(5, 1), y, tau=1.0, epsilon=0.05, generator=seeded())
    assert answer.methods == ("importance", "quadrature", "importance", "quadrature", "importance")
    np.testing.assert_allclose(answer.values, 0.5 * y.numpy() ** 2, atol=0.02)
    two = worst_case_value(
        lambda a, b: b * a.sum(1), torch.zeros(5, 2), y, tau=1.0, epsilon=0.05, draws=8192, generator=seeded()
    )
    assert two.methods == ("importance", "tempered", "importance", "tempered", "importance")
    np.testing.assert_allclose(two.values, y.numpy() ** 2, atol=0.02, rtol=0.02)


def test_ends_enclose_the_value_for_every_method():
    torch_loss = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()
    with torch.no_grad():
        for i, parameter in enumerate(torch_loss.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=seeded(i), dtype=torch.float64))
    x = torch.randn(6, 3, generator=seeded(9), dtype=torch.float64)
    answers = [
        worst_case_value(
            lambda a, b: torch_loss(a)[:, 0], x, tau=0.3, epsilon=0.3, draws=8192, method=method, generator=seeded()
        )
        for method in ("importance", "tempered")
    ]
    for answer in answers:
        assert answer.lower <= answer.value <= answer.upper
        assert answer.transport > 0
    np.testing.assert_allclose(answers[0].values, answers[1].values, atol=0.03)


def test_standard_errors_cover():
    """Of 40 repetitions the true value is outside 3 standard errors at most twice."""
    exact = gaussian_value([0.5, -0.3], 0.1, [0.2, 0.1], 0.5, 0.4)
    outside = 0
    for seed in range(40):
        answer = worst_case_value(
            quadratic([0.5, -0.3], 0.1), [[0.2, 0.1]], tau=0.5, epsilon=0.4, draws=2000, generator=seeded(seed)
        )
        outside += abs(answer.value - exact) > 3 * answer.standard_error
    assert outside <= 2


def test_pieces():
    exponents = torch.randn(4, 300, generator=seeded(), dtype=torch.float64) * torch.tensor(
        [[0.1], [1.0], [50.0], [1e6]]
    )
    most = torch.tensor([1.0, 1.0, 0.5, 1.0], dtype=torch.float64)
    stage = _longest_stage(exponents, most)
    ess = 1.0 / (stage[:, None] * exponents).softmax(1).square().sum(1)
    assert stage[0] == 1.0
    assert (stage <= most).all()
    torch.testing.assert_close(ess[1:], torch.full((3,), 150.0, dtype=torch.float64), rtol=1e-3, atol=0)
    weights = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    chosen = _systematic(weights, seeded())
    assert chosen.tolist() == [[0, 0, 1, 2], [3, 3, 3, 3]]


def test_blocks_do_not_change_the_answer(monkeypatch):
    x = torch.randn(7, 1, generator=seeded(), dtype=torch.float64)
    whole = worst_case_value(logistic, x, tau=0.5, epsilon=0.2, method="quadrature")
    monkeypatch.setattr(gibbs_reference, "_BLOCK", 9000)
    parts = worst_case_value(logistic, x, tau=0.5, epsilon=0.2, method="quadrature")
    np.testing.assert_allclose(whole.values, parts.values, rtol=1e-12)
    problem = WorstCaseProblem(logistic, x, None, 0.5, 0.2)
    sizes = list(gibbs_draws(problem, 100, "quadrature", seeded(), lambda block: len(block.value)))
    assert sizes == [2, 2, 2, 1]


def test_bad_input():
    settings = {"tau": 0.5, "epsilon": 0.2}
    with pytest.raises(ValueError, match="epsilon must be greater than 0"):
        worst_case_value(logistic, [[0.3]], tau=0.5, epsilon=0.0)
    with pytest.raises(ValueError, match="tau must be greater than 0"):
        worst_case_value(logistic, [[0.3]], tau=0.0, epsilon=0.1)
    with pytest.raises(ValueError, match="method must be one of"):
        worst_case_value(logistic, [[0.3]], method="guess", **settings)
    with pytest.raises(ValueError, match="more than 1 dimension"):
        worst_case_value(logistic, [[0.3, 0.1]], method="quadrature", **settings)
    with pytest.raises(ValueError, match="draws must be at least 1"):
        worst_case_value(logistic, [[0.3]], draws=0, **settings)
    with pytest.raises(ValueError, match="grow slower"):
        worst_case_value(lambda x, y: 2.0 * x[:, 0] ** 2, [[0.3]], method="quadrature", **settings)
    with pytest.raises(ValueError, match="loss must be finite, got 1 nan"):
        worst_case_value(lambda x, y: x[:, 0].log(), [[-0.3]], **settings)
    with pytest.raises(ValueError, match="reduction='none'"):
        worst_case_value(lambda x, y: x.mean(), [[0.3], [0.1]], **settings)


def test_report_is_short_and_goes_into_files():
    answer = worst_case_value(logistic, np.zeros((40, 1)), tau=0.5, epsilon=0.2, draws=500, generator=seeded())
    assert len(repr(answer).splitlines()) < 16
    assert len(answer.to_dict()["values"]) == 40
