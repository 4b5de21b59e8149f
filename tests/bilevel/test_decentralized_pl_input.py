"""What DecentralizedBilevel refuses, and with which words; its samplers of minibatches."""

import networkx as nx
import numpy as np
import pytest
import torch

from assay.bilevel import (
    BatchedLoss,
    DecentralizedBilevel,
    DecentralizedBilevelHook,
    minibatch_sampler,
    quadratic_pl_problem,
)

PROBLEM = quadratic_pl_problem(4)
RING = nx.cycle_graph(4)


def build(**changes):
    arguments = {
        "f_list": PROBLEM.f_list,
        "g_list": PROBLEM.g_list,
        "x0": np.zeros(5),
        "y0": np.zeros(12),
        "graph": RING,
        "smoothness": 1.0,
        "refine_steps": 2,
    } | changes
    first = [arguments.pop(name) for name in ("f_list", "g_list", "x0", "y0", "graph")]
    return DecentralizedBilevel(*first, **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": np.ones((4, 3)) / 4}, "graph must be a square matrix"),
        ({"graph": np.triu(np.ones((4, 4)))}, "graph must be symmetric"),
        ({"graph": np.ones((4, 4))}, "graph must be doubly stochastic"),
        ({"graph": np.eye(4)}, "graph must be connected"),
        ({"graph": nx.Graph([(0, 1), (2, 3)])}, "graph must be connected"),
        ({"graph": nx.cycle_graph(5)}, "f_list must have a loss for each of the 5 nodes, got 4"),
        ({"g_list": PROBLEM.g_list[:3]}, "g_list must have a loss for each of the 4 nodes, got 3"),
        ({"f_list": BatchedLoss(lambda x, y, b: None, 3)}, "f_list must have a loss for each of the 4 nodes, got 3"),
        ({"sigma": 0.0}, "sigma must be greater than 0"),
        ({"sigma": -1.0}, "sigma must be greater than 0"),
        ({"eta": 0.0}, "eta must be greater than 0"),
        ({"eta": 1.1}, "eta must be at most 1"),
        ({"eta": 0.5}, "a \\* eta must be at most 1"),
        ({"a": 0.0}, "a must be greater than 0"),
        ({"gamma_x": 0.0}, "gamma_x must be greater than 0"),
        ({"gamma_y": -1.0}, "gamma_y must be greater than 0"),
        ({"gamma_z": np.nan}, "gamma_z must be finite"),
        ({"smoothness": 0.0}, "smoothness must be greater than 0"),
        ({"estimator": "adam"}, "estimator must be one of"),
        ({"backend": "jax"}, "backend must be one of"),
        ({"lower_regularizer": -0.1}, "lower_regularizer must be at least 0"),
        ({"sigma_decay": 0}, "sigma_decay must be at least 1"),
        ({"x0": np.zeros((5, 1))}, "x0 must be a finite 1-D array"),
        ({"y0": np.full(12, np.nan)}, "y0 must be a finite 1-D array"),
        ({"z0": np.zeros(3)}, "z0 must have the shape of y0"),
        ({"x_bounds": (1.0, 0.0)}, "x_bounds must have lower bounds"),
        ({"x_bounds": (np.zeros(3), 1.0)}, "lower bound of x_bounds"),
        ({"x_bounds": (0.0,)}, "x_bounds must be a pair"),
        ({"x_bounds": "ab"}, "x_bounds must be a pair"),
        ({"x_bounds": (np.inf, 1.0)}, "lower bound of x_bounds must be a finite"),
        ({"x_bounds": (0.0, np.nan)}, "upper bound of x_bounds must be a finite"),
        ({"x_bounds": (1.0, 2.0)}, "x0 must be within x_bounds, got 0 in entry 0"),
        ({"compress_messages": True}, "compress_messages must be False"),
        ({"sampler": lambda rng: [0, 1]}, "sampler must return a batch for each of the 4 nodes, got 2"),
        ({"sampler": lambda rng: None}, "sampler must return a batch"),
        ({"sampler": lambda rng: dict(enumerate("abcd"))}, "sampler must return a batch .* got dict"),
        ({"smoothness": None, "g_list": [lambda x, y, b: (0.0, (x, 0 * y))] * 4}, "smoothness .* do not change"),
        (
            {"smoothness": None, "g_list": [lambda x, y, b: (0.0, (x, np.sqrt(1e-20 - y**2)))] * 4},
            "smoothness .* not finite",
        ),
        ({"sampler": lambda rng: [[1], [], [1], [1]]}, "got none for node 1"),
        ({"rng": -1}, "rng must be a non-negative seed"),
    ],
)
def test_bad_values(changes, message):
    with pytest.raises(ValueError, match=message):
        build(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"f_list": 3}, "f_list must be a list of callables"),
        ({"g_list": [None] * 4}, r"g_list\[0\] must be a callable"),
        ({"g_list": [lambda x, y, b: 1.0] * 4}, r"g_list\[0\] must return"),
        ({"f_list": BatchedLoss(lambda x, y, b: 1.0, 4)}, "f_list must return"),
        ({"backend": "torch", "f_list": [lambda x, y, b: 1.0] * 4}, r"f_list\[0\] must return a torch tensor"),
        ({"backend": "torch", "x0": torch.zeros(5, dtype=torch.int64)}, "x0 must be of dtype torch.float32 or"),
        ({"backend": "torch", "x0": torch.zeros(5).half()}, "x0 must be of dtype .* got torch.float16"),
        ({"sigma": "0.1"}, "sigma"),
        ({"x_bounds": ("a", 1.0)}, "lower bound of x_bounds must be"),
        ({"f_list": [lambda x, y, b: (0.0, (x + 0j, y))] * 4}, r"f_list\[0\] must return real numbers"),
        ({"f_list": [lambda x, y, b: (0.0, ("a", y))] * 4}, r"f_list\[0\] must return numbers and arrays, got str"),
        ({"tracking": 1}, "tracking"),
        ({"compress_messages": "no"}, "compress_messages"),
    ],
)
def test_bad_types(changes, message):
    with pytest.raises(TypeError, match=message):
        build(**changes)


