"""Mixing matrices of graphs and files, the second eigenvalue, and what a simulated network counts."""

import math

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.bilevel import metropolis_weights, mixing_from_edgelist, spectral_gap
from assay.bilevel.mixing_matrix import as_mixing_matrix
from assay.bilevel.mixing_network import SimulatedNetwork


def test_ring_of_eight():
    W = metropolis_weights(nx.cycle_graph(8))
    assert np.allclose(W[W > 0], 1 / 3)
    assert 1 - spectral_gap(W) == pytest.approx(1 / 3 + 2 / 3 * math.cos(math.pi / 4), abs=1e-12)
    assert round(1 - spectral_gap(W), 7) == 0.8047379


@pytest.mark.parametrize("n", [1, 2, 5])
def test_complete_graph_averages_at_once(n):
    W = metropolis_weights(nx.complete_graph(n))
    assert np.allclose(W, 1 / n, atol=1e-15)
    assert spectral_gap(W) == pytest.approx(1.0, abs=1e-12)


def test_ring_of_two_has_one_link():
    """Weights of 1/3 per neighbour would count the only link twice."""
    assert np.array_equal(metropolis_weights(nx.cycle_graph(2)), np.full((2, 2), 0.5))
    with pytest.raises(ValueError, match="at most one link"):
        metropolis_weights(nx.MultiGraph([(0, 1), (1, 0)]))


def test_nodes_keep_the_order_of_the_graph():
    W = metropolis_weights(nx.Graph([("b", "a"), ("a", "c")]))
    assert W[1, 1] == pytest.approx(1 / 3)
    assert W[0, 2] == 0


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(2, 12))
def test_any_connected_graph(seed, n):
    graph = nx.gnp_random_graph(n, 0.6, seed=seed)
    if not nx.is_connected(graph):
        with pytest.raises(ValueError, match="connected"):
            metropolis_weights(graph)
        return
    W = metropolis_weights(graph)
    assert np.array_equal(W, W.T)
    assert W.min() >= 0
    assert np.allclose(W.sum(axis=0), 1, atol=1e-14)
    moduli = np.sort(np.abs(np.linalg.eigvalsh(W)))
    assert spectral_gap(W) == pytest.approx(1 - moduli[-2], abs=1e-12)


def test_second_eigenvalue_of_a_large_graph():
    """Lanczos iterations, also where 1 is a double eigenvalue."""
    ring = metropolis_weights(nx.cycle_graph(700))
    assert spectral_gap(ring) == pytest.approx(2 / 3 * (1 - math.cos(2 * math.pi / 700)), rel=1e-6)
    two = np.kron(np.eye(2), metropolis_weights(nx.cycle_graph(350)))
    assert spectral_gap(two) == pytest.approx(0.0, abs=1e-10)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)) / 3, "square"),
        ([1.0], "2-D"),
        ([[0.5, 0.5], [0.4, 0.6]], "symmetric"),
        ([[0.5, 0.4], [0.4, 0.5]], "doubly stochastic"),
        ([[1.5, -0.5], [-0.5, 1.5]], "weight of -0.5"),
        (np.eye(3), "connected"),
        ([[0.0, 1.0], [1.0, 0.0]], "periodic"),
        (np.kron(np.eye(2), np.full((2, 2), 0.5)), "connected"),
        ([[np.nan, 1.0], [1.0, 0.0]], "finite"),
    ],
)
def test_matrices_that_do_not_mix(matrix, message):
    with pytest.raises(ValueError, match=message):
        as_mixing_matrix(matrix)


def test_graphs_that_do_not_mix():
    with pytest.raises(ValueError, match="2 components"):
        metropolis_weights(nx.Graph([(0, 1), (2, 3)]))
    with pytest.raises(ValueError, match="undirected"):
        metropolis_weights(nx.DiGraph([(0, 1)]))
    with pytest.raises(ValueError, match="at least 1 node"):
        metropolis_weights(nx.Graph())
    with pytest.raises(TypeError):
        as_mixing_matrix("ring")


def test_sparse_matrices_are_taken():
    W = metropolis_weights(nx.cycle_graph(5))
    assert np.array_equal(as_mixing_matrix(sp.csr_array(W)), W)


