import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.supervised.best_path import _tensor_viterbi, viterbi
from assay.supervised.linear_core import LinearCoreTail, linear_core, linear_core_conjugate
from assay.supervised.structured_consistency import (
    least_conditional_risk,
    structured_certificates,
    structured_consistency_certificate,
)
from assay.supervised.structured_linear_core import StructuredLinearCore

TAILS = ("exp", "quad", "gamma", "smoothstep")
COST = [[0.0, 1.0, 0.2], [0.3, 0.0, 1.0], [1.0, 0.4, 0.0]]


def instance(seed=0, batch=2, positions=4, labels=3, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    unary = scale * torch.randn(batch, positions, labels, generator=g, dtype=torch.float64)
    transitions = scale * torch.randn(labels, labels, generator=g, dtype=torch.float64)
    target = torch.randint(labels, (batch, positions), generator=g)
    return unary, transitions, target


def whole_sequence_loss(unary, transitions, target, cost, phi):
    """The definition, one sequence at a time, for one unmasked sentence."""
    n_positions, n_labels = unary.shape
    sequences = list(itertools.product(range(n_labels), repeat=n_positions))
    scores = [
        sum(unary[t, k] for t, k in enumerate(y)) + sum(transitions[a, b] for a, b in itertools.pairwise(y))
        for y in sequences
    ]
    centre = sum(scores) / len(scores)
    total = 0.0
    for y, score in zip(sequences, scores, strict=True):
        total = total + np.mean([cost[a][b] for a, b in zip(target, y, strict=True)]) * phi(-(score - centre))
    return total / len(sequences)


def positionwise_loss(unary, transitions, target, cost, phi):
    total = 0.0
    for t in range(len(target)):
        scores = unary[t] + (transitions[target[t - 1]] if t else 0.0)
        centred = scores - scores.mean()
        total = total + sum(cost[target[t]][k] * phi(-centred[k]) for k in range(len(centred)))
    return total


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("cost", ["hamming", COST])
@pytest.mark.parametrize(("sampler", "plain"), [("uniform", whole_sequence_loss), ("positionwise", positionwise_loss)])
def test_agrees_with_the_definition(sampler, plain, cost, tail):
    unary, transitions, target = instance()
    loss = StructuredLinearCore(3, cost=cost, sampler=sampler, n_samples=None, tail=tail, score_scale=1.5)
    matrix = 1.0 - np.eye(3) if cost == "hamming" else np.array(cost)
    expected = [
        plain(
            unary[b].numpy(), transitions.numpy(), target[b].tolist(), matrix, lambda t: linear_core(1.5 * t, tail=tail)
        )
        for b in range(2)
    ]
    unreduced = copy.copy(loss)
    unreduced.reduction = "none"
    np.testing.assert_allclose(unreduced(unary, transitions, target).numpy(), expected, rtol=1e-12)
    assert loss(unary, transitions, target).item() == pytest.approx(np.mean(expected), rel=1e-12)
    loss.reduction = "sum"
    assert loss(unary, transitions, target).item() == pytest.approx(np.sum(expected), rel=1e-12)


def test_mean_score_of_all_sequences_is_the_centre():
    unary, transitions, target = instance(batch=1, positions=3)
    loss = StructuredLinearCore(3, n_samples=None)
    chain = loss.check(unary, transitions, target, None)
    scores, _ = loss.scores_and_weights(chain, loss.draw(chain))
    assert scores.shape == (1, 27)
    assert abs(scores.mean().item()) <= 1e-14


def test_zero_scores():
    # Phi(0) = tau + sigma psi(0) = 1, and 3 of 4 positions of a random binary sequence are wrong on average... half.
    zeros = torch.zeros(1, 4, 2, dtype=torch.float64)
    target = torch.tensor([[0, 1, 1, 0]])
    assert StructuredLinearCore(2, n_samples=None)(zeros, None, target).item() == pytest.approx(0.5)
    positionwise = StructuredLinearCore(2, sampler="positionwise", n_samples=None)
    assert positionwise(zeros, None, target).item() == pytest.approx(4.0)


def test_two_labels_at_one_position_is_the_binary_loss():
    unary = torch.tensor([[[0.4, -1.0]]], dtype=torch.float64)
    loss = StructuredLinearCore(2, sampler="positionwise", n_samples=None)
    expected = linear_core([0.7])  # (h_y - h_other) / 2
    assert loss(unary, None, torch.tensor([[0]])).item() == pytest.approx(expected[0])


@pytest.mark.parametrize("sampler", ["uniform", "positionwise"])
def test_mask_is_the_same_as_cutting(sampler):
    unary, transitions, target = instance(batch=3, positions=5)
    loss = StructuredLinearCore(3, sampler=sampler, n_samples=None, reduction="none")
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)
    padded = unary.masked_fill(~mask[..., None], math.nan)
    cut = [loss(unary[b : b + 1, :n], transitions, target[b : b + 1, :n]).item() for b, n in enumerate((3, 5, 1))]
    padded.requires_grad_()
    masked = loss(padded, transitions, target.masked_fill(~mask, -100), mask)
    np.testing.assert_allclose(masked.detach().numpy(), cut, rtol=1e-12)
    (gradient,) = torch.autograd.grad(masked.sum(), padded)
    assert torch.isfinite(gradient).all()
    assert (gradient[~mask] == 0).all()