def test_bad_shapes_of_gradients():
    for wrong in (
        (0.0, (np.zeros(5), 0.0)),
        (0.0, (np.zeros(4), np.zeros(12))),
        (np.zeros(2), (np.zeros(5), np.zeros(12))),
    ):
        with pytest.raises(ValueError, match=r"g_list\[0\] must return a number and gradients of shapes"):
            build(g_list=[lambda x, y, b, wrong=wrong: wrong] * 4)
    with pytest.raises(ValueError, match="f_list must return values and gradients of shapes"):
        build(f_list=BatchedLoss(lambda x, y, b: (np.zeros(4), (x, x)), 4))
    with pytest.raises(ValueError, match=r"f_list must return a tensor of shape \(4,\)"):
        build(f_list=BatchedLoss(lambda x, y, b: x.sum(), 4), backend="torch")


def test_losses_that_are_cut_off():
    """Their gradient would be taken for 0."""
    g = [lambda x, y, b: y.square().sum()] * 4
    for loss in (lambda x, y, b: torch.tensor(1.0), lambda x, y, b: y.detach().sum()):
        with pytest.raises(ValueError, match=r"f_list\[0\] must depend on x or y"):
            build(backend="torch", f_list=[loss] * 4, g_list=g)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (3, TypeError, r"must return \(value, gradient\), got int"),
        ((0.0, "a"), TypeError, r"must return \(value, gradient\), got tuple"),
        ((0.0, np.zeros(3)), ValueError, r"gradient of shape \(5,\), got \(3,\)"),
    ],
)
def test_exact_gradients_are_checked(answer, error, message):
    with pytest.raises(error, match=f"true_hypergradient must return .*{message.split('must return ')[-1]}"):
        build(true_hypergradient=lambda x: answer).run(1)


def test_exact_gradients_that_are_not_finite_fail():
    result = build(true_hypergradient=lambda x: (0.0, np.full(5, np.nan))).run(1)
    assert not next(c for c in result.certificates if "exact" in c.statement).holds


def test_problems_with_a_closed_form_are_checked():
    for options, error, message in (
        ({"backend": "torch"}, ValueError, "backend must be 'numpy'"),
        ({"x0": np.zeros(3)}, ValueError, r"x0 must have shape \(5,\)"),
        ({"y0": np.zeros(3)}, ValueError, r"y0 must have shape \(12,\)"),
        ({"noise": -1.0}, ValueError, "noise must be at least 0"),
    ):
        with pytest.raises(error, match=message):
            DecentralizedBilevel.from_problem(PROBLEM, RING, **options)
    with pytest.raises(TypeError, match="problem must be a PLProblem, got NoneType"):
        DecentralizedBilevel.from_problem(None, RING)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_extreme_starts_are_reported_on(size):
    """No warning, no division by zero, and an infinity does not hold against another one."""
    for options in ({"x0": np.full(5, size)}, {"sigma": size if size < 1.0 else 0.1, "y0": np.full(12, size)}):
        result = build(**options).run(2)
        assert result.n_iter == 2
        if size > 1.0:
            assert not result.certified
            assert not result.certificates[0].holds


@pytest.mark.parametrize("which", ["f_list", "g_list"])
def test_gradients_that_are_not_finite(which):
    """Node and iteration are named, and nothing has changed."""
    losses = list(PROBLEM.f_list if which == "f_list" else PROBLEM.g_list)
    whole, calls = losses[2], []

    def breaks(x, y, batch):
        calls.extend([] if batch is None else [1])  # reports do not count
        value, (grad_x, grad_y) = whole(x, y, batch)
        return value, (grad_x, grad_y * np.nan if len(calls) > 4 else grad_y)

    losses[2] = breaks
    run = build(**{which: losses, "sampler": lambda rng: np.zeros((4, 2, 17))})
    with pytest.raises(ValueError, match=rf"{which} must have finite gradients, .* from node 2 in iteration [2-9]"):
        run.run(20)
    before = run.state_dict()
    with pytest.raises(ValueError, match=rf"node 2 in iteration {before['iteration'] + 1}"):
        run.step()
    after = run.state_dict()
    assert before["iteration"] == after["iteration"]
    assert np.array_equal(before["states"], after["states"])


def test_bad_arguments_of_run():
    run = build()
    for bad in ({"n_iter": -1}, {"n_iter": 5, "log_every": 0}, {"n_iter": 5, "tol": -1.0}):
        with pytest.raises(ValueError):
            run.run(**bad)


def test_processes_must_have_been_started():
    with pytest.raises(RuntimeError, match="init_process_group"):
        DecentralizedBilevelHook(RING)
    with pytest.raises(RuntimeError, match="init_process_group"):
        build(backend="dist")


def test_sampler_of_minibatches():
    draw = minibatch_sampler([3, 100], 10)
    first, second = draw(np.random.default_rng(0))
    assert sorted(first) == [0, 1, 2]
    assert len(set(second)) == 10
    for sizes, size, message in (
        ([3, 0], 1, "node 1 with empty data"),
        ([], 1, "at least 1 node"),
        ([3], 0, "batch_size"),
    ):
        with pytest.raises(ValueError, match=message):
            minibatch_sampler(sizes, size)
    with pytest.raises(TypeError, match="sizes"):
        minibatch_sampler(5, 2)
