"""A small byte-level transformer and the loop that trains it, for studies of optimizers.

The model is the usual pre-norm decoder (learned positions, causal attention, a GELU network of width four times the
model's, untied head), the loop is the usual one (linear warmup, cosine decay, clip of the global norm). Everything
random comes from one seed, so that two optimizers see the same weights and the same batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from assay.data.text import EncodedText


class Block(nn.Module):
    """Attention and a feed-forward network, each on a normalized copy of the stream."""

    def __init__(self, width: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.network_norm = nn.LayerNorm(width)
        self.network_in = nn.Linear(width, 4 * width, bias=False)
        self.network_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        """Stream of shape (batch, position, width) in and out."""
        batch, length, width = stream.shape
        projected = self.attention_in(self.attention_norm(stream))
        query, key, value = projected.view(batch, length, 3, self.n_heads, width // self.n_heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))
        return stream + self.network_out(functional.gelu(self.network_in(self.network_norm(stream))))


class ByteTransformer(nn.Module):
    """Decoder that predicts the next symbol at every position."""

    def __init__(
        self, n_symbols: int, *, width: int, n_layers: int, n_heads: int, context: int, generator: torch.Generator
    ):
        super().__init__()
        self.context = context
        self.symbols = nn.Embedding(n_symbols, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_symbols, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # What is added to the stream 2 * n_layers times is smaller by the square root of that.
                depth = 2 * n_layers if name.endswith("_out.weight") else 1
                nn.init.normal_(parameter, std=0.02 / math.sqrt(depth), generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Symbols of shape (batch, position) in, logits of shape (batch, position, symbol) out."""
        stream = self.symbols(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy in nats of predicting every symbol of (batch, position + 1) but the first."""
        return functional.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def matrices_and_others(self, weight_decay: float) -> list[dict[str, object]]:
        """Two parameter groups: matrices, which decay, and the rest, which does not."""
        parameters = list(self.parameters())
        return [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]


@dataclass
class TrainingRun:
    """What a training run leaves behind."""

    model: ByteTransformer
    train_loss: np.ndarray
    validation_loss: float
    seconds: float
    checks: list[tuple[int, float]] = field(default_factory=list)  # validation loss at some steps


def warmup_cosine(step: int, *, steps: int, warmup: int) -> float:
    """Factor on the learning rate: linear up to 1 over ``warmup`` steps, then a half cosine down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train_language_model(
    text: EncodedText,
    make_optimizers: Callable[[ByteTransformer], Sequence[torch.optim.Optimizer]],
    *,
    seed: int,
    steps: int,
    warmup: int,
    batch: int,
    width: int,
    n_layers: int,
    n_heads: int,
    context: int,
    max_norm: float | None = None,
    before_clip: Callable[[ByteTransformer], object] | None = None,
    after_step: Callable[[int, ByteTransformer], object] | None = None,
    n_validation: int = 64,
    check_every: int | None = None,
) -> TrainingRun:
    """Train a fresh model.

    Parameters
    ----------
    text : EncodedText
        What to learn.
    make_optimizers : callable
        Gets the model and returns the optimizers, all of which step and follow the same schedule.
    seed : int
        Determines the initial weights and all batches.
    steps, warmup, batch : int
        Length of the run, of its warmup, and sequences per step.
    width, n_layers, n_heads, context : int
        Shape of the model.
    max_norm : float, optional
        Clip of the global gradient norm.
    before_clip : callable, optional
        Called with the model between ``backward`` and the clip of the global norm.
    after_step : callable, optional
        Called with the step and the model after every step.
    n_validation : int, default=64
        Sequences, evenly spaced over the held-out text, whose mean loss is reported.
    check_every : int, optional
        Also report the validation loss every so many steps.
    """
    generator = torch.Generator().manual_seed(seed)
    model = ByteTransformer(
        len(text.vocabulary), width=width, n_layers=n_layers, n_heads=n_heads, context=context, generator=generator
    )
    optimizers = list(make_optimizers(model))
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_cosine(step, steps=steps, warmup=warmup))
        for optimizer in optimizers
    ]
    train, held_out = torch.from_numpy(text.train), torch.from_numpy(text.validation)
    window = torch.arange(context + 1)
    starts = torch.linspace(0, len(held_out) - context - 1, n_validation).long()
    validation = held_out[starts[:, None] + window]
    losses, checks = np.empty(steps), []
    began = time.perf_counter()
    for step in range(steps):
        offsets = torch.randint(len(train) - context, (batch,), generator=generator)
        loss = model.loss(train[offsets[:, None] + window])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        if before_clip is not None:
            before_clip(model)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        losses[step] = loss.item()
        if after_step is not None:
            after_step(step, model)
        if check_every is not None and (step + 1) % check_every == 0:
            checks.append((step + 1, validation_loss(model, validation)))
    seconds = time.perf_counter() - began
    return TrainingRun(model, losses, validation_loss(model, validation), seconds, checks)


@torch.no_grad()
def validation_loss(model: ByteTransformer, tokens: Tensor) -> float:
    """Mean loss over sequences of shape (batch, position + 1); a diverged model counts as infinite."""
    loss = float(model.loss(tokens))
    return loss if math.isfinite(loss) else math.inf
