"""What a torch optimizer must be able to do, for the three SPECTRA classes."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from assay.optim.spectra import Spectra, SpectraAdamW, SpectraSignum
from assay.optim.spectra_certificate import SpectraCertificate


def wrapper(params, lr=1e-2, **options):
    base = {name: options.pop(name) for name in ("maximize", "weight_decay", "eps") if name in options}
    return Spectra(torch.optim.AdamW(params, lr=lr, **{"weight_decay": 0.1, **base}), **{"clip": 1.0, **options})


def adamw(params, lr=1e-2, **options):
    return SpectraAdamW(params, lr=lr, **{"clip": 1.0, **options})


def signum(params, lr=1e-2, **options):
    return SpectraSignum(params, lr=lr, **{"clip": 1.0, **options})


ALL = pytest.mark.parametrize("make", [wrapper, adamw, signum])
BUILT_IN = pytest.mark.parametrize("make", [adamw, signum])


class Net(torch.nn.Module):
    """Parameters of every kind: 4-d, 2-d, 1-d, 0-d, tied, and one that is never used."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.convolution = torch.nn.Conv2d(1, 3, 3)
        self.first = torch.nn.Linear(12, 8)
        self.tied = torch.nn.Linear(8, 8, bias=False)
        self.last = torch.nn.Linear(8, 2)
        self.temperature = torch.nn.Parameter(torch.tensor(1.0))
        self.unused = torch.nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        hidden = torch.tanh(self.first(self.convolution(x).flatten(1)))
        return self.last(self.tied(torch.tanh(self.tied(hidden)))) * self.temperature


def batches(n, seed=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 1, 4, 4, generator=generator).to(dtype) for _ in range(n)]


def train(net, optimizer, data, scheduler=None):
    for x in data:
        optimizer.zero_grad()
        (net(x) - x.flatten(1)[:, :2]).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def parameters_equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@ALL
