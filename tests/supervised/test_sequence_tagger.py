import itertools
import pickle
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

from assay.supervised.best_path import viterbi
from assay.supervised.linear_core import LinearCoreTail, linear_core, linear_core_slope, resolve_tail
from assay.supervised.sampled_descent import SAMPLED_TAILS, SampledDescent, _tail_slope
from assay.supervised.sequence_features import SequenceFeatures
from assay.supervised.sequence_tagger import SequenceTagger
from assay.supervised.sequence_training import TaggingProblem, training_rows
from assay.supervised.structured_linear_core import StructuredLinearCore

SENTENCES = [["the", "dog", "runs"], ["a", "cat", "sleeps"], ["the", "cat", "runs"], ["dogs", "run"]]
TAGS = [["D", "N", "V"], ["D", "N", "V"], ["D", "N", "V"], ["N", "V"]]


def random_problem(seed=0, rows=60, features=8, tags=4, **settings):
    rng = np.random.default_rng(seed)
    design = sp.random_array((rows, features), density=0.5, rng=rng, format="csr")
    target = (design @ rng.normal(size=(features, tags)) + 0.3 * rng.normal(size=(rows, tags))).argmax(axis=1)
    settings = {"alpha": 0.05, "tau": 0.7, "sigma": 0.3, "tail": "exp", "scale": 1.5} | settings
    return TaggingProblem(sp.csr_array(design), target, tags, **settings)


def markov_letters(rng, n=60, length=12):
    """Tags follow each other in a cycle, mostly; the tokens tell little."""
    X, y = [], []
    for _ in range(n):
        tags = [int(rng.integers(3))]
        for _ in range(length - 1):
            tags.append((tags[-1] + 1) % 3 if rng.random() < 0.95 else int(rng.integers(3)))
        y.append(tags)
        X.append("".join("abc"[t] if rng.random() < 0.6 else "abc"[rng.integers(3)] for t in tags))
    return X, y


# The training problem ----------------------------------------------------------------------------------------


def plain_loss(problem, coefficients):
    """The definition, one term at a time."""
    dense = problem.design.toarray()
    total = 0.0
    for x, y in zip(dense, problem.target, strict=True):
        scores = x @ coefficients
        for k in range(problem.n_tags):
            if k != y:
                total += linear_core(-problem.scale * (scores[k] - scores.mean()), *problem.shape_of_loss)
    return total / len(dense)


@pytest.mark.parametrize("tail", ["exp", "quad", "gamma", "smoothstep"])
def test_loss_and_gradient(tail, monkeypatch):
    problem = random_problem(tail=tail)
    rng = np.random.default_rng(1)
    coefficients, direction = rng.normal(size=(2, 8, 4))
    loss, gradient = problem.loss_and_gradient(coefficients)
    assert loss == pytest.approx(plain_loss(problem, coefficients), rel=1e-12)
    step = 1e-6
    ahead, behind = (plain_loss(problem, coefficients + sign * step * direction) for sign in (1, -1))
    assert np.vdot(gradient, direction) == pytest.approx((ahead - behind) / (2 * step), rel=1e-5)
    np.testing.assert_allclose(gradient.sum(axis=1), 0.0, atol=1e-12)
    monkeypatch.setattr("assay.supervised.sequence_training._BLOCK_ENTRIES", 30)
    assert len(problem._blocks()) > 5
    assert problem.loss_and_gradient(coefficients)[0] == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(problem.loss_and_gradient(coefficients)[1], gradient, rtol=1e-10, atol=1e-13)


def test_agrees_with_the_module():
    rng = np.random.default_rng(0)
    lengths, target = np.array([3, 5]), rng.integers(0, 3, 8)
    features = sp.csr_array(rng.normal(size=(8, 4)))
    problem = TaggingProblem(
        training_rows(features, lengths, target, 3), target, 3, alpha=1.0, tau=0.6, sigma=0.2, tail="gamma", scale=1.0
    )
    coefficients = rng.normal(size=(4 + 3 + 2, 3))
    unary = features @ coefficients[:4] + coefficients[-1]
    unary[[0, 3]] += coefficients[7]
    module = StructuredLinearCore(3, sampler="positionwise", n_samples=None, tau=0.6, sigma=0.2, tail="gamma")
    total = 0.0
    for piece in (slice(0, 3), slice(3, 8)):
        arguments = torch.tensor(unary[piece])[None], torch.tensor(coefficients[4:7]), torch.tensor(target[piece])[None]
        total += module(*arguments).item()
    assert problem.loss_and_gradient(coefficients)[0] == pytest.approx(total / 8, rel=1e-12)


