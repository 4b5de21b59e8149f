"""Tables of responses and their files."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from assay.supervised import fit_rasch, rasch_files, read_responses
from assay.supervised import rasch_responses as module
from assay.supervised.rasch_responses import check_responses

ROWS = [("ann", "q1", 1), ("ann", "q2", 0), ("bob", "q2", 1), ("bob", "q3", 0), ("eve", "q1", 0), ("eve", "q3", 1)]


def write(path, text):
    path.write_text(text)
    return path


@pytest.fixture
def long_file(tmp_path):
    return write(tmp_path / "long.csv", "user,item,response\n" + "".join(f"{u},{i},{x}\n" for u, i, x in ROWS))


@pytest.fixture
def wide_file(tmp_path):
    return write(tmp_path / "wide.csv", "user,q1,q2,q3\nann,1,0,\nbob,,1,0\neve,0,,1\n")


class TestFiles:
    def test_long_is_wide(self, long_file, wide_file):
        long, wide = read_responses(long_file), read_responses(wide_file)
        pd.testing.assert_frame_equal(long.rename_axis(columns=None), wide)
        assert (long.dtypes == "Int8").all()
        np.testing.assert_array_equal(long.isna(), wide.isna())
        np.testing.assert_array_equal(fit_rasch(long).difficulties, fit_rasch(wide).difficulties)
        assert fit_rasch(wide).item_names == ["q1", "q2", "q3"]

    def test_names_can_be_given(self, tmp_path):
        path = write(tmp_path / "x.tsv", "who\twhat\tok\tuser\n7\ta\t1.0\tx\n7\tb\t\tx\n8\ta\tTrue\ty\n8\tb\t0\ty\n")
        with pytest.raises(ValueError, match="0, 1 or nothing"):
            read_responses(path)
        path.write_text(path.read_text().replace("True", "1"))
        table = read_responses(path, user="who", item="what", response="ok")
        assert table.loc[7, "a"] == 1
        assert pd.isna(table.loc[7, "b"])

    def test_without_a_column_of_users(self, tmp_path):
        table = read_responses(write(tmp_path / "x.csv", "a,b\n1,0\n,1\n"))
        assert table.shape == (2, 2)
        assert pd.isna(table.loc[1, "a"])

    @pytest.mark.parametrize(
        ("text", "settings", "message"),
        [
            ("", {}, "is empty"),
            ("a,b\n", {}, "no rows"),
            ("a,b\n1,2\n", {}, "column 'b' of x.csv must have 0, 1 or nothing"),
            ("a,b\nx,1\n", {}, "name it with user="),
            ("user,item,response\n1,1,1\n1,1,0\n", {}, "one response per user and item, got two of 1 to 1"),
            ("user,item,response\n1,,1\n", {}, "must have a value in every row"),
            ("user,a\n,1\n", {}, "must have a user in every row"),
            ("user,item,response\n1,1,5\n", {}, "0, 1 or nothing"),
            ("a,b\n1,0\n", {"user": "c"}, "user must be a column of x.csv"),
            ("a,b\n1,0\n", {"item": "a"}, "no column for the user"),
            ("a,b\n1,0\n", {"user": "a", "item": "a", "response": "b"}, "different columns"),
            ('a,b\n1,"0\n', {}, "x.csv"),
        ],
    )
    def test_bad_files(self, tmp_path, text, settings, message):
        with pytest.raises(ValueError, match=message):
            read_responses(write(tmp_path / "x.csv", text), **settings)

    def test_other_endings_and_no_file(self, tmp_path):
        with pytest.raises(ValueError, match=r"\.csv or \.tsv"):
            read_responses(write(tmp_path / "x.pkl", "1"))
        with pytest.raises(FileNotFoundError):
            read_responses(tmp_path / "none.csv")

    def test_large_files_are_refused(self, wide_file, monkeypatch):
        monkeypatch.setattr(rasch_files, "_MAX_BYTES", 10)
        with pytest.raises(ValueError, match="at most 10 bytes"):
            read_responses(wide_file)


class TestTables:
    @pytest.mark.parametrize("dtype", [np.int8, bool])
    def test_bytes_are_not_copied(self, dtype):
        X = np.array([[1, 0], [0, 1], [1, 1]], dtype=dtype)
        assert np.shares_memory(check_responses(X).cells, X)

    @pytest.mark.parametrize("cells", [1, 7, 10**6])
    @pytest.mark.parametrize("as_sparse", [False, True])
    def test_blocks(self, monkeypatch, cells, as_sparse):
        monkeypatch.setattr(module, "_BLOCK_CELLS", cells)
        rng = np.random.default_rng(0)
        X = rng.integers(0, 2, (11, 6)).astype(float)
        X[rng.random(X.shape) < 0.4] = np.nan
        X[4] = np.nan
        seen = ~np.isnan(X)
        responses = check_responses(sparse.csr_array(np.nan_to_num(X)) if as_sparse else X, seen if as_sparse else None)
        expected = (seen.sum(1), np.nansum(X, axis=1), seen.sum(0), np.nansum(X, axis=0))
        for got, wanted in zip(responses.totals, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert responses.n_observed == seen.sum()
        theta, beta = rng.normal(size=11), rng.normal(size=6)
        rows, columns = np.zeros(11), np.zeros(6)
        for block in responses.blocks():
            margins = block.margins(theta, beta)
            rows[block.users] = block.sum_items(margins)
            columns += block.sum_users(margins)
        psi = np.where(seen, theta[:, None] - beta, 0)
        np.testing.assert_allclose(rows, psi.sum(axis=1), atol=1e-12)
        np.testing.assert_allclose(columns, psi.sum(axis=0), atol=1e-12)
        wins = (np.nan_to_num(X) == 1).astype(int).T @ (X == 0)
        np.testing.assert_array_equal(responses.comparisons(), wins)

    def test_sparse_values(self):
        table, mask = sparse.csr_array([[1.0, 0.0], [0.5, 1.0]]), np.array([[1, 1], [0, 1]])
        responses = check_responses(table, mask)
        np.testing.assert_array_equal(responses.totals[1], [1, 1])
        with pytest.raises(ValueError, match=r"got 0\.5"):
            check_responses(table, np.ones((2, 2)))
        with pytest.raises(ValueError, match="mask must have the shape"):
            check_responses(table, np.ones((3, 2)))


def test_a_mask_is_not_nan():
    X = np.array([[1.0, 0.0], [0.0, 1.0]])
    mask = np.array([[1.0, np.nan], [1.0, 1.0]])
    for table, seen in ((X, mask), (sparse.csr_array(X), sparse.csr_array(mask))):
        with pytest.raises(ValueError, match="mask must be a table of True and False, got nan"):
            check_responses(table, seen)
