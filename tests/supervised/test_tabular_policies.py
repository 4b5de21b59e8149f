"""Policies of a few responses: known values, other links, ties, and certificates that notice what is wrong."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, ndtr

from assay.supervised import tabular_policy
from assay.validation import ConvergenceWarning

UTILITY = np.array([1.0, 0.5, 0.0, -0.3, -1.0])
REFERENCE = np.array([0.1, 0.3, 0.2, 0.25, 0.15])
PREFERENCES = expit(UTILITY[:, None] - UTILITY[None, :])
KNOWN = np.array([0.386478, 0.426532, 0.104608, 0.071763, 0.010618])


def closed_form(utility, reference, beta):
    policy = reference * np.exp(utility / beta)
    return policy / policy.sum()


@pytest.mark.parametrize("psi", ["logistic", "savage", "exp"])
def test_known_policy(psi):
    result = tabular_policy(PREFERENCES, REFERENCE, psi, 0.5)
    np.testing.assert_allclose(result.policy, KNOWN, atol=6e-7)
    np.testing.assert_allclose(result.policy, closed_form(UTILITY, REFERENCE, 0.5), atol=1e-8)
    np.testing.assert_allclose(result.utilities, UTILITY - UTILITY.mean(), atol=1e-7)
    assert result.certified
    assert result.converged


def test_other_choice_models():
    probit = tabular_policy(ndtr(UTILITY[:, None] - UTILITY[None, :]), REFERENCE, "probit", 0.5)
    np.testing.assert_allclose(probit.policy, closed_form(UTILITY, REFERENCE, 0.5), atol=1e-7)
    # the logistic loss explains the same preferences by other utilities
    other = tabular_policy(ndtr(UTILITY[:, None] - UTILITY[None, :]), REFERENCE, "logistic", 0.5)
    assert np.abs(other.policy - probit.policy).sum() > 0.05
    assert other.certificates[1].violated


def test_ramp_collapses_to_the_best_response():
    result = tabular_policy(PREFERENCES, REFERENCE, "ramp", 0.5)
    assert result.policy[0] > 0.999
    assert np.isnan(result.target).all()
    assert not result.certificates[1].holds


@settings(max_examples=15, deadline=None)
@given(
    utility=st.lists(st.floats(-2, 2), min_size=2, max_size=6),
    beta=st.sampled_from([0.3, 1.0, 4.0]),
    psi=st.sampled_from(["logistic", "savage", "exp"]),
)
def test_closed_form_for_random_utilities(utility, beta, psi):
    utility = np.array(utility)
    reference = np.arange(1.0, len(utility) + 1) / np.arange(1.0, len(utility) + 1).sum()
    result = tabular_policy(expit(utility[:, None] - utility[None, :]), reference, psi, beta)
    np.testing.assert_allclose(result.policy, closed_form(utility, reference, beta), atol=1e-6)


@pytest.mark.parametrize(("link", "power"), [("linear", 2.0), ("tsallis(0.5)", 0.5), ("tsallis(1.5)", 1.5)])
def test_links(link, power):
    result = tabular_policy(PREFERENCES, REFERENCE, "logistic", 10.0, link=link)
    rewards = 10.0 * (result.policy ** (power - 1) - REFERENCE ** (power - 1)) / (power - 1)
    np.testing.assert_allclose(rewards - rewards.mean(), UTILITY - UTILITY.mean(), atol=1e-6)
    assert result.policy.sum() == pytest.approx(1)
    assert result.certified


def test_a_linear_link_that_runs_into_the_boundary_says_so():
    result = tabular_policy(PREFERENCES, REFERENCE, "logistic", 0.5, link="linear")
    assert result.policy.min() == 0
    assert result.certificates[0].violated


def test_ties():
    lead = UTILITY[:, None] - UTILITY[None, :]
    preferences = expit(lead - 0.5)
    likelihood = tabular_policy(preferences, REFERENCE, "logistic", 0.5, choice="abstain(0.5)", margin=0.5)
    np.testing.assert_allclose(likelihood.policy, closed_form(UTILITY, REFERENCE, 0.5), atol=1e-7)
    assert likelihood.certified
    # without the margin the ordered pairs do not pay minus their log-probability
    other = tabular_policy(preferences, REFERENCE, "logistic", 0.5, choice="abstain(0.5)")
    assert np.abs(other.policy - likelihood.policy).sum() > 0.05
    assert other.certificates[1].violated


def test_shifts_of_the_input_do_not_matter():
    diagonal = PREFERENCES.copy()
    np.fill_diagonal(diagonal, 0.0)
    kept = diagonal.copy()
    np.testing.assert_array_equal(
        tabular_policy(diagonal, REFERENCE).policy, tabular_policy(PREFERENCES, REFERENCE).policy
    )
    np.testing.assert_array_equal(diagonal, kept)


def test_corrupted_policy_is_noticed():
    from assay.supervised.policy_links import LogLink
    from assay.supervised.preference_psi import resolve_psi
    from assay.supervised.tabular_policies import _certificates, _check_preferences, _Population

    result = tabular_policy(PREFERENCES, REFERENCE, "savage", 0.5)
    population = _Population(_check_preferences(PREFERENCES, 5), resolve_psi("savage"), None)
    wrong = result.policy * (1 + 1e-3 * np.arange(5))
    certificates = _certificates(
        population, wrong / wrong.sum(), result.target, True, REFERENCE, 0.5, LogLink(), 1e-8, result.utilities
    )
    assert not any(certificate.holds for certificate in certificates)
    assert not replace(result, certificates=certificates).certified


def test_not_converged_warns():
    with pytest.warns(ConvergenceWarning, match="tabular_policy"):
        result = tabular_policy(PREFERENCES, REFERENCE, "hinge", 0.5, max_iter=5)
    assert not result.converged


def test_certain_preferences_have_no_finite_utilities():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = tabular_policy([[0.5, 1.0], [0.0, 0.5]], [0.5, 0.5], max_iter=50)
    assert result.policy[0] > 0.99
    assert not result.certified


@pytest.mark.parametrize(
    ("preferences", "reference", "options", "words"),
    [
        ([[0.5, 1.2], [0.1, 0.5]], [0.5, 0.5], {}, r"in \[0, 1\]"),
        ([[0.5, 0.8], [0.4, 0.5]], [0.5, 0.5], {}, "sum to at most 1"),
        ([[0.5, 0.8]], [0.5, 0.5], {}, r"shape \(2, 2\)"),
        (PREFERENCES, [0.5, 0.5, 0, 0, 0], {}, "positive"),
        ([[0.5]], [1.0], {}, "at least 2"),
        (PREFERENCES, REFERENCE, {"beta": 0}, "beta"),
        (PREFERENCES, REFERENCE, {"psi": "dpo"}, "psi"),
        (PREFERENCES * np.nan, REFERENCE, {}, "finite"),
    ],
)
def test_bad_input(preferences, reference, options, words):
    with pytest.raises(ValueError, match=words):
        tabular_policy(preferences, reference, **options)
