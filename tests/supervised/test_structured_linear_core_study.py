import numpy as np
import pytest
import scipy.sparse as sp
import torch

from assay.lab import Measurement
from assay.studies.supervised import structured_linear_core as study
from assay.studies.supervised._structured_svm import StructuredSVM, _worst_labels
from assay.supervised.best_path import viterbi


def unpacked(svm):
    coefficients = svm.coefficients()
    n = svm.n_features
    return coefficients[:n], coefficients[n:-2], coefficients[-2], coefficients[-1]


def worst_path(svm, rows, target):
    """Loss-augmented Viterbi with the library's own recursion."""
    weights, transitions, start, constant = unpacked(svm)
    unary = rows @ weights + constant + 1.0
    unary[np.arange(len(target)), target] -= 1.0
    unary[0] += start
    return viterbi(unary, transitions), unary


def random_sequences(rng, n=6, length=5, n_features=7, n_labels=4):
    rows = sp.csr_array(sp.random_array((n * length, n_features), density=0.4, rng=rng, format="csr"))
    return rows, np.full(n, length), rng.integers(0, n_labels, n * length)


def test_the_svm_finds_the_worst_sequence():
    rng = np.random.default_rng(0)
    rows, lengths, target = random_sequences(rng)
    svm = StructuredSVM(7, 4, alpha=0.1, learning_rate=0.3, scale=0.8)
    for _ in range(5):
        svm.run(rows, lengths, target, rng.permutation(6))
        first, last = 10, 15
        shrink = svm.coefficients() / np.where(svm.table == 0, 1, svm.table) / 0.8
        shrink = np.where(svm.table == 0, 0, shrink).max(axis=1)
        labels = _worst_labels(
            rows.indptr, rows.indices, rows.data, first, last, target, 0.8, svm.table, shrink, 7,
            np.empty((5, 4)), np.empty(4), np.empty(4),
        )  # fmt: skip
        expected, _ = worst_path(svm, rows[first:last], target[first:last])
        np.testing.assert_array_equal(labels, expected)


def test_the_svm_takes_adagrad_steps_along_the_subgradient():
    rng = np.random.default_rng(1)
    rows, lengths, target = random_sequences(rng, n=1)
    svm = StructuredSVM(7, 4, alpha=0.0, learning_rate=0.3, scale=1.0)
    svm.run(rows, lengths, target, np.zeros(3, dtype=np.int64))
    labels, _ = worst_path(svm, rows, target)
    before, history = svm.coefficients().copy(), svm.history.copy()
    svm.run(rows, lengths, target, np.zeros(1, dtype=np.int64))
    step = before - svm.coefficients()
    # The subgradient: features, previous labels, start, constant of the worst minus those of the true sequence.
    gradient = np.zeros_like(before)
    dense = rows.toarray()
    for t in range(5):
        for label, sequence, sign in ((labels[t], labels, 1.0), (target[t], target, -1.0)):
            gradient[:7, label] += sign * dense[t]
            gradient[-1, label] += sign
            gradient[-2 if t == 0 else 7 + sequence[t - 1], label] += sign
    assert (labels != target).any()
    assert np.vdot(step, gradient) > 0
    assert set(np.flatnonzero(np.abs(step).sum(axis=1) > 1e-12)) >= set(
        np.flatnonzero(np.abs(gradient).sum(axis=1) > 1e-12)
    )
    assert (np.abs(step).max(axis=1) <= 0.3 * 5 + 1e-9).all()
    assert (svm.history >= history).all()


def hinge_and_subgradient(coefficients, rows, target, alpha):
    """The regularised structured hinge loss, one sequence of five at a time."""
    weights, transitions, start, constant = coefficients[:7], coefficients[7:-2], coefficients[-2], coefficients[-1]
    total, gradient = 0.0, np.zeros_like(coefficients)
    for first in range(0, len(target), 5):
        true, dense = target[first : first + 5], rows[first : first + 5].toarray()
        unary = dense @ weights + constant
        unary[0] += start
        wrong = np.arange(4) != true[:, None]
        worst = viterbi(unary + wrong, transitions)
        for labels, sign in ((worst, 1.0), (true, -1.0)):
            total += sign * (unary[np.arange(5), labels].sum() + transitions[labels[:-1], labels[1:]].sum())
            for t, label in enumerate(labels):
                gradient[:7, label] += sign * dense[t]
                gradient[-1, label] += sign
                gradient[-2 if t == 0 else 7 + labels[t - 1], label] += sign
        total += (worst != true).sum()
    n = len(target) / 5
    return total / n + 0.5 * alpha * (coefficients**2).sum(), gradient / n + alpha * coefficients