def test_the_gap_is_the_difference_of_primal_and_dual():
    problem = random_problem()
    coefficients = 0.3 * np.random.default_rng(2).normal(size=(8, 4))
    objective, gap = problem.objective_and_gap(coefficients)
    # The dual objective at the slopes s = -Phi'(t), with the conjugate from the definition of Fenchel equality.
    scores = problem.design @ coefficients
    margins = problem.scale * (scores.mean(axis=1, keepdims=True) - scores)
    steepness = -linear_core_slope(margins, *problem.shape_of_loss)
    conjugate = -steepness * margins - linear_core(margins, *problem.shape_of_loss)
    wrong = np.arange(4) != problem.target[:, None]
    pull = steepness * wrong
    pull -= pull.mean(axis=1, keepdims=True)
    dual_vector = problem.scale * (problem.design.T @ pull) / 60
    dual = -(conjugate * wrong).sum() / 60 - (dual_vector**2).sum() / (2 * problem.alpha)
    assert gap == pytest.approx(objective - dual, rel=1e-10)
    best, _ = problem.solve(1000, 1e-10)
    least, rest = problem.objective_and_gap(best)
    assert rest <= 1e-10 * least
    assert dual <= least <= objective


def test_solve_reaches_what_a_plain_solver_reaches():
    problem = random_problem(alpha=0.5)
    coefficients, history = problem.solve(1000, 1e-9)
    plain = np.zeros((8, 4))
    step = 1.0 / (problem.alpha + problem.scale**2 / 0.3 * np.linalg.norm(problem.design.toarray(), 2) ** 2 / 60)
    for _ in range(3000):
        plain -= step * (problem.loss_and_gradient(plain)[1] + problem.alpha * plain)
    assert problem.objective_and_gap(plain)[1] < 1e-12
    np.testing.assert_allclose(coefficients, plain, atol=1e-4)
    assert set(history) == {"iteration", "objective", "gap"}
    assert len({len(column) for column in history.values()}) == 1
    assert history["gap"][-1] <= 1e-9 * history["objective"][-1]


