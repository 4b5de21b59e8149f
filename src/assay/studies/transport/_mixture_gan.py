"""A small generative model of a grid of 16 modes, trained against a critic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["GridScores", "grid_characteristic", "score_samples", "train_generator"]

SPACING, SPREAD, SIDE = 1.0, 0.08, 4
NOISE = 2


class GridScores:
    """How well samples fit the grid."""

    def __init__(self, on_mode: float, high: float, low: float):
        self.on_mode, self.high, self.low = on_mode, high, low


def modes() -> np.ndarray:
    """Centres of the 16 modes."""
    line = SPACING * (np.arange(SIDE) - (SIDE - 1) / 2)
    return np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)


def grid_characteristic(t: np.ndarray) -> np.ndarray:
    """Characteristic function of the mixture at the rows of ``t``."""
    return np.exp(1j * t @ modes().T).mean(axis=1) * np.exp(-0.5 * SPREAD**2 * (t**2).sum(axis=1))


def score_samples(samples: np.ndarray, rng: np.random.Generator) -> GridScores:
    """Share within three standard deviations of a mode, and errors of the characteristic function in two bands."""
    distance = np.linalg.norm(samples[:, None, :] - modes()[None], axis=2).min(axis=1)
    errors = []
    for lower, upper in ((4.0, 8.0), (0.2, 2.0)):
        angle, length = rng.uniform(0, 2 * np.pi, 200), rng.uniform(lower, upper, 200)
        t = length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        empirical = np.exp(1j * t @ samples.T).mean(axis=1)
        errors.append(float(np.abs(empirical - grid_characteristic(t)).mean()))
    return GridScores(float((distance <= 3 * SPREAD).mean()), *errors)


def train_generator(
    critic: Any,
    project: Callable[[], None],
    lr_critic: float,
    steps: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.5,
    batch: int = 512,
    critic_steps: int = 3,
) -> np.ndarray:
    """Train a generator 2-128-128-2 against a critic by Adam and return 10 000 samples of it."""
    import torch
    from torch import nn

    from assay.transport import gan_value

    seed = int(rng.integers(2**31))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generator = nn.Sequential(nn.Linear(NOISE, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2))
    source = torch.Generator().manual_seed(seed)
    centres = torch.from_numpy(modes()).float()

    def real() -> Any:
        chosen = centres[torch.randint(len(centres), (batch,), generator=source)]
        return chosen + SPREAD * torch.randn(batch, 2, generator=source)

    def fake(size: int = batch) -> Any:
        return generator(torch.randn(size, NOISE, generator=source))

    ascent = torch.optim.Adam(critic.parameters(), lr_critic, betas=(0.5, 0.9))
    descent = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.9))
    for _ in range(steps):
        for _ in range(critic_steps):
            with torch.no_grad():
                made = fake()
            ascent.zero_grad()
            (-gan_value(critic(real()).flatten(), critic(made).flatten(), alpha)).backward()
            ascent.step()
            project()
        descent.zero_grad()
        # The first mean does not depend on the generator.
        gan_value(critic(real()).flatten().detach(), critic(fake()).flatten(), alpha).backward()
        descent.step()
    with torch.no_grad():
        return fake(10_000).double().numpy()
