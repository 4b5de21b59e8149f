import io
import json
import zipfile

import numpy as np
import pytest

from assay.data.payoff import read_game

MATRIX = np.array([[0.0, 1.5, -1.0], [-1e-3, 0.0, 2e8]])


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def npy(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


# What is accepted.


@pytest.mark.parametrize(
    "name, text",
    [
        ("g.csv", "0,1.5,-1\n-1e-3,0,2e8\n"),
        ("g.CSV", "\ufeff0 , 1.5, -1\r\n# a comment\r\n\r\n-1e-3,0,2e8 # another"),
        ("g.tsv", "0\t1.5\t-1\n-1e-3\t0\t2e8"),
        ("g.txt", "  0   1.5 -1\n-1e-3\t0 2e8\n\n"),
        ("g.txt", "0,1.5,-1\n-1e-3,0,2e8\n"),
        ("g.json", "[[0, 1.5, -1], [-1e-3, 0, 2e8]]"),
        ("g.json", '{"payoff": [[0, 1.5, -1], [-1e-3, 0, 2e8]], "name": "x"}'),
        ("g.json", '{"A": [[0, 1.5, -1], [-1e-3, 0, 2e8]], "payoff": 3}'),
    ],
)
def test_text_formats_hold_the_same_matrix(tmp_path, name, text):
    read = read_game(write(tmp_path / name, text))
    assert read.dtype == np.float64
    np.testing.assert_array_equal(read, MATRIX)


@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_formats(tmp_path, order):
    matrix = np.array(MATRIX, order=order)
    np.save(tmp_path / "g.npy", matrix)
    np.savez(tmp_path / "only.npz", anything=matrix)
    np.savez_compressed(tmp_path / "key.npz", A=matrix, other=np.zeros(3))
    for name in ("g.npy", "only.npz", "key.npz"):
        np.testing.assert_array_equal(read_game(tmp_path / name), MATRIX)


@pytest.mark.parametrize("dtype", ["int8", "int64", "float32", "float16", ">f8", "bool"])
def test_other_number_types_are_cast(tmp_path, dtype):
    matrix = np.array([[0, 1], [1, 0]], dtype=dtype)
    np.save(tmp_path / "g.npy", matrix)
    read = read_game(tmp_path / "g.npy")
    assert read.dtype == np.float64
    np.testing.assert_array_equal(read, [[0.0, 1.0], [1.0, 0.0]])


def test_one_row_one_column_and_one_entry(tmp_path):
    assert read_game(write(tmp_path / "a.csv", "1,2,3")).shape == (1, 3)
    assert read_game(write(tmp_path / "b.csv", "1\n2\n3")).shape == (3, 1)
    assert read_game(str(write(tmp_path / "c.txt", "7"))).tolist() == [[7.0]]


def test_gambit_payoff_version(tmp_path):
    # 2 x 3, the first player's strategy runs fastest; player 1 receives 1 2 / 3 4 / 5 6 down the columns.
    text = 'NFG 1 R "A \\"quoted\\" title" { "One" "Two" } { 2 3 }\n\n1 -1 2 -2 3 -3 4 -4 5 -5 1/3 -1/3\n'
    np.testing.assert_allclose(read_game(write(tmp_path / "g.nfg", text)), [[-1, -3, -5], [-2, -4, -1 / 3]])


def test_gambit_outcome_version_with_names_and_comment(tmp_path):
    text = """NFG 1 R "Pennies" { "Even" "Odd" }

{ { "heads" "tails" } { "heads" "tails" "edge" }
}
"a comment, with a { brace"

{
{ "win" 1, -1 }
{ "lose" -1.0, 1.0 }
}
1 2 2 1 0 0
"""
    np.testing.assert_array_equal(read_game(write(tmp_path / "g.nfg", text)), [[-1, 1, 0], [1, -1, 0]])


# What is refused: one clear ValueError per kind of bad file.


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("g.xlsx", "1,2", "path must end in one of .csv, .tsv, .txt, .npy, .npz, .json, .nfg, got 'g.xlsx'"),
        ("g", "1,2", "path must end in one of"),
        ("g.csv", "", "g.csv: the file is empty"),
        ("g.csv", "# nothing\n\n", "there is no number in the file"),
        ("g.csv", "1,2\n3\n", "g.csv, line 2: 1 numbers in this row, 2 in the first"),
        ("g.csv", "1,2\n3,4\n5,x\n", "g.csv, line 3: 'x' is not a number"),
        ("g.csv", "a,b\n1,2\n", "g.csv, line 1: 'a' is not a number"),
        ("g.csv", "1,,2\n", "g.csv, line 1: '' is not a number"),
        ("g.csv", "1_000,2\n", "g.csv, line 1: '1_000' is not a number"),
        ("g.csv", "1,nan\n", "1 nan or infinite entries"),
        ("g.csv", "1,1e999\n", "1 nan or infinite entries"),
        ("g.csv", b"\xff\xfe1\x00", "not a text file in UTF-8"),
        ("g.json", "[[1, 2]", "g.json: not JSON"),
        ("g.json", "[" * 100_000, "g.json: not JSON"),
        ("g.json", "[[1, 2], [3]]", "g.json, row 2: 1 numbers in this row, 2 in the first"),
        ("g.json", '[[1, "2"]]', "g.json, row 1: '2' is not a number"),
        ("g.json", "[[1, true]]", "True is not a number"),
        ("g.json", "[[1, null]]", "None is not a number"),
        ("g.json", "[[1, NaN]]", "1 nan or infinite entries"),
        ("g.json", "[[1, 1" + "0" * 400 + "]]", "too large"),
        ("g.json", "[[1, 1" + "0" * 5000 + "]]", "not JSON"),
        ("g.json", "[1, 2]", "must be a non-empty list of rows"),
        ("g.json", "[]", "must be a non-empty list of rows"),
        ("g.json", "[[]]", r"must be 2-D and not empty, got shape \(1, 0\)"),
        ("g.json", '{"B": [[1]]}', "must have a matrix under 'A' or 'payoff'"),
        ("g.npy", b"not an array", "g.npy: not a NumPy array file"),
        ("g.npy", npy(MATRIX)[:-8], "damaged, 40 bytes of numbers where 48 were announced"),
        ("g.npy", npy(MATRIX)[:40], "not a NumPy array file"),
        ("g.npy", npy(np.zeros(3)), r"must be 2-D and not empty, got shape \(3,\)"),
        ("g.npy", npy(np.zeros((0, 3))), r"got shape \(0, 3\)"),
        ("g.npy", npy(np.array([[1.0, np.inf]])), "1 nan or infinite entries"),
        ("g.npy", npy(np.array([[1j]])), "must have real numbers, got dtype complex128"),
        ("g.npy", npy(np.array([["a"]])), "must have real numbers"),
        ("g.npy", npy(np.array([[None]]), allow_pickle=True), "holds Python objects, which are not unpickled"),
        ("g.npz", b"PK not a zip", "g.npz: not a NumPy archive"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        read_game(write(tmp_path / name, content))


def test_an_object_array_is_not_unpickled_from_an_archive(tmp_path):
    np.savez(tmp_path / "g.npz", A=np.array([[{}]], dtype=object))
    with pytest.raises(ValueError, match="not unpickled"):
        read_game(tmp_path / "g.npz")


def test_archives_that_are_ambiguous_damaged_or_hold_something_else(tmp_path):
    np.savez(tmp_path / "two.npz", B=MATRIX, C=MATRIX)
    with pytest.raises(ValueError, match=r"there must be an array 'A' or only one array, got \['B', 'C'\]"):
        read_game(tmp_path / "two.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("A.npy", "hello")
    with pytest.raises(ValueError, match="not a NumPy array file"):
        read_game(tmp_path / "text.npz")
    np.savez_compressed(tmp_path / "whole.npz", A=np.random.default_rng(0).normal(size=(30, 30)))
    content = bytearray((tmp_path / "whole.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    with pytest.raises(ValueError, match="not a NumPy archive"):
        read_game(write(tmp_path / "broken.npz", bytes(content)))


def test_sizes_are_checked_before_the_numbers_are_read(tmp_path):
    with pytest.raises(ValueError, match="bytes are more than max_bytes=5"):
        read_game(write(tmp_path / "g.csv", "1,2,3,4,5,6"), max_bytes=5)
    # A header that announces 8 TB, in a file of a few bytes.
    announced = io.BytesIO()
    np.lib.format.write_array_header_1_0(announced, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)})
    with pytest.raises(ValueError, match="bytes for a matrix of shape"):
        read_game(write(tmp_path / "g.npy", announced.getvalue()))
    # A small archive that unpacks to more than is allowed.
    np.savez_compressed(tmp_path / "g.npz", A=np.zeros((500, 500)))
    assert (tmp_path / "g.npz").stat().st_size < 100_000
    with pytest.raises(ValueError, match="unpacked bytes are more than max_bytes"):
        read_game(tmp_path / "g.npz", max_bytes=100_000)
    with pytest.raises(ValueError, match="bytes for a matrix of shape"):
        read_game(write(tmp_path / "g.nfg", 'NFG 1 R "" { "1" "2" } { 1000000 1000000 } 1 -1'))
    with pytest.raises(ValueError, match="max_bytes must be at least 1"):
        read_game(tmp_path / "g.npz", max_bytes=0)


def test_missing_files_and_directories(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_game(tmp_path / "absent.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match="path must be a file, got the directory"):
        read_game(tmp_path / "folder.csv")


@pytest.mark.parametrize(
    "text, message",
    [
        ("EFG 2 R", "line 1: expected NFG, found EFG"),
        ('NFG 2 R "t"', "expected 1, found 2"),
        ('NFG 1 Q "t"', "expected R or D, found Q"),
        ('NFG 1 R "t', "a string is not closed"),
        ('NFG 1 R "t" { "1" "2" "3" } { 1 1 1 } 0 0 0', "a zero-sum game has two players, this one has 3"),
        ('NFG 1 R "t" { "1" "2" } { 2 } 1 -1 1 -1', "strategies must be given for two players, got 1"),
        ('NFG 1 R "t" { "1" "2" } { 2 x } 1 -1', "expected a whole number, found x"),
        ('NFG 1 R "t" { "1" "2" } { 0 2 }', r"got shape \(0, 2\)"),
        ('NFG 1 R "t" { "1" "2" } { 1 1 }\n\n1 x', "line 3: 'x' is not a number"),
        ('NFG 1 R "t" { "1" "2" } { 1 1 } 1/0 1', "'1/0' is not a number"),
        ('NFG 1 R "t" { "1" "2" } { 1 1 } 1_0 -10', "'1_0' is not a number"),
        ('NFG 1 R "t" { "1" "2" } { 1 1 } 1e999999999 1', "nan or infinite entries|not zero-sum"),
        ('NFG 1 R "t" { "1" "2" } { 2 1 } 1 -1 2', "expected a word, found the end of the file"),
        ('NFG 1 R "t" { "1" "2" } { 1 1 } 1 -1 2', "there is more than the 1 pairs"),
        ('NFG 1 R "t" { "1" "2" } { 2 2 } 1 -1 1 -1 1 -1 3 1', "payoffs sum to 4 at strategies 2 and 2"),
        ('NFG 1 R "t" { "1" "2" } { 1 1 } { { "a" 1 -1 } } 2', "outcome 2 is not among the 1"),
        ('NFG 1 R "t" { "1" "2" } { 1 1 } { { "a" 1 } } 1', "expected a word, found }"),
    ],
)
def test_bad_gambit_files(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_game(write(tmp_path / "g.nfg", text))


def test_a_matrix_survives_every_format(tmp_path):
    matrix = np.random.default_rng(0).normal(size=(7, 5))
    np.savetxt(tmp_path / "g.csv", matrix, delimiter=",", fmt="%.17g")
    np.savetxt(tmp_path / "g.txt", matrix, fmt="%.17g")
    (tmp_path / "g.json").write_text(json.dumps(matrix.tolist()))
    payoffs = " ".join(f"{-a!r} {a!r}" for a in matrix.ravel(order="F").tolist())
    (tmp_path / "g.nfg").write_text(f'NFG 1 D "random" {{ "r" "c" }} {{ 7 5 }} {payoffs}')
    for name in ("g.csv", "g.txt", "g.json", "g.nfg"):
        np.testing.assert_array_equal(read_game(tmp_path / name), matrix)
