"""The study of mirror Langevin dynamics, at a size that takes no time."""

import fnmatch

import numpy as np
import pytest

from assay.lab import Measurement
from assay.studies.transport import _mirror_measures as measures
from assay.studies.transport import _mirror_problems as problems
from assay.studies.transport import mirror_langevin as study
from assay.studies.transport.mirror_langevin import MirrorLangevinStudy

TINY = {
    **MirrorLangevinStudy.sizes["quick"],
    "n": 40,
    "systems": 2,
    "baseline_time": 0.5,
    "fluctuation_sizes": (10, 40),
    "fluctuation_systems": 4,
    "fluctuation_time": 60.0,
    "chaos_sizes": (10, 40),
    "chaos_systems": 4,
    "chaos_time": 30.0,
    "xor_steps": 5,
    "n_train": 50,
    "repeats": 1,
    "cost_particles": 40,
    "seed": 0,
}


def scalars(measurement):
    return {(s.metric, s.case): s.value for s in measurement.scalars}


@pytest.fixture(scope="module")
def found():
    short = pytest.MonkeyPatch()
    run = measures.run_problem
    short.setattr(measures, "run_problem", lambda *a, time, **k: run(*a, time=time / 10, **k))
    answers = {}
    for contender in MirrorLangevinStudy.contenders:
        measurement = MirrorLangevinStudy().measure(contender.name, TINY, np.random.default_rng(0))
        answers[contender.name] = measurement
    short.undo()
    return answers


def test_every_claim_is_about_something_measured(found):
    MirrorLangevinStudy.check_declarations()
    for claim in MirrorLangevinStudy.claims:
        if claim.metric == "certificates_failed":
            continue
        cases = [case for metric, case in scalars(found[claim.contender]) if metric == claim.metric]
        assert fnmatch.filter(cases, claim.case), claim.id


def test_everything_is_finite(found):
    for name, measurement in found.items():
        for (metric, case), value in scalars(measurement).items():
            assert np.isfinite(value), (name, metric, case)


def test_ours_is_inside_and_the_others_are_not(found):
    ours = scalars(found[study.OURS])
    assert all(value == 0 for (metric, _), value in ours.items() if metric == "not_strictly_inside")
    for name in (study.PROJECTED, study.PENALIZED):
        theirs = scalars(found[name])
        assert sum(value for (metric, _), value in theirs.items() if metric == "not_strictly_inside") > 0
    assert any(v > 0 for (m, _), v in scalars(found[study.PENALIZED]).items() if m == "outside_share")
    assert not any(v > 0 for (m, _), v in scalars(found[study.PROJECTED]).items() if m == "outside_share")


def test_scipy_finds_the_known_fixed_points(found):
    errors = [value for (metric, _), value in scalars(found[study.FIXED]).items() if metric == "mean_error"]
    assert len(errors) == 4
    assert max(errors) < 5e-4
    assert problems.exact_interval_mean(0.5, 0.05) == pytest.approx(0.5)
    assert problems.exact_simplex_mean(0.0, 1e9).round(6).tolist() == pytest.approx([1 / 3] * 3, abs=1e-3)


def test_draws_from_the_fixed_point():
    x = problems.truncated_exponential(0.8, 0.05, 20000, np.random.default_rng(0))
    assert x.mean() == pytest.approx(0.6813597858, abs=0.006)


def test_fluctuations_that_do_not_shrink_are_noticed(monkeypatch):
    measurement = Measurement()
    monkeypatch.setattr(
        measures, "system_means", lambda x, n: np.random.default_rng(len(x) + int(1e6 * x[0, 0])).random((n, 1))
    )
    measures.measure_fluctuations(measurement, (10, 40), 4, 60.0, np.random.default_rng(0))
    assert scalars(measurement)["slope_error", "fluctuations"] > 0.25
    assert not measurement.certificates[0][1].holds


@pytest.mark.parametrize("make", [lambda rng: problems.matrix_problem(3, rng), problems.mixture_problem])
def test_the_large_problems(make):
    problem = make(np.random.default_rng(0))
    x = problem.domain("log").start(30, 0)
    measurement = Measurement()
    measures.run_problem(measurement, problem, "mirror_langevin", n=30, lr=1.0, time=5.0, rng=np.random.default_rng(1))
    assert problem.grad(x).shape == x.shape
    assert scalars(measurement)["functional", problem.name] >= 0
    assert scalars(measurement)["not_strictly_inside", problem.name] == 0


def test_gradients_are_those_of_the_functional():
    problem = problems.xor_problem(50, np.random.default_rng(0))
    x = problem.domain("log").start(12, 3)
    step = np.zeros_like(x)
    step[4, 2] = 1e-6
    slope = (problem.measure(x + step)["functional"] - problem.measure(x - step)["functional"]) / 2e-6
    assert problem.grad(x)[4, 2] == pytest.approx(12 * slope, rel=1e-5)


def test_the_demonstration_certifies_its_answer(capsys):
    assert all(certificate.holds for certificate in MirrorLangevinStudy().demonstrate())
    assert "mean" in capsys.readouterr().out
