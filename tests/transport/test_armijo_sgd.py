"""ArmijoSGD: its rule against the one of the estimator, and the contract of torch optimizers."""

import copy
import io
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from assay.transport import AmariDivergence, ArmijoSGD, RFFCritic, gan_value
from assay.transport.critic_training import armijo_step
from assay.transport.divergence_critic import project_to_ball


def quadratic(optimizer, x, target, curvature=1.0):
    def closure(backward=True):
        optimizer.zero_grad()
        loss = 0.5 * (curvature * (x - target).square()).sum()
        if backward:
            loss.backward()
        return loss

    return closure


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def train(net, optimizer, batches):
    losses = []
    for x, y in batches:

        def closure(backward=True, x=x, y=y):
            optimizer.zero_grad()
            loss = (net(x)[:, 0] - y).square().mean()
            if backward:
                loss.backward()
            return loss

        losses.append(float(optimizer.step(closure).detach()))
    return losses


def batches(n):
    generator = torch.Generator().manual_seed(1)
    out = []
    for _ in range(n):
        x = torch.randn(32, 3, generator=generator, dtype=torch.float64)
        out.append((x, x.sum(1).sin()))
    return out


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_step_is_the_largest_halving_that_pays():
    x = torch.tensor([4.0], dtype=torch.float64, requires_grad=True)
    optimizer = ArmijoSGD([x], lr=8.0)
    # f = x^2/2: f(x - eta x) <= f - c eta x^2 exactly for eta <= 2 (1 - c) = 1.8; of 8, 4, 2, 1 that is 1.
    optimizer.step(quadratic(optimizer, x, 0.0))
    assert optimizer.param_groups[0]["step_size"] == 1.0
    assert float(x.detach()) == 0.0
    assert optimizer.evaluations == 4
    assert optimizer.steps_done == 1


def test_the_search_starts_from_twice_the_last_step_up_to_the_largest():
    x = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = ArmijoSGD([x], lr=0.1, lr_max=0.3)
    sizes = []
    for _ in range(4):
        optimizer.step(quadratic(optimizer, x, 0.0))
        sizes.append(optimizer.param_groups[0]["step_size"])
    assert sizes == [0.1, 0.2, 0.3, 0.3]
    capped = ArmijoSGD([x], lr=0.1)
    for _ in range(8):
        capped.step(quadratic(capped, x, 0.0))
    assert capped.param_groups[0]["step_size"] == 1.0


def test_projected_ascent_is_the_rule_of_the_estimator():
    critic = RFFCritic(2, n_features=20, radius=0.5, offset=0.2, generator=torch.Generator().manual_seed(2)).double()
    generator = torch.Generator().manual_seed(3)
    P = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    Q = P.new_tensor(1.0) + torch.randn(60, 2, generator=generator, dtype=torch.float64)
    optimizer = ArmijoSGD(critic.parameters(), lr=5.0, maximize=True, project=critic.project_)

    def closure(backward=True):
        optimizer.zero_grad()
        value = gan_value(critic(P), critic(Q), 0.3)
        if backward:
            value.backward()
        return value

    divergence = AmariDivergence(0.3)
    A, B = (np.column_stack([critic.features(X).numpy(), np.ones(60)]) for X in (P, Q))

    def evaluate(theta):
        return float(divergence.p_integrand(A @ theta)[0].mean() + divergence.q_integrand(B @ theta)[0].mean())

    theta, last = np.zeros(21), 2.5
    for _ in range(15):
        gradient = A.T @ divergence.p_integrand(A @ theta)[1] / 60 + B.T @ divergence.q_integrand(B @ theta)[1] / 60
        start, value = theta, evaluate(theta)

        def trial(step, start=start, gradient=gradient):
            candidate = project_to_ball(start + step * gradient, 0.5, 0.2)
            return candidate, evaluate(candidate)

        theta, _, last = armijo_step(start, value, trial, min(2 * last, 50.0))
        optimizer.step(closure)
        ours = np.append(critic.weight.detach().numpy(), float(critic.bias.detach()))
        np.testing.assert_allclose(ours, theta, atol=1e-10)
        assert optimizer.param_groups[0]["step_size"] == last
    assert np.linalg.norm(theta[:-1]) == pytest.approx(0.5)


def test_it_trains_a_network_without_tuning():
    net, data = network(), batches(1) * 200
    optimizer = ArmijoSGD(net.parameters())
    losses = train(net, optimizer, data)
    assert losses[-1] < 0.1 * losses[0]
    assert all(later <= earlier for earlier, later in itertools.pairwise(losses))
    (certificate,) = optimizer.certificates()
    assert certificate.holds
    assert optimizer.skipped_steps == 0


def test_certificate_notices_a_loss_that_changes():
    x = torch.tensor([1.0], requires_grad=True)
    optimizer = ArmijoSGD([x])
    assert optimizer.certificates() == ()
    optimizer.step(quadratic(optimizer, x, 0.0))
    assert optimizer.certificates()[0].holds
    optimizer._worst_excess = 1e-3
    assert not optimizer.certificates()[0].holds


