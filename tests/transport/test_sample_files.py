"""Points and moments from files: what is written is what is read, and what is not numbers is refused."""

import pickle

import numpy as np
import pandas as pd
import pytest

from assay.transport import GaussianFamily, closest_mixture, raw_moments, sample_files
from assay.transport.sample_files import read_moments, read_points


def test_csv_with_and_without_names(tmp_path):
    points = np.random.default_rng(0).normal(size=(5, 2))
    frame = pd.DataFrame(points, columns=["a", "b"])
    for header in (True, False):
        frame.to_csv(tmp_path / "points.csv", index=False, header=header)
        for path in (tmp_path / "points.csv", str(tmp_path / "points.csv")):
            np.testing.assert_allclose(read_points(path).to_numpy(), points, rtol=1e-15)


def test_moments_on_the_line_and_in_the_plane(tmp_path):
    np.savez(tmp_path / "line.npz", moments=[1, 0, 2], other=[5.0])
    assert read_moments(str(tmp_path / "line.npz")) == {(0,): 1.0, (1,): 0.0, (2,): 2.0}
    moments = raw_moments(np.random.default_rng(0).normal(size=(50, 2)), 4)
    np.savez(tmp_path / "plane.npz", moments=list(moments.values()), exponents=list(moments))
    assert read_moments(tmp_path / "plane.npz") == moments


def test_closest_mixture_of_files(tmp_path):
    pytest.importorskip("cvxpy")
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(-2, 0.3, 80), rng.normal(2, 0.3, 80)])
    family, options = GaussianFamily(0.09), {"order": 2, "upper_samples": 0}
    pd.DataFrame({"x": points}).to_csv(tmp_path / "points.csv", index=False)
    np.savez(tmp_path / "moments.npz", moments=[(points**k).mean() for k in range(5)])
    wanted = closest_mixture(data=points, family=family, **options)
    read = closest_mixture(data=tmp_path / "points.csv", family=family, **options)
    np.testing.assert_allclose(read.params, wanted.params, rtol=1e-9)
    assert read.lower == pytest.approx(wanted.lower, rel=1e-9)
    exact = closest_mixture(tmp_path / "moments.npz", family=family, **options)
    again = closest_mixture([(points**k).mean() for k in range(5)], family=family, **options)
    np.testing.assert_allclose(exact.params, again.params, rtol=1e-9)
    assert exact.params[:, 0] == pytest.approx([-2, 2], abs=0.1)
    (tmp_path / "words.csv").write_text("x\n1\nno\n")
    with pytest.raises(TypeError, match="data must be"):
        closest_mixture(data=tmp_path / "words.csv", family=family, **options)
    for source in ({"moments": tmp_path / "absent.npz"}, {"data": tmp_path / "absent.csv"}):
        with pytest.raises(FileNotFoundError):
            closest_mixture(**source, family=family, **options)


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"values": [1.0]}, "array 'moments', got none"),
        ({"moments": [[1.0]]}, r"moments must have shape \(n,\)"),
        ({"moments": [1.0, 2.0], "exponents": [[0]]}, r"exponents shape \(n, dim\)"),
        ({"moments": [1.0], "exponents": [[0.5]]}, "exponents must be whole numbers"),
        ({"moments": [1.0], "exponents": [[-1]]}, "exponents must be whole numbers"),
        ({"moments": [1.0, 2.0], "exponents": [[0], [0]]}, "one twice"),
        ({"moments": ["one"]}, "moments must be real numbers"),
        ({"moments": [1.0 + 1.0j]}, "moments must be real numbers"),
        ({"moments": np.array([1.0, None], dtype=object)}, "npz file of plain arrays"),
    ],
)
def test_bad_moments(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_moments(tmp_path / "bad.npz")


def test_other_files_are_refused(tmp_path, monkeypatch):
    np.save(tmp_path / "single.npy", np.ones(3))
    (tmp_path / "pickled.npz").write_bytes(pickle.dumps([1.0, 0.0, 1.0]))
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    for name in ("single.npy", "pickled.npz", "empty.npz", "cut.npz"):
        with pytest.raises(ValueError, match="moments must be in an npz file of plain arrays"):
            read_moments(tmp_path / name)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match="No columns"):
        read_points(tmp_path / "empty.csv")
    monkeypatch.setattr(sample_files, "_LARGEST", 10)
    for read in (read_moments, read_points):
        with pytest.raises(ValueError, match="at most 10 bytes"):
            read(tmp_path / "single.npy")
