"""Edge scores from files."""

import numpy as np
import pytest
import scipy.sparse as sp

from assay.data.heatmap import read_heatmap

MATRIX = np.array([[0, 0.5, 0.25], [0.5, 0, 0], [0.25, 0, 0]])


def test_matrix_in_npy_and_npz(tmp_path):
    np.save(tmp_path / "a.npy", MATRIX)
    np.savez_compressed(tmp_path / "a.npz", p=MATRIX)
    for name in ("a.npy", "a.npz"):
        np.testing.assert_array_equal(read_heatmap(tmp_path / name), MATRIX)
        np.testing.assert_array_equal(read_heatmap(str(tmp_path / name), n=3), MATRIX)


def test_edges_in_npz_and_csv(tmp_path):
    np.savez(tmp_path / "a.npz", i=[0, 2], j=[1, 0], p=[0.5, 0.25])
    np.savez(tmp_path / "sized.npz", i=np.array([0, 2], dtype=np.uint8), j=[1, 0], p=np.float32([0.5, 0.25]), n=5)
    (tmp_path / "a.csv").write_text("i,j,p\n0,1,0.5\n\n# a comment\n 2, 0, 0.25\n")
    (tmp_path / "bare.csv").write_text("0,1,0.5\r\n2,0,2.5e-1\r\n")
    for name, n in (("a.npz", 3), ("sized.npz", 5), ("a.csv", 3), ("bare.csv", 3)):
        heatmap = read_heatmap(tmp_path / name)
        assert sp.issparse(heatmap)
        assert heatmap.shape == (n, n)
        # Each edge is listed once, so the matrix is triangular, and no direction is missing.
        np.testing.assert_array_equal(heatmap.toarray()[:3, :3], np.triu(MATRIX))
    assert read_heatmap(tmp_path / "a.csv", n=10).shape == (10, 10)
    assert read_heatmap(tmp_path / "sized.npz", n=7).shape == (7, 7)


def test_both_directions_stay_as_they_are(tmp_path):
    (tmp_path / "a.csv").write_text("0,1,0.5\n1,0,0.75\n1,2,1\n")
    np.testing.assert_array_equal(read_heatmap(tmp_path / "a.csv").toarray(), [[0, 0.5, 0], [0.75, 0, 1], [0, 0, 0]])


def test_a_heatmap_that_was_read_can_be_decoded(tmp_path, recwarn):
    from assay.graphs.heatmap_tour import decode_heatmap

    (tmp_path / "a.csv").write_text("1,0,0.5\n1,2,1\n3,2,0.9\n")
    assert decode_heatmap([[0, 0], [0, 1], [1, 1], [1, 0]], read_heatmap(tmp_path / "a.csv", n=4)).cost == 4.0
    assert not recwarn


def test_no_edges(tmp_path):
    (tmp_path / "a.csv").write_text("i,j,p\n")
    assert read_heatmap(tmp_path / "a.csv", n=3).nnz == 0
    with pytest.raises(ValueError, match="has no edges; give the number of cities as n"):
        read_heatmap(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "text, message",
    [
        ("0,1\n", "line 1 must be 'city,city,score', got '0,1'"),
        ("i,j,p\n0,1,0.5\n0,x,0.5\n", "line 3 must be"),
        ("0,1.5,0.5\n", "line 1 must be"),
        ("0,1,nan\n", "nan or infinite"),
        ("0,-1,0.5\n", "cities must be from 0 to 0, got -1 to 0"),
        ("0,1,0.5\n0,1,0.6\n", "an edge is listed twice"),
        ("0,99999999999,0.5\n", "cities must be from 0 to 9999999, got"),
        ("0,99999999999999999999,0.5\n", "line 1 must be"),  # more than 64 bits
        ("1_0,1,0.5\n", "line 1 must be"),  # ten, to Python
        ("0,1,0.5\n\udcff,1,1\n", "line 2 must be"),  # not UTF-8
    ],
)
def test_broken_csv(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=message) as caught:
        read_heatmap(tmp_path / "a.csv")
    assert str(tmp_path / "a.csv") in str(caught.value)


