"""Data, models, training and attack of the study of flows to the worst case."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from assay.extras import MissingExtraError

__all__ = [
    "Task",
    "attacked_accuracy",
    "circle_task",
    "digits_task",
    "dro_is_there",
    "make_model",
    "new_loss",
    "train",
]

RADII = (0.0, 0.25, 0.5, 0.75)
ATTACK_STEPS = 15
# Names of those that are trained, as the study shows them.
ERM, NOISE, DUAL, WRM = "ERM", "Gaussian noise", "Sinkhorn dual", "WRM"
WGF, WFR, SVGD = "WGF", "WFR", "SVGD"
DRO_INSTALL = "pip install --no-deps dro torchattacks"
DRO_DUAL, DRO_WRM, DRO_BALL = "dro SinkhornNNDRO", "dro WNNDRO, transport", "dro WNNDRO, ball"


@dataclass(frozen=True)
class Task:
    """Training and test data as float32 tensors, and how to train on them."""

    name: str
    x: Any
    y: Any
    x_test: Any
    y_test: Any
    widths: tuple[int, ...]
    rate: float
    epochs: int
    tau: float
    epsilon: float
    seed: int


def digits_task(architecture: str, seed: int, epochs: int) -> Task:
    """Handwritten digits in [0, 1], half of them for training, for a linear model or a network."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, digits, test_size=0.5, stratify=digits, random_state=seed)
    x, x_test, y, y_test = (torch.as_tensor(np.asarray(part)) for part in parts)
    widths = (64, 10) if architecture == "linear" else (64, 64, 10)
    return Task(architecture, x.float(), y, x_test.float(), y_test, widths, 1e-2, epochs, 0.5, 0.02, seed)


def circle_task(seed: int, epochs: int) -> Task:
    """Is a point inside a circle? No training point is in the first quadrant."""
    import torch

    rng = np.random.default_rng(seed)

    def points(count: int, first_quadrant: bool) -> np.ndarray:
        drawn = rng.normal(size=(40 * count, 2))
        size = np.linalg.norm(drawn, axis=1) / np.sqrt(2.0)
        keep = (size < 1 / 1.3) | (size > 1.3)
        if not first_quadrant:
            keep &= (drawn < 0).any(axis=1)
        return drawn[keep][:count]

    x, x_test = points(500, False), points(2000, True)
    labels = [torch.as_tensor((np.linalg.norm(part, axis=1) > np.sqrt(2.0)).astype(np.int64)) for part in (x, x_test)]
    tensors = [torch.as_tensor(part, dtype=torch.float32) for part in (x, x_test)]
    return Task("circle", tensors[0], labels[0], tensors[1], labels[1], (2, 4, 2), 0.05, epochs, 0.5, 0.15, seed)