def test_checkpoint_continues_bit_for_bit():
    data = batches(10)
    net = network()
    optimizer = ArmijoSGD(net.parameters())
    train(net, optimizer, data[:5])
    file = io.BytesIO()
    torch.save([net.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    again = network(seed=9)
    resumed = ArmijoSGD(again.parameters())
    again.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert resumed.steps_done == 5
    assert train(net, optimizer, data[5:]) == train(again, resumed, data[5:])
    assert equal(net, again)
    assert resumed.evaluations == optimizer.evaluations
    assert resumed.certificates() == optimizer.certificates()


def test_a_wrong_state_is_refused_and_changes_nothing():
    net = network()
    optimizer = ArmijoSGD(net.parameters())
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="state_dict must have the key 'armijo'"):
        optimizer.load_state_dict(torch.optim.SGD(net.parameters(), lr=0.1).state_dict())
    assert optimizer.state_dict() == before


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda s: s["param_groups"][0].pop("step_size"), "got none of"),
        (lambda s: s["param_groups"][0].update(step_size=math.nan), "step_size must be finite"),
        (lambda s: s["param_groups"][0].update(step_size="1"), "step_size must be a real number"),
        (lambda s: s["param_groups"][0].update(beta=2.0), "beta must be less than 1"),
        (lambda s: s["armijo"].update(steps_done="one"), "steps_done.* must be an integer"),
        (lambda s: s["armijo"].update(worst_excess=1.0), "worst_excess.* must be at most 0"),
        (lambda s: s.update(armijo=None), "the key 'armijo'"),
        (lambda s: s.pop("param_groups"), "the key 'param_groups'"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage, message):
    net = network()
    optimizer = ArmijoSGD(net.parameters())
    train(net, optimizer, batches(2))
    state = copy.deepcopy(optimizer.state_dict())
    damage(state)
    fresh = ArmijoSGD(net.parameters())
    before = copy.deepcopy(fresh.state_dict())
    with pytest.raises((TypeError, ValueError), match=message):
        fresh.load_state_dict(state)
    assert fresh.state_dict() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_trial_that_raises_leaves_the_parameters_where_they_were(error):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = ArmijoSGD([x])

    def closure(backward=True):
        if not backward:
            raise error
        optimizer.zero_grad()
        loss = x.square().sum()
        loss.backward()
        return loss

    with pytest.raises(error):
        optimizer.step(closure)
    assert torch.equal(x.detach(), torch.tensor([1.0, 2.0]))
    assert optimizer.steps_done == optimizer.skipped_steps == 0


def test_many_steps_keep_nothing():
    x = torch.ones(5, dtype=torch.float64, requires_grad=True)
    optimizer = ArmijoSGD([x], lr=1e-3, lr_max=1e-3)
    for _ in range(1000):
        optimizer.step(quadratic(optimizer, x, 0.0))
    assert optimizer.steps_done == 1000
    # 1000 steps of x -> (1 - .001) x, and no state but a number.
    np.testing.assert_allclose(x.detach().numpy(), 0.999**1000, rtol=1e-10)
    assert not optimizer.state
    assert optimizer.param_groups[0]["step_size"] == 1e-3


def test_deepcopy_and_pickle_continue_bit_for_bit():
    data = batches(6)
    critic = RFFCritic(3, n_features=8, generator=torch.Generator().manual_seed(0)).double()
    optimizer = ArmijoSGD(critic.parameters(), project=critic.project_)

    def run(net, optimizer, part):
        for x, y in part:

            def closure(backward=True, x=x, y=y):
                optimizer.zero_grad()
                loss = (net(x) - y).square().mean()
                if backward:
                    loss.backward()
                return loss

            optimizer.step(closure)

    run(critic, optimizer, data[:3])
    copies = [copy.deepcopy((critic, optimizer)), pickle.loads(pickle.dumps((critic, optimizer)))]
    run(critic, optimizer, data[3:])
    for net, other in copies:
        assert other.project.__self__ is net
        run(net, other, data[3:])
        assert equal(net, critic)
        assert other.steps_done == optimizer.steps_done == 6


def test_groups_have_their_own_step_sizes_and_shrink_together():
    net, data = network(), batches(4)
    optimizer = ArmijoSGD([{"params": net[0].parameters(), "lr": 1.0}, {"params": net[2].parameters()}], lr=2.0)
    train(net, optimizer, data)
    first, second = (group["step_size"] for group in optimizer.param_groups)
    assert second == pytest.approx(2 * first)
    extra = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [extra], "lr": 3.0})
    train(net, optimizer, data)
    assert torch.equal(extra.detach(), torch.ones(2))  # it has no gradient
    assert optimizer.param_groups[2]["step_size"] is None
    with pytest.raises(ValueError, match="lr must be greater than 0"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.0})
    with pytest.raises(ValueError, match="maximize must be the same in all groups"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "maximize": True})
    assert len(optimizer.param_groups) == 3


