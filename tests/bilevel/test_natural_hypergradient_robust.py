"""Natural hypergradients where things go wrong: what users pass in, change, copy, interrupt, and resume."""

import copy
import io
import math
import pickle
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from assay.bilevel.hypergradient_descent import NHGD
from assay.bilevel.hypergradient_methods import hypergradient
from assay.bilevel.natural_hypergradient import NaturalHypergradient
from assay.validation import ConvergenceWarning

D = torch.float64
KINDS = ("smoothed", "average", "window", "kfac")


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def square_loss(theta, v, batch):
    x, y = batch
    return 0.5 * (x @ theta - y - x @ v) ** 2


def distance(theta, v, _):
    return 0.5 * theta.square().sum()


def linear(**options):
    settings = {"outer_params": torch.zeros(4, dtype=D), "burn_in": 0} | options
    return NaturalHypergradient(draw(4).requires_grad_(), square_loss, distance, **settings)


def batch_of(count=20, seed=1):
    return draw(count, 4, seed=seed), draw(count, seed=seed + 1)


def zero_layer(kind=torch.nn.Linear, bias=True, inputs=6):
    net = kind(inputs, 3, bias=bias).to(D)
    for parameter in net.parameters():
        torch.nn.init.zeros_(parameter)
    return net


def classifier(net, *, around=0.0, inputs=6, **options):
    """Thirty samples with weights; ``around`` is a penalty that the loss has on parameters directly."""
    x, y = draw(30, inputs, seed=3), torch.arange(30) % 3
    v = torch.zeros(30, dtype=D, requires_grad=True)

    def loss(theta, v, index):
        losses = cross_entropy(functional_call(net, theta, (x[index],)), y[index], reduction="none")
        return losses + around * sum(p.square().sum() for p in theta.values()) if around else losses

    def outer(theta, v, _):
        return cross_entropy(functional_call(net, theta, (x,)), y.flip(0))

    settings = {"outer_params": v, "sample_weight": lambda v, index: torch.sigmoid(v[index]), "burn_in": 0} | options
    return NaturalHypergradient(net, loss, outer, **settings)


# --------------------------------------------------------------------------------- scores that are not of the loss
class Cubed(torch.nn.Linear):
    """A layer that uses its weight in a way of its own, and like any other where it is zero."""

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight + self.weight**3, self.bias)


@pytest.mark.parametrize(("kind", "around"), [(torch.nn.Linear, 0.5), (Cubed, 0.0)])
def test_a_loss_around_the_layers_is_seen_where_its_gradient_is_zero(kind, around):
    """At zero weights a penalty has no gradient, and a later one would be missed."""
    net = zero_layer(kind)
    hyper = classifier(net, around=around)
    index = torch.arange(30)
    hyper.inner_step(index)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(draw(*parameter.shape, seed=5))
    hyper.inner_step(index)
    expected = hyper.problem.inner_gradient(hyper.problem.inner.leaves(), hyper.problem.outer.detached(), index)
    torch.testing.assert_close(torch.cat([p.grad.reshape(-1) for p in net.parameters()]), expected)
    with pytest.raises(TypeError, match=r"functional_call|not a parameter of a Linear"):
        classifier(zero_layer(kind), around=around, fisher="kfac").inner_step(index)


def test_a_hook_that_changes_a_layer_is_seen():
    net = zero_layer()
    net.register_forward_hook(lambda layer, inputs, output: 2 * output)
    with pytest.raises(TypeError, match="functional_call"):
        classifier(net, fisher="kfac").inner_step(torch.arange(30))


def test_gradients_that_cancel_are_no_disagreement():
    """At a minimum the gradient is rounding only."""
    x = torch.zeros(6, 2, dtype=D)
    net = zero_layer(inputs=2)
    hyper = NaturalHypergradient(
        net,
        lambda theta, v, i: cross_entropy(functional_call(net, theta, (x[i],)), i % 3, reduction="none"),
        lambda theta, v, _: theta["bias"].square().sum() + theta["weight"].sum(),
        outer_params=torch.zeros(6, dtype=D), sample_weight=lambda v, i: torch.sigmoid(v[i]), fisher="kfac",
    )  # fmt: skip
    assert hyper.inner_step(torch.arange(6)) == pytest.approx(0.5 * math.log(3))


@pytest.mark.parametrize("fisher", KINDS)
def test_a_first_batch_that_is_not_finite(fisher):
    net = zero_layer()
    hyper = classifier(net, fisher=fisher, sample_weight=lambda v, i: torch.full((len(i),), math.nan, dtype=D))
    with pytest.raises(ValueError, match=r"scores must be finite, .* in inner step 1"):
        hyper.inner_step(torch.arange(30))