def test_a_gap_in_the_mask_breaks_the_chain():
    unary, transitions, target = instance(batch=1, positions=3)
    mask = torch.tensor([[True, False, True]])
    for sampler in ("uniform", "positionwise"):
        loss = StructuredLinearCore(3, sampler=sampler, n_samples=None)
        without = loss(unary[:, [0, 2]], None, target[:, [0, 2]])
        torch.testing.assert_close(loss(unary, transitions, target, mask), without)


# Unbiasedness ------------------------------------------------------------------------------------------------


def gradient(loss, unary, transitions, target, labels=None):
    leaves = unary.clone().requires_grad_(), transitions.clone().requires_grad_()
    chain = loss.check(*leaves, target, None)
    value = loss.evaluate(chain, loss.draw(chain) if labels is None else labels).sum()
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, leaves)])


def test_one_sample_is_unbiased_over_all_sequences():
    unary, transitions, target = instance(batch=1)
    exact = gradient(StructuredLinearCore(3, n_samples=None), unary, transitions, target)
    one = StructuredLinearCore(3, n_samples=1)
    every = [
        gradient(one, unary, transitions, target, torch.tensor(y)[None, :, None])
        for y in itertools.product(range(3), repeat=4)
    ]
    torch.testing.assert_close(torch.stack(every).mean(dim=0), exact, rtol=1e-12, atol=1e-14)
    assert torch.stack(every).std(dim=0).max() > 0.01  # a single sample is not exact


def test_one_wrong_label_is_unbiased_over_all_wrong_labels():
    unary, transitions, target = instance(batch=1, positions=3)
    exact = gradient(StructuredLinearCore(3, sampler="positionwise", n_samples=None), unary, transitions, target)
    one = StructuredLinearCore(3, sampler="positionwise", n_samples=1)
    wrong = [[k for k in range(3) if k != y] for y in target[0].tolist()]
    every = [
        gradient(one, unary, transitions, target, torch.tensor(labels)[None, :, None])
        for labels in itertools.product(*wrong)
    ]
    torch.testing.assert_close(torch.stack(every).mean(dim=0), exact, rtol=1e-12, atol=1e-14)


def test_draws_are_uniform_and_never_right():
    unary, transitions, target = instance(batch=1, positions=2)
    generator = torch.Generator().manual_seed(1)
    loss = StructuredLinearCore(3, sampler="positionwise", n_samples=20000, generator=generator)
    labels = loss.draw(loss.check(unary, transitions, target, None))
    for t in range(2):
        counts = torch.bincount(labels[0, t], minlength=3)
        assert counts[target[0, t]] == 0
        assert abs(counts.max().item() - 10000) < 5 * math.sqrt(5000)
    loss = StructuredLinearCore(3, n_samples=27000, generator=generator)
    labels = loss.draw(loss.check(unary, transitions, target, None))
    counts = torch.bincount(labels[0, 0] * 3 + labels[0, 1], minlength=9)
    assert (counts - 3000).abs().max() < 5 * math.sqrt(3000)