def test_cities_beyond_n(tmp_path):
    (tmp_path / "a.csv").write_text("0,5,0.5\n")
    with pytest.raises(ValueError, match="cities must be from 0 to 4, got 0 to 5"):
        read_heatmap(tmp_path / "a.csv", n=5)


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"q": MATRIX}, r"must have p, or i, j and p, got \['q'\]"),
        ({"p": MATRIX, "i": [0]}, r"both i and j beside p, got \['i', 'p'\]"),
        ({"p": [0.5], "i": [0.0], "j": [1.0]}, "i and j must be integers, got float64"),
        ({"p": [0.5, 1], "i": [0], "j": [1]}, "equally long"),
        ({"p": [0.5], "i": [0], "j": [1], "n": 4.0}, r"n must be a positive integer, got array\(4.\)"),
        ({"p": [0.5], "i": [0], "j": [1], "n": [4]}, r"n must be a positive integer, got array\(\[4\]\)"),
        ({"p": np.zeros((2, 3))}, r"must be square, got shape \(2, 3\)"),
        ({"p": np.array([[0, None], [1, 2]])}, "got objects, which are not read"),
        ({"p": np.array([["a", "b"], ["c", "d"]])}, "real numbers"),
    ],
)
def test_broken_archives(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises((ValueError, TypeError), match=message):
        read_heatmap(tmp_path / "a.npz")


def test_what_is_not_a_heatmap(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}, {}], dtype=object))
    with pytest.raises(ValueError, match="got objects, which are not read"):
        read_heatmap(tmp_path / "objects.npy")
    for name in ("text.npy", "text.npz"):
        (tmp_path / name).write_text("hello")
        with pytest.raises(ValueError, match=r"not an (array|archive) of numpy"):
            read_heatmap(tmp_path / name)
    (tmp_path / "a.pickle").write_text("hello")
    with pytest.raises(ValueError, match=r"must be a \.npy, \.npz or \.csv file, got '\.pickle'"):
        read_heatmap(tmp_path / "a.pickle")
    np.save(tmp_path / "wrong.npy", MATRIX)
    with pytest.raises(ValueError, match=r"must be of shape \(4, 4\), got shape \(3, 3\)"):
        read_heatmap(tmp_path / "wrong.npy", n=4)
    with pytest.raises(FileNotFoundError):
        read_heatmap(tmp_path / "nowhere.npy")


def test_a_header_that_announces_too_much_is_refused_before_reading(tmp_path):
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }"
    header += " " * (117 - len(header)) + "\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(ValueError, match=r"an array of shape \(1000000, 1000000\) is too large"):
        read_heatmap(tmp_path / "a.npy")


def test_diagonal_of_a_matrix_is_set_to_zero(tmp_path):
    np.save(tmp_path / "a.npy", MATRIX + np.diag([np.nan, np.inf, 7.0]))
    np.testing.assert_array_equal(read_heatmap(tmp_path / "a.npy"), MATRIX)
    np.savez(tmp_path / "a.npz", p=np.eye(3, dtype=bool))
    assert not read_heatmap(tmp_path / "a.npz").any()


def test_broken_arrays_name_their_file(tmp_path):
    np.save(tmp_path / "a.npy", MATRIX)
    whole = (tmp_path / "a.npy").read_bytes()
    for damaged in (whole[:-20], whole[:20], b"", b"no array", whole.replace(b"(3, 3)", b"(3, 3 ")):
        (tmp_path / "b.npy").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"b\.npy: not an array of numpy"):
            read_heatmap(tmp_path / "b.npy")
    np.savez_compressed(tmp_path / "a.npz", p=MATRIX)
    messages = []
    packed = bytearray((tmp_path / "a.npz").read_bytes())
    for position in range(4, len(packed) - 1, 3):
        damaged = packed.copy()
        damaged[position] ^= 0xFF
        (tmp_path / "b.npz").write_bytes(damaged)
        try:
            read_heatmap(tmp_path / "b.npz")
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 5
    assert all("b.npz" in message for message in messages)