def test_without_gradients_nothing_happens():
    x = torch.ones(2, requires_grad=True)
    optimizer = ArmijoSGD([x])
    assert optimizer.step(lambda backward=True: torch.tensor(1.0)) == 1.0
    assert torch.equal(x.detach(), torch.ones(2))
    assert optimizer.steps_done == optimizer.skipped_steps == 0


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_makes_no_step(where):
    def make(strict):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        optimizer = ArmijoSGD([x], strict=strict)

        def closure(backward=True):
            optimizer.zero_grad()
            loss = x.square().sum()
            if backward:
                loss.backward()
                if where == "gradient":
                    x.grad[1] = math.nan
            return loss if where == "gradient" else loss * math.inf

        return x, optimizer, closure

    x, optimizer, closure = make(strict=False)
    optimizer.step(closure)
    assert torch.equal(x.detach(), torch.tensor([1.0, 2.0]))
    assert optimizer.skipped_steps == 1
    assert optimizer.certificates() == ()
    x, optimizer, closure = make(strict=True)
    with pytest.raises(RuntimeError, match="must be finite"):
        optimizer.step(closure)
    assert torch.equal(x.detach(), torch.tensor([1.0, 2.0]))


def test_a_batch_that_no_step_improves_is_skipped_and_the_step_size_kept():
    x = torch.tensor([1.0], requires_grad=True)
    optimizer = ArmijoSGD([x], lr=0.5)
    optimizer.step(quadratic(optimizer, x, 0.0))
    kept, size = x.detach().clone(), optimizer.param_groups[0]["step_size"]

    def wrong(backward=True):
        optimizer.zero_grad()
        loss = x.sum()
        if backward:
            (-loss).backward()  # the gradient of something else
        return loss

    optimizer.step(wrong)
    assert torch.equal(x.detach(), kept)
    assert optimizer.param_groups[0]["step_size"] == size
    assert optimizer.skipped_steps == 1


def test_overflow_of_a_trial_is_only_a_rejection():
    x = torch.tensor([0.0], requires_grad=True)
    optimizer = ArmijoSGD([x], lr=1e6, lr_max=1e6)

    def closure(backward=True):
        optimizer.zero_grad()
        loss = (torch.exp(x * x) - 2 * x).sum()
        if backward:
            loss.backward()
        return loss

    for _ in range(30):
        optimizer.step(closure)
    best = minimize_scalar(lambda t: math.exp(t * t) - 2 * t, bracket=(0, 1)).fun
    assert float(closure(backward=False).detach()) == pytest.approx(best, abs=1e-4)


def test_a_scheduler_moves_the_largest_step():
    x = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = ArmijoSGD([x], lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    for _ in range(6):
        optimizer.step(quadratic(optimizer, x, 0.0))
    scheduler.step()
    optimizer.step(quadratic(optimizer, x, 0.0))
    assert optimizer.param_groups[0]["step_size"] == pytest.approx(0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype):
    x = torch.tensor([3.0, -2.0], dtype=dtype, requires_grad=True)
    optimizer = ArmijoSGD([x])
    for _ in range(10):
        optimizer.step(quadratic(optimizer, x, 1.0))
    assert x.dtype == dtype
    torch.testing.assert_close(x.detach().float(), torch.ones(2), atol=0.05, rtol=0)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"lr": 0.0}, ValueError, "lr must be greater than 0"),
        ({"c": 1.0}, ValueError, "c must be less than 1"),
        ({"beta": 1.0}, ValueError, "beta must be less than 1"),
        ({"growth": 0.5}, ValueError, "growth must be at least 1"),
        ({"lr_max": -1.0}, ValueError, "lr_max must be greater than 0"),
        ({"maximize": 1}, TypeError, "maximize"),
        ({"project": 3}, TypeError, "project"),
        ({"strict": 1}, TypeError, "strict"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        ArmijoSGD([nn.Parameter(torch.ones(1))], **options)


def test_bad_parameters_and_closures():
    with pytest.raises(TypeError, match="params must be real"):
        ArmijoSGD([nn.Parameter(torch.ones(1, dtype=torch.complex64))])
    optimizer = ArmijoSGD([nn.Parameter(torch.ones(1))])
    with pytest.raises(TypeError, match="closure must be given"):
        optimizer.step()
    with pytest.raises(TypeError, match="closure must have a parameter backward"):
        optimizer.step(lambda: torch.tensor(1.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    x = torch.tensor([3.0, -2.0], device="cuda", requires_grad=True)
    optimizer = ArmijoSGD([x])
    for _ in range(10):
        optimizer.step(quadratic(optimizer, x, 1.0))
    torch.testing.assert_close(x.detach().cpu(), torch.ones(2), atol=1e-3, rtol=0)
