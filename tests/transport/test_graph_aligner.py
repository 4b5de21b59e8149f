"""The estimator: names of nodes in, names of nodes out, and scikit-learn's contract."""

import warnings

import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from assay.transport.graph_aligner import GraphAligner
from assay.transport.gromov_wasserstein import lobcd_gw


@pytest.fixture(scope="module")
def novel():
    graph = nx.les_miserables_graph()
    names = list(graph.nodes)
    order = np.random.default_rng(0).permutation(len(names))
    code = {name: f"person {k}" for name, k in zip(names, order.tolist(), strict=True)}
    secret = nx.Graph()
    secret.add_nodes_from(sorted(code.values()))
    secret.add_weighted_edges_from((code[a], code[b], w) for a, b, w in graph.edges(data="weight"))
    return graph, secret, code


def test_names_are_recovered(novel):
    graph, secret, code = novel
    aligner = GraphAligner().fit(graph, secret)
    assert aligner.value_ <= 1e-12
    assert set(aligner.pairs_) == set(graph.nodes)
    assert sorted(aligner.pairs_.values()) == sorted(secret.nodes)
    # People with the same neighbours cannot be told apart; the others are found.
    unmistakable = {name: code[name] for name in ("Valjean", "Javert", "Cosette", "Marius", "Myriel")}
    assert aligner.score(unmistakable) == 1.0
    assert aligner.score(code) >= 0.6
    for a, b, weight in graph.edges(data="weight"):
        assert secret[aligner.pairs_[a]][aligner.pairs_[b]]["weight"] == weight
    assert all(certificate.holds for certificate in aligner.certificates_)
    assert aligner.lower_bound_ == pytest.approx(0.0, abs=1e-15)


def test_is_the_solver(novel):
    graph, secret, _ = novel
    aligner = GraphAligner(solver="full").fit(graph, secret)
    result = lobcd_gw(graph, secret, solver="full")
    np.testing.assert_array_equal(aligner.plan_, result.plan)
    np.testing.assert_array_equal(aligner.mapping_, result.mapping)


def test_every_form_of_a_graph_gives_the_same_alignment():
    graph = nx.barabasi_albert_graph(40, 3, seed=1)
    A = nx.to_numpy_array(graph)
    wanted = GraphAligner().fit(graph, graph).mapping_
    for form in (A, A.astype(int), nx.to_scipy_sparse_array(graph), torch.tensor(A)):
        np.testing.assert_array_equal(GraphAligner().fit(form, form).mapping_, wanted)
    assert isinstance(GraphAligner().fit(torch.tensor(A), A).plan_, torch.Tensor)


def test_score_is_node_correctness():
    graph = nx.barabasi_albert_graph(30, 3, seed=2)
    aligner = GraphAligner().fit(graph, graph)
    truth = aligner.mapping_.copy()
    assert aligner.score(truth) == 1.0
    truth[:3] = (truth[:3] + 1) % 30
    assert aligner.score(truth) == pytest.approx(0.9)
    truth[:3] = -1
    assert aligner.score(truth) == 1.0
    assert aligner.score({0: aligner.pairs_[0], 1: "nobody"}) == 0.5


@pytest.mark.parametrize(
    "truth, message",
    [
        (np.arange(5), "true_mapping must be a mapping or 30 integers"),
        (np.linspace(0, 1, 30), "true_mapping must be a mapping or 30 integers"),
        (np.full(30, -1), "at least one node with a partner"),
        ({"nobody": 0}, "got 'nobody'"),
        ({}, "must not be empty"),
    ],
)
def test_bad_truth(truth, message):
    graph = nx.barabasi_albert_graph(30, 3, seed=2)
    with pytest.raises(ValueError, match=message):
        GraphAligner().fit(graph, graph).score(truth)


def test_weights_and_nodes_without_weight():
    graph = nx.barabasi_albert_graph(20, 3, seed=2)
    p = np.full(20, 1 / 19)
    p[4] = 0.0
    aligner = GraphAligner().fit(graph, graph, p=p)
    assert aligner.mapping_[4] == -1
    assert 4 not in aligner.pairs_


def test_contract():
    aligner = GraphAligner(init="best", tol=1e-6, random_state=3)
    assert clone(aligner).get_params() == aligner.get_params()
    assert aligner.set_params(max_iter=7).max_iter == 7
    with pytest.raises(NotFittedError):
        aligner.score([0])
    graph = nx.cycle_graph(7)
    assert aligner.fit(graph, graph) is aligner
    np.testing.assert_array_equal(aligner.plan_, clone(aligner).fit(graph, graph).plan_)
    assert GraphAligner().get_params()["init"] == ("degree", "uniform")
    assert clone(GraphAligner()).fit(nx.path_graph(5), nx.path_graph(5)).result_.start in ("degree", "uniform")


def test_speaks_of_convergence_in_the_words_of_scikit_learn():
    A, B = nx.watts_strogatz_graph(60, 6, 0.3, seed=1), nx.watts_strogatz_graph(60, 6, 0.3, seed=2)
    with pytest.warns(ConvergenceWarning, match="did not reach"):
        GraphAligner(max_iter=1, finish=False, tol=0.0).fit(A, B)
    lonely = nx.path_graph(4)
    lonely.add_node(9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GraphAligner().fit(lonely, lonely)
    assert {warning.category for warning in caught} == {UserWarning}


@pytest.mark.parametrize(
    "graph, message",
    [(nx.DiGraph([(0, 1)]), "undirected"), (np.triu(np.ones((3, 3))), "symmetric"), (-np.eye(3), "non-negative")],
)
def test_bad_graphs(graph, message):
    with pytest.raises(ValueError, match=message):
        GraphAligner().fit(graph, nx.path_graph(3))
