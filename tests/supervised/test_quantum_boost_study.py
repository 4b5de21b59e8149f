"""Pieces of the study of lazy smooth boosting."""

import math

import numpy as np
import pytest

from assay.lab import Measurement
from assay.studies.supervised import _quantum_boost_speed as speed
from assay.studies.supervised import quantum_boost as study
from assay.supervised import QuantumBoostClassifier, bregman_project

STUDY = study.QuantumBoostStudy


def test_declarations():
    STUDY.check_declarations()
    assert STUDY.name == "supervised/quantum_boost"
    numbers = {claim.id: claim.number for claim in STUDY.claims}
    assert (numbers["C2a"], numbers["C2b"], numbers["C3a"], numbers["C3b"]) == (0.1, 0.015, -0.015, -0.015)
    assert (numbers["C7"], numbers["C8"], numbers["C9"]) == (0.2, 1.1, 20.0)


def test_splits_have_their_noise():
    problem = STUDY().problem("quick", np.random.default_rng(0))
    assert len(problem.splits) == 12
    clean = {split.train.tobytes(): split.y_train for split in problem.splits if split.noise == 0}
    for split in problem.splits:
        wrong = np.mean(split.y_train != clean[split.train.tobytes()])
        assert wrong == pytest.approx(split.noise, abs=0.06)


def test_bisection_finds_the_constant():
    measure = np.random.default_rng(0).random(300) ** 3
    assert speed.bisection(measure, 0.3) == pytest.approx(bregman_project(measure, 0.3).constant, rel=1e-10)


def test_query_exponent():
    measurement = Measurement()
    speed.measure_queries(measurement, np.random.default_rng(0))
    exponent = {scalar.metric: scalar.value for scalar in measurement.scalars}["query_exponent"]
    assert -0.6 <= exponent <= -0.4


def test_facts_of_a_run():
    problem = STUDY().problem("quick", np.random.default_rng(0))
    split = problem.splits[0]
    model = QuantumBoostClassifier().fit(split.train, split.y_train)
    facts = study.facts_of_run(model, split, 10)
    assert facts["potential_passes"] == 1.0
    assert facts["error_over_bound"] <= 1.0
    assert facts["train_error"] == pytest.approx(1 - model.score(split.train, split.y_train))
    assert -1.0 <= facts["margin"] <= 1.0
    assert math.isfinite(facts["largest_weight"])


def test_incumbents_are_what_they_are_called():
    makers = study.incumbents()
    assert {type(make(0.25)).__name__ for make in makers.values()} == set(makers)
    assert makers[study.ADABOOST](0.25).n_estimators == 278


def test_demonstration():
    certificates = STUDY().demonstrate()
    assert len(certificates) == 6
