"""The closest mixture: closed forms, exact recovery, proofs that notice corruption, and bad input."""

import dataclasses
import json

import numpy as np
import ot
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.transport import ExponentialFamily, GaussianFamily, PoissonFamily, closest_mixture, raw_moments
from assay.transport.closest_mixture import answer_of_levels
from assay.transport.mixture_certificates import mixture_certificates
from assay.transport.mixture_distance import sampled_transport, transport_of_sample, transport_of_target
from assay.transport.mixture_level import solve_level
from assay.transport.mixture_problem import prepare_mixture_problem
from assay.transport.moment_relaxation import level_size

pytest.importorskip("cvxpy")

UNIFORM = stats.uniform(-1, 2)
BELOW = {"params": {"variance": 0.05}, "bounds": [0.5, 1]}
NORMAL = stats.norm(0, 0.05**0.5)


def mixture_moments(family, params, weights, degree):
    return [
        sum(
            w * sum(c * t ** e[0] for e, c in family.moment_polynomial((k,)).items())
            for t, w in zip(params, weights, strict=True)
        )
        for k in range(degree + 1)
    ]


THREE = mixture_moments(GaussianFamily(0.02), (-0.6, 0.1, 0.7), (0.5, 0.3, 0.2), 8)


@pytest.mark.parametrize("polish", [False, True])
def test_recovers_three_gaussians(polish):
    result = closest_mixture(THREE, params={"variance": 0.02}, order=4, polish=polish)
    assert result.value <= 1e-6
    assert result.ranks == (1, 2, 3, 3, 3)
    np.testing.assert_allclose(result.params[:, 0], [-0.6, 0.1, 0.7], atol=1e-4)
    np.testing.assert_allclose(result.weights, [0.5, 0.3, 0.2], atol=1e-4)
    assert result.in_family
    assert result.status == "flat"
    assert result.residual <= 1e-6
    assert result.certified


def test_order_selection_goes_on_until_the_rank_stops():
    result = closest_mixture(THREE, params={"variance": 0.02})
    assert result.history["order"].tolist() == [2, 3]
    assert result.history["flat"].tolist() == [False, True]
    assert result.history["largest_block"].tolist() == [6, 10]
    assert (result.history["seconds_solve"] > 0).all()
    assert result.order == 3
    np.testing.assert_allclose(result.params[:, 0], [-0.6, 0.1, 0.7], atol=1e-6)


@pytest.mark.parametrize("family", ["exponential", "poisson"])
@pytest.mark.parametrize("bounds", [None, [0, 1]])
def test_recovers_exponential_and_poisson_mixtures(family, bounds):
    shipped = {"exponential": ExponentialFamily(), "poisson": PoissonFamily()}[family]
    moments = mixture_moments(shipped, (0.2, 0.5, 0.9), (0.3, 0.5, 0.2), 6)
    result = closest_mixture(moments, family=family, bounds=bounds, order=3)
    assert result.value <= 1e-7
    assert result.ranks == (1, 2, 3, 3)
    np.testing.assert_allclose(result.params[:, 0], [0.2, 0.5, 0.9], atol=1e-4)
    np.testing.assert_allclose(result.weights, [0.3, 0.5, 0.2], atol=1e-4)
    assert result.in_family


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_known_wasserstein_distance(order):
    # The nearest mean is 1/2 away, and the shapes are the same.
    result = closest_mixture(target=NORMAL, order=order, **BELOW)
    # the bound is lowered by what the conic solver left over, which is up to 1.3e-6 on some processors
    assert 0.25 - 1e-5 <= result.lower <= 0.25
    assert result.upper == pytest.approx(0.25, abs=1e-8)
    np.testing.assert_allclose(result.params, [[0.5]], atol=1e-4)
    assert result.certified


@pytest.mark.parametrize("order, lower", [(1, 0.5526), (2, 0.5616), (3, 0.6239), (4, 0.6544)])
def test_known_total_variation(order, lower):
    result = closest_mixture(target=NORMAL, order=order, distance="TV", **BELOW)
    true = 2 * stats.norm.cdf(0.25 / 0.05**0.5) - 1
    assert result.lower == pytest.approx(lower, abs=1.5e-4)
    assert result.lower <= true
    if order == 2:
        assert result.upper == pytest.approx(true, abs=1e-5)


