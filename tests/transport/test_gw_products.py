"""Products and their updates: every factor against plain matrix products, and the counts against sizes."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from assay.transport.gw_products import DenseFactor, Sandwich, SparseFactor, TorchSparseFactor

N, M = 37, 50


@pytest.fixture(scope="module")
def graphs():
    A = nx.to_numpy_array(nx.barabasi_albert_graph(N, 2, seed=1))
    B = nx.to_numpy_array(nx.watts_strogatz_graph(M, 4, 0.3, seed=2))
    rng = np.random.default_rng(0)
    A, B = A * np.triu(rng.random(A.shape)), B * np.triu(rng.random(B.shape))
    return A + A.T, B + B.T


def sandwich(graphs, kind):
    A, B = graphs
    sparse_a, sparse_b = sp.csr_array(A), sp.csr_array(B)
    return {
        "sparse": lambda: Sandwich(SparseFactor(sparse_a), SparseFactor(sparse_b)),
        "dense": lambda: Sandwich(DenseFactor(A), DenseFactor(B)),
        "sparse-dense": lambda: Sandwich(SparseFactor(sparse_a), DenseFactor(B)),
        "dense-sparse": lambda: Sandwich(DenseFactor(A), SparseFactor(sparse_b)),
        "torch sparse": lambda: Sandwich(TorchSparseFactor(sparse_a, "cpu"), TorchSparseFactor(sparse_b, "cpu")),
        "torch dense": lambda: Sandwich(DenseFactor(torch.tensor(A)), DenseFactor(torch.tensor(B))),
        "torch mixed": lambda: Sandwich(TorchSparseFactor(sparse_a, "cpu"), DenseFactor(torch.tensor(B))),
    }[kind]()


KINDS = ["sparse", "dense", "sparse-dense", "dense-sparse", "torch sparse", "torch dense", "torch mixed"]


def wrap(array, kind):
    return torch.tensor(array) if kind.startswith("torch") else np.ascontiguousarray(array)


@pytest.mark.parametrize("kind", KINDS)
def test_full_product(graphs, kind):
    A, B = graphs
    X = np.random.default_rng(1).random((N, M))
    given_ = wrap(X, kind)
    got = sandwich(graphs, kind).product(given_)
    np.testing.assert_allclose(np.asarray(got), A @ X @ B, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(np.asarray(given_), X)


@pytest.mark.parametrize("kind", ["sparse", "dense", "sparse-dense", "dense-sparse"])
def test_full_product_uses_the_memory_it_is_given(graphs, kind):
    A, B = graphs
    X = np.random.default_rng(1).random((N, M))
    out, scratch = np.full((N, M), np.nan), np.full((N, M), np.nan)
    got = sandwich(graphs, kind).product(X, out, scratch)
    assert got is out or got is scratch
    np.testing.assert_allclose(got, A @ X @ B, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_block_updates_are_exact(graphs, kind):
    A, B = graphs
    rng = np.random.default_rng(2)
    X = rng.random((N, M))
    rows, columns = np.sort(rng.permutation(N)[:9]), np.sort(rng.permutation(M)[:6])
    change = rng.normal(size=(9, 6))
    product = sandwich(graphs, kind)
    M0 = product.product(wrap(X, kind))
    inside = product.within_block(rows, columns, wrap(change, kind))
    np.testing.assert_allclose(
        np.asarray(inside), A[np.ix_(rows, rows)] @ change @ B[np.ix_(columns, columns)], atol=1e-13
    )
    product.add_block(rows, columns, wrap(change, kind), M0)
    Y = X.copy()
    Y[np.ix_(rows, columns)] += change
    np.testing.assert_allclose(np.asarray(M0), A @ Y @ B, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vertex", ["permutation", "general"])
def test_product_at_a_vertex(graphs, kind, vertex):
    A, B = graphs
    rng = np.random.default_rng(3)
    if vertex == "permutation":
        P = sp.csr_array((np.full(N, 1 / N), (np.arange(N), rng.permutation(M)[:N])), shape=(N, M))
    else:
        P = sp.random_array((N, M), density=0.05, rng=rng, format="csr")
    got = sandwich(graphs, kind).of_vertex(P)
    got = got.toarray() if sp.issparse(got) else np.asarray(got)
    np.testing.assert_allclose(got, A @ P.toarray() @ B, atol=1e-14)


def test_counts_are_those_of_the_sizes(graphs):
    A, B = graphs
    e1, e2 = np.count_nonzero(A), np.count_nonzero(B)
    sparse, dense = sandwich(graphs, "sparse"), sandwich(graphs, "dense")
    assert sparse.full_cost == e1 * M + e2 * N
    assert dense.full_cost == dense.dense_cost == sparse.dense_cost == N * N * M + N * M * M
    rows, columns = np.arange(0, N, 5), np.arange(0, M, 7)
    within = np.count_nonzero(A[np.ix_(rows, rows)]) * len(columns)
    within += np.count_nonzero(B[np.ix_(columns, columns)]) * len(rows)
    assert sparse.within_block_cost(rows, columns) == within
    reached = np.count_nonzero(A[:, rows].any(axis=1))
    added = np.count_nonzero(A[:, rows]) * len(columns) + reached * np.count_nonzero(B[:, columns])
    assert sparse.add_block_cost(rows, columns) == added
    r, s = len(rows), len(columns)
    assert dense.within_block_cost(rows, columns) == r * r * s + r * s * s
    assert dense.add_block_cost(rows, columns) == N * r * s + N * M * s


def test_counts_at_a_vertex(graphs):
    A, B = graphs
    order = np.random.default_rng(4).permutation(M)[:N]
    P = sp.csr_array((np.full(N, 1 / N), (np.arange(N), order)), shape=(N, M))
    degrees1, degrees2 = np.count_nonzero(A, axis=1), np.count_nonzero(B, axis=1)
    assert sandwich(graphs, "sparse").vertex_cost(P) == degrees1.sum() + degrees1 @ degrees2[order]
    assert sandwich(graphs, "dense").vertex_cost(P) == N * N + N * M * M


def test_auto_goes_by_density():
    full = np.ones((N, N)) - np.eye(N)
    thin = nx.to_numpy_array(nx.cycle_graph(N))
    chosen = Sandwich.of(thin, full)
    assert isinstance(chosen.left, SparseFactor)
    assert isinstance(chosen.right, DenseFactor)
    assert isinstance(Sandwich.of(sp.csr_array(full), full).left, DenseFactor)
    assert isinstance(Sandwich.of(full, full, "sparse").left, SparseFactor)
    assert isinstance(Sandwich.of(sp.csr_array(thin), thin, "dense").left, DenseFactor)
    assert isinstance(Sandwich.of(thin, full, "auto", torch.device("cpu")).left, TorchSparseFactor)


def test_matrix_without_entries():
    empty = Sandwich.of(sp.csr_array((4, 4)), sp.csr_array((5, 5)))
    np.testing.assert_array_equal(empty.product(np.ones((4, 5))), np.zeros((4, 5)))
    assert empty.full_cost == 0


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33])
def test_any_number_of_rows_in_the_last_band(rows):
    rng = np.random.default_rng(rows)
    A, B = sp.random_array((rows, rows), density=0.3, rng=rng), sp.random_array((20, 20), density=0.2, rng=rng)
    A, B = sp.csr_array(A + A.T), sp.csr_array(B + B.T)
    X = rng.random((rows, 20))
    np.testing.assert_allclose(Sandwich.of(A, B, "sparse").product(X), A @ X @ B, atol=1e-13)