class TestEveryClass:
    def test_it_learns_and_ignores_what_has_no_gradient(self, make):
        net, (x,) = Net(), batches(1)
        optimizer = make(net.parameters())
        unused = net.unused.detach().clone()

        def loss():
            return float((net(x).detach() - x.flatten(1)[:, :2]).square().mean())

        before = loss()
        train(net, optimizer, [x] * 40)
        assert loss() < 0.7 * before
        assert torch.equal(net.unused.detach(), unused)
        assert all(c.holds and not c.violated for c in optimizer.certificates())

    def test_a_checkpoint_continues_bit_for_bit(self, make):
        data = batches(8)
        net = Net()
        optimizer = make(net.parameters(), warmup_steps=6, clip_schedule="linear", total_steps=10, decay_fraction=0.3)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=6)
        train(net, optimizer, data[:4], scheduler)
        file = io.BytesIO()
        torch.save([net.state_dict(), optimizer.state_dict(), scheduler.state_dict()], file)
        file.seek(0)
        saved_net, saved_optimizer, saved_scheduler = torch.load(file, weights_only=True)

        again = Net(seed=9)
        resumed = make(again.parameters(), warmup_steps=6, clip_schedule="linear", total_steps=10, decay_fraction=0.3)
        rescheduled = torch.optim.lr_scheduler.LinearLR(resumed, start_factor=0.1, total_iters=6)
        again.load_state_dict(saved_net)
        resumed.load_state_dict(saved_optimizer)
        rescheduled.load_state_dict(saved_scheduler)
        assert resumed.steps_done == 4
        train(net, optimizer, data[4:], scheduler)
        train(again, resumed, data[4:], rescheduled)
        assert parameters_equal(net, again)
        assert [c.value for c in resumed.certificates()] == [c.value for c in optimizer.certificates()]

    def test_deepcopy_and_pickle_continue_bit_for_bit(self, make):
        data = batches(6)
        net = Net()
        optimizer = make(net.parameters())
        train(net, optimizer, data[:3])
        copied_net, copied = copy.deepcopy((net, optimizer))
        loaded_net, loaded = pickle.loads(pickle.dumps((net, optimizer)))
        for other_net, other in ((net, optimizer), (copied_net, copied), (loaded_net, loaded)):
            train(other_net, other, data[3:])
        assert parameters_equal(net, copied_net)
        assert parameters_equal(net, loaded_net)
        assert copied.steps_done == loaded.steps_done == 6
        assert copied.certificates() == loaded.certificates() == optimizer.certificates()

    def test_a_group_added_in_the_middle(self, make):
        net, data = Net(), batches(6)
        optimizer = make([{"params": net.first.parameters(), "lr": 3e-2}, {"params": net.last.parameters()}])
        train(net, optimizer, data[:3])
        frozen = net.tied.weight.detach().clone()
        optimizer.add_param_group({"params": net.tied.parameters(), "lr": 1e-3, "weight_decay": 0.0})
        train(net, optimizer, data[3:])
        assert [group["lr"] for group in optimizer.param_groups] == [3e-2, 1e-2, 1e-3]
        assert not torch.equal(net.tied.weight.detach(), frozen)
        assert optimizer.threshold(2) == optimizer.threshold(0) == 1.0
        (certificate,) = optimizer.certificates()
        assert certificate.holds
        assert "largest of 3" in certificate.statement
        with pytest.raises(ValueError, match=r"more than one"):
            optimizer.add_param_group({"params": net.tied.parameters()})

    def test_tied_weights_in_one_group_step_once(self, make):
        once, twice = (torch.nn.Parameter(torch.ones(3, 4)) for _ in range(2))
        first = make([once])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about the duplicate
            second = make([twice, twice])
        tracker = SpectraCertificate(second, every=1)
        once.grad, twice.grad = (torch.linspace(-1, 1, 12).reshape(3, 4) for _ in range(2))
        first.step()
        second.step()
        if make is not wrapper:  # AdamW itself steps twice
            assert torch.equal(once.detach(), twice.detach())
        assert second.norm_bound(twice) == first.norm_bound(once)
        assert tracker.result().norms.shape == (1, 1)
        assert tracker.result().holds

    def test_quantized_and_lazy_layers(self, make):
        codes = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.uint8), requires_grad=False)
        lazy = torch.nn.LazyLinear(4)
        optimizer = make([codes, *lazy.parameters()])
        lazy(torch.ones(2, 3)).sum().backward()
        tracker = SpectraCertificate(optimizer, every=1)
        optimizer.step()
        assert tracker.result().names == ("0.1",)
        assert all(c.holds for c in optimizer.certificates())

    def test_closures_are_evaluated_with_gradients(self, make):
        net, other, (x,) = Net(), Net(), batches(1)
        optimizer, reference = make(net.parameters()), make(other.parameters())

        def closure():
            optimizer.zero_grad()
            loss = (net(x) - x.flatten(1)[:, :2]).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            loss = optimizer.step(closure)
            train(other, reference, [x])
        assert loss.requires_grad
        assert parameters_equal(net, other)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    @pytest.mark.filterwarnings("ignore:Spectra recovers updates")
    def test_dtypes(self, make, dtype):
        net = Net().to(dtype)
        # Adam's usual eps is 0 in float16
        optimizer = make(net.parameters()) if make is signum else make(net.parameters(), eps=1e-4)
        tracker = SpectraCertificate(optimizer, every=1)
        train(net, optimizer, batches(4, dtype=dtype))
        assert all(p.dtype == dtype and bool(torch.isfinite(p).all()) for p in net.parameters())
        updates, invariant = tracker.certificates()
        assert updates.holds  # the rounding of the weights is allowed for
        assert invariant.assumptions[0].satisfied == (dtype == torch.float64)

    def test_maximize_is_the_mirror_image(self, make):
        down, up = (torch.nn.Parameter(torch.zeros(3, 4)) for _ in range(2))
        first, second = make([down]), make([up], maximize=True)
        for seed in range(3):
            gradient = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
            down.grad, up.grad = gradient.clone(), gradient.clone()
            first.step()
            second.step()
            assert torch.equal(up.grad, gradient)
        torch.testing.assert_close(up.detach(), -down.detach())

    def test_named_parameters_name_the_report(self, make):
        net = Net()
        optimizer = make(net.named_parameters())
        tracker = SpectraCertificate(optimizer)
        train(net, optimizer, batches(1))
        assert tracker.result().names[:2] == ("unused", "convolution.weight")

    def test_tensor_learning_rates(self, make):
        net, other, data = Net(), Net(), batches(3)
        train(net, make(net.parameters(), lr=torch.tensor(1e-2, dtype=torch.float64)), data)
        train(other, make(other.parameters(), lr=1e-2), data)
        for a, b in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b)

    def test_every_scheduler(self, make):
        schedulers = torch.optim.lr_scheduler
        for build in (
            lambda o: schedulers.LambdaLR(o, lambda k: 0.9**k),
            lambda o: schedulers.MultiplicativeLR(o, lambda k: 0.9),
            lambda o: schedulers.StepLR(o, 2),
            lambda o: schedulers.MultiStepLR(o, [1, 3]),
            lambda o: schedulers.ConstantLR(o, 0.5, 2),
            lambda o: schedulers.LinearLR(o, 0.5),
            lambda o: schedulers.ExponentialLR(o, 0.9),
            lambda o: schedulers.PolynomialLR(o, 5),
            lambda o: schedulers.CosineAnnealingLR(o, 5),
            lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
            lambda o: schedulers.CyclicLR(o, 1e-3, 1e-2, step_size_up=2, cycle_momentum=False),
            lambda o: schedulers.OneCycleLR(o, 1e-2, total_steps=10, cycle_momentum=False),
            lambda o: schedulers.SequentialLR(
                o, [schedulers.ConstantLR(o, 0.1, 2), schedulers.ExponentialLR(o, 0.9)], milestones=[2]
            ),
            lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.1, 2), schedulers.ExponentialLR(o, 0.9)]),
        ):
            net = Net()
            optimizer = make(net.parameters())
            train(net, optimizer, batches(4), build(optimizer))
            assert optimizer.steps_done == 4
            assert all(c.holds for c in optimizer.certificates())
        plateau = schedulers.ReduceLROnPlateau(optimizer, patience=0)
        for _ in range(3):
            plateau.step(1.0)
        assert optimizer.param_groups[0]["lr"] < 1e-2

    def test_one_cycle_with_momentum(self, make):
        net = Net()
        optimizer = make(net.parameters())
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=10)
        train(net, optimizer, batches(4), scheduler)
        assert all(c.holds for c in optimizer.certificates())

    def test_a_gradient_scaler_and_autocast(self, make):
        net, other, data = Net(), Net(), batches(4)
        optimizer, reference = make(net.parameters()), make(other.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for k, x in enumerate(data):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=k == 3):
                loss = (net(x).float() - x.flatten(1)[:, :2]).square().mean()
            scaler.scale(loss).backward()
            if k == 2:  # an overflow: the step is skipped
                net.first.weight.grad[0, 0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
            if k < 2:
                train(other, reference, [x])
                for a, b in zip(net.parameters(), other.parameters(), strict=True):
                    torch.testing.assert_close(a, b)
        assert optimizer.steps_done == 3
        assert all(bool(torch.isfinite(p).all()) for p in net.parameters())

    def test_step_hooks_and_state_dict_hooks(self, make):
        net = Net()
        optimizer = make(net.parameters())
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        optimizer.register_state_dict_pre_hook(lambda *_: calls.append("saving"))
        optimizer.register_state_dict_post_hook(lambda o, content: {**content, "note": 1})
        optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("loading"))
        optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("loaded"))
        train(net, optimizer, batches(1))
        content = optimizer.state_dict()
        assert content.pop("note") == 1
        optimizer.load_state_dict(content)
        assert calls == ["before", "after", "saving", "loading", "loaded"]

    def test_a_compiled_step_does_the_same(self, make):
        net, other, data = Net(), Net(), batches(3)
        optimizer, reference = make(net.parameters()), make(other.parameters())
        compiled = torch.compile(lambda: optimizer.step(), backend="eager")
        for x in data:
            optimizer.zero_grad()
            (net(x) - x.flatten(1)[:, :2]).square().mean().backward()
            compiled()
        train(other, reference, data)
        for a, b in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b)

    def test_memory_does_not_grow(self, make):
        net, (x,) = Net(), batches(1)
        optimizer = make(net.parameters())

        def alive():
            gc.collect()
            things = gc.get_objects()
            return len(things), sum(issubclass(type(thing), torch.Tensor) for thing in things)

        train(net, optimizer, [x] * 5)
        objects, tensors = alive()
        train(net, optimizer, [x] * 40)
        objects_later, tensors_later = alive()
        assert tensors_later == tensors
        assert objects_later - objects < 40  # less than one per step

    def test_certificates_change_nothing(self, make):
        net, other, data = Net(), Net(), batches(4)
        optimizer, reference = make(net.parameters()), make(other.parameters())
        assert optimizer.certificates() == ()
        with SpectraCertificate(optimizer, every=2):
            for x in data:
                train(net, optimizer, [x])
                optimizer.certificates()
        train(other, reference, data)
        assert parameters_equal(net, other)
        assert str(optimizer.state_dict()) == str(reference.state_dict())