def test_two_labels_leave_one_wrong_one_so_that_sampling_is_exact():
    unary, transitions, target = instance(labels=2)
    sampled = StructuredLinearCore(2, sampler="positionwise", n_samples=3)
    exact = StructuredLinearCore(2, sampler="positionwise", n_samples=None)
    torch.testing.assert_close(sampled(unary, transitions, target), exact(unary, transitions, target))


def test_the_generator_decides():
    arguments = instance()
    values = [
        StructuredLinearCore(3, generator=torch.Generator().manual_seed(seed))(*arguments).item() for seed in (5, 5, 6)
    ]
    assert values[0] == values[1] != values[2]
    state = torch.random.get_rng_state()
    StructuredLinearCore(3)(*arguments)
    assert torch.equal(state, torch.random.get_rng_state())


# Derivatives, precision, convexity ---------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["uniform", "positionwise"])
@pytest.mark.parametrize("tail", ["gamma", "smoothstep"])
def test_double_backward(sampler, tail):
    unary, transitions, target = instance(batch=1, positions=3, scale=0.5)
    loss = StructuredLinearCore(3, sampler=sampler, n_samples=None, tail=tail)
    leaves = unary.requires_grad_(), transitions.requires_grad_()
    assert torch.autograd.gradcheck(lambda u, a: loss(u, a, target), leaves)
    assert torch.autograd.gradgradcheck(lambda u, a: loss(u, a, target), leaves)