def test_uniform_target():
    lowers = []
    for order, known in ((2, 0.0), (3, 0.0118766), (4, 0.0133536), (5, 0.0146122), (6, 0.0147391)):
        result = closest_mixture(target=UNIFORM, params={"variance": 0.3}, bounds=[-1, 1], order=order)
        assert result.lower == pytest.approx(known, abs=2e-5)
        lowers.append(result.lower)
    assert (np.diff(lowers) > 0).all()
    np.testing.assert_allclose(result.params[:, 0], [-0.164, 0.164], atol=1e-3)
    np.testing.assert_allclose(result.weights, 0.5, atol=1e-4)
    assert result.lower <= result.upper
    assert result.relative_gap <= 0.02

    # By root finding and adaptive quadrature, in pieces down to levels of 1e-15.
    atoms = np.array([[-0.164], [0.164]]), np.array([0.5, 0.5])
    assert transport_of_target(UNIFORM, GaussianFamily(0.3), *atoms) == pytest.approx(0.0148926573, abs=1e-9)
    one = np.array([[0.0]]), np.ones(1)
    assert transport_of_target(UNIFORM, GaussianFamily(0.3), *one) == pytest.approx(0.0152946101, abs=1e-9)


def test_levels_rise_and_loose_levels_do_not_stop():
    result = closest_mixture(target=UNIFORM, params={"variance": 0.3}, bounds=[-1, 1], order=2, order_max=4)
    assert result.history["order"].tolist() == [2, 3]  # at 2 the value is 0 although no mixture is uniform
    loose = closest_mixture(target=UNIFORM, params={"variance": 0.3}, bounds=[-1, 1], order=2)
    assert loose.status == "loose"
    assert not loose.in_family
    assert any("fall of the lower bound" in c.statement and c.holds for c in result.certificates)


def test_point_masses_reproduce_the_measure():
    data = np.array([0.0, 1.0, 1.0, 3.0, 3.0, 3.0, 0.0, 1.0])
    result = closest_mixture(raw_moments(data, 4), params={"variance": 0.0}, order=4)
    assert result.value == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(result.params[:, 0], [0, 1, 3], atol=1e-5)
    np.testing.assert_allclose(result.weights, [0.25, 0.375, 0.375], atol=1e-5)
    sample = closest_mixture(data=data, params={"variance": 0.0}, order=4)
    assert sample.upper == pytest.approx(0.0, abs=1e-6)


def test_target_of_the_family_is_one_atom():
    result = closest_mixture(target=NORMAL, params={"variance": 0.05}, order=2)
    assert result.in_family
    np.testing.assert_allclose(result.params, [[0.0]], atol=1e-6)
    free = closest_mixture(target=NORMAL, params={"covariance": "isotropic"}, bounds=[[-1, 1], [0.01, 0.5]], order=2)
    assert free.value <= 1e-6


def test_two_dimensions_and_full_covariance():
    means, weights = np.array([[-0.5, 0.2], [0.6, -0.4]]), np.array([0.4, 0.6])
    family = GaussianFamily([[0.05, 0.02], [0.02, 0.04]], dim=2)
    exponents = [(a, b) for a in range(5) for b in range(5 - a)]
    moments = {
        alpha: sum(
            w * sum(c * m[0] ** e[0] * m[1] ** e[1] for e, c in family.moment_polynomial(alpha).items())
            for m, w in zip(means, weights, strict=True)
        )
        for alpha in exponents
    }
    result = closest_mixture(moments, family=family, order=2, bounds=[[-1, 1], [-1, 1]])
    assert result.in_family
    np.testing.assert_allclose(result.params, means, atol=1e-5)
    np.testing.assert_allclose(result.weights, weights, atol=1e-5)


def test_semialgebraic_parameter_set():
    # The target is N(0, s); means must lie on two intervals, 0.3 <= |m| <= 0.6: the closest are +-0.3.
    ring = [{(0,): -0.09, (2,): 1.0}]
    target = stats.norm(0, 0.3)
    result = closest_mixture(target=target, params={"variance": 0.09}, bounds=[-0.6, 0.6], constraints=ring, order=4)
    assert result.lower > 1e-4
    assert result.lower <= result.upper
    assert result.flat
    assert (abs(result.params) >= 0.3 - 1e-7).all()
    inside = next(c for c in result.certificates if "parameter set" in c.statement)
    assert inside.holds
    disk = [{(0, 0): 0.25, (2, 0): -1.0, (0, 2): -1.0}]
    rng = np.random.default_rng(0)
    data = np.concatenate([rng.normal((-1, 0), 0.2, size=(200, 2)), rng.normal((1, 0), 0.2, size=(200, 2))])
    held = closest_mixture(data=data, params={"variance": 0.04}, constraints=disk, order=2, upper_samples=0)
    # Both clusters are half a unit outside of the disk.
    assert 0.15 <= held.lower <= 0.3
    # Degree 4 needs the rank to be the same two orders below.
    quartic = closest_mixture(
        target=target, params={"variance": 0.09}, bounds=[-0.6, 0.6], constraints=[{(0,): -0.0081, (4,): 1.0}], order=3
    )
    assert quartic.lower > 0


