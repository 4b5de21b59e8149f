"""
How far from possible is your bilevel method?
=============================================

A lower bound says how many oracle calls every first-order method needs on some problem. Here that problem can be run.
We let an accelerated penalty method cross it, look at its path along the chain next to the fastest possible one, and
write a method of our own.
"""

import matplotlib.pyplot as plt
import numpy as np

from assay.bilevel import chain_walker, hard_instance, nesterov_inner_penalty, run_method

instance = hard_instance(kappa=100, eps=0.1)
print(instance)

# %%
# Two methods
# -----------
# The walker minimises nothing: it moves whatever a gradient has shown, and so is the fastest along the chain.

walker = run_method(chain_walker(instance), instance, max_calls=200)
penalty = run_method(nesterov_inner_penalty(instance, scale=100.0), instance, max_calls=20_000)
print(penalty)
for certificate in penalty.certificates:
    print(certificate)

# %%
# One of our own
# --------------
# A method asks the oracle and yields its upper iterates. This one tracks the lower solution and takes the upper
# gradient at face value, as if the lower solution did not depend on the upper variables. It never moves any of them:
# the upper objective does not depend on them directly.


def ignoring(oracle, dim_x, dim_y, budget):
    x, y = np.zeros(dim_x), np.zeros(dim_y)
    for _ in range(budget):
        answer = oracle(x, y)
        x, y = x - 0.1 * answer.fx, y - answer.gy
        yield x


own = run_method(ignoring, instance, max_calls=500)
print(f"hypergradient after {own.calls} calls: {own.grad_norm:.4f}, respects zeros: {own.zero_respecting}")

# %%
# The paths
# ---------

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
for name, run in (("walker", walker), ("accelerated penalty method", penalty)):
    left.step(run.progress["calls"] + 1, run.progress["variables"], where="post", label=name)
left.axvline(instance.lower_bound_calls, color="0.5", linestyle=":", label="lower bound")
left.set(xscale="log", xlabel="oracle calls", ylabel="upper variables moved")
left.legend(fontsize=8)
right.plot(penalty.history["calls"] + 1, penalty.history["grad_norm"])
right.axhline(0.1, color="0.5", linestyle=":")
right.set(xscale="log", xlabel="oracle calls", ylabel="norm of the hypergradient")
fig.tight_layout()