def test_excess_risks_by_hand():
    # Two kinds of rows. Row kind 0 has tags 0, 0, 1; kind 1 has tag 2 only.
    design = sp.csr_array(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    problem = TaggingProblem(design, np.array([0, 0, 1, 2]), 3, alpha=0.1, tau=0.7, sigma=0.3, tail="exp", scale=1.0)
    coefficients = np.array([[0.0, 1.0, -1.0], [0.0, 0.0, 1.0]])
    error, loss = problem.excess_risks(coefficients)
    assert error == pytest.approx(2 / 4 - 1 / 4)  # kind 0 is tagged 1, which is right once; the best is right twice
    costs = np.array([1.0, 2.0, 3.0])  # positions of kind 0 that are not of the tag
    least = costs.min() * (3 * 1.0 + 0.3 * np.log(costs[1:] / costs[0]).sum())
    assert loss == pytest.approx(problem.loss_and_gradient(coefficients)[0] - least / 4)


# Sampled steps -----------------------------------------------------------------------------------------------


def test_tail_slopes_are_those_of_the_loss():
    for number, tail in enumerate(SAMPLED_TAILS):
        for z in (0.0, 0.3, 0.99, 1.0, 2.5, 50.0):
            expected = -linear_core_slope([0.7 + 0.3 * z], tail=tail)[0]
            assert _tail_slope(z, number) == pytest.approx(expected, abs=1e-12)


class PlainDescent:
    """The same steps without lazy shrinking, kept means or shared accumulators: on full centred rows."""

    def __init__(self, n_features, n_labels, alpha, learning_rate, n_samples, tail):
        self.coefficients, self.history = np.zeros((n_features, n_labels)), np.zeros(n_features)
        self.settings = alpha, learning_rate, n_samples, tail

    def run(self, rows, target, order, rng):
        alpha, rate, n_samples, tail = self.settings
        n_labels = self.coefficients.shape[1]
        for row in order:
            known = self.history > 0
            self.coefficients[known] *= np.exp(-alpha * rate / np.sqrt(self.history[known]))[:, None]
            x = rows[[row]].toarray()[0]
            scores = x @ self.coefficients
            pull = np.zeros(n_labels)
            for _ in range(n_samples):
                label = int(rng.random() * (n_labels - 1))
                label += label >= target[row]
                slope = -linear_core_slope([-(scores[label] - scores.mean())], tail=tail)[0]
                pull[label] += (n_labels - 1) / n_samples * slope
            pull -= pull.mean()
            self.history += x**2 * (pull**2).sum()
            moved = x != 0
            step = rate / np.sqrt(self.history[moved]) * x[moved]
            self.coefficients[moved] -= step[:, None] * pull


@pytest.mark.parametrize("tail", SAMPLED_TAILS)
def test_sampled_steps_agree_with_the_plain_ones(tail):
    problem = random_problem(tags=5)
    settings = {"alpha": 0.01, "learning_rate": 0.7, "n_samples": 3, "tail": tail}
    fast, plain = SampledDescent(8, 5, **settings), PlainDescent(8, 5, **settings)
    for descent in (fast, plain):
        rng = np.random.default_rng(4)
        for _ in range(3):
            descent.run(problem.design, problem.target, rng.permutation(60), rng)
    np.testing.assert_allclose(fast.coefficients(), plain.coefficients, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(fast.mean, fast.table.mean(axis=1), atol=1e-10)


def test_strong_shrinking_does_not_overflow():
    problem = random_problem(tags=5)
    descent = SampledDescent(8, 5, alpha=1e4, learning_rate=1.0, n_samples=2)
    descent.run(problem.design, problem.target, np.tile(np.arange(60), 5), np.random.default_rng(0))
    assert np.isfinite(descent.coefficients()).all()
    assert np.isfinite(descent.table).all()


def test_stochastic_steps_approach_the_optimum():
    problem = random_problem(rows=400, alpha=0.05)
    best = problem.objective_and_gap(problem.solve(1000, 1e-8)[0])[0]
    start = problem.objective_and_gap(np.zeros((8, 4)))[0]
    sampled = problem.descend(200, 2, 0.3, np.random.default_rng(0))
    assert problem.objective_and_gap(sampled)[0] - best <= 0.02 * (start - best)


# Features ----------------------------------------------------------------------------------------------------


def encoder(**settings):
    return SequenceFeatures(**({"window": 0, "min_frequency": 1, "handle_unknown": "error"} | settings))


def test_window_of_tokens():
    rows, lengths = encoder(window=1).fit(["ab", "c"]).transform(["ab", "c"])
    before, here, after = rows.toarray()[:, :3], rows.toarray()[:, 3:6], rows.toarray()[:, 6:]
    np.testing.assert_array_equal(here, np.eye(3))
    np.testing.assert_array_equal(before, [[0, 0, 0], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(after, [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    assert lengths.tolist() == [2, 1]


def test_rare_and_unknown_tokens_share_a_column():
    fitted = encoder(min_frequency=2).fit(["aab"])
    assert fitted.vocabulary == {"a": 0}
    rows, _ = fitted.transform(["abx"])
    np.testing.assert_array_equal(rows.toarray(), [[1, 0], [0, 1], [0, 1]])


def test_named_features():
    X = [[{"word": "the", "length": 3, "capital": False}, {"word": "dog", "length": 3.5}]]
    fitted = encoder().fit(X)
    assert fitted.vocabulary == {"word=the": 0, "length": 1, "capital": 2, "word=dog": 3}
    rows, _ = fitted.transform(X)
    np.testing.assert_array_equal(rows.toarray(), [[1, 3, 0, 0], [0, 3.5, 0, 1]])


@pytest.mark.parametrize("as_given", [np.asarray, sp.csr_array, torch.tensor, list, lambda m: [list(row) for row in m]])
def test_matrices(as_given):
    matrix = np.array([[0.0, 2.0], [1.5, 0.0]])
    rows, lengths = encoder().fit([as_given(matrix)]).transform([as_given(matrix), as_given(matrix[:1])])
    np.testing.assert_array_equal(rows.toarray(), np.vstack([matrix, matrix[:1]]))
    assert lengths.tolist() == [2, 1]


# The estimator -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_learns_and_generalises(solver):
    tagger = SequenceTagger(solver=solver, random_state=0, max_iter=200).fit(SENTENCES, TAGS)
    assert tagger.predict(SENTENCES) == TAGS
    assert tagger.score(SENTENCES, TAGS) == 1.0
    assert tagger.predict([["a", "dog", "runs"]]) == [["D", "N", "V"]]
    assert tagger.classes_.tolist() == ["D", "N", "V"]
    assert tagger.certificates_[1].holds


def test_transitions_help_where_tokens_do_not():
    X, y = markov_letters(np.random.default_rng(0))
    train, test = slice(0, 40), slice(40, 60)
    scores = []
    for use_transitions in (True, False):
        tagger = SequenceTagger(window=0, use_transitions=use_transitions, alpha=1e-3).fit(X[train], y[train])
        scores.append(tagger.score(X[test], y[test]))
        assert all(c.holds for c in tagger.certificates_)
    assert scores[0] > scores[1] + 0.05
    assert not tagger.transitions_.any()
    assert "teacher-forced" not in tagger.certificates_[1].statement


def test_prediction_is_the_best_path_of_the_scores():
    X, y = markov_letters(np.random.default_rng(1))
    tagger = SequenceTagger(alpha=1e-3).fit(X, y)
    for unary, predicted in zip(tagger.decision_function(X[:5]), tagger.predict(X[:5]), strict=True):
        np.testing.assert_array_equal(tagger.classes_[viterbi(unary, tagger.transitions_)], predicted)
        best = max(
            itertools.product(range(3), repeat=4),
            key=lambda path, unary=unary: (
                sum(unary[t, k] for t, k in enumerate(path))
                + sum(tagger.transitions_[a, b] for a, b in itertools.pairwise(path))
            ),
        )
        np.testing.assert_array_equal(viterbi(unary[:4], tagger.transitions_), best)


def test_certificates_are_about_the_stored_coefficients():
    X, y = markov_letters(np.random.default_rng(2))
    tagger = SequenceTagger(alpha=1e-3, window=0, score_scale=2.0).fit(X, y)
    gap, excess = tagger.certificates_
    assert gap.value == tagger.gap_ <= 1e-2 * tagger.objective_
    # Teacher-forced error and loss, recomputed from the scores.
    errors, losses, contexts = [], [], {}
    for word, tags, unary in zip(X, y, tagger.decision_function(X), strict=True):
        for t, tag in enumerate(tags):
            scores = unary[t] + (tagger.transitions_[tags[t - 1]] if t else 0.0)
            errors.append(scores.argmax() != tag)
            wrong = np.arange(3) != tag
            losses.append(linear_core(-2.0 * (scores - scores.mean()))[wrong].sum())
            contexts.setdefault((word[t], tags[t - 1] if t else None), []).append(tag)
    counts = [np.bincount(tags, minlength=3) for tags in contexts.values()]
    least_error = sum(c.sum() - c.max() for c in counts) / len(errors)
    assert excess.value == pytest.approx(np.mean(errors) - least_error, abs=1e-12)
    penalty = sum((part**2).sum() for part in (tagger.coef_, tagger.transitions_, tagger.start_, tagger.intercept_))
    assert tagger.objective_ == pytest.approx(np.mean(losses) + 0.5e-3 * penalty, rel=1e-9)
    assert excess.bound * 0.7 <= np.mean(losses)
    assert excess.holds


@pytest.mark.parametrize("kind", [str, int, bool, tuple])
def test_tags_of_any_type_come_back_as_they_were(kind):
    values = {str: ["x", "y"], int: [7, -1], bool: [True, False], tuple: [("N", 1), ("V", 2)]}[kind]
    y = [[values[0], values[1]], [values[1], values[0]]]
    tagger = SequenceTagger(window=0).fit(["ab", "ba"], y)
    predicted = tagger.predict(["ab", "ba"])
    assert predicted == y
    assert type(predicted[0][0]) is kind


def test_numpy_tags_and_tokens():
    X, y = np.array([[3, 5], [5, 3]]), np.array([[0, 1], [1, 0]], dtype=np.int32)
    tagger = SequenceTagger(window=0).fit(X, y)
    assert tagger.predict(X) == y.tolist()
    assert tagger.predict(X.tolist()) == y.tolist()
    mixed = SequenceTagger(window=0).fit(["ab", "ab"], [["N", 1], ["N", 1]])
    assert mixed.predict(["ba"]) == [[1, "N"]]


def test_feature_matrices_and_dicts_agree():
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 3)).astype(np.float32) for n in (4, 1, 6, 5)]
    y = [(x[:, 0] > 0).astype(int) for x in X]
    tagger = SequenceTagger(alpha=1e-2, tol=1e-8).fit(X, y)
    named = [[{"a": float(r[0]), "b": float(r[1]), "c": float(r[2])} for r in x] for x in X]
    twin = SequenceTagger(alpha=1e-2, tol=1e-8).fit(named, y)
    np.testing.assert_allclose(tagger.coef_, twin.coef_, atol=1e-6)
    assert tagger.predict(X) == twin.predict(named)
    sparse = SequenceTagger(alpha=1e-2, tol=1e-8).fit([sp.csr_matrix(x) for x in X], y)
    np.testing.assert_allclose(tagger.coef_, sparse.coef_, atol=1e-6)
    assert SequenceTagger().fit(np.stack([X[0], X[2][:4]]), [y[0], y[2][:4]]).coef_.shape == (3, 2)


def test_arguments_are_left_alone():
    X = [np.ones((2, 2)), np.zeros((3, 2))]
    y = [["a", "b"], ["b", "a", "b"]]
    before = pickle.dumps((X, y))
    SequenceTagger().fit(X, y).predict(X)
    assert pickle.dumps((X, y)) == before


def test_random_state_decides():
    X, y = markov_letters(np.random.default_rng(3), n=10)

    def fit(seed):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return SequenceTagger(solver="sgd", max_iter=3, random_state=seed).fit(X, y).coef_

    np.testing.assert_array_equal(fit(0), fit(0))
    assert not np.array_equal(fit(0), fit(1))
    np.testing.assert_array_equal(fit(np.random.RandomState(0)), fit(np.random.RandomState(0)))
    np.testing.assert_array_equal(fit(np.random.default_rng(5)), fit(np.random.default_rng(5)))


def test_warns_when_the_gap_stays_open():
    X, y = markov_letters(np.random.default_rng(4), n=10)
    with pytest.warns(ConvergenceWarning, match="did not reach tol=1e-09 in 2 iterations"):
        tagger = SequenceTagger(max_iter=2, tol=1e-9).fit(X, y)
    assert tagger.n_iter_ == 2
    assert not tagger.certificates_[0].holds
    assert tagger.certificates_[1].holds


def test_scikit_learn_contract():
    X, y = markov_letters(np.random.default_rng(5), n=30)
    tagger = SequenceTagger(alpha=1e-2, window=0)
    assert clone(tagger).get_params() == tagger.get_params()
    assert "alpha=0.01" in repr(tagger)
    with pytest.raises(NotFittedError):
        tagger.predict(X)
    with pytest.raises(NotFittedError):
        tagger.decision_function(X)
    assert cross_val_score(tagger, X, y, cv=3).mean() > 0.6
    search = GridSearchCV(tagger, {"alpha": [1e-3, 1e2]}, cv=2).fit(X, y)
    assert search.best_params_["alpha"] == 1e-3
    assert search.predict(X[:2]) == search.best_estimator_.predict(X[:2])
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert again.predict(X) == search.predict(X)


def test_unknown_tokens():
    tagger = SequenceTagger(window=0).fit(SENTENCES, TAGS)
    with pytest.raises(ValueError, match=r"tokens that were seen in fit, got 2 others, the first is 'zebra' in X\[1\]"):
        tagger.predict([["the", "dog"], ["a", "zebra", "jumps", "zebra"]])
    accepting = SequenceTagger(window=0, handle_unknown="ignore").fit(SENTENCES, TAGS)
    assert accepting.predict([["the", "zebra", "runs"]]) == [["D", "N", "V"]]
    named = SequenceTagger().fit([[{"w": "a"}, {"w": "b"}]], [["x", "y"]])
    with pytest.raises(ValueError, match=r"features that were seen in fit, got 1 others, the first is 'w=c'"):
        named.predict([[{"w": "c"}]])


def test_rare_tokens_stand_for_unknown_ones():
    X = [["in", "paris", "we"], ["in", "rome", "we"], ["in", "oslo", "we"]]
    y = [["P", "CITY", "PRON"]] * 3
    tagger = SequenceTagger(window=0, min_frequency=2, use_transitions=False).fit(X, y)
    assert tagger.predict([["we", "in", "lima"]]) == [["PRON", "P", "CITY"]]


def test_large_vocabulary_stays_sparse():
    rng = np.random.default_rng(0)
    X = [[f"w{i}" for i in rng.integers(0, 20000, 50)] for _ in range(100)]
    y = [[int(token[1:]) % 3 for token in sequence] for sequence in X]
    tagger = SequenceTagger(window=0, tol=0.05).fit(X, y)
    assert tagger.score(X, y) > 0.99
    assert tagger.coef_.shape[0] == len(tagger.features_.vocabulary) > 4000


@pytest.mark.parametrize("size", [1e8, 1e-8])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_huge_and_tiny_features(size):
    rng = np.random.default_rng(0)
    X = [size * rng.normal(size=(5, 2)) for _ in range(10)]
    y = [(x[:, 0] > 0).astype(int) for x in X]
    for solver in ("lbfgs", "sgd"):
        tagger = SequenceTagger(solver=solver, alpha=1e-6, random_state=0).fit(X, y)
        assert np.isfinite(tagger.coef_).all()
        assert tagger.certificates_[1].holds
    assert size < 1 or tagger.score(X, y) > 0.9


def test_constant_features_and_length_one():
    tagger = SequenceTagger().fit([np.zeros((1, 2))] * 5, [["a"], ["b"], ["a"], ["a"], ["b"]])
    assert tagger.predict([np.zeros((1, 2))]) == [["a"]]
    assert all(c.holds for c in tagger.certificates_)
    assert tagger.certificates_[1].value == pytest.approx(0.0)


def test_own_tail_and_its_limits():
    tail = LinearCoreTail("algebraic", lambda z: (1 / (1 + z), 1 / (1 + z) ** 2), curvature=2.0)
    tagger = SequenceTagger(tail=tail).fit(SENTENCES, TAGS)
    assert tagger.score(SENTENCES, TAGS) == 1.0
    assert all(c.holds for c in tagger.certificates_)
    with pytest.raises(
        ValueError, match=r"tail must be one of .* with solver='sgd', got the tail 'algebraic' of your own"
    ):
        SequenceTagger(tail=tail, solver="sgd").fit(SENTENCES, TAGS)


# Bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        ([], [], ValueError, "X must have at least one sequence"),
        ("abc", ["xyz"], TypeError, "X must be a list of sequences"),
        ([[]], [[]], ValueError, "X[0] must have at least one position"),
        (["ab", ""], ["xy", ""], ValueError, "X[1] must have at least one position"),
        ([3], [[1]], TypeError, "X[0] must be a sequence"),
        ([{"a": 1}], [["x"]], TypeError, "X[0] must be a sequence"),
        (["ab"], ["x"], ValueError, "y[0] must have one tag per position, 2, got 1"),
        (["ab"], ["xy", "x"], ValueError, "y must have one sequence of tags per sequence of X, 1, got 2"),
        (["ab"], "xy", TypeError, "y must be a list of sequences"),
        (["ab"], [5], TypeError, "y[0] must be a sequence of tags"),
        (["ab"], ["xx"], ValueError, "y must have at least two different tags, got only 'x'"),
        (["ab"], [["x", None]], ValueError, "y[0] must have a tag at every position, got None"),
        (["ab"], [["x", float("nan")]], ValueError, "y[0] must have a tag at every position, got nan"),
        (["ab"], [["x", ["y"]]], TypeError, "y[0] must have hashable tags, got list"),
        ([[0.5, 1.5]], ["xy"], TypeError, "got a float in 0.5"),
        ([["a", ["b"]]], ["xy"], TypeError, "X[0] must have hashable tokens, got list"),
        ([["a", "b"], np.ones((2, 2))], ["xy", "xy"], TypeError, "X must be sequences of one kind"),
        ([[{"a": 1}, "b"]], ["xy"], TypeError, "X[0] must have a dict at every position"),
        ([[{"a": None}]], ["x"], TypeError, "words or finite numbers, got 'a': None"),
        ([[{"a": float("nan")}]], ["x"], TypeError, "words or finite numbers"),
        ([np.array([[np.nan, 1.0], [0.0, 1.0]])], ["xy"], ValueError, "X[0] must be a finite 2-D array"),
        ([sp.csr_array([[np.inf], [1.0]])], ["xy"], ValueError, "X[0] must be"),
        ([np.ones((2, 2)), np.ones((2, 3))], ["xy", "xy"], ValueError, "X[1] must have 2 columns, got 3"),
        (np.ones((2, 2)), ["xy", "xy"], TypeError, "one matrix of features is one sequence, pass [X]"),
        ([np.ones((2, 2, 2))], ["xy"], ValueError, "got 3 axes"),
    ],
)
def test_bad_sequences(X, y, error, message):
    with pytest.raises(error, match=re.escape(message)):
        SequenceTagger().fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"alpha": 0.0}, ValueError),
        ({"tau": -1.0}, ValueError),
        ({"sigma": np.nan}, ValueError),
        ({"tail": "cubic"}, ValueError),
        ({"score_scale": 0.0}, ValueError),
        ({"window": -1}, ValueError),
        ({"min_frequency": 0}, ValueError),
        ({"handle_unknown": "warn"}, ValueError),
        ({"solver": "adam"}, ValueError),
        ({"n_samples": 0}, ValueError),
        ({"learning_rate": 0.0}, ValueError),
        ({"max_iter": 0}, ValueError),
        ({"tol": 0.0}, ValueError),
        ({"use_transitions": "yes"}, TypeError),
        ({"window": 1.5}, TypeError),
        ({"random_state": "seed", "solver": "sgd"}, TypeError),
    ],
)
def test_bad_parameters(parameters, error):
    with pytest.raises(error, match=next(iter(parameters))):
        SequenceTagger(**parameters).fit(SENTENCES, TAGS)


