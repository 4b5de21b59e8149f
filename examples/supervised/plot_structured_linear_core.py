"""
Tagging sequences with a loss that needs no inference
=====================================================

A tagger for sequences is usually trained with inference in every step: a conditional random field sums over all tag
sequences, a structured SVM searches the worst one. Both cost the square of the number of tags. The linear-core loss is
a sum over wrong tags that can be sampled without bias. This example trains a tagger to find the words in a text without
spaces, reads its certificates, and then measures a training step as the number of tags grows.
"""

# %%
# Words without spaces
# --------------------
# The text is that of Python's own help. A position is a letter; its tag says whether a word starts there.
import re
import time

import matplotlib.pyplot as plt
import torch

from assay.data.text import load_python_topics
from assay.supervised import SequenceTagger, StructuredLinearCore, structured_certificates, viterbi

topics = load_python_topics(unit="character")
words = re.findall("[a-z]+", topics.decode(topics.train).lower())[:4000]
lines = [words[i : i + 8] for i in range(0, len(words), 8)]
letters = ["".join(line) for line in lines]
tags = ["".join("|" + "." * (len(word) - 1) for word in line) for line in lines]
print(letters[40])
print(tags[40])

# %%
# Tokens of any kind can be tagged: here each sequence is a string of letters. ``window`` says how many neighbours on
# each side describe a position. Dicts of features, as for ``sklearn_crfsuite``, and matrices work the same way.
tagger = SequenceTagger(window=4, alpha=1e-3).fit(letters[:400], tags[:400])
print(f"{tagger.score(letters[400:], tags[400:]):.1%} of the letters are tagged right")
for line, predicted in zip(letters[400:404], tagger.predict(letters[400:404]), strict=True):
    print("".join(" " * (tag == "|") + letter for letter, tag in zip(line, predicted, strict=True)))

# %%
# What the tagger promises
# ------------------------
# The first certificate says how far the training objective is from its optimum. The second is the consistency bound of
# the loss on the training data: the error beyond what the features make unavoidable is at most the excess of the loss
# divided by ``tau``. It speaks of predictions that know the true tag before them, and says so.
for certificate in tagger.certificates_:
    print(certificate)

# %%
# The gap is recorded in every iteration.
history = tagger.history_
figure, axes = plt.subplots(figsize=(5.5, 3.5))
axes.semilogy(history["iteration"], history["gap"] / history["objective"])
axes.axhline(tagger.tol, color="gray", linestyle=":")
axes.set(xlabel="iteration of L-BFGS", ylabel="duality gap / objective")
figure.tight_layout()

# %%
# The transitions tell that words rarely have one letter: a start is seldom followed by a start.
print(tagger.classes_, tagger.transitions_.round(2), sep="\n")

# %%
# Your own network
# ----------------
# :class:`~assay.supervised.StructuredLinearCore` is the loss by itself, for scores that come from any network. Its
# sampled gradient is unbiased, which can be checked where all labels can still be enumerated.
loss = StructuredLinearCore(n_labels=6, sampler="positionwise", n_samples=2, generator=torch.Generator().manual_seed(0))
unary, transitions = torch.randn(4, 10, 6), torch.randn(6, 6)
target = torch.randint(6, (4, 10))
for certificate in structured_certificates(loss, unary, transitions, target, rng=0):
    print(certificate)

# %%
# The cost of a step
# ------------------
# A step of the structured SVM adds the cost to the scores and searches the best sequence; a step of the sampled loss
# looks at eight labels per position. Both include the backward pass to the scores of eight sequences of length 20.


def seconds(step, unary, transitions, repeats=5):
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        torch.autograd.grad(step(), (unary, transitions))
        taken.append(time.perf_counter() - began)
    return min(taken)


sizes, times = (25, 50, 100, 200, 400), {"structured SVM": [], "linear core, sampled": []}
for n_labels in sizes:
    unary = torch.randn(8, 20, n_labels, requires_grad=True)
    transitions = torch.randn(n_labels, n_labels, requires_grad=True)
    target = torch.randint(n_labels, (8, 20))
    cost = 1 - torch.nn.functional.one_hot(target, n_labels)
    loss = StructuredLinearCore(n_labels, sampler="positionwise", n_samples=8)

    def score(labels, unary=unary, transitions=transitions):
        return unary.gather(2, labels[..., None]).sum() + transitions[labels[:, :-1], labels[:, 1:]].sum()

    def svm_step(unary=unary, transitions=transitions, target=target, cost=cost, score=score):
        return score(viterbi(unary.detach() + cost, transitions.detach())) - score(target)

    def sampled_step(unary=unary, transitions=transitions, target=target, loss=loss):
        return loss(unary, transitions, target)

    times["structured SVM"].append(seconds(svm_step, unary, transitions))
    times["linear core, sampled"].append(seconds(sampled_step, unary, transitions))

figure, axes = plt.subplots(figsize=(5.5, 3.5))
for name, column in times.items():
    axes.loglog(sizes, column, marker="o", label=name)
axes.set(xlabel="number of labels", ylabel="seconds per step")
axes.legend()
figure.tight_layout()

# %%
# A step is not the whole story: sampled steps are noisy, and a structured SVM needs fewer of them. The study of this
# method compares what both have learned after the same time.
