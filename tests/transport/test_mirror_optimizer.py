"""MirrorLangevin as a torch optimizer: what every optimizer must do, and what this one promises."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch

from assay.transport import Ball, Box, MirrorLangevin, Simplex, Spectraplex, mirror_langevin


def make(seed=0, dtype=torch.float64, temperature=0.05, **options):
    """Two tensors in a ball and one in a simplex, in two groups."""
    balls = [torch.tensor(Ball(3).start(n, n), dtype=dtype, requires_grad=True) for n in (20, 7)]
    shares = torch.tensor(Simplex(4).start(12, 0), dtype=dtype, requires_grad=True)
    groups = [{"params": balls, "domain": Ball(3)}, {"params": [shares], "lr": 0.3, "domain": Simplex(4)}]
    optimizer = MirrorLangevin(
        groups, temperature=temperature, generator=torch.Generator().manual_seed(seed), **options
    )
    return [*balls, shares], optimizer


def loss_of(parameters):
    return sum((p.mean(dim=0) - 0.3).square().sum() for p in parameters)


def train(parameters, optimizer, n, scheduler=None):
    for _ in range(n):
        optimizer.zero_grad()
        loss_of(parameters).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class TestTheStep:
    def test_it_is_that_of_the_particle_method(self):
        start = Simplex(3).start(50, 0)
        target = np.array([0.7, 0.2, 0.1])
        reference = mirror_langevin(
            lambda x: np.tile(2 * (x.mean(axis=0) - target), (len(x), 1)),
            start,
            domain=Simplex(3),
            temperature=0.05,
            lr=0.2,
            n_steps=10,
            rng=7,
        )
        # The generator of the particle method is seeded by the first integer of its rng.
        seed = int(np.random.default_rng(7).integers(2**63 - 1))
        x = torch.tensor(start, requires_grad=True)
        optimizer = MirrorLangevin([x], lr=0.2, temperature=0.05, generator=torch.Generator().manual_seed(seed))
        for _ in range(10):
            optimizer.zero_grad()
            (x.mean(dim=0) - torch.tensor(target)).square().sum().backward()
            optimizer.step()
        np.testing.assert_allclose(x.detach().numpy(), reference.particles, rtol=1e-10)

    def test_it_reaches_the_fixed_point(self):
        x = torch.tensor(Simplex(3).start(1000, 0), requires_grad=True)
        optimizer = MirrorLangevin([x], lr=0.2, temperature=0.05, generator=torch.Generator().manual_seed(0))
        for _ in range(150):
            optimizer.zero_grad()
            (x.mean(dim=0) - torch.tensor([0.7, 0.2, 0.1])).square().sum().backward()
            optimizer.step()
        np.testing.assert_allclose(x.detach().mean(dim=0), [0.61961, 0.21825, 0.16215], atol=0.02)
        assert all(c.holds for c in optimizer.certificates())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("inner", [1, 3])
    def test_foreach_agrees_with_the_plain_path(self, dtype, inner):
        (first, fast), (second, plain) = (make(dtype=dtype, inner=inner, foreach=f) for f in (None, False))
        train(first, fast, 8)
        train(second, plain, 8)
        for a, b in zip(first, second, strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a, b, rtol=1e-4 if dtype == torch.float32 else 1e-11, atol=1e-6)

    def test_maximize_and_the_scale_of_gradients(self):
        def moved(sign, factor, **options):
            x = torch.full((4, 1), 0.5, dtype=torch.float64, requires_grad=True)
            x.grad = torch.full_like(x, sign * factor)
            generator = torch.Generator().manual_seed(1)
            MirrorLangevin([x], domain=Box(0, 1), temperature=0.1, generator=generator, **options).step()
            return x.detach()

        torch.testing.assert_close(moved(1, 1.0, maximize=True), moved(-1, 1.0))
        torch.testing.assert_close(moved(1, 4.0, scale_grad=False), moved(1, 1.0))

    def test_matrices(self):
        x = torch.tensor(Spectraplex(2).start(30, 0), dtype=torch.float32, requires_grad=True)
        optimizer = MirrorLangevin([x], domain="spectraplex", temperature=0.05)
        for _ in range(20):
            optimizer.zero_grad()
            (x.mean(dim=0) - torch.diag(torch.tensor([0.9, 0.1]))).square().sum().backward()
            optimizer.step()
        assert optimizer.certificates()[0].holds
        torch.testing.assert_close(x.detach(), x.detach().mT)

    def test_temperature_zero(self):
        x = torch.full((3, 1), 0.5, dtype=torch.float64, requires_grad=True)
        with pytest.warns(UserWarning, match="deterministic"):
            optimizer = MirrorLangevin([x], domain=Box(0, 1), temperature=0.0, scale_grad=False)
        x.grad = torch.ones_like(x)
        optimizer.step()
        torch.testing.assert_close(x.detach(), Box(0, 1).inverse(torch.full_like(x.detach(), -0.1)))


class TestTheContract:
    def test_a_checkpoint_continues_bit_for_bit(self):
        parameters, optimizer = make()
        train(parameters, optimizer, 5)
        file = io.BytesIO()
        torch.save({"optimizer": optimizer.state_dict(), "x": [p.detach() for p in parameters]}, file)
        train(parameters, optimizer, 5)
        file.seek(0)
        content = torch.load(file, weights_only=True)
        again, resumed = make(seed=99)
        for p, x in zip(again, content["x"], strict=True):
            p.data.copy_(x)
        resumed.load_state_dict(content["optimizer"])
        train(again, resumed, 5)
        assert equal(parameters, again)
        assert resumed.steps_done == 10
        assert [g["elapsed"] for g in resumed.param_groups] == pytest.approx([1.0, 3.0])

    def test_settings_of_numpy_can_be_saved(self):
        group = {"params": [torch.full((3, 2), 0.1)], "lr": np.float32(0.25), "inner": np.int64(2)}
        optimizer = MirrorLangevin([group], domain=Ball(2), temperature=np.float64(0.1))
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)["param_groups"][0]
        assert (saved["lr"], saved["temperature"], saved["inner"]) == (0.25, 0.1, 2)

    def test_a_long_run_keeps_nothing(self):
        x = torch.full((4, 1), 0.5, requires_grad=True)
        optimizer = MirrorLangevin([x], domain=Box(0, 1, 1), temperature=0.1)
        x.grad = torch.ones_like(x)
        optimizer.step()
        before = len(pickle.dumps(optimizer.state_dict()))
        for _ in range(1000):
            optimizer.step()
        assert optimizer.steps_done == 1001
        assert len(pickle.dumps(optimizer.state_dict())) <= before + 16
        assert not optimizer.state
        assert optimizer.certificates()[0].holds

    def test_a_checkpoint_of_another_set_is_refused(self):
        x = torch.full((3, 2), 0.1, requires_grad=True)
        ball = MirrorLangevin([x], domain=Ball(2), temperature=0.1)
        box = MirrorLangevin([x], domain=Box(0, 1), temperature=0.1)
        before = str(box.state_dict())
        with pytest.raises(ValueError, match="state_dict must be of an optimizer on"):
            box.load_state_dict(ball.state_dict())
        with pytest.raises(ValueError, match="must have the key 'generator'"):
            box.load_state_dict({k: v for k, v in box.state_dict().items() if k != "generator"})
        assert str(box.state_dict()) == before

    def test_copies_and_pickles_go_on_alike(self):
        parameters, optimizer = make()
        train(parameters, optimizer, 3)
        for copied in (copy.deepcopy((parameters, optimizer)), pickle.loads(pickle.dumps((parameters, optimizer)))):
            again, other = copied
            train(again, other, 2)
            theirs, first = copy.deepcopy((parameters, optimizer))
            train(theirs, first, 2)
            assert equal(again, theirs)
            assert isinstance(other.domain_of(1), Simplex)

    def test_closures(self):
        (parameters, optimizer), (again, other) = make(), make()

        def closure():
            optimizer.zero_grad()
            loss = loss_of(parameters)
            loss.backward()
            return loss

        value = optimizer.step(closure)
        assert float(value.detach()) == pytest.approx(float(loss_of(again).detach()))
        train(again, other, 1)
        assert equal(parameters, again)

    def test_parameters_without_a_gradient_stay(self):
        parameters, optimizer = make()
        kept = parameters[1].detach().clone()
        loss_of([parameters[0], parameters[2]]).backward()
        optimizer.step()
        assert torch.equal(parameters[1].detach(), kept)
        assert not torch.equal(parameters[0].detach(), make()[0][0])

    def test_gradients_are_left_alone(self):
        parameters, optimizer = make()
        loss_of(parameters).backward()
        before = [p.grad.clone() for p in parameters]
        optimizer.step()
        assert equal([p.grad for p in parameters], before)

    def test_schedulers_and_a_learning_rate_of_zero(self):
        for build in (
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
            lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=10, cycle_momentum=False),
            lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.0),
        ):
            parameters, optimizer = make()
            scheduler = build(optimizer)
            train(parameters, optimizer, 4, scheduler)
            assert optimizer.certificates()[0].holds
        kept = [p.detach().clone() for p in parameters]
        train(parameters, optimizer, 1)
        assert equal(parameters, kept)

    def test_tensor_learning_rates_and_named_parameters(self):
        model = torch.nn.Module()
        model.units = torch.nn.Parameter(torch.zeros(5, 2))
        optimizer = MirrorLangevin(model.named_parameters(), lr=torch.tensor(0.2), domain=Ball(2), temperature=0.1)
        model.units.sum().backward()
        optimizer.step()
        assert bool((model.units != 0).all())

    def test_the_fresh_seed_is_not_that_of_torch(self):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        x = torch.full((5, 1), 0.5, requires_grad=True)
        optimizer = MirrorLangevin([x], domain="box", temperature=0.1)
        x.sum().backward()
        optimizer.step()
        assert torch.equal(torch.get_rng_state(), before)

    def test_hooks(self):
        parameters, optimizer = make()
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        train(parameters, optimizer, 1)
        assert calls == ["before", "after"]

    def test_groups_are_added_later(self):
        parameters, optimizer = make()
        more = torch.full((4, 2), 0.5, dtype=torch.float64, requires_grad=True)
        optimizer.add_param_group({"params": [more], "domain": Box(0, 1, 2)})
        train([*parameters, more], optimizer, 2)
        assert len(optimizer.param_groups) == 3
        with pytest.raises(ValueError, match="strictly inside"):
            optimizer.add_param_group({"params": [torch.full((4, 2), 2.0, dtype=torch.float64)], "domain": Ball(2)})
        assert len(optimizer.param_groups) == 3
        train([*parameters, more], optimizer, 1)

    def test_certificates_notice_a_particle_outside(self):
        parameters, optimizer = make()
        assert optimizer.certificates()[0].holds
        parameters[0].data[0] = 5.0
        assert not optimizer.certificates()[0].holds
        parameters[0].data[0] = torch.nan
        assert not optimizer.certificates()[0].holds


class TestWhatGoesWrong:
    def test_a_nan_is_reported_with_the_step_and_nothing_moves(self):
        parameters, optimizer = make()
        train(parameters, optimizer, 3)
        kept, state = [p.detach().clone() for p in parameters], optimizer.state_dict()
        parameters[2].grad[0, 0] = torch.nan
        with pytest.raises(RuntimeError, match="nan or infinite gradients at step 3"):
            optimizer.step()
        assert equal(parameters, kept)
        assert str(optimizer.state_dict()) == str(state)

    def test_particles_that_were_moved_out_are_reported(self):
        parameters, optimizer = make()
        loss_of(parameters).backward()
        parameters[0].data[0] = 5.0
        with pytest.raises(RuntimeError, match="particles outside Ball"):
            optimizer.step()

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"lr": 0.0}, "lr must be greater than 0"),
            ({"temperature": -0.1}, "temperature must be at least 0"),
            ({"inner": 0}, "inner must be at least 1"),
            ({"domain": Ball(3)}, "shape"),
            ({"domain": "ball", "barrier": "entropy"}, "barrier must be one of"),
            ({"params": [torch.full((3, 2), 1.5)]}, "strictly inside"),
            ({"params": [torch.zeros(3)]}, "domain must be a set, not the name"),
            ({"params": [torch.zeros(0, 2)]}, "must not be empty"),
        ],
    )
    def test_bad_values(self, change, message):
        arguments = {"params": [torch.full((3, 2), 0.1)], "domain": "ball", "temperature": 0.1}
        with pytest.raises(ValueError, match=message):
            MirrorLangevin(**{**arguments, **change})

    @pytest.mark.parametrize("name", ["lr", "temperature"])
    @pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
    def test_a_schedule_that_goes_wrong_is_reported_and_nothing_moves(self, name, value):
        parameters, optimizer = make()
        train(parameters, optimizer, 1)
        kept, state = [p.detach().clone() for p in parameters], optimizer.generator.get_state()
        optimizer.param_groups[1][name] = value
        with pytest.raises(ValueError, match=name):
            optimizer.step()
        assert equal(parameters, kept)
        assert torch.equal(optimizer.generator.get_state(), state)

    def test_bad_checkpoints(self):
        _, optimizer = make()
        content = optimizer.state_dict()
        with pytest.raises(ValueError, match="must have the key 'param_groups'"):
            optimizer.load_state_dict({"generator": content["generator"]})
        with pytest.raises(TypeError, match="generator of state_dict must be a tensor"):
            optimizer.load_state_dict({**content, "generator": "seed"})

    def test_bad_types(self):
        for options in ({"foreach": 1}, {"scale_grad": 1}, {"maximize": None}, {"inner": True}, {"lr": "fast"}):
            with pytest.raises(TypeError, match=next(iter(options))):
                MirrorLangevin([torch.zeros(3, 2)], domain=Ball(2), temperature=0.1, **options)
        for parameter in (torch.zeros(3, 2).half(), torch.zeros(3, 2, dtype=torch.complex64)):
            with pytest.raises(TypeError, match="dtype float32 or float64"):
                MirrorLangevin([parameter], domain=Ball(2), temperature=0.1)
        with pytest.raises(TypeError, match="lacks inverse, noise, slack"):
            MirrorLangevin(
                [torch.zeros(3, 2)], domain=type("Half", (), {"mirror": lambda self, x: x})(), temperature=0.1
            )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    x = torch.tensor(Simplex(4).start(100, 0), device="cuda", requires_grad=True)
    optimizer = MirrorLangevin([x], temperature=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        x.mean(dim=0)[0].backward()
        optimizer.step()
    assert optimizer.generator.device.type == "cuda"
    assert optimizer.certificates()[0].holds
    assert float(x.mean(dim=0)[0]) < 0.25