def test_predict_wants_the_kind_of_fit():
    tagger = SequenceTagger().fit(SENTENCES, TAGS)
    with pytest.raises(TypeError, match=re.escape("fitted on tokens, X[0] is of matrix")):
        tagger.predict([np.ones((2, 2))])
    with pytest.raises(ValueError, match="at least one sequence"):
        tagger.predict([])


INDICES, NUMBERS = [[3, 1, 2], [1, 2], [2, 3, 3, 1]], [[0, 1, 1], [1, 1], [1, 0, 0, 1]]


@pytest.mark.parametrize(
    "as_given",
    [
        lambda rows: [torch.tensor(row) for row in rows],
        lambda rows: [list(torch.tensor(row)) for row in rows],
        lambda rows: [pd.Series(row, index=range(5, 5 + len(row))) for row in rows],
        lambda rows: pd.Series(rows, index=range(7, 7 + len(rows))),
        lambda rows: [np.array(row) for row in rows],
    ],
    ids=["tensors", "lists of tensors", "series", "series of lists", "arrays"],
)
def test_tokens_and_tags_of_other_libraries(as_given):
    # Tensors hash by identity, so that each would be a tag and a token of its own.
    plain, given = SequenceTagger().fit(INDICES, NUMBERS), SequenceTagger().fit(as_given(INDICES), as_given(NUMBERS))
    assert given.classes_.tolist() == [0, 1]
    assert given.features_.vocabulary == plain.features_.vocabulary
    np.testing.assert_allclose(given.coef_, plain.coef_, atol=1e-12)
    assert given.predict(as_given(INDICES)) == NUMBERS
    assert given.score(as_given(INDICES), as_given(NUMBERS)) == 1.0