def test_scores_that_cannot_be_squared():
    x, y = batch_of()
    for fisher in ("smoothed", "average", "window"):
        hyper = linear(fisher=fisher)
        with pytest.raises(ValueError, match=r"squares that are finite in torch.float64, .* inner step 1; scale"):
            hyper.inner_step((x * 1e100, y))
        assert hyper.n_samples == 0
        with pytest.raises(ValueError, match="squares that are finite"):
            hyper.observe(torch.full((1, 4), 1e200, dtype=D))


def test_a_kept_inverse_that_loses_its_sign():
    theta = torch.ones(4, requires_grad=True)
    hyper = NaturalHypergradient(theta, square_loss, distance, outer_params=torch.zeros(4), fisher="average", burn_in=0)
    x, y = (part.float() * 1e4 for part in batch_of())

    def descend():
        for _ in range(50):
            hyper.inner_step((x, y))

    with pytest.raises(ValueError, match=r"inverse kept by fisher='average' loses its sign in torch.float32"):
        descend()


# ------------------------------------------------------------------------------------------- derivatives not finite
@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_an_outer_loss_that_is_not_finite_changes_nothing(factor):
    net = zero_layer()
    hyper = classifier(net)
    hyper.problem._outer_loss = lambda theta, v, _: factor * theta["weight"].sum()
    (v,) = hyper.problem.outer.tensors
    train = NHGD(hyper, torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD([v], lr=0.1), inner_steps=1)
    with pytest.raises(ValueError, match="outer_loss must be finite with finite gradients"):
        train.step([torch.arange(30)])
    assert torch.equal(v.detach(), torch.zeros(30, dtype=D))


@pytest.mark.parametrize("method", ["nhgd", "cg", "neumann", "unroll", "exact"])
def test_values_that_no_method_takes(method):
    x, y = batch_of()
    theta, v = draw(4), torch.zeros(4, dtype=D)
    options = {"method": method, "step_size": 0.1}
    for changed, message in (
        ({"inner_params": math.nan * theta}, "inner_params must be finite"),
        ({"outer_params": math.inf + v}, "outer_params must be finite"),
        ({"inner_batch": (math.nan * x, y)}, "finite"),
        ({"sample_weight": lambda v, b: -torch.ones(20, dtype=D)}, "sample_weight must be finite and at least 0"),
        ({"ridge": lambda v: v - 1.0}, "ridge must be finite and at least 0, got entries from -1 to -1"),
    ):
        arguments = {"inner_params": theta, "outer_params": v, "inner_batch": (x, y)} | changed
        with pytest.raises(ValueError, match=message):
            hypergradient(inner_loss_per_sample=square_loss, outer_loss=distance, **arguments, **options)


def test_a_mixed_derivative_that_is_not_finite():
    """The root of a weight that is zero."""
    hyper = linear(sample_weight=lambda v, batch: v.sum().sqrt() * torch.ones(20, dtype=D))
    hyper.inner_step(batch_of())
    with pytest.raises(ValueError, match="finite gradients and mixed derivatives"):
        hyper.hypergradient()


# --------------------------------------------------------------------------------------------- what users pass in
@pytest.mark.parametrize("fisher", KINDS[:3])
def test_observations_of_any_kind(fisher):
    rows, weights = np.arange(8).reshape(2, 4), [0.5, 2.0]
    expected = linear(fisher=fisher)
    expected.observe(torch.as_tensor(rows, dtype=D), torch.tensor(weights, dtype=D))
    for given in (rows, rows.tolist(), torch.as_tensor(rows), rows.astype(np.float32), pd.DataFrame(rows).to_numpy()):
        hyper = linear(fisher=fisher)
        hyper.observe(given, weights)
        assert hyper.state.trace() == pytest.approx(expected.state.trace())
        np.testing.assert_allclose(hyper.solve([1, 0, 0, 0]), expected.solve(torch.eye(4, dtype=D)[0]))
    single = NaturalHypergradient(
        torch.ones(4, requires_grad=True), square_loss, distance, outer_params=torch.zeros(4), fisher=fisher
    )
    single.observe(torch.as_tensor(rows, dtype=D), np.array(weights))
    assert single.solve(np.ones(4)).dtype == torch.float32