class HalfNormalScale:
    """Scale mixtures of the uniform distribution on [0, theta]: a family of a user."""

    dim = 1
    n_params = 1

    def moment_polynomial(self, alpha):
        return {(alpha[0],): 1.0 / (alpha[0] + 1)}


def test_family_of_a_user():
    moments = [sum(w * t**k / (k + 1) for t, w in ((1.0, 0.4), (3.0, 0.6))) for k in range(7)]
    for family in (HalfNormalScale(), lambda alpha: {alpha: 1.0 / (alpha[0] + 1)}):
        result = closest_mixture(moments, family=family, bounds=[0, 4], order=3)
        np.testing.assert_allclose(result.params[:, 0], [1, 3], atol=1e-5)
        np.testing.assert_allclose(result.weights, [0.4, 0.6], atol=1e-5)
        assert np.isnan(result.upper)
    with pytest.raises(ValueError, match="bounds must be given for HalfNormalScale"):
        closest_mixture(moments, family=HalfNormalScale(), order=3)
    with pytest.raises(ValueError, match=r"total degree of at most 1"):
        closest_mixture(moments, family=lambda alpha: {(2 * alpha[0],): 1.0}, bounds=[0, 4], order=3)


@settings(max_examples=8, deadline=None)
@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_shift_and_scale(shift, scale, seed):
    rng = np.random.default_rng(seed)
    data = np.concatenate([rng.normal(-3, 0.4, 60), rng.normal(2, 0.4, 40)])
    plain = closest_mixture(data=data, params={"variance": 0.16}, order=3)
    moved = closest_mixture(data=shift + scale * data, params={"variance": 0.16 * scale**2}, order=3)
    assert moved.lower == pytest.approx(plain.lower * scale**2, rel=1e-3, abs=1e-5 * scale**2)
    assert moved.upper == pytest.approx(plain.upper * scale**2, rel=1e-3, abs=1e-5 * scale**2)
    assert len(moved.weights) == len(plain.weights)


@pytest.mark.parametrize("shift, scale", [(1e8, 1.0), (0.0, 1e8), (0.0, 1e-8)])
def test_huge_and_tiny(shift, scale):
    rng = np.random.default_rng(0)
    data = shift + scale * np.concatenate([rng.normal(-3, 0.4, 60), rng.normal(2, 0.4, 40)])
    result = closest_mixture(data=data, params={"variance": (0.4 * scale) ** 2}, order=3)
    np.testing.assert_allclose((result.params[:, 0] - shift) / scale, [-3, 2], atol=0.2)
    assert result.lower <= result.upper
    assert result.certified


def test_forms_of_data():
    data = np.array([0, 0, 1, 1, 2, 5, 6, 7, 7, 9])
    wanted = closest_mixture(data=data.astype(float), params={"variance": 1.0}, order=3)
    for form in (data, data.tolist(), data.astype(np.float32), data[:, None], pd.DataFrame({"a": data})):
        result = closest_mixture(data=form, params={"variance": 1.0}, order=3)
        assert result.value == pytest.approx(wanted.value, abs=1e-9)
    before = data.copy()
    closest_mixture(data=data, params={"variance": 1.0}, order=2)
    np.testing.assert_array_equal(data, before)