def test_a_tensor_is_a_list_of_sequences():
    X, y = torch.tensor([[3, 1], [1, 2]]), torch.tensor([[0, 1], [1, 1]])
    tagger = SequenceTagger().fit(X, y)
    assert tagger.predict(X) == y.tolist()
    features = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 2.0]]], dtype=torch.bfloat16)
    assert SequenceTagger().fit(features, y).predict(features) == y.tolist()


@pytest.mark.parametrize(
    "as_given", [sp.csr_array, sp.csc_matrix, sp.coo_array, sp.lil_array, sp.dok_array, sp.dok_matrix, sp.bsr_array]
)
def test_every_sparse_format(as_given):
    matrices = [np.random.default_rng(i).normal(size=(len(row), 3)) for i, row in enumerate(NUMBERS)]
    plain = SequenceTagger().fit(matrices, NUMBERS)
    given = SequenceTagger().fit([as_given(matrix) for matrix in matrices], NUMBERS)
    np.testing.assert_allclose(given.coef_, plain.coef_)


def test_rows_that_are_equal_but_stored_differently_are_equal():
    rows = [
        sp.csr_array((np.array(values), np.array(columns), np.array([0, len(values)])), shape=(1, 3))
        for values, columns in (([1.0], [1]), ([1.0, 0.0], [1, 2]), ([0.5, 0.5], [1, 1]), ([-0.0, 1.0], [2, 1]))
    ]
    stored = [(row.data.copy(), row.indices.copy()) for row in rows]
    tagger = SequenceTagger(use_transitions=False).fit(rows, [[0], [1], [1], [0]])
    # No function of the features does better than to err twice.
    assert tagger.certificates_[1].value == pytest.approx(0.0, abs=1e-12)
    for row, (values, columns) in zip(rows, stored, strict=True):
        np.testing.assert_array_equal(row.data, values)
        np.testing.assert_array_equal(row.indices, columns)