def make_model(task: Task) -> Any:
    """The model of a task, with the same weights for all who are trained on it."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(task.seed)
        layers: list[Any] = []
        for fan_in, fan_out in zip(task.widths[:-1], task.widths[1:], strict=True):
            layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ELU()]
    return torch.nn.Sequential(*layers[:-1])


def new_loss() -> Callable[..., Any]:
    """One cross-entropy per sample."""
    import torch

    return torch.nn.CrossEntropyLoss(reduction="none")


def sampler_options(name: str, steps: int) -> dict[str, Any]:
    """Flow and settings of those that :class:`FlowSampler` makes: steps of 0.1, four particles, 16 draws."""
    return {
        WGF: {"flow": "wgf", "steps": steps, "step_size": 0.1},
        WFR: {"flow": "wfr", "steps": steps, "step_size": 0.1},
        SVGD: {"flow": "svgd", "steps": steps},
        WRM: {"flow": "wrm", "steps": steps, "step_size": 0.1},
        DUAL: {"flow": "dual", "particles": 16},
    }[name]


def train(name: str, task: Task, steps: int = 10, batch_size: int = 128) -> Any:
    """Train the model of a task as a contender does it; Adam, and the same batches for all."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = make_model(task)
    generator = torch.Generator().manual_seed(task.seed)
    loader = DataLoader(
        TensorDataset(task.x, task.y),
        batch_size=batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(task.seed + 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=task.rate)
    if name in (ERM, NOISE):
        spread = (0.5 * task.epsilon) ** 0.5 if name == NOISE else 0.0
        loss = torch.nn.CrossEntropyLoss()
        for _ in range(task.epochs):
            for x, y in loader:
                optimizer.zero_grad()
                loss(model(x + spread * torch.randn(x.shape, generator=generator)), y).backward()
                optimizer.step()
    elif name in (DRO_DUAL, DRO_WRM, DRO_BALL):
        with torch.random.fork_rng():
            torch.manual_seed(task.seed)
            peer = make_peer(name, task, model, steps)
            peer.fit(train_loader=loader, val_loader=loader, optimizer=optimizer, epochs=task.epochs, verbose=False)
    else:
        from assay.transport import DROTrainer, FlowSampler

        sampler = FlowSampler(tau=task.tau, epsilon=task.epsilon, generator=generator, **sampler_options(name, steps))
        DROTrainer(model, new_loss(), optimizer, sampler).fit(loader, task.epochs)
    return model.eval()


def make_peer(name: str, task: Task, model: Any, steps: int) -> Any:
    """The library's version: its penalty is gamma |y - x|^2, its noise N(0, reg I), its temperature lambda * reg."""
    neural = import_dro()
    size, classes = task.widths[0], task.widths[-1]
    if name == DRO_DUAL:
        peer = neural.SinkhornNNDRO(
            size, classes, model_type="linear", reg_param=task.epsilon / 2, lambda_param=1 / task.tau, k_sample_max=4
        )
    elif name == DRO_WRM:
        peer = neural.WNNDRO(
            size,
            classes,
            model_type="linear",
            adversarial_steps=steps,
            adversarial_step_size=0.1,
            robust_objective="transport_penalty",
            gamma=0.5 / task.tau,
            device=task.x.device,
        )
    else:
        peer = neural.WNNDRO(
            size,
            classes,
            model_type="linear",
            epsilon=0.5,
            adversarial_steps=steps,
            adversarial_step_size=2.5 * 0.5 / steps,
            device=task.x.device,
        )
    peer.update_user_mode(size, classes, model)
    return peer


def dro_is_there() -> bool:
    """Whether the library and its attacks are installed; what they require excludes what others do, so often not."""
    return all(importlib.util.find_spec(name) is not None for name in ("dro", "torchattacks"))


@cache
def import_dro() -> Any:
    """The neural part of ``dro``.

    The package also imports gradient boosting, convex solvers and torchvision, of which this part uses no more than
    the name of a module of pretrained image models. They are heavy, and a torchvision that was built for another torch
    stops the import; so that part alone is loaded. It is kept here and not among the imported modules, where it would
    be without its package.
    """
    if not dro_is_there():
        raise MissingExtraError(f"dro or torchattacks is not installed; install them with: {DRO_INSTALL}", name="dro")
    # Its progress bars would take a lock between processes, which a worker that is stopped leaves behind.
    importlib.import_module("tqdm").tqdm.set_lock(threading.RLock())
    found = importlib.util.find_spec("dro")
    package = types.ModuleType("dro")
    package.__path__ = list(found.submodule_search_locations or ())
    with stand_ins({"dro": package, "torchvision": None, "torchvision.models": None}):
        return importlib.import_module("dro.neural_model")


@contextmanager
def stand_ins(modules: Mapping[str, types.ModuleType | None]) -> Iterator[None]:
    """Put modules, empty ones for None, in place of those that are not imported yet, for a while.

    Nothing of them is left among the imported modules, nor what was imported from within them.
    """
    absent = {name: module or types.ModuleType(name) for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(absent)
    for name, module in absent.items():
        parent, _, child = name.rpartition(".")
        if parent in absent:
            setattr(absent[parent], child, module)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if any(name == one or name.startswith(f"{one}.") for one in absent)]:
            del sys.modules[name]


def attacked_accuracy(model: Any, x: Any, y: Any, radius: float) -> float:
    """Accuracy after 15 steps of ascent of the loss in a Euclidean ball around every test point."""
    import torch

    loss, moved = new_loss(), x.clone()
    for _ in range(ATTACK_STEPS if radius else 0):
        leaf = moved.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(model(leaf), y).sum(), leaf)
        length = gradient.norm(dim=1, keepdim=True).clamp_min(1e-12)
        away = moved + (2.5 * radius / ATTACK_STEPS) * gradient / length - x
        moved = x + away * (radius / away.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
    with torch.no_grad():
        return float((model(moved).argmax(1) == y).double().mean())
