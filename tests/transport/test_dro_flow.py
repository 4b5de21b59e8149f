"""DROTrainer: what one step does, against plain loops; what it composes with; state and bad input."""

import copy
import io

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from assay.transport import DROTrainer, FlowSampler

PER_SAMPLE = torch.nn.CrossEntropyLoss(reduction="none")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def data(n=40, d=3, dtype=torch.float64):
    x = torch.randn(n, d, generator=seeded(8), dtype=dtype)
    return x, (x[:, 0] + 0.3 * x[:, 1] > 0).long()


def linear(dtype=torch.float64):
    model = torch.nn.Linear(3, 2, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(torch.randn(2, 3, generator=seeded(1), dtype=dtype))
        model.bias.zero_()
    return model


def trainer(model=None, optimizer=torch.optim.SGD, flow="wgf", project=None, loss=PER_SAMPLE, lr=0.1, **options):
    model = model or linear()
    settings = {"tau": 0.3, "epsilon": 0.05, "generator": seeded(2)} | options
    return DROTrainer(model, loss, optimizer(model.parameters(), lr=lr), FlowSampler(flow, **settings), project)


@pytest.mark.parametrize("flow", ["wgf", "wfr", "svgd", "dual", "wrm", "erm"])
def test_a_step_is_a_step_on_the_particles(flow):
    x, y = data()
    ours = trainer(flow=flow, particles=5, steps=4)
    worst = copy.deepcopy(ours).worst_case(x, y)
    plain = copy.deepcopy(ours.model)
    total = 0.0
    for i in range(len(x)):
        for j in range(worst.weights.shape[1]):
            total = total + worst.weights[i, j] * PER_SAMPLE(plain(worst.points[i, j : j + 1]), y[i : i + 1])[0]
    mean = total / len(x)
    mean.backward()
    before = {name: parameter.detach().clone() for name, parameter in plain.named_parameters()}
    returned = ours.step(x, y)
    assert returned == pytest.approx(float(mean.detach()))
    assert returned == pytest.approx(worst.mean_loss)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(dict(ours.model.named_parameters())[name], before[name] - 0.1 * parameter.grad)


def test_erm_is_ordinary_training():
    x, y = data()
    ours, plain = trainer(flow="erm", optimizer=torch.optim.Adam), linear()
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        PER_SAMPLE(plain(x), y).mean().backward()
        optimizer.step()
        ours.step(x, y)
    torch.testing.assert_close(ours.model.weight, plain.weight)


def test_robust_least_squares_is_a_ridge():
    """Without entropy, max_y (t.y - b)^2/2 - |y - x|^2/(2 tau) is (t.x - b)^2 / (2 (1 - tau |t|^2))."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(50, 1)))
    y = 0.8 * x[:, 0] + 0.3 * torch.from_numpy(rng.normal(size=50))
    tau = 0.4
    grid = torch.linspace(-1.2, 1.2, 240_001, dtype=torch.float64)
    moments = (y.square().mean(), (x[:, 0] * y).mean(), x.square().mean())
    robust = 0.5 * (moments[0] - 2 * grid * moments[1] + grid**2 * moments[2]) / (1 - tau * grid**2)
    best = grid[robust.argmin()]

    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    ours = DROTrainer(
        model,
        lambda output, target: 0.5 * (output[:, 0] - target).square(),
        torch.optim.SGD(model.parameters(), lr=0.5),
        FlowSampler("wrm", tau=tau, epsilon=0.0, steps=15, step_size=tau),
    )
    with torch.no_grad():
        model.weight.fill_(0.1)
    for _ in range(60):
        ours.step(x, y)
    assert float(model.weight.detach()) == pytest.approx(float(best), abs=1e-4)
    assert abs(float(best)) < 0.95 * float(moments[1] / moments[2])  # shrunk against least squares


def test_robust_training_is_more_robust():
    x, y = data(200)

    def attacked(model):
        worst = FlowSampler("pgd", tau=1.0, epsilon=0.1, radius=0.5).sample(lambda a, b: PER_SAMPLE(model(a), b), x, y)
        return worst.mean_loss

    plain, robust = trainer(flow="erm", optimizer=torch.optim.Adam), trainer(optimizer=torch.optim.Adam)
    for _ in range(100):
        plain.step(x, y)
        robust.step(x, y)
    assert attacked(robust.model) < 0.8 * attacked(plain.model)


def test_fit_schedules_and_history():
    x, y = data()
    ours = trainer(optimizer=torch.optim.AdamW)
    scheduler = torch.optim.lr_scheduler.StepLR(ours.optimizer, 1, gamma=0.5)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, generator=seeded())
    assert ours.fit(loader, epochs=3, scheduler=scheduler) is ours
    assert ours.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 8)
    ours.fit([(x, y)], epochs=1)
    assert ours.history["epoch"].tolist() == [0, 1, 2, 3]
    assert len(ours.history["loss"]) == len(ours.history["seconds"]) == 4
    with pytest.raises(ValueError, match="at least 1 batch"):
        ours.fit([])
    with pytest.raises(ValueError, match="loader must give its batches again"):
        ours.fit(iter([(x, y)]), epochs=2)


def test_batches_without_labels():
    x, _ = data()
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    ours = trainer(model, loss=lambda output, y: output[:, 0].square())
    ours.fit([x, x[:7]], epochs=2)
    assert np.isfinite(ours.history["loss"]).all()


def test_an_optimizer_that_evaluates_more_than_once():
    """Every evaluation is on the particles that were drawn for the step."""
    x, y = data()
    seen = []

    def loss(output, labels):
        if output.requires_grad and len(labels) == 4 * len(x):
            seen.append(float(PER_SAMPLE(output, labels).mean().detach()))
        return PER_SAMPLE(output, labels)

    ours = trainer(optimizer=torch.optim.LBFGS, lr=0.1, loss=loss)
    while_sampling = ours.sampler.steps
    returned = ours.step(x, y)
    in_the_step = seen[while_sampling:]
    assert returned == pytest.approx(in_the_step[0])
    assert len(in_the_step) > 5
    assert in_the_step[-1] < in_the_step[0]


def test_projection():
    x, y = data()

    def into_ball(model):
        assert not torch.is_grad_enabled()
        model.weight.mul_(min(1.0, 0.5 / float(model.weight.norm())))

    ours = trainer(project=into_ball)
    ours.step(x, y)
    assert float(ours.model.weight.detach().norm()) <= 0.5 + 1e-12


def test_modes_of_the_modules():
    """Particles are drawn in evaluation mode; the step is made in the modes that were set."""
    x, y = data(dtype=torch.float32)
    seen = []

    class Spy(torch.nn.Module):
        def forward(self, features):
            seen.append((self.training, len(features)))
            return features

    model = torch.nn.Sequential(
        Spy(), torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.Linear(4, 2)
    )
    model[3].eval()
    ours = trainer(model, steps=3)
    ours.step(x, y)
    assert [training for training, _ in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1][1] == 4 * len(x)
    assert model[2].num_batches_tracked == 1
    assert [module.training for module in model] == [True, True, True, False, True]


def test_sampling_leaves_no_gradients():
    x, y = data()
    ours = trainer()
    ours.worst_case(x, y)
    assert all(parameter.grad is None for parameter in ours.model.parameters())


def test_state_round_trip():
    x, y = data()
    ours = trainer(optimizer=torch.optim.Adam)
    ours.fit([(x, y)], epochs=3)
    buffer = io.BytesIO()
    torch.save(ours.state_dict(), buffer)
    buffer.seek(0)
    other = trainer(optimizer=torch.optim.Adam)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    twin = copy.deepcopy(ours)
    for one in (ours, other, twin):
        one.fit([(x, y)], epochs=2)
    for one in (other, twin):
        torch.testing.assert_close(one.model.weight, ours.model.weight, rtol=0, atol=0)
        np.testing.assert_array_equal(one.history["loss"], ours.history["loss"])


def test_data_follow_the_model():
    x, y = data()
    ours = trainer(linear(torch.float32))
    assert np.isfinite(ours.step(x.numpy(), y.numpy()))
    assert ours.worst_case(x.numpy(), y.numpy()).points.dtype == torch.float32
    assert ours.worst_case([[1, 2, 3]], [0]).points.dtype == torch.float32
    before = x.clone()
    trainer().step(x, y)
    assert torch.equal(x, before)


def test_per_sample_gradients_of_torch_func():
    """A loss that is written with functional transformations."""
    x, y = data(12)
    model = linear()
    parameters = dict(model.named_parameters())

    def loss(output, labels):
        return PER_SAMPLE(output, labels)

    def features_loss(features, labels):
        def one(point, label):
            logits = torch.func.functional_call(model, parameters, (point[None],))
            return loss(logits, label[None])[0]

        return torch.vmap(one)(features, labels)

    worst = FlowSampler("wrm", tau=0.3, epsilon=0.0, steps=5).sample(features_loss, x, y)
    same = FlowSampler("wrm", tau=0.3, epsilon=0.0, steps=5).sample(lambda a, b: loss(model(a), b), x, y)
    torch.testing.assert_close(worst.points, same.points)


def test_bad_input():
    x, y = data()
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = FlowSampler("wgf", tau=0.3, epsilon=0.1)
    for arguments, name in [
        ((lambda a: a, PER_SAMPLE, optimizer, sampler), "model"),
        ((model, 1, optimizer, sampler), "loss"),
        ((model, PER_SAMPLE, "adam", sampler), "optimizer"),
        ((model, PER_SAMPLE, optimizer, "wgf"), "sampler"),
        ((model, PER_SAMPLE, optimizer, sampler, 3), "project"),
    ]:
        with pytest.raises(TypeError, match=name):
            DROTrainer(*arguments)
    with pytest.raises(ValueError, match="reduction='none'"):
        DROTrainer(model, torch.nn.CrossEntropyLoss(), optimizer, sampler).step(x, y)
    with pytest.raises(ValueError, match="y must be given"):
        DROTrainer(model, PER_SAMPLE, optimizer, sampler).step(x)
    with pytest.raises(ValueError, match="y must have one label"):
        DROTrainer(model, PER_SAMPLE, optimizer, sampler).step(x, y[:3])
    with pytest.raises(ValueError, match="loss must be finite, got 40"):
        DROTrainer(model, lambda o, t: o[:, 0] * float("nan"), optimizer, sampler).step(x, y)
    with pytest.raises(ValueError, match="3 nan or infinite"):
        DROTrainer(model, PER_SAMPLE, optimizer, sampler).step(torch.full((1, 3), float("nan")), y[:1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu():
    x, y = data(dtype=torch.float32)
    model = linear(torch.float32).cuda()
    ours = trainer(model, generator=torch.Generator(device="cuda").manual_seed(0))
    losses = [ours.step(x.cuda(), y.cuda()) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert ours.worst_case(x.numpy(), y.numpy()).points.is_cuda