def test_unsorted_rows_of_the_caller_stay_unsorted():
    matrix = sp.csr_array((np.array([1.0, 2.0, 3.0]), np.array([2, 0, 1]), np.array([0, 2, 3])), shape=(2, 3))
    SequenceTagger().fit([matrix], [[0, 1]])
    np.testing.assert_array_equal(matrix.indices, [2, 0, 1])
    np.testing.assert_array_equal(matrix.data, [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        (pd.DataFrame([[0, 1], [1, 0]]), [[0, 1], [1, 0]], TypeError, "one data frame is one sequence"),
        (["ab", "ba"], pd.DataFrame([[0, 1], [1, 0]]), TypeError, "y must be a list of sequences"),
        (["ab", "ba"], {0: "xy", 1: "yx"}, TypeError, "y must be a list of sequences"),
        (["ab"], [{"x", "y"}], TypeError, "y[0] must be a sequence of tags"),
        ([((0.5, 1.0), (1.5, 2.0))], ["xy"], TypeError, "got a float in (0.5, 1.0)"),
        ([[{1: 2.0, "1": 3.0}]], ["x"], ValueError, "got '1' twice at one position"),
        ([[{"a=b": 2.0, "a": "b"}]], ["x"], ValueError, "got 'a=b' twice at one position"),
        ([[{"a": 10**400}]], ["x"], TypeError, "words or finite numbers, got 'a'"),
        ([np.full((2, 1), 1e200)], ["xy"], ValueError, "X and score_scale must be so small"),
        ([np.array(3)], ["x"], TypeError, "X[0] must be a sequence"),
    ],
)
def test_what_would_have_been_misread(X, y, error, message):
    with pytest.raises(error, match=re.escape(message)):
        SequenceTagger().fit(X, y)