@BUILT_IN
class TestBuiltIn:
    def test_checkpoints_of_torch_distributed(self, make):
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        net, again = (torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)) for _ in range(2))
        optimizer, resumed = make(net.parameters()), make(again.parameters())

        def step(model, optimizer, x):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

        step(net, optimizer, torch.ones(2, 3))
        weights, state = copy.deepcopy(get_state_dict(net, optimizer))
        set_state_dict(again, resumed, model_state_dict=weights, optim_state_dict=state)
        step(net, optimizer, torch.eye(3))
        step(again, resumed, torch.eye(3))
        assert parameters_equal(net, again)
        assert resumed.certificates() == optimizer.certificates()

    def test_pieces_bound_the_memory_and_change_nothing(self, make, monkeypatch):
        net, other, data = Net(), Net(), batches(4)
        train(net, make(net.parameters()), data)
        monkeypatch.setattr("assay.optim.spectral.BATCH_ENTRIES", 50)
        train(other, make(other.parameters(), pre_clip=None), data)
        for a, b in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)

    def test_foreach_agrees_with_the_plain_path(self, make):
        net, other, data = Net(), Net(), batches(6)
        train(net, make(net.parameters(), foreach=True, scope="all"), data)
        train(other, make(other.parameters(), foreach=False, scope="all"), data)
        for a, b in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)

    def test_a_checkpoint_carries_the_settings_of_the_groups(self, make):
        first, second = make(Net().parameters(), clip=3.0), make(Net().parameters(), clip=5.0)
        second.load_state_dict(first.state_dict())
        assert second.param_groups[0]["clip"] == 3.0

    def test_no_copy_of_the_weights_is_kept(self, make):
        net = Net()
        optimizer = make(net.parameters())
        train(net, optimizer, batches(2))
        per_parameter = {adamw: 2, signum: 1}[make]
        for p in net.parameters():
            kept = [v for v in optimizer.state.get(p, {}).values() if isinstance(v, torch.Tensor)]
            assert len(kept) == (per_parameter if p.grad is not None else 0)


