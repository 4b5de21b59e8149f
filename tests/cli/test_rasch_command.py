"""Rasch models of files, through the command line."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from assay.cli.app import app
from assay.data import load_lsat6
from assay.supervised import fit_rasch


def assay(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def lsat(tmp_path):
    path = tmp_path / "lsat.csv"
    pd.DataFrame(load_lsat6(), columns=[f"q{i}" for i in range(1, 6)]).to_csv(path, index=False)
    return path


def test_wide(lsat, tmp_path):
    done = assay("supervised", "rasch", lsat, "--out", tmp_path / "fit.json")
    assert done.exit_code == 0, done.stderr
    assert "1000 users, 5 items, 5000 responses" in done.stdout
    assert "-2.595" in done.stdout
    for word in ("q1", "infit", "outfit", "se", "distance of the log-posterior"):
        assert word in done.stdout
    assert "FAILS" not in done.stdout
    content = json.loads((tmp_path / "fit.json").read_text())
    np.testing.assert_allclose(content["difficulties"], fit_rasch(load_lsat6()).difficulties)
    assert content["item_names"] == ["q1", "q2", "q3", "q4", "q5"]
    assert len(content["fit_statistics"]["item_infit_z"]) == 5
    assert all(certificate["holds"] for certificate in content["certificates"])


def test_long(lsat, tmp_path):
    wide = pd.read_csv(lsat).iloc[::20]
    answers = (
        wide.reset_index().melt(id_vars="index", var_name="task", value_name="ok").sample(frac=0.8, random_state=0)
    )
    answers.rename(columns={"index": "who"}).to_csv(tmp_path / "long.csv", index=False)
    names = ("--user", "who", "--item", "task", "--response", "ok")
    done = assay("supervised", "rasch", tmp_path / "long.csv", *names, "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["n_responses"] == len(answers)
    assert sorted(content["item_names"]) == ["q1", "q2", "q3", "q4", "q5"]


def test_options(lsat):
    options = ("--v-theta", "moment", "--v-beta", "inf", "--center", "--accelerate", "--update", "coordinate", "--json")
    done = assay("supervised", "rasch", lsat, *options)
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["v_theta"] == pytest.approx(0.7551**2, abs=1e-4)
    assert content["v_beta"] == "inf"
    assert np.mean(content["difficulties"]) == pytest.approx(0, abs=1e-12)


def test_long_tests_are_cut(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 2, (20, 130)), columns=[f"item[{i}]" for i in range(130)])
    frame.to_csv(tmp_path / "x.csv", index=False)
    done = assay("supervised", "rasch", tmp_path / "x.csv")
    assert done.exit_code == 0, done.stderr
    assert "item[99]" in done.stdout
    assert "item[100]" not in done.stdout
    assert "and 30 more" in done.stdout


def test_failed_certificates_are_exit_1(lsat):
    done = assay("supervised", "rasch", lsat, "--max-iter", "2")
    assert done.exit_code == 1
    assert "FAILS" in done.stdout


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n0,1\n", (), "must have 0, 1 or nothing"),
        ("name,b\nx,1\ny,0\n", (), "user"),
        ("a,b\n1,0\n", (), "at least 2 users"),
        ("1,1,0\n0,1,1\n1,0,0\n", (), "header of different names, got '1' twice"),
        ("a,b\n1,0,1\n0,1,0\n", (), "at most as many values in a row as names"),
        ("user,a,b\n1,0,1\n2,1,1\n1,1,0\n", (), "one row per user, got two of 1"),
        ("a,b\n1,inf\n0,1\n", (), "0, 1 or nothing in every row, got inf"),
        ("a,b\n1,0\n0,1\n", ("--v-theta", "wide"), "--v-theta must be a number, inf or moment"),
        ("a,b\n1,0\n0,1\n", ("--v-theta", "-1"), "v_theta must be greater than 0"),
        ("a,b\n1,0\n1,1\n", ("--v-beta", "inf"), "item 'a' has only right answers"),
        ("a,b\n1,0\n1,1\n", ("--user", "c"), "user must be a column"),
        ("a,b\n1,0\n1,1\n", ("--update", "both"), "update must be one of"),
    ],
)
def test_bad_input_is_one_line(tmp_path, text, options, message):
    (tmp_path / "x.csv").write_text(text)
    done = assay("supervised", "rasch", tmp_path / "x.csv", *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
