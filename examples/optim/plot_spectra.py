r"""
A cap on every update: SPECTRA
==============================

AdamW at a large learning rate makes some very large steps: its updates have a few singular values far above the rest.
SPECTRA clips the singular values of each update at a threshold ``c``, which changes nothing where they are small, and
in return promises two things that can be checked on the run itself:

* no step moves a weight matrix by more than ``scale * lr * c`` in spectral norm;
* with decoupled weight decay, the spectral norm of every weight stays below a bound that is known in advance.

Here a small network learns to predict the next byte of Python's own help texts, once with AdamW and once with
SPECTRA, at the same large learning rate.
"""

# %%
# The data and the network
# ------------------------
# The network sees 16 bytes and predicts the one that follows.
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from assay.data.text import load_python_topics
from assay.optim.spectra import SpectraAdamW
from assay.optim.spectra_analysis import spike_report
from assay.optim.spectra_certificate import SpectraCertificate
from assay.optim.spectral import soft_spectral_clip

topics = load_python_topics()
n_symbols, context = len(topics.vocabulary), 16
train, held_out = torch.from_numpy(topics.train), torch.from_numpy(topics.validation)
print(topics)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(n_symbols, 16),
        nn.Flatten(),
        nn.Linear(16 * context, 128),
        nn.GELU(),
        nn.Linear(128, 128),
        nn.GELU(),
        nn.Linear(128, n_symbols),
    )


def loss_on(model, text, starts):
    windows = text[starts[:, None] + torch.arange(context + 1)]
    return nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])


# %%
# Two runs
# --------
# ``SpectraCertificate`` watches an optimizer: it takes the spectral norm of what a step did to the weights, by an SVD,
# every 20 steps. Without it the optimizer pays nothing.
learning_rate, n_steps = 3e-2, 300


def run(make_optimizer, watch=False):
    model = network()
    optimizer = make_optimizer(model.parameters())
    tracker = SpectraCertificate(optimizer, every=20) if watch else None
    generator = torch.Generator().manual_seed(1)
    some = torch.arange(0, len(held_out) - context - 1, 50)
    losses, norms = [], []
    for step in range(n_steps):
        optimizer.zero_grad()
        loss_on(model, train, torch.randint(len(train) - context, (128,), generator=generator)).backward()
        optimizer.step()
        if step % 20 == 0:
            with torch.no_grad():
                losses.append(loss_on(model, held_out, some).item())
                norms.append(max(torch.linalg.matrix_norm(p, 2).item() for p in model.parameters() if p.ndim == 2))
    return model, optimizer, tracker, losses, norms


_, adamw, _, adamw_losses, adamw_norms = run(
    lambda parameters: torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.8, 0.999), weight_decay=0.1)
)
model, spectra, tracker, spectra_losses, spectra_norms = run(
    lambda parameters: SpectraAdamW(parameters, lr=learning_rate, clip=1.0), watch=True
)

# %%
# What was promised, and what was measured
# ----------------------------------------
report = tracker.result()
for certificate in report.certificates:
    print(certificate)
print(f"{report.clipped_fraction:.0%} of the updates had a singular value above the threshold")

# %%
# The losses, and the weights
# ---------------------------
steps = np.arange(0, n_steps, 20)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(steps, adamw_losses, label="AdamW")
left.plot(steps, spectra_losses, label="SPECTRA-AdamW")
left.set(xlabel="step", ylabel="held-out loss (nats per byte)", ylim=(1.8, 4.2), title=f"learning rate {learning_rate}")
left.legend()
right.semilogy(steps, adamw_norms, label="AdamW")
right.semilogy(steps, spectra_norms, label="SPECTRA-AdamW")
right.semilogy(report.history["step"], report.bounds.max(axis=1), "k--", label="bound for SPECTRA")
right.set(xlabel="step", ylabel="largest spectral norm of a weight", title="weights")
right.legend()

# %%
# The bound is loose, and it is meant to be: it holds for any data and any gradient, for as long as the training goes
# on, and it tends to ``scale * c / weight_decay``.
#
# What the clip does to one update
# --------------------------------
# The direction of AdamW for the largest matrix, taken from its state: a few singular values stand out.
weight = max((p for p in model.parameters() if p.ndim == 2), key=torch.numel)
state = spectra.state[weight]
direction = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)
before, after = (torch.linalg.svdvals(x) for x in (direction, soft_spectral_clip(direction, 1.0)))

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
axes.semilogy(before, label="AdamW's direction")
axes.semilogy(after, label="after the soft clip at 1")
axes.set(xlabel="index", ylabel="singular value", title=f"an update of size {tuple(weight.shape)}")
axes.legend()

# %%
# Why not clip the norm?
# ----------------------
# The gradient that one bad example leaves in a linear layer has rank one. Suppose that such a spike, 20 times as large
# as the true gradient, gets into a batch. A clip of the Frobenius norm scales the true gradient down together with the
# spike; the spectral clip cuts the spike down in its own direction and leaves the rest. ``spike_report`` measures
# how much of the true gradient is kept by both, set to outputs of the same mean size.
generator = torch.Generator().manual_seed(2)


def gradient(n):
    model.zero_grad()
    loss_on(model, train, torch.randint(len(train) - context, (n,), generator=generator)).backward()
    return weight.grad.double()


full = gradient(20_000)
size = torch.linalg.matrix_norm(full, 2).item()
examples = [gradient(1) for _ in range(60)]
signs = torch.randint(2, (60,), generator=generator) * 2 - 1
with_spikes = torch.stack(
    [full + sign * 20 * size * g / torch.linalg.matrix_norm(g, 2) for sign, g in zip(signs, examples, strict=True)]
)
report = spike_report(full, with_spikes, 2 * size)
print(f"kept by the spectral clip {report.signal_kept:.2f}, by a clip of the norm {report.global_signal_kept:.2f}")
print(report.certificates[0])

# %%
# Without spikes there is no such gain: the noise of a plain minibatch has many directions, and those that stand out are
# those of the signal itself.
plain = spike_report(full, torch.stack([gradient(16) for _ in range(60)]), size)
print(f"kept by the spectral clip {plain.signal_kept:.2f}, by a clip of the norm {plain.global_signal_kept:.2f}")

# %%
# Choosing the threshold
# ----------------------
# Try ``clip`` in 1, 5 and 10, each with a learning rate 3 to 10 times the one that AdamW likes. To keep the optimizer
# that you have, wrap it: ``Spectra(your_optimizer, clip=1.0)``.
plt.show()