def test_a_checkpoint_of_adamw_can_be_taken_over():
    net, data = Net(), batches(4)
    before = torch.optim.AdamW(net.parameters(), lr=1e-2, betas=(0.8, 0.999), weight_decay=0.1)
    train(net, before, data[:2])
    other = copy.deepcopy(net)
    after = SpectraAdamW(other.parameters(), lr=1e-2, clip=None)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    train(net, before, data[2:])
    train(other, after, data[2:])
    assert parameters_equal(net, other)


def test_a_checkpoint_of_adamw_leaves_the_spectral_settings():
    groups = [
        {"params": [torch.nn.Parameter(torch.eye(3))], "clip": 2.0},
        {"params": [torch.nn.Parameter(torch.eye(2))]},
    ]
    plain = torch.optim.AdamW([{"params": group["params"]} for group in groups], lr=1e-2)
    for group in groups:
        group["params"][0].grad = torch.ones_like(group["params"][0])
    plain.step()
    optimizer = SpectraAdamW(groups, lr=3e-2, clip=7.0, warmup_steps=4)
    optimizer.step()
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.steps_done == 0
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-2]
    assert [optimizer.threshold(i) for i in range(2)] == pytest.approx([3 * 2.0, 3 * 7.0])
    optimizer.step()
    assert all(c.holds for c in optimizer.certificates())
    rectified = torch.optim.AdamW([{"params": group["params"]} for group in groups], amsgrad=True)
    before = str(optimizer.state_dict())
    with pytest.raises(ValueError, match="amsgrad"):
        optimizer.load_state_dict(rectified.state_dict())
    assert str(optimizer.state_dict()) == before