@pytest.mark.parametrize("sampler", ["uniform", "positionwise"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_scores(sampler, dtype):
    unary, transitions, target = instance(positions=4)
    unary, transitions = unary.to(dtype), transitions.to(dtype)
    loss = StructuredLinearCore(3, sampler=sampler, n_samples=None)
    value = loss(unary.requires_grad_(), transitions, target)
    assert value.dtype == torch.float32
    exact = loss(unary.detach().double(), transitions.double(), target)
    assert value.item() == pytest.approx(exact.item(), rel=1e-5)
    value.backward()
    assert unary.grad.dtype == dtype
    assert torch.isfinite(unary.grad).all()


def test_autocast():
    unary, transitions, target = instance()
    loss = StructuredLinearCore(3, n_samples=None)
    expected = loss(unary.float(), transitions.float(), target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(unary.float(), transitions.float(), target)
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("size", [1e8, 1e-8])
def test_huge_and_tiny_scores(size):
    unary, transitions, target = instance(scale=size)
    for sampler in ("uniform", "positionwise"):
        loss = StructuredLinearCore(3, sampler=sampler, n_samples=None)
        value = loss(unary.requires_grad_(), transitions, target)
        (grad,) = torch.autograd.grad(value, unary)
        assert torch.isfinite(value)
        assert torch.isfinite(grad).all()


@given(seed=st.integers(0, 10**6), size=st.floats(0.1, 30.0), sampler=st.sampled_from(["uniform", "positionwise"]))
@settings(max_examples=30, deadline=None)
def test_convex_and_invariant_under_shifts(seed, size, sampler):
    unary, transitions, target = instance(seed, positions=3, scale=size)
    other, step, _ = instance(seed + 1, positions=3, scale=size)
    loss = StructuredLinearCore(3, sampler=sampler, n_samples=None)
    ends = loss(unary, transitions, target) + loss(other, step, target)
    middle = loss((unary + other) / 2, (transitions + step) / 2, target)
    assert middle <= ends / 2 * (1 + 1e-12)
    shifted = loss(unary + torch.arange(3.0).double()[None, :, None], transitions + 7.0, target)
    torch.testing.assert_close(shifted, loss(unary, transitions, target), rtol=1e-10, atol=1e-12)


def test_the_gradient_trains_a_model():
    generator = torch.Generator().manual_seed(0)
    unary, transitions, target = instance(seed=3, batch=8, positions=5, labels=4)
    unary, transitions = torch.zeros_like(unary).requires_grad_(), torch.zeros_like(transitions).requires_grad_()
    loss = StructuredLinearCore(4, sampler="positionwise", n_samples=2, generator=generator)
    optimizer = torch.optim.Adam([unary, transitions], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss(unary, transitions, target).backward()
        optimizer.step()
    assert torch.equal(loss.decode(unary, transitions), target)


def test_decode_takes_rows_centred():
    unary = torch.zeros(1, 2, 2)
    unary[0, 0, 0] = 1.0
    shifted = torch.tensor([[0.0, 0.0], [9.0, 9.0]])  # invisible to the position-wise loss
    assert StructuredLinearCore(2, sampler="positionwise").decode(unary, shifted).tolist() == [[0, 0]]
    assert StructuredLinearCore(2, sampler="uniform").decode(unary, shifted).tolist() == [[1, 0]]


def test_module_contract():
    loss = StructuredLinearCore(3, cost=COST)
    loss(*instance())
    twin = copy.deepcopy(loss)
    again = pickle.loads(pickle.dumps(loss))
    assert "sampler='uniform'" in repr(loss)
    assert set(loss.state_dict()) == {"cost"}
    assert twin(*instance()).item() == again(*instance()).item()


def test_own_tail():
    tail = LinearCoreTail("algebraic", lambda z: (1 / (1 + z), 1 / (1 + z) ** 2), curvature=2.0)
    loss = StructuredLinearCore(3, tail=tail, n_samples=None)
    assert all(c.holds for c in structured_certificates(loss, *instance(), rng=0))
    assert "algebraic" in repr(loss)


# Certificates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["uniform", "positionwise"])
@pytest.mark.parametrize("tail", TAILS)
def test_certificates_hold(sampler, tail):
    loss = StructuredLinearCore(3, sampler=sampler, tail=tail, n_samples=4, score_scale=2.0)
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    certificates = structured_certificates(loss, *instance(), mask, n_draws=60, rng=0)
    assert len(certificates) == 3
    assert all(c.holds for c in certificates)
    assert certificates[1].value > 0.0


def test_the_certificate_sees_a_biased_sampler():
    class Biased(StructuredLinearCore):
        def draw(self, chain):
            labels = super().draw(chain)
            return labels if self.n_samples is None else torch.where(labels == 1, 2, labels)

    certificates = structured_certificates(Biased(3), *instance(), n_draws=200, rng=0)
    assert [c.holds for c in certificates] == [True, True, False]


def test_the_certificate_sees_a_kink():
    class Hinge(StructuredLinearCore):
        def evaluate(self, chain, labels):
            scores, weights = self.scores_and_weights(chain, labels)
            return (weights * torch.relu(1.0 + scores)).flatten(1).sum(dim=1)

    loss = Hinge(3, sampler="positionwise", sigma=3.0)
    convex, smooth, unbiased = structured_certificates(loss, *instance(scale=0.3), rng=0)
    assert convex.holds
    assert unbiased.holds
    assert not smooth.holds


def test_too_many_sequences_leave_unbiasedness_out():
    certificates = structured_certificates(StructuredLinearCore(9), *instance(labels=9, positions=5), rng=0)
    assert len(certificates) == 2
    assert len(structured_certificates(StructuredLinearCore(3, n_samples=None), *instance(), rng=0)) == 2


@pytest.mark.parametrize("tail", TAILS)
def test_least_conditional_risk(tail):
    rng = np.random.default_rng(0)
    costs = rng.random((50, 6))
    least = least_conditional_risk(costs, tail=tail)
    # Weak duality: the conjugate at the balanced slopes bounds the risk from below.
    dual = -(costs * linear_core_conjugate(costs.min(axis=1, keepdims=True) / costs, tail=tail)).sum(axis=1)
    np.testing.assert_allclose(least, dual, rtol=1e-9)
    for _ in range(100):
        scores = 3.0 * rng.normal(size=costs.shape)
        scores -= scores.mean(axis=1, keepdims=True)
        assert ((costs * linear_core(-scores, tail=tail)).sum(axis=1) >= least - 1e-12).all()


def test_least_conditional_risk_known_values():
    p = np.array([[0.5, 0.3, 0.2]])
    assert least_conditional_risk(1.0 - p)[0] == pytest.approx(1.6209713799, abs=1e-10)
    assert least_conditional_risk(np.array([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])) == pytest.approx([0.0, 0.0], abs=1e-12)
    assert np.isfinite(least_conditional_risk(np.zeros((1, 3))))


@pytest.mark.parametrize("sampler", ["uniform", "positionwise"])
@pytest.mark.parametrize("cost", ["hamming", COST])
def test_consistency_bound_on_random_laws(sampler, cost):
    rng = np.random.default_rng(1)
    loss = StructuredLinearCore(3, sampler=sampler, cost=cost, tau=0.5, sigma=0.5, score_scale=1.3)
    nontrivial = 0
    for _ in range(40):
        law = rng.dirichlet(np.full(27, 0.1))
        certificate = structured_consistency_certificate(
            loss, 2 * rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), law.reshape(3, 3, 3)
        )
        assert certificate.holds
        nontrivial += certificate.value > 0.05
    assert nontrivial > 20


def test_measured_constant_for_eight_sequences():
    # The guaranteed ratio of surrogate gap to target gap is tau / 8 = .0875; on random laws it is far better.
    rng = np.random.default_rng(0)
    loss = StructuredLinearCore(2)
    ratios = []
    for _ in range(40):
        law = rng.dirichlet(np.ones(8))
        for _ in range(10):
            c = structured_consistency_certificate(loss, rng.normal(size=(3, 2)), rng.normal(size=(2, 2)), law)
            if c.value > 1e-3:
                ratios.append(c.bound * 0.7 / 8 / c.value)
    assert min(ratios) > 0.7 / 8
    assert min(ratios) > 0.2


def test_consistency_at_the_minimiser_and_deterministic_law():
    law = np.zeros(9)
    law[4] = 1.0  # both positions are label 1
    scores = np.tile([-40.0, 80.0, -40.0], (2, 1))
    for sampler in ("uniform", "positionwise"):
        certificate = structured_consistency_certificate(StructuredLinearCore(3, sampler=sampler), scores, None, law)
        assert certificate.holds
        assert certificate.value == 0.0
        assert certificate.assumptions
    # At the least positionwise risk the bound is 0 and the prediction is the best one.
    p = np.array([0.5, 0.3, 0.2])
    h = np.array([0.0, *(-(0.7 + 0.3 * np.log((1 - p[1:]) / (1 - p[0]))))])
    h[0] = -h.sum()
    c = structured_consistency_certificate(StructuredLinearCore(3, sampler="positionwise"), h[None], None, p)
    assert c.value == 0.0
    assert c.bound <= 1e-10


# Viterbi -----------------------------------------------------------------------------------------------------


def best_by_enumeration(unary, transitions, mask):
    n_positions, n_labels = unary.shape

    def total(y):
        pairs = [transitions[y[t], y[t + 1]] for t in range(n_positions - 1) if mask[t] and mask[t + 1]]
        return sum(unary[t, y[t]] for t in range(n_positions) if mask[t]) + sum(pairs)

    return np.where(mask, max(itertools.product(range(n_labels), repeat=n_positions), key=total), -1)


@given(seed=st.integers(0, 10**6), positions=st.integers(1, 5), labels=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_viterbi_is_the_best_of_all(seed, positions, labels):
    rng = np.random.default_rng(seed)
    unary, transitions = rng.normal(size=(2, positions, labels)), rng.normal(size=(labels, labels))
    mask = rng.random((2, positions)) < 0.8
    expected = np.stack([best_by_enumeration(u, transitions, m) for u, m in zip(unary, mask, strict=True)])
    np.testing.assert_array_equal(viterbi(unary, transitions, mask), expected)
    tensors = torch.tensor(unary), torch.tensor(transitions), torch.tensor(mask)
    np.testing.assert_array_equal(_tensor_viterbi(*tensors).numpy(), expected)
    np.testing.assert_array_equal(viterbi(unary[0], transitions), viterbi(unary[:1], transitions)[0])


def test_viterbi_without_transitions_is_argmax():
    unary = np.random.default_rng(0).normal(size=(3, 4, 5))
    np.testing.assert_array_equal(viterbi(unary), unary.argmax(axis=2))
    np.testing.assert_array_equal(viterbi(unary, np.zeros((5, 5))), unary.argmax(axis=2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float32, torch.float64])
def test_viterbi_of_tensors(dtype):
    unary = torch.tensor([[2, 0], [0, 1], [2, 0]]).to(dtype)
    labels = viterbi(unary, torch.eye(2) * 5)
    assert isinstance(labels, torch.Tensor)
    assert labels.tolist() == [0, 0, 0]
    assert viterbi(unary.tolist(), [[0, 0], [0, 0]]).tolist() == [0, 1, 0]


def test_viterbi_leaves_its_arguments_alone():
    unary, transitions = np.ones((2, 3)), np.ones((3, 3))
    viterbi(unary, transitions, np.array([True, False]))
    assert (unary == 1).all()
    assert (transitions == 1).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0],), ValueError, "unary must be a finite 2-D or 3-D array"),
        ((np.ones((0, 3)),), ValueError, "unary"),
        (([[np.nan, 1.0]],), ValueError, "unary"),
        ((np.ones((2, 3)), np.ones((2, 2))), ValueError, r"transitions must have .* \(3, 3\), got \(2, 2\)"),
        ((np.ones((2, 3)), np.full((3, 3), np.inf)), ValueError, "transitions"),
        ((np.ones((2, 3)), None, [1, 0]), TypeError, "mask must be an array of bool"),
        ((np.ones((2, 3)), None, [True]), ValueError, "mask must have the shape"),
        (([["a", "b"]],), TypeError, "unary"),
    ],
)
def test_viterbi_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        viterbi(*arguments)


# Bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"n_labels": 1}, ValueError, "n_labels must be at least 2"),
        ({"n_labels": 2.0}, TypeError, "n_labels"),
        ({"tau": 0.0}, ValueError, "tau must be greater than 0"),
        ({"sigma": -1.0}, ValueError, "sigma must be greater than 0"),
        ({"tail": "cubic"}, ValueError, "tail must be one of"),
        ({"sampler": "gibbs"}, ValueError, "sampler must be one of"),
        ({"n_samples": 0}, ValueError, "n_samples must be at least 1"),
        ({"score_scale": 0.0}, ValueError, "score_scale must be greater than 0"),
        ({"reduction": "median"}, ValueError, "reduction must be one of"),
        ({"cost": "edit"}, ValueError, "cost must be one of"),
        ({"cost": np.ones((3, 3))}, ValueError, "cost must have entries in .* zeros on its diagonal"),
        ({"cost": 2 - 2 * np.eye(3)}, ValueError, "cost must have entries"),
        ({"cost": np.zeros((2, 2))}, ValueError, r"cost must be of shape \(3, 3\)"),
        ({"generator": 0}, TypeError, "generator"),
    ],
)
def test_bad_parameters(parameters, error, message):
    with pytest.raises(error, match=message):
        StructuredLinearCore(**{"n_labels": 3, **parameters})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"unary": torch.zeros(2, 4, 2)}, ValueError, r"unary must be of shape \(batch, positions, 3\)"),
        ({"unary": torch.zeros(2, 0, 3)}, ValueError, "not empty"),
        ({"unary": torch.zeros(2, 4, 3, dtype=torch.long)}, TypeError, "floating-point"),
        ({"unary": np.zeros((2, 4, 3))}, TypeError, "unary"),
        ({"unary": torch.full((2, 4, 3), math.nan)}, ValueError, "must be finite"),
        ({"unary": torch.full((2, 4, 3), -math.inf)}, ValueError, "must be finite"),
        ({"transitions": torch.zeros(3, 2)}, ValueError, r"transitions must be of shape \(3, 3\)"),
        ({"target": torch.zeros(2, 4)}, TypeError, "target must be a tensor of integers"),
        ({"target": torch.zeros(2, 3, dtype=torch.long)}, ValueError, r"target must be of shape \(2, 4\)"),
        ({"target": torch.full((2, 4), 3)}, ValueError, "target must have labels from 0 to 2"),
        ({"target": torch.full((2, 4), -100)}, ValueError, "target must have labels from 0 to 2"),
        ({"mask": torch.zeros(2, 4, dtype=torch.bool)}, ValueError, "mask must leave every sequence"),
        ({"mask": torch.ones(2, 4)}, TypeError, "mask must be a tensor of bool"),
        ({"mask": torch.ones(4, dtype=torch.bool)}, ValueError, r"mask must be of shape \(2, 4\)"),
    ],
)
@pytest.mark.parametrize("sampler", ["uniform", "positionwise"])
def test_bad_arguments(sampler, change, error, message):
    unary, transitions, target = instance()
    arguments = {"unary": unary, "transitions": transitions, "target": target, "mask": None, **change}
    with pytest.raises(error, match=message):
        StructuredLinearCore(3, sampler=sampler)(**arguments)