def test_upper_end_against_other_libraries():
    rng = np.random.default_rng(0)
    data = rng.normal(size=300)
    params, weights = np.array([[-0.5], [0.7]]), np.array([0.3, 0.7])
    family = GaussianFamily(0.2)
    exact = transport_of_sample(data, family, params, weights)
    draws = np.sort(family.sample(params, [30_000, 70_000], rng)[:, 0])
    assert exact == pytest.approx(ot.emd2_1d(data, draws), rel=0.03)
    plane = rng.normal(size=(200, 2))
    both = GaussianFamily(0.2, dim=2)
    atoms = np.array([[-0.5, 0.0], [0.7, 0.1]])
    upper, se = sampled_transport(plane, both, atoms, weights, 200, np.random.default_rng(1))
    assert se > 0
    again = both.sample(atoms, [60, 140], np.random.default_rng(2))
    assert upper == pytest.approx(ot.emd2([], [], ot.dist(plane, again)), rel=0.3)
    discrete = transport_of_sample(
        np.repeat([0.0, 1.0, 2.0], [5, 3, 2]), PoissonFamily(), np.array([[0.7]]), np.ones(1)
    )
    k = np.arange(12)
    law = stats.poisson(0.7).pmf(k)
    assert discrete == pytest.approx(
        ot.emd2([0.5, 0.3, 0.2], law / law.sum(), (np.arange(3.0)[:, None] - k[None, :]) ** 2), abs=1e-6
    )


def test_sample_gives_sd_of_the_value():
    rng = np.random.default_rng(0)
    data = rng.uniform(-1, 1, 2000)
    options = {"params": {"variance": 0.3}, "bounds": [-1, 1], "order": 3}
    result = closest_mixture(data=data, **options)
    values = [closest_mixture(data=rng.choice(data, 2000), **options).value for _ in range(12)]
    assert 0.4 <= result.value_sd / np.std(values) <= 2.5
    assert np.isnan(closest_mixture(target=UNIFORM, **options).value_sd)


def test_two_dimensional_upper_end():
    rng = np.random.default_rng(0)
    data = np.concatenate([rng.normal((-2, 0), 0.5, size=(150, 2)), rng.normal((2, 1), 0.5, size=(150, 2))])
    result = closest_mixture(data=data, params={"variance": 0.25}, order=3, upper_samples=300)
    assert result.upper_se > 0
    first = result.certificates[0]
    assert first.holds
    assert first.assumptions


@pytest.fixture(scope="module")
def solved():
    problem = prepare_mixture_problem(None, None, UNIFORM, "gaussian", {"variance": 0.3}, [-1, 1], (), 6)
    return problem, solve_level(problem, 3, level_size(1, 1, [2], 3, "W2"))


def test_certificates_notice_corruption(solved):
    problem, level = solved
    good = mixture_certificates(problem, [level], level.lower, 0.0149, 0.0, 1e-6)
    assert all(c.holds for c in good)

    def failing(changed, lower=None, upper=0.0149, before=()):
        answer = mixture_certificates(
            problem, [*before, changed], level.lower if lower is None else lower, upper, 0.0, 1e-6
        )
        return " ".join(c.statement for c in answer if not c.holds)

    atoms = level.atoms
    outside = dataclasses.replace(level, atoms=dataclasses.replace(atoms, points=atoms.points + 2.0))
    assert "parameter set" in failing(outside)
    heavy = dataclasses.replace(level, atoms=dataclasses.replace(atoms, weights=1.1 * atoms.weights))
    assert "sum of the weights" in failing(heavy)
    moved = dataclasses.replace(level, atoms=dataclasses.replace(atoms, points=atoms.points + 0.05))
    assert "moments of the atoms" in failing(moved)
    assert "lower bound on the distance" in failing(level, lower=0.02)
    lifted = dataclasses.replace(level, solution=dataclasses.replace(level.solution, value=level.lower + 0.01))
    assert "above the proved lower bound" in failing(lifted)
    higher = dataclasses.replace(level, lower=level.lower + 1e-3)
    assert "fall of the lower bound" in failing(level, before=(higher,))
    rough = level.solution.phi.copy()
    rough[2] += 0.5
    wrong = dataclasses.replace(level, solution=dataclasses.replace(level.solution, phi=rough))
    assert "moments of the atoms" in failing(wrong)


def test_result_is_readable(solved):
    problem, level = solved
    result = answer_of_levels(problem, [level], "W2", 1e-6, UNIFORM, 0, np.random.default_rng(0))
    assert len(repr(result).splitlines()) <= 30
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["ranks"] == [1, 2, 2, 2]
    assert "problem" not in content
    assert len(result.problem.constraints) == 6


def test_not_flat_invents_nothing():
    result = closest_mixture(target=NORMAL, order=1, distance="TV", **BELOW)
    assert result.status == "not_flat"
    assert result.weights.shape == (0,)
    assert result.params.shape == (0, 1)
    assert np.isnan(result.upper)
    assert not result.certified


