"""What a problem may be given as, and every way in which it may be wrong."""

import warnings

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from assay.transport.gw_problem import normalize_by_degrees, prepare_problem, relation_matrix

PATH = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])


def dense(matrix):
    return matrix.toarray() if sp.issparse(matrix) else matrix


@pytest.mark.parametrize(
    "relation",
    [
        PATH.tolist(),
        PATH.astype(int),
        PATH.astype(bool),
        PATH.astype(np.float32),
        torch.tensor(PATH),
        torch.tensor(PATH, dtype=torch.float32, requires_grad=True),
        torch.tensor(PATH).to_sparse_coo(),
        sp.coo_matrix(PATH),
        sp.csc_array(PATH.astype(np.int8)),
        nx.path_graph(3),
        nx.MultiGraph([(0, 1), (1, 2)]),
    ],
    ids=lambda relation: type(relation).__name__,
)
def test_every_form_is_the_same_problem(relation):
    problem = prepare_problem(relation, relation, normalize=False)
    for matrix in (problem.C1, problem.C2):
        assert matrix.dtype == np.float64
        np.testing.assert_array_equal(dense(matrix), PATH)
    np.testing.assert_array_equal(problem.p, np.full(3, 1 / 3))
    np.testing.assert_allclose(problem.left, PATH**2 @ problem.p)
    np.testing.assert_allclose(problem.scale, 2 * problem.p @ PATH**2 @ problem.p)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_other_sparse_tensors():
    np.testing.assert_array_equal(relation_matrix(torch.tensor(PATH).to_sparse_csr(), "C1").toarray(), PATH)


def test_weights_of_a_graph_are_its_edges():
    graph = nx.Graph()
    graph.add_edge("b", "a", weight=2.5)
    np.testing.assert_array_equal(relation_matrix(graph, "C1").toarray(), [[0, 2.5], [2.5, 0]])


def test_normalisation_is_by_the_square_roots_of_the_degrees():
    degrees = PATH.sum(1)
    wanted = PATH / np.sqrt(np.outer(degrees, degrees))
    np.testing.assert_allclose(normalize_by_degrees(PATH), wanted)
    np.testing.assert_allclose(normalize_by_degrees(sp.csr_array(PATH)).toarray(), wanted)
    np.testing.assert_allclose(normalize_by_degrees(1e-13 * PATH), wanted)


@pytest.mark.parametrize(
    "first, second, normalize, normalized",
    [
        (nx.path_graph(3), sp.csr_array(PATH), "auto", True),
        (PATH, PATH, "auto", False),
        (PATH, nx.path_graph(3), True, True),
        (nx.path_graph(3), nx.path_graph(3), False, False),
    ],
)
def test_graphs_are_normalised_and_matrices_are_not(first, second, normalize, normalized):
    problem = prepare_problem(first, second, normalize=normalize)
    assert problem.normalized is normalized
    assert dense(problem.C1)[0, 1] == pytest.approx(1 / np.sqrt(2) if normalized else 1.0)
    np.testing.assert_array_equal(problem.degrees1, PATH.sum(1))


def test_isolated_nodes_are_told_about():
    graph = nx.path_graph(2)
    graph.add_node(2)
    with pytest.warns(UserWarning, match="C2 has 1 isolated points"):
        problem = prepare_problem(nx.path_graph(3), graph)
    np.testing.assert_array_equal(dense(problem.C2)[2], 0.0)
    assert np.isfinite(dense(problem.C2)).all()


def test_points_without_weight_are_left_out_but_count_in_the_degrees():
    problem = prepare_problem(nx.path_graph(3), nx.path_graph(3), p=[0.5, 0.5, 0.0])
    np.testing.assert_array_equal(problem.kept1, [0, 1])
    assert problem.C1.shape == (2, 2)
    assert problem.C1.toarray()[0, 1] == pytest.approx(1 / np.sqrt(2))
    assert problem.shape == (3, 3)
    full = problem.restore(np.full((2, 3), 1 / 6))
    np.testing.assert_array_equal(full, [[1 / 6] * 3, [1 / 6] * 3, [0.0] * 3])


def test_rounding_asymmetry_is_averaged():
    noisy = PATH.copy()
    noisy[0, 1] += 1e-12
    matrix = relation_matrix(noisy, "C1")
    np.testing.assert_array_equal(matrix, matrix.T)
    assert noisy[0, 1] != noisy[1, 0]


def test_symmetric_input_is_not_copied():
    assert relation_matrix(PATH, "C1") is PATH


BAD = [
    (np.zeros((2, 3)), ValueError, "C1 must be square"),
    (np.zeros(3), ValueError, "C1 must be a finite 2-D array"),
    (np.zeros((0, 0)), ValueError, "not empty"),
    (sp.csr_array((2, 3)), ValueError, "C1 must be square"),
    (sp.csr_array((0, 0)), ValueError, "at least one node"),
    (nx.Graph(), ValueError, "at least one node"),
    (nx.DiGraph([(0, 1)]), ValueError, "undirected"),
    ([[0, 1], [2, 0]], ValueError, "C1 must be symmetric"),
    (sp.csr_array([[0, 1], [0, 0]]), ValueError, "C1 must be symmetric"),
    ([[0, np.nan], [np.nan, 0]], ValueError, "nan"),
    (sp.csr_array([[0, np.inf], [np.inf, 0]]), ValueError, "infinite"),
    ([[0, 1j], [1j, 0]], TypeError, "real numbers"),
    (sp.csr_array([[0, 1j], [1j, 0]]), TypeError, "real numbers"),
    ([["a", "b"], ["b", "a"]], TypeError, "real numbers"),
    ([[0, 1], [1]], ValueError, "different lengths"),
    (np.eye(2) * 1e200, ValueError, "magnitude"),
    (np.eye(2) * 1e-200, ValueError, "magnitude"),
]


@pytest.mark.parametrize("relation, error, message", BAD)
def test_bad_relations(relation, error, message):
    with pytest.raises(error, match=message):
        prepare_problem(relation, PATH, normalize=False)
    with pytest.raises(error, match=message.replace("C1", "C2")):
        prepare_problem(PATH, relation, normalize=False)


@pytest.mark.parametrize(
    "p, message",
    [
        ([0.5, 0.5], "p must have length 3"),
        ([0.5, 0.7, -0.2], "non-negative"),
        ([0.5, 0.5, 0.5], "sum to 1"),
        ([0.5, 0.5, np.nan], "nan"),
    ],
)
def test_bad_weights(p, message):
    with pytest.raises(ValueError, match=message):
        prepare_problem(PATH, PATH, p=p)


def test_bad_normalize():
    with pytest.raises(ValueError, match="normalize must be True, False or 'auto'"):
        prepare_problem(PATH, PATH, normalize="yes")
    with pytest.raises(ValueError, match="one of C1 and C2 is a graph"):
        prepare_problem(PATH, nx.path_graph(3))
    with pytest.raises(ValueError, match="non-negative to be normalised"):
        prepare_problem(-PATH, PATH, normalize=True)


def test_zero_matrix_is_a_problem():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prepare_problem(np.zeros((3, 3)), np.zeros((2, 2))).scale == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_plans_come_back_as_tensors(dtype):
    problem = prepare_problem(torch.tensor(PATH).to(dtype), PATH)
    plan = problem.restore(np.full((3, 3), 1 / 9))
    assert isinstance(plan, torch.Tensor)
    assert plan.dtype == (dtype if dtype.is_floating_point else torch.float64)
