"""The study of divergence estimates, in small pieces."""

import functools

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from assay.lab import Measurement
from assay.studies.transport import _neural_critics as neural_critics
from assay.studies.transport import alpha_divergence as study_module
from assay.studies.transport._alpha_laws import divergence_cases, normal_divergence
from assay.studies.transport._divergence_costs import (
    epoch_of_network,
    epoch_of_ours,
    measure_gram_ratio,
    measure_memory,
    measure_scaling,
    network_epoch_ratio,
)
from assay.studies.transport._divergence_peers import gram_value, logistic_value, neighbour_value
from assay.studies.transport._mixture_gan import grid_characteristic, modes, score_samples
from assay.studies.transport._neural_critics import neural_estimate
from assay.studies.transport.alpha_divergence import AlphaDivergenceStudy, Problem

PARAMETERS = {
    "neural_repeats": 1,
    "dear_cases": ("d=1 alpha=0.5",),
    "coverage_points": 60,
    "coverage_alphas": (0.5,),
    "term_seeds": 2,
    "term_points": 300,
    "term_sizes": (60, 120),
    "population": 2000,
    "epoch_points": 1024,
    "gram_points": 100,
    "memory_points": 1000,
    "scaling": False,
    "gan_steps": 0,
}


@pytest.fixture(scope="module")
def problem():
    cases = divergence_cases(
        [(1, 0.5, 400, 1.0, 1.5, 8.0, 2), (2, 0.9, 200, 0.5, 1.0, 5.0, 1)], np.random.default_rng(0)
    )
    return Problem(cases, PARAMETERS, 1)


def scalars(measurement, metric):
    return {s.case: s.value for s in measurement.scalars if s.metric == metric}


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_exact_values(alpha):
    p, q = norm(0, 1), norm(0.7, np.sqrt(1.3))

    def integrand(x):
        log_p, log_q = p.logpdf(x), q.logpdf(x)
        if alpha in (0.0, 1.0):
            return np.exp(log_p) * (log_p - log_q) if alpha else np.exp(log_q) * (log_q - log_p)
        # The mixture of the two is 0 after integration; the ratio is then a plain integral.
        return (np.exp(alpha * log_p + (1 - alpha) * log_q) - alpha * np.exp(log_p) - (1 - alpha) * np.exp(log_q)) / (
            alpha * (alpha - 1)
        )

    assert normal_divergence(alpha, 0.7, 1.3, 1) == pytest.approx(quad(integrand, -15, 15)[0], abs=1e-8)


def test_classic_peers_come_close():
    rng = np.random.default_rng(1)
    P, Q = rng.normal(size=(3000, 1)), rng.normal(1.0, 1.0, size=(3000, 1))
    exact = normal_divergence(0.5, 1.0, 1.0, 1)
    for value in (logistic_value(P, Q, 0.5, rng)[1], neighbour_value(P, Q, 0.5)):
        assert value == pytest.approx(exact, abs=0.12)


def test_gram_matrix_comes_close():
    rng = np.random.default_rng(2)
    P, Q = rng.normal(size=(300, 1)), rng.normal(1.0, 1.0, size=(300, 1))
    assert gram_value(P, Q, 0.5) == pytest.approx(normal_divergence(0.5, 1.0, 1.0, 1), abs=0.2)


@pytest.mark.parametrize("f_gan", [False, True])
def test_neural_critics_learn(f_gan):
    rng = np.random.default_rng(3)
    P, Q = rng.normal(size=(2000, 1)), rng.normal(1.0, 1.0, size=(2000, 1))
    estimate = neural_estimate(P, Q, 0.5, rng, f_gan=f_gan, steps=150)
    assert estimate.train == pytest.approx(normal_divergence(0.5, 1.0, 1.0, 1), abs=0.15)


def test_scores_of_the_grid():
    rng = np.random.default_rng(4)
    samples = modes()[rng.integers(16, size=20_000)] + 0.08 * rng.normal(size=(20_000, 2))
    perfect = score_samples(samples, rng)
    # Within three standard deviations in the plane: 1 - exp(-4.5).
    assert perfect.on_mode == pytest.approx(0.9889, abs=0.005)
    assert max(perfect.high, perfect.low) < 0.02
    shifted = score_samples(samples + 0.5, rng)
    assert shifted.on_mode < 0.01
    assert shifted.high > 0.1
    assert grid_characteristic(np.zeros((1, 2)))[0] == pytest.approx(1.0)


def test_problem_is_the_same_for_all_contenders():
    study = AlphaDivergenceStudy()
    first, second = (study.problem("quick", study.problem_rng("quick", 0)) for _ in range(2))
    for one, other in zip(first.cases, second.cases, strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.samples[0][0], other.samples[0][0])


@pytest.mark.parametrize("contender", [c.name for c in AlphaDivergenceStudy.contenders])
def test_every_contender_can_be_measured(problem, contender, monkeypatch):
    plain = neural_critics.neural_estimate
    monkeypatch.setattr(neural_critics, "neural_estimate", functools.partial(plain, steps=20))
    measurement = AlphaDivergenceStudy().measure(contender, problem, np.random.default_rng(5))
    if contender == study_module.GRAM:
        assert scalars(measurement, "gram_ratio")["gram n=100"] > 0
        return
    everywhere = (study_module.OURS, study_module.LOGISTIC, study_module.NEIGHBOURS)
    names = {c.name for c in problem.cases} if contender in everywhere else set(PARAMETERS["dear_cases"])
    for metric in ("held_out", "train", "error", "runaway", "cpu_seconds"):
        assert names <= set(scalars(measurement, metric))
    if contender == study_module.OURS:
        assert all(certificate.holds for _, certificate in measurement.certificates)
        assert max(scalars(measurement, "lower_bound_excess").values()) <= 0.0
        for metric in ("statistical_slope", "feature_slope", "shortfall_rise", "rate_excess", "epoch_blocks"):
            assert scalars(measurement, metric)


def test_costs_are_measured():
    measurement, rng = Measurement(), np.random.default_rng(6)
    network_epoch_ratio(measurement, 1024, rng)
    measure_scaling(measurement, (1024, 2048), (16, 32), rng)
    measure_memory(measurement, 1000, rng)
    measure_gram_ratio(measurement, 60, rng)
    assert scalars(measurement, "epoch_ratio")["epoch n=1024"] > 0
    assert set(scalars(measurement, "time_slope_error")) == {"scaling points", "scaling features"}
    assert scalars(measurement, "fit_blocks")["memory n=1000"] > 0


def test_epochs_see_all_rows():
    rng = np.random.default_rng(7)
    P, Q = rng.normal(size=(1024, 2)), rng.normal(size=(1024, 2))
    assert epoch_of_ours(P, Q, 8, rng)() is None
    assert epoch_of_network(P, Q)() is None


def test_gan_is_measured(monkeypatch):
    monkeypatch.setattr(study_module, "GAN_RATES", (1e-2,))
    for contender in (study_module.OURS, study_module.MLP):
        measurement = Measurement()
        study_module._measure_gan(measurement, contender, 3, seed=0)
        assert 0.0 <= scalars(measurement, "gan_on_mode")["gan"] <= 1.0
        assert all(certificate.holds for _, certificate in measurement.certificates)


def test_demonstration():
    assert all(certificate.holds for certificate in AlphaDivergenceStudy().demonstrate())


def test_declarations_fit_together():
    AlphaDivergenceStudy.check_declarations()