def test_memory_is_refused_before_anything_is_built():
    exact = stats.norm(0, 1)
    with pytest.raises(MemoryError, match=r"order 4 has a semidefinite matrix of 15 x 15 rows and 54 unknown"):
        closest_mixture(target=exact, params={"variance": 1.0}, order=4, memory_limit=1e4)
    with pytest.raises(MemoryError, match=r"order 30 has a semidefinite matrix of 46376 x 46376"):
        closest_mixture(data=np.random.default_rng(0).normal(size=(700, 2)), params={"variance": 1.0}, order=30)


def bad(error, message, moments=None, **options):
    return pytest.param(moments, options, error, message, id=message[:40])


@pytest.mark.parametrize(
    "moments, options, error, message",
    [
        bad(ValueError, "exactly one of moments and data", order=2),
        bad(ValueError, "moments must have all exponents", {(0,): 1.0, (2,): 1.0}, order=1),
        bad(ValueError, "moments must have all exponents", [1.0, 0.0, 1.0], order=2),
        bad(ValueError, "not a moment sequence", [1.0, 0.0, 1.0, 0.0, 0.5], order=2),
        bad(ValueError, "probability measure", [2.0, 0.0, 1.0], order=1),
        bad(ValueError, "moments must not be empty", {}, order=1),
        bad(ValueError, "tuples of exponents", {0: 1.0}, order=1),
        bad(ValueError, "at least to degree 2", [1.0, 0.0]),
        bad(ValueError, "bounds must be non-empty", THREE, bounds=[1, 1], order=2),
        bad(ValueError, "bounds must be a finite", THREE, bounds=[-np.inf, 1], order=2),
        bad(ValueError, "bounds must have a lower and an upper", THREE, bounds=[[0, 1], [0, 1]], order=2),
        bad(ValueError, "constant column, got column 1", data=[[0, 1], [1, 1], [2, 1]], order=1),
        bad(ValueError, "at most 3 dimensions", data=np.eye(5), order=1),
        bad(ValueError, "at least 5 points", data=[0.0, 1.0, 2.0], order=4),
        bad(ValueError, "data must be a finite", data=[0.0, np.nan, 2.0], order=1),
        bad(ValueError, "data must be a finite", data=np.empty((0, 1)), order=1),
        bad(ValueError, "distance must be one of", THREE, distance="W1"),
        bad(ValueError, "solver must be one of", THREE, solver="GUESS"),
        bad(ValueError, "order must be at least 1", THREE, order=0),
        bad(ValueError, "order_max must be at least order", THREE, order=3, order_max=2),
        bad(ValueError, "rank_tol must be", THREE, rank_tol=2.0),
        bad(ValueError, "trace_weight must be", THREE, trace_weight=-1.0),
        bad(ValueError, "order must be at least 2", THREE, order=1, constraints=[{(4,): 1.0}]),
        bad(ValueError, "tuples of 1 exponents", THREE, constraints=[{(1, 1): 1.0}]),
        bad(ValueError, "zero polynomials", THREE, constraints=[{(1,): 0.0}]),
        bad(ValueError, "bounds and constraints must leave", THREE, constraints=[{(0,): -1.0}], order=2),
    ],
)
def test_bad_input(moments, options, error, message):
    with pytest.raises(error, match=message):
        closest_mixture(moments, **({"params": {"variance": 0.02}} | options))


@pytest.mark.parametrize("covariance, n_params", [("isotropic", 3), ("diagonal", 4)])
def test_free_variances(covariance, n_params):
    rng = np.random.default_rng(0)
    data = np.concatenate([rng.normal((-2, 0), 0.4, size=(60, 2)), rng.normal((2, 1), 0.8, size=(60, 2))])
    result = closest_mixture(data=data, params={"covariance": covariance}, order=2, upper_samples=0)
    # Free variances are no further from the data than any fixed one.
    fixed = closest_mixture(data=data, params={"variance": 0.3}, order=2, upper_samples=0)
    assert result.lower <= fixed.value + 1e-6
    assert result.bounds.shape == (n_params, 2)
    assert (result.bounds[2:, 0] >= 0.9e-3 * result.scale**2).all()
    assert result.moments[0] == pytest.approx(1.0, abs=1e-6)


def test_other_solver():
    result = closest_mixture(target=NORMAL, order=1, solver="scs", **BELOW)
    assert result.lower == pytest.approx(0.25, abs=1e-4)


def test_variance_must_not_be_negative():
    with pytest.raises(ValueError, match="bounds of a variance must begin at 0"):
        closest_mixture(THREE, params={"covariance": "isotropic"}, bounds=[[-1, 1], [-0.1, 1]], order=2)
