"""Graphs from files: every format, and every way in which a file may be wrong or hostile."""

import io
import zipfile

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from assay.data.graph import read_graph

WEIGHTED = np.array([[0.0, 1.5, 0.0], [1.5, 0.0, 2.0], [0.0, 2.0, 0.0]])


@pytest.fixture
def graph():
    answer = nx.Graph()
    answer.add_weighted_edges_from([("ann", "bob", 1.5), ("bob", "eve", 2.0)])
    return answer


def dense(relation):
    return relation.matrix.toarray() if sp.issparse(relation.matrix) else relation.matrix


@pytest.mark.parametrize("suffix", ["graphml", "gml"])
def test_markup(tmp_path, graph, suffix):
    path = tmp_path / f"friends.{suffix}"
    getattr(nx, f"write_{suffix}")(graph, path)
    read = read_graph(path)
    assert read.nodes == ("ann", "bob", "eve")
    np.testing.assert_array_equal(dense(read), WEIGHTED)
    assert sp.issparse(read.matrix)
    assert not read.directed


def test_directed_graph_says_so(tmp_path):
    path = tmp_path / "follows.graphml"
    nx.write_graphml(nx.DiGraph([("a", "b")]), path)
    read = read_graph(str(path))
    assert read.directed
    np.testing.assert_array_equal(dense(read), [[0, 1], [0, 0]])
    assert "directed" in repr(read)


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.csv", "ann,bob,1.5\nbob,eve,2\n"),
        ("a.csv", "source,target,weight\nann,bob,1.5\nbob,eve,2\n"),
        ("a.csv", "\ufeffFrom;To;Strength\nann;bob;1.5\nbob;eve;2\n"),
        ("a.txt", "# friends\nann bob 1.5\n\nbob   eve 2.0\n"),
        ("a.txt", "% friends\nann\tbob\t1.5\nbob\teve\t2\n"),
        ("a.csv", '"ann",bob,1.5\nbob,"eve",2\neve,bob,2\n'),
    ],
)
def test_lists_of_edges(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    read = read_graph(path)
    assert read.nodes == ("ann", "bob", "eve")
    np.testing.assert_array_equal(dense(read), WEIGHTED)


def test_integer_labels_are_integers_in_order(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("10 2\n2 7\n")
    read = read_graph(path)
    assert read.nodes == (2, 7, 10)
    np.testing.assert_array_equal(dense(read), [[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    path.write_text("01 1\n")  # two labels, one number
    assert read_graph(path).nodes == ("01", "1")


@pytest.mark.parametrize("dtype", [float, np.float32, int, bool])
def test_arrays(tmp_path, dtype):
    matrix = (WEIGHTED > 0).astype(dtype)
    np.save(tmp_path / "a.npy", matrix)
    np.savez_compressed(tmp_path / "a.npz", distances=matrix)
    for name in ("a.npy", "a.npz"):
        read = read_graph(tmp_path / name)
        assert read.nodes == (0, 1, 2)
        assert read.matrix.dtype == np.float64
        np.testing.assert_array_equal(read.matrix, matrix)


@pytest.mark.parametrize("form", [sp.csr_array, sp.coo_matrix, sp.csc_array])
def test_sparse_archives(tmp_path, form):
    sp.save_npz(tmp_path / "a.npz", form(WEIGHTED))
    read = read_graph(tmp_path / "a.npz")
    assert isinstance(read.matrix, sp.csr_array)
    np.testing.assert_array_equal(dense(read), WEIGHTED)


@pytest.mark.parametrize("matrix", [WEIGHTED, sp.csr_array(WEIGHTED)], ids=["array", "coordinate"])
def test_matrix_market(tmp_path, matrix):
    scipy.io.mmwrite(tmp_path / "a.mtx", matrix)
    read = read_graph(tmp_path / "a.mtx")
    assert sp.issparse(read.matrix) == sp.issparse(matrix)
    np.testing.assert_array_equal(dense(read), WEIGHTED)


def test_repr(tmp_path):
    np.save(tmp_path / "a.npy", WEIGHTED)
    assert repr(read_graph(tmp_path / "a.npy")) == "RelationFile(3 nodes, 4 non-zeros, dense)"


BAD_TEXTS = [
    ("a.csv", "ann,bob,1\nann,bob\n", "line 2 must be two labels"),
    ("a.csv", "ann,bob,1,2\n", "line 1 must be two labels"),
    ("a.csv", "ann,bob,1\nbob,,1\n", "line 2 must be two labels"),
    ("a.txt", "alone\n", "line 1 must be two labels"),
    ("a.csv", "ann,bob,1\nbob,eve,heavy\n", "line 2 must have a number"),
    ("a.csv", "ann,bob,nan\n", "line 1 must have a finite weight"),
    ("a.csv", "ann,bob,1\nbob,ann,2\n", "line 2 gives the edge .* line 1 gave it 1"),
    ("a.csv", "", "empty"),
    ("a.csv", "source,target\n", "empty"),
    ("a.gml", "graph [ node [ id 0 ", "not a gml file"),
    ("a.gml", "hello", "not a gml file"),
    ("a.graphml", "<graphml><graph></graphml>", "not a graphml file"),
    ("a.graphml", "hello", "not a graphml file"),
    ("a.mtx", "hello", "not a usable Matrix Market file"),
    ("a.mtx", "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 1 1.0\n", "must be square"),
    ("a.mtx", "%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1.0 2.0\n", "must be real"),
    ("a.npy", "hello", "not an array of numpy"),
    ("a.npz", "hello", "not an archive"),
    ("a.json", "{}", "a graph must be one of"),
    ("a", "1 2", "a graph must be one of"),
]


@pytest.mark.parametrize("name, text, message", BAD_TEXTS)
def test_bad_texts(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_graph(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "matrix, message",
    [
        (np.zeros((2, 3)), "must be square"),
        (np.zeros(3), "must be square"),
        (np.zeros((0, 0)), "empty"),
        (np.array([[0, np.nan], [np.nan, 0]]), "2 nan or infinite entries"),
        (np.eye(2) * 1j, "real numbers"),
        (np.array([["a", "b"], ["b", "a"]]), "real numbers"),
    ],
)
def test_bad_matrices(tmp_path, matrix, message):
    np.save(tmp_path / "a.npy", matrix)
    with pytest.raises(ValueError, match=message):
        read_graph(tmp_path / "a.npy")


def test_objects_are_refused_without_being_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the object was loaded",))

    np.save(tmp_path / "a.npy", np.array([[Trap()]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", allow_pickle=True, m=np.array([[Trap()]], dtype=object))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(ValueError, match="objects, which are never read"):
            read_graph(tmp_path / name)


def header_only(shape):
    """The beginning of a file that claims to hold a very large array."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_sizes_are_checked_before_reading(tmp_path):
    (tmp_path / "a.npy").write_bytes(header_only((10**6, 10**6)))
    with pytest.raises(ValueError, match="larger than"):
        read_graph(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("m.npy", header_only((10**6, 10**6)))
    with pytest.raises(ValueError, match="larger than"):
        read_graph(tmp_path / "a.npz")
    np.savez_compressed(tmp_path / "bomb.npz", m=np.zeros((400, 400)))
    assert (tmp_path / "bomb.npz").stat().st_size < 10_000
    with pytest.raises(ValueError, match="unpacks to"):
        read_graph(tmp_path / "bomb.npz", max_bytes=100_000)
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix array real general\n1000000 1000000\n")
    with pytest.raises(ValueError, match="is larger than"):
        read_graph(tmp_path / "a.mtx")
    (tmp_path / "a.csv").write_text("1,2\n" * 1000)
    with pytest.raises(ValueError, match="at most 100 are read"):
        read_graph(tmp_path / "a.csv", max_bytes=100)


def test_truncated_array(tmp_path):
    (tmp_path / "a.npy").write_bytes(header_only((5, 5)) + b"1234")
    with pytest.raises(ValueError, match="not complete"):
        read_graph(tmp_path / "a.npy")


def test_archives_of_other_things(tmp_path):
    np.savez(tmp_path / "two.npz", a=WEIGHTED, b=WEIGHTED)
    with pytest.raises(ValueError, match="must hold one matrix"):
        read_graph(tmp_path / "two.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ValueError, match="not an array of numpy"):
        read_graph(tmp_path / "text.npz")


def test_weights_that_are_not_numbers(tmp_path):
    graph = nx.Graph()
    graph.add_edge("a", "b", weight="heavy")
    nx.write_graphml(graph, tmp_path / "a.graphml")
    with pytest.raises(ValueError, match="must have a finite number as its weight, got 'heavy'"):
        read_graph(tmp_path / "a.graphml")


def test_binary_text_and_missing_file(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00\x80,\x81")
    with pytest.raises(ValueError, match="UTF-8"):
        read_graph(tmp_path / "a.csv")
    with pytest.raises(FileNotFoundError):
        read_graph(tmp_path / "b.csv")
    with pytest.raises(ValueError, match="max_bytes must be at least 1"):
        read_graph(tmp_path / "a.csv", max_bytes=0)