def test_vectors_that_are_refused():
    hyper = linear()
    hyper.observe(draw(3, 4))
    for grad, error, message in (
        (draw(3), ValueError, r"grad must have shape \(4,\), got \(3,\)"),
        (draw(4, 2), ValueError, r"grad must have shape \(4,\)"),
        (draw(4) * math.nan, ValueError, "grad must be finite"),
        (draw(4).to(torch.complex128), TypeError, "grad must be real numbers"),
        ("steep", TypeError, "grad must be real numbers"),
    ):
        with pytest.raises(error, match=message):
            hyper.solve(grad)
    for scores, error, message in (
        (draw(2, 2, 4), ValueError, r"scores must have shape \(n, 4\)"),
        (1.0, ValueError, r"scores must have shape \(n, 4\)"),
        (torch.eye(4, dtype=D).to_sparse(), TypeError, "scores must be real numbers in a dense tensor"),
        ([["a"] * 4], TypeError, "scores must be real numbers"),
    ):
        with pytest.raises(error, match=message):
            hyper.observe(scores)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((np.ones((3, 4)), np.ones(3)), "batch must have tensors .* got ndarray"),
        ((torch.ones(3, 4, dtype=D), np.ones(3)), "batch must have tensors .* got ndarray"),
        ((pd.DataFrame(np.ones((3, 4))), torch.ones(3)), "batch must have tensors .* got DataFrame"),
    ],
)
def test_batches_that_are_no_tensors(batch, message):
    with pytest.raises(TypeError, match=message):
        linear().inner_step(batch)
    with pytest.raises(TypeError, match="cross_" + message):
        linear(cross_batch=batch)


def test_ridges_of_any_kind():
    x, y = batch_of()
    theta, v = draw(4), torch.zeros(4, dtype=D)
    vector = torch.tensor([0.1, 0.2, 0.3, 0.4])
    expected = hypergradient(theta, v, square_loss, distance, (x, y), ridge=vector.double()).grad
    for ridge in (vector.numpy().astype(float), [vector.double()], lambda v: vector.double() + 0 * v):
        torch.testing.assert_close(hypergradient(theta, v, square_loss, distance, (x, y), ridge=ridge).grad, expected)
    mapped = {
        "inner_loss_per_sample": lambda theta, v, batch: square_loss(theta[0], v, batch),
        "outer_loss": lambda theta, v, _: distance(theta[0], v, _),
    }
    found = hypergradient({0: theta}, v, inner_batch=(x, y), ridge={0: vector.double()}, **mapped).grad
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match=r"ridge must have the keys of inner_params, \[0\], got \['a'\]"):
        hypergradient({0: theta}, v, inner_batch=(x, y), ridge={"a": vector}, **mapped)
    own = vector.double().clone()
    hyper = linear(ridge=own)
    own.zero_()  # what was given as a number stays what it was
    torch.testing.assert_close(hyper.problem.ridge(hyper.problem.outer.detached()), vector.double())


def test_levels_of_different_dtypes():
    x, y = (part.float() for part in batch_of(50))
    theta, v = torch.ones(4), torch.full((4,), 0.5, dtype=D)

    def loss(theta, v, batch):
        return 0.5 * (batch[0] @ theta - batch[1]) ** 2

    options = {"ridge": torch.exp, "sample_weight": lambda v, batch: torch.ones(50, dtype=D) * v.sum()}
    expected = hypergradient(theta.double(), v, loss, distance, (x.double(), y.double()), **options)
    found = hypergradient(theta, v, loss, distance, (x, y), reference="cg", bound=True, **options)
    assert (found.grad.dtype, found.w.dtype) == (D, torch.float32)
    torch.testing.assert_close(found.grad, expected.grad, atol=1e-4, rtol=1e-4)


def test_arrays_of_any_kind():
    x, y = (part.numpy() for part in batch_of())
    expected = hypergradient(np.ones(4), np.zeros(4), square_loss, distance, (x, y)).grad
    x.setflags(write=False)
    swapped = hypergradient(
        np.ones(4, ">f8"), np.zeros((4, 2))[:, 0], square_loss, distance, (np.asfortranarray(x)[::-1], y[::-1])
    )
    np.testing.assert_allclose(swapped.grad, expected)
    net = torch.nn.Linear(4, 1, bias=False).to(D)
    torch.nn.init.ones_(net.weight)
    listed = hypergradient(
        net.parameters(), np.zeros(4), lambda theta, v, batch: square_loss(theta[0][0], v, batch),
        lambda theta, v, _: distance(theta[0], v, _), (x.copy(), y),
    )  # fmt: skip
    np.testing.assert_allclose(listed.grad, expected)
    with pytest.raises(TypeError, match="inner_params must have arrays of numbers, got dtype object"):
        hypergradient(np.array([1, None]), np.zeros(4), square_loss, distance, (x, y))
    with pytest.raises(ValueError, match="inner_params must be different tensors"):
        NaturalHypergradient([net.weight, net.weight], square_loss, distance, outer_params=torch.zeros(1))