def test_the_svm_reaches_what_plain_subgradients_reach():
    rng = np.random.default_rng(2)
    rows, lengths, _ = random_sequences(rng, n=12)
    target = (rows @ rng.normal(size=(7, 4))).argmax(axis=1)
    svm = StructuredSVM(7, 4, alpha=1e-2, learning_rate=1.0, scale=1.0)
    for _ in range(1000):
        svm.run(rows, lengths, target, rng.permutation(12))
    plain, history, best = np.zeros((13, 4)), np.zeros((13, 1)), np.inf
    for _ in range(500):
        value, gradient = hinge_and_subgradient(plain, rows, target, 1e-2)
        best = min(best, value)
        history += (gradient**2).sum(axis=1, keepdims=True)
        plain -= 0.5 * gradient / np.sqrt(history + 1e-12)
    assert hinge_and_subgradient(svm.coefficients(), rows, target, 1e-2)[0] <= 1.05 * best


@pytest.fixture(scope="module")
def letters():
    return study.letter_task(study.english(), 30, np.random.default_rng(0))


def test_tasks(letters):
    assert letters.n_labels == 27
    assert letters.rows["train"].shape[0] == 30 * study.LENGTH
    assert letters.inputs["train"][0][0].keys() == {f"{a}+{b}" for a, b in study.CONTEXTS}
    words = study.word_task(study.english(), 50, 20, np.random.default_rng(0))
    assert words.n_labels == 50
    assert 0.2 < (words.target["train"] == 0).mean() < 0.9  # "(other)" sorts first
    assert not any(set(word) & set("aeiou") for piece in words.inputs["test"] for word in piece)
    n_features = letters.rows["test"].shape[1]
    coefficients = np.zeros((n_features + 27 + 2, 27))
    coefficients[-1, 0] = 1.0
    assert letters.accuracy("test", coefficients) == (letters.target["test"] == 0).mean()


def test_contenders_learn_something(letters):
    descent, run = study.new_descent(letters, 1e-4, 1.0)
    svm = study.new_svm(letters, 1e-4, 0.1)
    rng = np.random.default_rng(0)
    for _ in range(10):
        run(np.arange(30), rng)
        svm.run(letters.rows["train"], letters.lengths["train"], letters.target["train"], np.arange(30))
    common = np.bincount(letters.target["test"]).max() / len(letters.target["test"])
    assert letters.accuracy("test", descent.coefficients()) > common + 0.2
    assert letters.accuracy("test", svm.coefficients()) > common + 0.2


def test_layers_have_gradients():
    for name, layer in study.torch_layers(6, 2, seed=0).items():
        gradients = layer()
        assert all(torch.isfinite(g).all() for g in gradients), name
        assert any(g.abs().max() > 0 for g in gradients), name


def test_training_in_passes_and_choosing():
    seen = []
    seconds, looks = study.train_in_passes(seen.append, 4, (1, 3), np.random.default_rng(0), lambda: len(seen))
    assert looks == [1, 3]
    assert len(seconds) == 2
    assert all(sorted(order) == [0, 1, 2, 3] for order in seen)
    assert study.best_setting((3, 5, 4), 3, lambda s: s) == 5
    assert study.best_setting((3, 5, 4), 1, lambda s: s) == 3


def test_every_claim_names_a_contender_and_sizes_are_complete():
    names = {contender.name for contender in study.StructuredLinearCoreStudy.contenders}
    assert {claim.contender for claim in study.StructuredLinearCoreStudy.claims} <= names
    sizes = study.StructuredLinearCoreStudy.sizes
    assert set(sizes["quick"]) == set(sizes["full"])


def test_the_speed_up_of_the_paper_is_asked_for_at_one_number_of_labels():
    # It grows with the number of labels: the largest of several sizes would reach any number.
    claims = [c for c in study.StructuredLinearCoreStudy.claims if "speedup" in c.metric]
    assert {c.case for c in claims} == {"500 labels"}
    assert any(c.number >= 23 and c.source.startswith("paper") for c in claims)
    for size in study.StructuredLinearCoreStudy.sizes.values():
        assert 500 in size["timed_labels"]


def test_steps_are_timed():
    measurement = Measurement()
    tasks = [study.word_task(study.english(), k, 110, np.random.default_rng(0)) for k in (20, 40)]
    study.time_steps(measurement, tasks, np.random.default_rng(0))
    metrics = {scalar.metric for scalar in measurement.scalars}
    assert {"speedup", "svm_time_exponent", "sampled_time_exponent", "layer_speedup_sampled"} <= metrics
    assert all(scalar.value > 0 for scalar in measurement.scalars if "seconds" in scalar.metric)