def test_too_many_sequences_to_enumerate():
    with pytest.raises(ValueError, match=r"n_samples must be given for 9\^5 label sequences"):
        StructuredLinearCore(9, n_samples=None)(*instance(labels=9, positions=5))


@pytest.mark.parametrize(
    ("unary", "transitions", "law", "message"),
    [
        (np.zeros((2, 2)), None, np.full(4, 0.25), "unary must be of shape"),
        (np.zeros((8, 3)), None, [1.0], "law must be over at most 4096 sequences"),
        (np.zeros((2, 3)), np.zeros((2, 2)), np.full(9, 1 / 9), "transitions must be of shape"),
        (np.zeros((2, 3)), None, np.full(8, 1 / 8), "law must have length 9"),
        (np.zeros((2, 3)), None, np.full((3, 3), 1 / 8), "law must sum to 1"),
    ],
)
def test_bad_laws(unary, transitions, law, message):
    with pytest.raises(ValueError, match=message):
        structured_consistency_certificate(StructuredLinearCore(3), unary, transitions, law)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device():
    unary, transitions, target = instance()
    on_device = [tensor.cuda() for tensor in (unary, transitions, target)]
    for sampler in ("uniform", "positionwise"):
        exact = StructuredLinearCore(3, sampler=sampler, n_samples=None)
        torch.testing.assert_close(exact(*on_device).cpu(), exact(unary, transitions, target))
        assert torch.isfinite(StructuredLinearCore(3, sampler=sampler)(*on_device))
        assert torch.equal(exact.decode(*on_device[:2]).cpu(), exact.decode(unary, transitions))