# ----------------------------------------------------------------------------------------------- modes and devices
def test_modes_of_the_caller_do_not_matter():
    x, y = batch_of()
    theta, v = draw(4), torch.zeros(4, dtype=D)

    def answer():
        return hypergradient(theta, v, square_loss, distance, (x, y), bound=True, reference="cg")

    state = torch.get_rng_state()
    expected = answer()
    assert torch.equal(state, torch.get_rng_state())
    for mode in (torch.no_grad(), torch.inference_mode(), torch.device("meta")):
        with mode:
            found = answer()
        assert torch.equal(found.grad, expected.grad)
        assert found.error_bound == expected.error_bound
    for twin in (pickle.loads(pickle.dumps(expected)), copy.deepcopy(expected)):
        assert torch.equal(twin.grad, expected.grad)
        assert twin.certificates == expected.certificates


def test_two_at_once():
    found = [None, None]

    def work(place):
        net = zero_layer()
        hyper = classifier(net, fisher="kfac", parallel="thread")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(10):
            hyper.inner_step(torch.arange(30))
            optimizer.step()
        found[place] = hyper.hypergradient()[0]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(*found)


# -------------------------------------------------------------------------------------- what is changed afterwards
@pytest.mark.parametrize("fisher", KINDS)
def test_buffers_may_be_filled_again_at_once(fisher):
    """The thread works on copies, and the mixed derivative has the samples that were seen."""
    found = []
    source = draw(8, 64, 200, seed=4)
    for parallel, same_buffer in (("sync", False), ("thread", True)):
        net = zero_layer(bias=False, inputs=200)
        v = torch.zeros(64, dtype=D)
        hyper = NaturalHypergradient(
            net,
            lambda theta, v, x, net=net: cross_entropy(
                functional_call(net, theta, (x,)), torch.arange(len(x)) % 3, reduction="none"
            ),
            lambda theta, v, _: (theta["weight"] - 1).square().sum(), outer_params=v, fisher=fisher, window=100,
            sample_weight=lambda v, x: v.repeat(len(x) // 64) + 1, parallel=parallel, burn_in=0,
        )  # fmt: skip
        buffer = torch.empty(64, 200, dtype=D)
        for part in source:
            hyper.inner_step(buffer.copy_(part) if same_buffer else part)
            v.add_(0.05)
        found.append(hyper.hypergradient()[0])
    assert torch.equal(*found)


def test_a_hypergradient_may_be_clipped_before_it_is_certified():
    hyper = linear()
    hyper.inner_step(batch_of())
    (found,) = hyper.hypergradient()
    before = hyper.certify(reference="cg")
    found.zero_()
    after = hyper.certify(reference="cg")
    assert (after.cosine_to_reference, after.relative_error) == (before.cosine_to_reference, before.relative_error)


def test_a_certificate_is_not_that_of_another_matrix():
    """As many scores after forgetting are not the same scores."""
    hyper = linear(reset="outer")
    hyper.inner_step(batch_of())
    hyper.hypergradient()
    hyper.inner_step(batch_of(seed=7))
    assert hyper.n_samples == 20
    with pytest.raises(RuntimeError, match="before the next inner step"):
        hyper.certify()


def test_samples_are_kept_only_as_long_as_they_are_needed():
    for cross_batch, kept in ((batch_of(), 0), (5, 1), (25, 2), (None, 4)):
        hyper = linear(cross_batch=cross_batch)
        for seed in range(4):
            hyper.inner_step(batch_of(seed=seed))
        assert len(hyper._recent) == kept
        hyper.hypergradient()
        assert len(hyper._last["batch"][0]) == {0: 20, 1: 5, 2: 25, 4: 80}[kept]


# ---------------------------------------------------------------------------------------------- stop and go on
@pytest.mark.parametrize("fisher", KINDS)
@pytest.mark.parametrize(("parallel", "ridge", "cross_batch"), [("sync", 0.0, None), ("thread", 1e-2, 7)])
def test_a_run_that_was_stopped_between_inner_steps_goes_on(fisher, parallel, ridge, cross_batch):
    """Bit for bit, from a file that holds numbers only."""
    batches = torch.arange(30).split(6)

    def begin():
        torch.nn.init.constant_((net := zero_layer()).weight, 0.1)
        hyper = classifier(
            net, fisher=fisher, parallel=parallel, ridge=ridge, cross_batch=cross_batch, window=20, reset="outer"
        )
        return net, hyper, torch.optim.Adam(net.parameters(), lr=0.1)

    def steps(hyper, optimizer, chosen):
        for batch in chosen:
            hyper.inner_step(batch)
            optimizer.step()

    net, hyper, optimizer = begin()
    steps(hyper, optimizer, batches)
    hyper.hypergradient()
    steps(hyper, optimizer, batches[:2])
    file = io.BytesIO()
    torch.save([hyper.state_dict(), net.state_dict(), optimizer.state_dict()], file)
    steps(hyper, optimizer, batches[2:])
    expected = hyper.hypergradient()[0]

    file.seek(0)
    ours, theirs, last = torch.load(file, weights_only=True)
    again, other, stepper = begin()
    again.load_state_dict(theirs)
    stepper.load_state_dict(last)
    other.load_state_dict(ours)
    steps(other, stepper, batches[2:])
    assert torch.equal(other.hypergradient()[0], expected)
    assert other.n_inner == hyper.n_inner
    for missing in ("state", "forget", "recent"):
        with pytest.raises(ValueError, match=f"state must have {missing}"):
            other.load_state_dict({name: part for name, part in ours.items() if name != missing})
    with pytest.raises(ValueError, match="got none for n_samples"):
        other.load_state_dict(
            ours | {"state": {name: part for name, part in ours["state"].items() if name != "n_samples"}}
        )
    with pytest.raises(ValueError, match="state must be of fisher"):
        other.load_state_dict(None)


def test_copies_are_refused():
    """A copy would have tensors that its losses do not know."""
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="must not be copied or pickled"):
            act(linear())