def test_tuples_of_words_are_tokens():
    X = [[("the", "DET"), ("dog", "NOUN")], [("a", "DET")]]
    assert SequenceTagger().fit(X, ["xy", "x"]).predict(X) == [["x", "y"], ["x"]]


@pytest.mark.parametrize("tail", SAMPLED_TAILS)
def test_a_named_tail_may_be_given_as_an_object(tail):
    settings = {"solver": "sgd", "random_state": 0, "tol": 1e9}
    by_name = SequenceTagger(tail=tail, **settings).fit(SENTENCES, TAGS)
    by_object = SequenceTagger(tail=resolve_tail(tail), **settings).fit(SENTENCES, TAGS)
    np.testing.assert_array_equal(by_name.coef_, by_object.coef_)


def test_a_tail_of_the_name_of_another_is_not_taken_for_it():
    impostor = LinearCoreTail("exp", lambda z: (1 / (1 + z), 1 / (1 + z) ** 2), curvature=2.0)
    with pytest.raises(ValueError, match="of your own"):
        SequenceTagger(solver="sgd", tail=impostor).fit(SENTENCES, TAGS)


def test_divergence_is_said():
    with pytest.raises(ValueError, match="learning_rate must be smaller"):
        SequenceTagger(solver="sgd", learning_rate=1e300, random_state=0).fit(SENTENCES, TAGS)


@pytest.mark.parametrize("parameters", [{"score_scale": 1e-300}, {"alpha": 1e300}])
def test_nothing_to_gain(parameters):
    tagger = SequenceTagger(**parameters).fit(SENTENCES, TAGS)
    assert tagger.certificates_[0].holds
    assert not tagger.coef_.any()
    assert tagger.n_iter_ == 0
    assert tagger.history_["gap"].shape == (0,)


def test_an_infinite_objective_is_not_certified(monkeypatch):
    monkeypatch.setattr(TaggingProblem, "objective_and_gap", lambda self, coefficients: (np.inf, np.inf))
    with pytest.warns(ConvergenceWarning):
        tagger = SequenceTagger().fit(SENTENCES, TAGS)
    assert not tagger.certificates_[0].holds


def test_random_state_is_checked_by_every_solver():
    with pytest.raises(TypeError, match="random_state"):
        SequenceTagger(random_state="zero").fit(SENTENCES, TAGS)