def test_a_group_that_was_added_to_the_base():
    first, second = (torch.nn.Parameter(torch.eye(3)) for _ in range(2))
    base = torch.optim.AdamW([first], lr=0.1)
    optimizer = Spectra(base, clip=0.5)
    base.add_param_group({"params": [second], "lr": 0.2, "clip": 0.25})
    first.grad, second.grad = torch.ones(3, 3), torch.ones(3, 3)
    optimizer.step()
    assert [optimizer.threshold(i) for i in range(2)] == [0.5, 0.25]
    assert "largest of 2" in optimizer.certificates()[0].statement
    assert len(optimizer.state_dict()["spectra"]["base_lrs"]) == 2


def test_a_wrapper_keeps_one_copy_of_the_weights(monkeypatch):
    monkeypatch.setattr("assay.optim.spectral.BATCH_ENTRIES", 16 * 16)
    weights = [torch.nn.Parameter(torch.randn(16, 16)) for _ in range(100)]
    for weight in weights:
        weight.grad = torch.randn(16, 16)
    optimizer = Spectra(torch.optim.AdamW(weights))
    optimizer.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        optimizer.step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    assert sizes.max() < 1.3 * sum(4 * weight.numel() for weight in weights)


def test_a_wrapper_of_a_fused_base():
    net, other, data = Net(), Net(), batches(3)
    train(net, Spectra(torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True), clip=1.0), data)
    train(other, Spectra(torch.optim.AdamW(other.parameters(), lr=1e-2), clip=1.0), data)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


WORKER = """
import os, sys, torch, torch.distributed as dist
from assay.optim.spectra import Spectra, SpectraAdamW, SpectraSignum
rank, meeting = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
for make in (
    lambda p: Spectra(torch.optim.AdamW(p, lr=1e-2), clip=1.0),
    lambda p: SpectraAdamW(p, lr=1e-2, clip=1.0),
    lambda p: SpectraSignum(p, lr=1e-2, clip=1.0),
):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 10), torch.nn.Linear(10, 3))
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = make(net.parameters())
    generator = torch.Generator().manual_seed(rank)  # every rank has its own data
    for _ in range(10):
        x = torch.randn(8, 6, generator=generator)
        optimizer.zero_grad()
        (net(x) - x[:, :3]).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    both = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(both, flat)
    assert torch.equal(both[0], both[1]), (both[0] - both[1]).abs().max()
    assert all(c.holds for c in optimizer.certificates())
dist.destroy_process_group()
os._exit(0)  # all was asserted above; torch's gloo threads sometimes abort the interpreter when it shuts down
"""


@pytest.mark.processes
def test_two_ranks_agree_bit_for_bit(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(tmp_path / "meeting")],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(errors)