@pytest.mark.parametrize("name", ["AdamW", "Adagrad", "RMSprop", "NAdam", "Rprop", "Adafactor", "ASGD"])
def test_more_optimizers_for_both_levels(name):
    net = zero_layer()
    hyper = classifier(net, fisher="kfac", ridge=1e-3)
    make = getattr(torch.optim, name)
    train = NHGD(hyper, make(net.parameters(), lr=0.05), make(hyper.problem.outer.tensors, lr=0.05), inner_steps=2)
    losses = [train.step(torch.arange(30).split(15))["outer_loss"] for _ in range(4)]
    assert all(math.isfinite(loss) for loss in losses)
    assert hyper.problem.outer.tensors[0].detach().abs().max() > 0
    file = io.BytesIO()
    torch.save(train.state_dict(), file)
    file.seek(0)
    train.load_state_dict(torch.load(file, weights_only=True))


def test_inner_batches_that_cannot_be_iterated():
    net = zero_layer()
    hyper = classifier(net)
    train = NHGD(hyper, torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD(hyper.problem.outer.tensors, lr=0.1))
    with pytest.raises(TypeError, match="inner_iter must be an iterable of batches, got int"):
        train.step(5)


# -------------------------------------------------------------------------------------------- the functional entry
def test_a_reference_is_not_as_short_as_the_method():
    x, y = batch_of()
    with pytest.warns(ConvergenceWarning, match="did not reach tol=1e-08 in 1 iterations"):
        found = hypergradient(
            draw(4), torch.zeros(4, dtype=D), square_loss, distance, (x, y), method="cg", max_iter=1, reference="cg"
        )
    assert found.cosine_to_reference < 0.999
    assert not found.certificates[1].holds


def test_unrolling_is_compared_too():
    x, y = batch_of()
    theta = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    arguments = (theta, torch.zeros(4, dtype=D), square_loss, distance, (x, y))
    found = [
        hypergradient(*arguments, method="unroll", step_size=0.4, n_steps=steps, reference="cg", accuracy=0.01)
        for steps in (1, 120)
    ]
    assert found[0].cosine_to_reference < found[1].cosine_to_reference == pytest.approx(1.0)
    assert [[c.holds for c in one.certificates] for one in found] == [[False, False], [True, True]]
    assert hypergradient(*arguments, method="unroll", step_size=0.4).certificates == ()
    with pytest.raises(ValueError, match="step_size and inner_batch must keep 100 inner steps finite"):
        hypergradient(*arguments, method="unroll", step_size=1e9, n_steps=100)


def test_an_exact_hessian_that_is_not_positive():
    x, y = batch_of()
    for loss, batch in ((square_loss, (x[:2], y[:2])), (lambda *point: -square_loss(*point), (x, y))):
        with pytest.raises(ValueError, match="Hessian of the inner objective is positive definite"):
            hypergradient(draw(4), draw(4), loss, distance, batch, method="exact")
