"""The study of alignment, in small pieces."""

import numpy as np
import pytest

from assay.lab import Measurement
from assay.studies.transport import gromov_wasserstein as study_module
from assay.studies.transport._gw_costs import measure_block_costs, measure_step_costs
from assay.studies.transport._gw_instances import alignment_cases, transfer_cases
from assay.studies.transport.gromov_wasserstein import GromovWassersteinStudy, Problem

PARAMETERS = {"repeats": 1, "costs": False, "heavy": 200}


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    cases = alignment_cases([("ba", 60, 0.1), ("karate", 34, 0.0)], 30, rng)
    return Problem(cases, transfer_cases(40, rng)[:1], PARAMETERS)


def scalars(measurement, metric):
    return {s.case: s.value for s in measurement.scalars if s.metric == metric}


def test_copies_are_relabelled_graphs_with_more_edges():
    noisy, exact, cloud = alignment_cases([("ba", 50, 0.2), ("karate", 34, 0.0)], 20, np.random.default_rng(1))
    A, B = noisy.first.toarray(), noisy.second.toarray()
    back = B[np.ix_(noisy.truth, noisy.truth)]
    assert (back >= A).all()
    assert back.sum() - A.sum() == 2 * round(0.2 * A.sum() / 2)
    np.testing.assert_array_equal(B, B.T)
    assert exact.noise_free
    np.testing.assert_array_equal(exact.second.toarray()[np.ix_(exact.truth, exact.truth)], exact.first.toarray())
    plan = np.zeros((34, 34))
    plan[np.arange(34), exact.truth] = 1 / 34
    assert exact.value(plan) == 0.0
    assert exact.correctness(plan) == 1.0
    assert abs(cloud.second[np.ix_(cloud.truth, cloud.truth)] - cloud.first).max() < 1.0


def test_label_transfer_of_the_true_plan_is_good():
    for transfer in transfer_cases(150, np.random.default_rng(2)):
        n = transfer.case.size
        plan = np.zeros((n, n))
        plan[np.arange(n), transfer.case.truth] = 1 / n
        assert transfer.accuracy(plan) >= 0.8


def test_problem_is_the_same_for_all_contenders():
    study = GromovWassersteinStudy()
    first, second = (study.problem("quick", study.problem_rng("quick", 0)) for _ in range(2))
    for one, other in zip(first.alignments, second.alignments, strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.dense[1], other.dense[1])


@pytest.mark.parametrize("contender", [c.name for c in GromovWassersteinStudy.contenders])
def test_every_contender_can_be_measured(problem, contender):
    study = GromovWassersteinStudy()
    measurement = study.measure(contender, problem, np.random.default_rng(3))
    expected = {case.name for case in problem.alignments}
    if contender == study_module.LOW_RANK:
        expected = {problem.alignments[-1].name}
    elif contender in (study_module.DENSE, study_module.BAPG, study_module.PPA):
        expected -= {problem.alignments[-1].name}
    for metric in ("correctness", "relative_value", "violation", "cpu_seconds", "relative_gap"):
        assert expected <= set(scalars(measurement, metric))
    if contender == study_module.OURS:
        assert all(certificate.holds for _, certificate in measurement.certificates)
        assert scalars(measurement, "correctness")["ba n=60 noise 0.1"] >= 0.9
        assert {curve.name for curve in measurement.curves} == {"objective against updates", "objective against time"}
    if contender in (study_module.CG, study_module.BAPG, study_module.FULL, study_module.DENSE):
        assert min(scalars(measurement, "speedup").values()) > 0.0


def test_ours_is_deterministic(problem):
    study = GromovWassersteinStudy()
    one, other = (study.measure(study_module.OURS, problem, np.random.default_rng(0)) for _ in range(2))
    for metric in ("relative_value", "correctness", "n_full", "multiply_adds"):
        assert scalars(one, metric) == scalars(other, metric)


def test_costs_are_measured():
    measurement = Measurement()
    measure_step_costs(measurement, {"sparse": (60, 120), "dense": (60, 120)}, np.random.default_rng(0))
    measure_block_costs(measurement, 120, (10, 20), np.random.default_rng(0))
    assert set(scalars(measurement, "step_slope")) == {"sparse", "dense"}
    assert all(0.0 < share < 1.0 for share in scalars(measurement, "product_share").values())
    assert len(scalars(measurement, "block_slope")) == 1


def test_claims_name_contenders():
    names = {contender.name for contender in GromovWassersteinStudy.contenders}
    for claim in GromovWassersteinStudy.claims:
        assert claim.contender in names
        assert claim.versus is None or claim.versus in names
    assert len({claim.id for claim in GromovWassersteinStudy.claims}) == len(GromovWassersteinStudy.claims)
