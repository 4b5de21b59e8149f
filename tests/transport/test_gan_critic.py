"""The critic for generative models: its ball, its band, its state, and the value that it plays for."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import nn

from assay.transport import AmariDivergence, RFFCritic, gan_value


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("alpha, value", [(0.3, 0.3889488945), (0.7, 0.4024724507)])
def test_known_values(alpha, value):
    real, fake = (torch.tensor(g, dtype=torch.float64) for g in ([0.3, -0.1, 0.8], [-0.5, 0.2]))
    assert float(gan_value(real, fake, alpha)) == pytest.approx(value, abs=1e-10)
    assert float(gan_value(real, fake, AmariDivergence(alpha))) == pytest.approx(value, abs=1e-10)
    swapped = gan_value(-fake, -real, 1 - alpha)
    assert float(swapped) == pytest.approx(value, abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("near", [1e-300, 1e-40, 1e-20, 1e-12, 1e-9])
def test_near_the_limits_nothing_cancels(dtype, near):
    real, fake = (torch.tensor(g, dtype=dtype) for g in ([0.3, -0.1, 0.8], [-0.5, 0.2]))
    for alpha, limit in ((near, 0.0), (1.0 - near, 1.0)):
        # The derivative by alpha is below 1/2 here.
        tolerance = near + 8 * torch.finfo(dtype).eps
        assert float(gan_value(real, fake, alpha)) == pytest.approx(float(gan_value(real, fake, limit)), abs=tolerance)


@pytest.mark.parametrize("alpha", [0, 0.5, 1])
def test_gradients(alpha):
    real = torch.tensor([0.3, -0.1], dtype=torch.float64, requires_grad=True)
    fake = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: gan_value(a, b, alpha), (real, fake))


def test_features_are_the_formula_and_the_critic_is_bounded():
    critic = RFFCritic(3, n_features=50, length_scale=2.0, radius=3.0, offset=1.0, generator=seeded())
    x = torch.randn(20, 3, generator=seeded(1))
    expected = math.sqrt(2 / 50) * np.cos(x.numpy() @ critic.frequencies.numpy() + critic.phases.numpy())
    np.testing.assert_allclose(critic.features(x).numpy(), expected, atol=1e-5)
    assert torch.equal(critic(x), torch.zeros(20))
    with torch.no_grad():
        critic.weight.copy_(1e6 * critic.features(x)[0])
        critic.bias.fill_(9.0)
    critic.project_()
    assert float(critic.weight.detach().norm()) == pytest.approx(3.0)
    assert float(critic.bias.detach()) == 1.0
    assert float(critic(x).detach().abs().max()) <= critic.bound == 3.0 * math.sqrt(2) + 1.0


def test_projection_leaves_the_inside_alone():
    critic = RFFCritic(2, n_features=4, generator=seeded())
    with torch.no_grad():
        critic.weight.copy_(torch.tensor([1.0, -2.0, 0.5, 0.0]))
    before = critic.weight.detach().clone()
    critic.project_()
    assert torch.equal(critic.weight.detach(), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_projection_ends_inside_the_bounds_whatever_the_precision(dtype):
    generator = seeded(7)
    for _ in range(25):
        critic = RFFCritic(
            2, n_features=37, radius=3.3, offset=0.3, band=2.1, learn_frequencies=True, generator=generator
        ).to(dtype)
        with torch.no_grad():
            critic.weight.copy_(5.0 * torch.randn(37, generator=generator))
            critic.bias.fill_(9.0)
            critic.frequencies.mul_(7.0)
        critic.project_()
        norms = [float(critic.weight.detach().double().norm()), abs(float(critic.bias.detach()))]
        norms.append(float(critic.frequencies.detach().double().norm(dim=0).max()))
        eps = torch.finfo(dtype).eps
        for norm, limit in zip(norms, (3.3, 0.3, 2.1), strict=True):
            assert limit * (1.0 - 4.0 * eps) <= norm <= limit


def test_projection_of_weights_whose_square_overflows():
    for dtype, large in ((torch.float32, 1e30), (torch.float16, 6e4)):
        critic = RFFCritic(2, n_features=4, radius=2.0, generator=seeded()).to(dtype)
        with torch.no_grad():
            critic.weight.fill_(large)
        critic.project_()
        assert critic.weight.detach().tolist() == pytest.approx([1.0] * 4, rel=4 * torch.finfo(dtype).eps)


def test_scales_and_band():
    plain = RFFCritic(2, n_features=2000, length_scale=0.5, scales=(1.0, 5.0), generator=seeded())
    lengths = plain.frequencies.norm(dim=0)
    # Mean length of a standard normal vector in the plane: sqrt(pi / 2).
    assert float(lengths[:1000].mean()) == pytest.approx(math.sqrt(math.pi / 2) / 0.5, rel=0.05)
    assert float(lengths[1000:].mean()) == pytest.approx(5 * math.sqrt(math.pi / 2) / 0.5, rel=0.05)
    limited = RFFCritic(2, n_features=501, length_scale=0.5, band=4.0, generator=seeded())
    assert limited.frequencies.shape == (2, 501)
    assert float(limited.frequencies.norm(dim=0).max()) <= 8.0 * (1 + 1e-5)
    assert len(limited.certificates()) == 3


def test_certificates_notice_a_critic_outside():
    critic = RFFCritic(2, n_features=8, band=2.0, learn_frequencies=True, generator=seeded())
    assert all(c.holds for c in critic.certificates())
    with torch.no_grad():
        critic.weight.fill_(100.0)
        critic.bias.fill_(6.0)
        critic.frequencies.mul_(10.0)
    assert not any(c.holds for c in critic.certificates())
    critic.project_()
    assert all(c.holds for c in critic.certificates())
    with torch.no_grad():
        critic.weight.fill_(math.nan)
    assert not critic.certificates()[0].holds


def test_state_dict_copies_and_dtypes():
    critic = RFFCritic(2, n_features=8, backbone=nn.Linear(5, 2), generator=seeded())
    x = torch.randn(4, 5, generator=seeded(1))
    with torch.no_grad():
        critic.weight.normal_(generator=seeded(2))
    file = io.BytesIO()
    torch.save(critic.state_dict(), file)
    file.seek(0)
    other = RFFCritic(2, n_features=8, backbone=nn.Linear(5, 2), generator=seeded(9))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), critic(x))
    assert torch.equal(copy.deepcopy(critic)(x), critic(x))
    assert {"frequencies", "phases"} <= set(dict(critic.named_buffers()))
    wide = copy.deepcopy(critic).double()
    assert wide(x.double()).dtype == torch.float64
    torch.testing.assert_close(wide(x.double()).float(), critic(x), atol=1e-5, rtol=1e-5)
    half = copy.deepcopy(critic).to(torch.bfloat16)
    value = gan_value(half(x.bfloat16()), half(x.bfloat16()), 0.5)
    assert value.dtype == torch.float32


def test_the_same_generator_the_same_features_and_no_global_state():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one, other = (RFFCritic(2, n_features=8, generator=seeded(3)) for _ in range(2))
    assert torch.equal(one.frequencies, other.frequencies)
    fresh = RFFCritic(2, n_features=8)
    assert not torch.equal(fresh.frequencies, one.frequencies)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_generator_learns_to_move_its_mean():
    critic = RFFCritic(1, n_features=64, length_scale=2.0, radius=5.0, generator=seeded(4))
    shift = nn.Parameter(torch.tensor([3.0]))
    up, down = torch.optim.Adam(critic.parameters(), 0.05), torch.optim.Adam([shift], 0.05)
    generator = seeded(5)
    for _ in range(150):
        real, noise = torch.randn(64, 1, generator=generator), torch.randn(64, 1, generator=generator)
        for _ in range(2):
            up.zero_grad()
            (-gan_value(critic(real), critic((noise + shift).detach()), 0.5)).backward()
            up.step()
            critic.project_()
        down.zero_grad()
        gan_value(critic(real), critic(noise + shift), 0.5).backward()
        down.step()
    assert abs(float(shift.detach())) < 0.7
    assert all(c.holds for c in critic.certificates())


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"in_features": 0}, ValueError, "in_features must be at least 1"),
        ({"n_features": 0}, ValueError, "n_features must be at least 1"),
        ({"radius": 0.0}, ValueError, "radius must be greater than 0"),
        ({"radius": 60.0}, ValueError, "must be at most 80"),
        ({"length_scale": 0.0}, ValueError, "length_scale must be greater than 0"),
        ({"band": -1.0}, ValueError, "band must be greater than 0"),
        ({"scales": ()}, ValueError, "scales must be one or more"),
        ({"scales": (1.0, -1.0)}, ValueError, "scales must be greater than 0"),
        ({"backbone": 3}, TypeError, "backbone"),
        ({"generator": 3}, TypeError, "generator"),
        ({"offset": -1.0}, ValueError, "offset must be at least 0"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        RFFCritic(**{"in_features": 2, **options})


def test_bad_batches():
    critic = RFFCritic(2, n_features=4)
    with pytest.raises(ValueError, match=r"x must have shape \(B, 2\), got \(3, 5\)"):
        critic(torch.zeros(3, 5))
    with pytest.raises(ValueError, match="critic_fake must have at least one value"):
        gan_value(torch.zeros(2), torch.zeros(0))
    with pytest.raises(ValueError, match="alpha must be in"):
        gan_value(torch.zeros(2), torch.zeros(2), 2.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    critic = RFFCritic(2, n_features=8, generator=seeded()).cuda()
    value = gan_value(critic(torch.zeros(4, 2, device="cuda")), critic(torch.ones(4, 2, device="cuda")), 0.5)
    assert value.is_cuda
    critic.project_()
    assert all(c.holds for c in critic.certificates())
