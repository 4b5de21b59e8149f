"""The study of the closest mixture, in small pieces."""

import numpy as np
import pytest

from assay.lab import Measurement
from assay.studies.transport import moment_mixture as study_module
from assay.studies.transport._moment_mixture_cases import Blob, data_sets, exact_mixtures, plain_program
from assay.studies.transport.moment_mixture import MomentMixtureStudy, Problem, scaled_problem
from assay.transport.moment_relaxation import MomentRelaxation

pytest.importorskip("cvxpy")


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal((-3, 0), 0.5, size=(40, 2)), rng.normal((3, 1), 0.5, size=(40, 2))])
    blob = Blob("two", points, np.repeat([0, 1], 40), 2)
    return Problem([blob], [], {"ratios": False, "defaults": True, "levels": ((1, 2), (1, 3))})


def scalars(measurement, metric):
    return {s.case: s.value for s in measurement.scalars if s.metric == metric}


@pytest.mark.parametrize("contender", [study_module.BAYES, study_module.BIC, study_module.SILHOUETTE])
def test_incumbents_choose_a_number(problem, contender):
    measurement = MomentMixtureStudy().measure(contender, problem, np.random.default_rng(0))
    assert scalars(measurement, "k")["two"] >= 2
    assert scalars(measurement, "ari")["two"] > 0.3


@pytest.mark.parametrize("contender", [study_module.PLUS_PLUS, study_module.KMEANS])
def test_starts_of_em(problem, contender):
    measurement = MomentMixtureStudy().measure(contender, problem, np.random.default_rng(0))
    assert scalars(measurement, "em_iterations")["two"] >= 1
    assert scalars(measurement, "ari")["two"] == 1.0


def test_ours(problem, monkeypatch):
    whole = study_module.fit_ours
    monkeypatch.setattr(study_module, "fit_ours", lambda blob: whole(blob, s_grid=[0.02]))
    for contender in (study_module.OURS, study_module.OURS_EM):
        measurement = Measurement()
        study_module.measure_ours(measurement, contender, problem.sets[0], defaults=True)
        assert scalars(measurement, "k") == {"two": 2.0}
        assert scalars(measurement, "ari") == {"two": 1.0}
        assert scalars(measurement, "k_error") == {"two": 0.0}
    assert scalars(measurement, "em_iterations")["two"] <= 5


def test_exact_mixtures_are_recovered():
    mixtures = exact_mixtures()
    assert [len(mixture.moments) for mixture in mixtures] == [9, 9, 9]
    measurement = Measurement()
    study_module.measure_exact(measurement, Problem([], mixtures[:1], {}))
    assert max(scalars(measurement, "atom_error").values()) <= 1e-6
    assert set(scalars(measurement, "rank_error").values()) == {0.0}


def test_plain_program_is_the_same_problem(problem):
    scaled = scaled_problem(problem.sets[0].points, 2)
    plain = plain_program(scaled, 2)
    plain.solve(solver="CLARABEL")
    relaxation = MomentRelaxation(scaled.moments(2), 2, scaled.family_map(2), 2, scaled.inequalities, 2)
    assert relaxation.solve(0.0).value == pytest.approx(plain.value, abs=1e-6)


def test_data_and_declarations():
    sets = data_sets(("blobs", "wine", "iris"))
    assert [blob.points.shape for blob in sets] == [(600, 2), (178, 2), (150, 2)]
    assert [blob.n_classes for blob in sets] == [4, 3, 3]
    MomentMixtureStudy.check_declarations()
    assert all(c.holds for c in MomentMixtureStudy().demonstrate())
