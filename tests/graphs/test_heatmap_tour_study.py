"""The pieces of the study, on problems small enough for a test."""

import fnmatch
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from assay.lab import Measurement
from assay.studies.graphs import _tour_timing
from assay.studies.graphs import heatmap_tour as study_module
from assay.studies.graphs._tour_instances import NOISE, make_problem, noisy_heatmap, random_instance
from assay.studies.graphs._tour_timing import _networkx_decode

TINY = {"random": 0, "large": 0, "repeats": 1, "training": 2, "scaling": (10, 14, 20), "brute_force": 4}


class TinyStudy(study_module.HeatmapTourStudy):
    name = "graphs/tiny"
    sizes = {"quick": TINY, "full": TINY}


@pytest.fixture(scope="module")
def study():
    return TinyStudy()


@pytest.fixture(scope="module")
def problem(study):
    return study.problem("quick", study.problem_rng("quick", 0))


@pytest.fixture(scope="module")
def measured(study, problem):
    wanted = (study_module.OURS, study_module.THRESHOLDS, study_module.GREEDY, study_module.EMPTY)
    return {name: study.measure(name, problem, study.measure_rng("quick", 0, name)) for name in wanted}


def test_problem_is_the_same_for_the_same_seed(study, problem):
    make_problem.cache_clear()
    again = study.problem("quick", study.problem_rng("quick", 0))
    assert again is not problem
    for one, other in zip(problem["cases"], again["cases"], strict=True):
        assert (one.name, one.error) == (other.name, other.error)
        assert (one.heatmap != other.heatmap).nnz == 0


def test_every_instance_has_every_heatmap(problem):
    for name in ("berlin52", "eil51"):
        own = [case for case in problem["cases"] if case.instance.name == name]
        assert len(own) == 2 * len(NOISE) + 1
    exact = [case for case in problem["cases"] if case.name.endswith("integral q=0")]
    assert [case.error for case in exact] == [0.0, 0.0]


def test_scalars_of_the_claims_are_there(measured):
    recorded = {(contender, scalar.metric, scalar.case) for contender, m in measured.items() for scalar in m.scalars}
    for claim in study_module.HeatmapTourStudy.claims:
        if claim.contender not in measured or claim.metric == "certificates_failed":
            continue
        found = [case for c, metric, case in recorded if (c, metric) == (claim.contender, claim.metric)]
        if claim.case != "n=1000":
            assert any(fnmatch.fnmatchcase(case, claim.case) for case in found), claim.id
        assert claim.versus is None or claim.versus in measured


def test_ours_is_certified_and_never_worse(measured):
    ours = measured[study_module.OURS]
    assert all(certificate.holds for _, certificate in ours.certificates)
    ratio = {name: {s.case: s.value for s in m.scalars if s.metric == "ratio"} for name, m in measured.items()}
    for case, value in ratio[study_module.OURS].items():
        assert value <= min(ratio[name][case] for name in measured) + 1e-12
        assert value >= 1 - 1e-12
        if case.endswith("integral q=0"):
            assert value == 1.0
    assert {s.value for s in ours.scalars if s.metric == "violations"} == {0.0}


def test_contenders_are_all_known(study, problem):
    named = {contender.name for contender in study.contenders}
    assert {claim.contender for claim in study.claims} <= named
    timed = {study_module.BY_LEVEL, study_module.PYTHON_2OPT}
    small = problem["scaling"][0]
    for name in named - timed:
        tour, seconds = study_module._timed(name, small, np.random.default_rng(0))
        assert sorted(np.asarray(tour).tolist()) == list(range(10))
        assert seconds >= 0


def test_networkx_decodes_the_same_skeletons():
    from assay.graphs.heatmap_tour import decode_heatmap

    instance = random_instance("small", 12, 3, runs=1)
    heatmap = noisy_heatmap(instance, 0.2, False, np.random.default_rng(0))
    history = decode_heatmap(instance.distances, heatmap, candidates="thresholds").history
    for k in (0, 5, len(history["threshold"]) - 1):
        expected = history["skeleton_cost"][k] + history["matching_cost"][k]
        assert _networkx_decode(instance.distances, heatmap, history["threshold"][k]) == pytest.approx(expected)


def test_scatter_draws_a_point_per_case_and_the_bounds(study, measured):
    rows = [
        (contender, 0, c.case, c.name, c.x, c.y, c.x_label, c.y_label, c.x_log, c.y_log)
        for contender, m in measured.items()
        for c in m.curves
    ]
    columns = ["contender", "seed", "case", "name", "x", "y", "x_label", "y_label", "x_log", "y_log"]
    figures = study.figures(SimpleNamespace(curves=pd.DataFrame(rows, columns=columns)))
    scatter = next(figure for figure in figures if figure.title == study_module.SCATTER)
    assert len(scatter.plot.data) == 2 + len(measured)
    assert len(scatter.plot.data[2].x) == 22
    assert len(figures) == 4


def test_demonstration(study):
    certificates = study.demonstrate()
    assert len(certificates) == 3
    assert all(certificate.holds for certificate in certificates)


def test_claims_are_worded_as_promised():
    claims = {claim.id: claim for claim in study_module.HeatmapTourStudy.claims}
    for noise, margin in ((0.1, -0.084), (0.2, -0.136), (0.4, -0.277)):
        better, by_a_margin = claims[f"C4-{noise}"], claims[f"C4m-{noise}"]
        assert (better.number, by_a_margin.number, by_a_margin.source) == (0.0, margin, "prototype")
        assert better.case == by_a_margin.case == f"berlin52 fractional q={noise}*"
        assert better.reduce == by_a_margin.reduce == "mean"
    # Strictly below: 0 itself does not count, the next float does.
    for other in ("greedy", "thresholds", "Christofides"):
        assert claims[f"C4c-{other}"].relation == "<="
        assert np.nextafter(0.0, -1.0) <= claims[f"C4c-{other}"].number < 0.0
    assert (claims["P1"].reduce, claims["P1"].number) == ("max", 0.5)
    assert (claims["P6"].reduce, claims["P6"].number) == ("min", 50)


def test_two_opt_is_timed_at_every_size(monkeypatch):
    assert _tour_timing.TWO_OPT_SIZES == (100, 200, 500)
    monkeypatch.setattr(_tour_timing, "TWO_OPT_SIZES", (20, 30))
    measurement = Measurement()
    _tour_timing.time_two_opt(measurement)
    assert [s.case for s in measurement.scalars if s.metric == "speedup"] == ["20 cities", "30 cities"]