def test_matrices_are_copied_and_both_ends_know_of_a_link():
    W = metropolis_weights(nx.cycle_graph(5))
    taken = as_mixing_matrix(W)
    assert np.array_equal(taken, W)
    assert not np.shares_memory(taken, W)
    W[0, 2] = 1e-17
    assert as_mixing_matrix(W)[2, 0] == 5e-18


EDGES = "# ring\nsource,target\n3,10\n10,2\n2,1\n1,3\n"


def test_list_of_links(tmp_path):
    """Integers in their order, not in that of the lines; headings, comments and further columns skipped."""
    path = tmp_path / "links.csv"
    path.write_text(EDGES)
    W = mixing_from_edgelist(path)
    assert np.array_equal(W, metropolis_weights(nx.Graph([(0, 1), (0, 2), (1, 3), (2, 3)])))
    path.write_text("\ufeff" + EDGES.removeprefix("# ring\n").replace("\n", "\r\n"))  # as spreadsheets write it
    assert np.array_equal(mixing_from_edgelist(path), W)
    (tmp_path / "weighted.txt").write_text("a b 0.3\nb c 9\n")
    assert np.array_equal(mixing_from_edgelist(tmp_path / "weighted.txt"), metropolis_weights(nx.path_graph(3)))


def test_adjacency_and_graphml(tmp_path):
    graph = nx.lollipop_graph(3, 2)
    W = metropolis_weights(graph)
    np.savetxt(tmp_path / "adjacency.csv", nx.to_numpy_array(graph), delimiter=",")
    assert np.array_equal(mixing_from_edgelist(tmp_path / "adjacency.csv"), W)
    nx.write_graphml(graph, tmp_path / "graph.graphml")
    assert np.array_equal(mixing_from_edgelist(tmp_path / "graph.graphml"), W)
    (tmp_path / "two.csv").write_text("0,1\n1,0\n")  # two links, or a matrix: the same graph
    both = [mixing_from_edgelist(tmp_path / "two.csv", kind=kind) for kind in ("edges", "adjacency")]
    assert np.array_equal(*both)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", "auto", "at least 1 line"),
        ("a\n", "auto", "two nodes"),
        ("a,b\nc,d\n", "auto", "connected"),
        ("0,1,0\n0,0,1\n0,1,0\n", "adjacency", "symmetric"),
        ("0,1\n1\n", "adjacency", "square"),
        ("0,x\nx,0\n", "adjacency", "number"),
        ("0,inf,0\ninf,0,1\n0,1,0\n", "adjacency", "finite"),
        ("no xml", "graphml", "GraphML"),
        ("0,1\n", "matrix", "kind"),
    ],
)
def test_files_that_are_refused(tmp_path, text, kind, message):
    path = tmp_path / "file.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        mixing_from_edgelist(path, kind=kind)


def test_other_files(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="path must be a file"):
        mixing_from_edgelist(tmp_path)
    with pytest.raises(TypeError, match="path"):
        mixing_from_edgelist(None)
    with pytest.raises(FileNotFoundError):
        mixing_from_edgelist(tmp_path / "nothing.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a text file"):
        mixing_from_edgelist(tmp_path / "binary.csv")
    nx.write_graphml(nx.DiGraph([(0, 1)]), tmp_path / "directed.graphml")
    with pytest.raises(ValueError, match="undirected"):
        mixing_from_edgelist(tmp_path / "directed.graphml")
    (tmp_path / "many.csv").write_text("0,1\n1,2\n2,3\n")
    monkeypatch.setattr("assay.bilevel.mixing_files._MAX_NODES", 3)
    with pytest.raises(ValueError, match="at most 3 nodes, got 4"):
        mixing_from_edgelist(tmp_path / "many.csv")


@pytest.mark.parametrize("tensors", [False, True])
def test_sparse_products_are_the_dense_ones(tensors):
    W = metropolis_weights(nx.cycle_graph(80))
    rows = np.random.default_rng(0).normal(size=(80, 3))
    given_rows = torch.as_tensor(rows) if tensors else rows
    network = SimulatedNetwork(W, given_rows)
    assert network._operator.is_sparse if tensors else sp.issparse(network._operator)
    assert np.allclose(network.mix(given_rows), W @ rows, atol=1e-15)
    assert network.traffic() == (160, 160 * 3 * 8)
    assert np.allclose(network.mean(network.mix(given_rows)), rows.mean(axis=0))