@pytest.mark.parametrize("n_draws", [2, 3, 5, 10, 30])
@pytest.mark.parametrize("sampler", ["uniform", "positionwise"])
def test_few_draws_raise_no_false_alarm(sampler, n_draws):
    unary, transitions, target = instance()
    loss = StructuredLinearCore(3, sampler=sampler)
    for seed in range(4):
        certificates = structured_certificates(loss, unary, transitions, target, n_draws=n_draws, rng=seed)
        assert certificates[-1].holds


def test_deviation_is_a_normal_one_of_the_same_probability():
    unary, transitions, target = instance()
    loss = StructuredLinearCore(3, sampler="positionwise")
    few, many = (
        structured_certificates(loss, unary, transitions, target, n_draws=n, rng=0)[-1].value for n in (2, 400)
    )
    assert 0.0 < few < 4.0
    assert 0.0 < many < 4.0


@pytest.mark.parametrize("sampler", ["uniform", "positionwise"])
@pytest.mark.parametrize("settings", [{"sigma": 1e-300}, {"tau": 1e300}, {"score_scale": 1e-300}])
def test_settings_outside_the_range_of_the_scores(sampler, settings):
    unary, transitions, target = instance()
    (name,) = settings
    loss = StructuredLinearCore(3, sampler=sampler, **settings)
    with pytest.raises(ValueError, match=f"{name} must be between .* for scores in torch.float32"):
        loss(unary.float(), transitions.float(), target)
    assert torch.isfinite(loss(unary, transitions, target))


@pytest.mark.parametrize("sampler", ["uniform", "positionwise"])
@pytest.mark.parametrize("offset", [0.0, 1e6, 1e9])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_minimisers_with_an_offset_keep_the_bound(sampler, offset, scale):
    rng = np.random.default_rng(0)
    loss = StructuredLinearCore(4, sampler=sampler, score_scale=scale)
    for law in rng.dirichlet(np.ones(4), 20):
        scores = -(0.7 + 0.3 * np.log((1 - law) / (1 - law.max())))
        scores[law.argmax()] = 0.0
        scores[law.argmax()] = -scores.sum()
        assert structured_consistency_certificate(loss, scores[None] / scale + offset, None, law).holds


def test_arguments_of_certificates_are_checked():
    unary, transitions, target = instance()
    loss = StructuredLinearCore(3)
    with pytest.raises(TypeError, match="loss"):
        structured_certificates(None, unary, transitions, target)
    with pytest.raises(TypeError, match="unary"):
        structured_certificates(loss, unary.numpy(), transitions, target)
    with pytest.raises(TypeError, match="transitions"):
        structured_certificates(loss, unary, transitions.numpy(), target)
    with pytest.raises(TypeError, match="loss"):
        structured_consistency_certificate(None, unary[0], transitions, np.full(81, 1 / 81))
