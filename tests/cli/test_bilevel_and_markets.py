import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from assay.cli.app import app


def assay(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def tables(tmp_path):
    """Two clouds; every fifth label of the first table is wrong."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 160)
    points = rng.normal(size=(160, 3)) + 2.5 * labels[:, None]
    frame = pd.DataFrame(points, columns=["a", "b", "c"])
    frame["kind"] = np.where(labels == 1, "yes", "no")
    wrong = np.arange(100) % 5 == 0
    noisy = frame[:100].copy()
    noisy.loc[wrong, "kind"] = np.where(noisy.loc[wrong, "kind"] == "yes", "no", "yes")
    noisy.to_csv(tmp_path / "noisy.csv", index=False)
    frame[100:].to_csv(tmp_path / "right.csv", index=False)
    return tmp_path, wrong


def test_clean_finds_wrong_labels(tables):
    folder, wrong = tables
    words = ["bilevel", "clean", folder / "noisy.csv", "--trusted", folder / "right.csv", "--target", "kind", "-q"]
    words += ["--max-iter", "25", "--out", folder / "weights.json"]
    done = assay(*words)
    content = json.loads((folder / "weights.json").read_text())
    assert done.exit_code == (0 if all(c["holds"] for c in content["certificates"]) else 1)
    assert "suspect rows" in done.stdout
    assert np.mean(np.array(content["suspect"]) == wrong) >= 0.9
    assert len(content["sample_weight"]) == 100


def test_clean_wants_the_same_columns(tables):
    folder, _ = tables
    pd.read_csv(folder / "right.csv").drop(columns="a").to_csv(folder / "less.csv", index=False)
    done = assay("bilevel", "clean", folder / "noisy.csv", "--trusted", folder / "less.csv", "--target", "kind", "-q")
    assert done.exit_code == 2
    assert "--trusted must have the columns of noisy.csv" in done.stderr
    done = assay("bilevel", "clean", folder / "noisy.csv", "--trusted", folder / "right.csv", "--target", "sort", "-q")
    assert done.exit_code == 2
    assert "--target must be a column of noisy.csv" in done.stderr


def test_a_market_is_priced(tmp_path):
    path = tmp_path / "market.csv"
    path.write_text("buyer,seller,value,budget\nann,news,2,5\nann,maps,1,5\nbob,maps,3,4\nbob,news,1,4\n")
    done = assay("games", "price", path, "--json", "-q")
    content = json.loads(done.stdout)
    assert done.exit_code == 0
    assert content["incentive_ratio"] <= 2
    assert "news" in assay("games", "price", path, "-q").stdout
    assert assay("games", "price", tmp_path / "none.csv").exit_code == 2


def test_policies_from_a_log(tmp_path):
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame(
        {
            "h": np.repeat([1, 2], n),
            "s": rng.integers(0, 2, 2 * n),
            "a": rng.integers(0, 2, 2 * n),
            "b": rng.integers(0, 2, 2 * n),
            "s_next": np.concatenate([rng.integers(0, 2, n), np.full(n, -1)]),
        }
    )
    frame["r"] = (frame["a"] == frame["b"]).astype(float)
    frame.to_csv(tmp_path / "log.csv", index=False)
    done = assay("games", "offline", tmp_path / "log.csv", "--beta", "0.5", "--reference", "uniform", "--json", "-q")
    content = json.loads(done.stdout)
    assert np.allclose(content["mu"], 0.5, atol=0.1)
    plain = assay("games", "offline", tmp_path / "log.csv", "--beta", "0.5", "--method", "sos-md", "-q")
    assert "800 transitions, 2 steps" in plain.stdout
    for arguments, message in [
        (["--beta", "0"], "beta"),
        (["--beta", "1", "--method", "dqn"], "--method must be one of"),
        (["--beta", "1", "--reference", "x"], "--reference must be one of"),
    ]:
        done = assay("games", "offline", tmp_path / "log.csv", *arguments)
        assert done.exit_code == 2
        assert message in done.stderr
    done = assay("games", "offline", tmp_path / "log.txt", "--beta", "1")
    assert done.exit_code == 2
    assert "must end in one of" in done.stderr
