"""Files of the user's own, through the command line."""

import json

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine
from typer.testing import CliRunner

from assay.cli.app import app


def assay(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# --- games ------------------------------------------------------------------------------------------------------------

BIASED = [[0, -1, 3], [1, 0, -1], [-3, 1, 0]]


@pytest.mark.parametrize("kind", ["csv", "tsv", "npy", "npz", "json"])
def test_games_solve_reads_every_format(tmp_path, kind):
    path = tmp_path / f"payoff.{kind}"
    if kind in ("csv", "tsv"):
        np.savetxt(path, BIASED, fmt="%d", delimiter="," if kind == "csv" else "\t")
    elif kind == "npy":
        np.save(path, BIASED)
    elif kind == "npz":
        np.savez(path, A=BIASED)
    else:
        path.write_text(json.dumps(BIASED))
    done = assay("games", "solve", path, "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    np.testing.assert_allclose(content["x"], [0.2, 0.6, 0.2], atol=1e-8)
    assert abs(content["value"]) <= 1e-10
    assert all(certificate["holds"] for certificate in content["certificates"])


def test_games_solve_prints_for_people_and_writes_a_file(tmp_path):
    path, answer = tmp_path / "payoff.csv", tmp_path / "answer.json"
    np.savetxt(path, BIASED, delimiter=",")
    done = assay("games", "solve", path, "--out", answer)
    assert done.exit_code == 0
    assert "row strategy" in done.stdout
    assert "holds" in done.stdout
    assert json.loads(answer.read_text())["gap"] <= 1e-10


def test_a_game_that_is_stopped_early_exits_with_1(tmp_path):
    path = tmp_path / "payoff.csv"
    np.savetxt(path, np.random.default_rng(0).normal(size=(30, 40)), delimiter=",")
    done = assay("games", "solve", path, "--method", "prm+", "--max-iter", "2")
    assert done.exit_code == 1
    assert "FAILS" in done.stdout
    assert "did not reach tol" in done.stderr


@pytest.mark.parametrize("content", ["", "1,2\n3\n", "a,b\nc,d\n", "1,nan\n2,3\n", "1,inf\n2,3\n"])
def test_bad_games_are_one_line(tmp_path, content):
    path = tmp_path / "payoff.csv"
    path.write_text(content)
    done = assay("games", "solve", path)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_bad_options_of_games_solve(tmp_path):
    path = tmp_path / "payoff.csv"
    np.savetxt(path, BIASED, delimiter=",")
    assert "method must be one of" in assay("games", "solve", path, "--method", "simplex").stderr
    assert "tol must be" in assay("games", "solve", path, "--tol", "0").stderr
    done = assay("games", "solve", path, "--out", tmp_path / "no_such_directory" / "answer.json")
    assert done.exit_code == 2


# --- graphs -----------------------------------------------------------------------------------------------------------

SQUARE = """NAME : square
TYPE : TSP
DIMENSION : 4
EDGE_WEIGHT_TYPE : EUC_2D
NODE_COORD_SECTION
1 0 0
2 0 10
3 10 10
4 10 0
EOF
"""


def test_graphs_tour_with_and_without_a_heatmap(tmp_path):
    path = tmp_path / "square.tsp"
    path.write_text(SQUARE)
    done = assay("graphs", "tour", path, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["cost"] == 40
    scores = np.zeros((4, 4))
    scores[[0, 1, 2, 3], [1, 2, 3, 0]] = scores[[1, 2, 3, 0], [0, 1, 2, 3]] = 0.9
    np.savez(tmp_path / "scores.npz", p=scores)
    done = assay("graphs", "tour", path, "--heatmap", tmp_path / "scores.npz")
    assert done.exit_code == 0, done.stderr
    assert "lower bound" in done.stdout
    assert "holds" in done.stdout


def test_bad_tours_are_one_line(tmp_path):
    path = tmp_path / "square.tsp"
    path.write_text(SQUARE.replace("EUC_2D", "MANHATTAN_7D"))
    done = assay("graphs", "tour", path)
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    path.write_text(SQUARE)
    np.save(tmp_path / "scores.npy", np.full((3, 3), 0.5))
    done = assay("graphs", "tour", path, "--heatmap", tmp_path / "scores.npy")
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1


# --- transport --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["graphml", "gml", "edges", "npy"])
def test_transport_align_finds_a_relabelled_graph(tmp_path, kind):
    graph = nx.karate_club_graph()
    for _, _, data in graph.edges(data=True):
        data.clear()
    copy = nx.relabel_nodes(graph, {i: (7 * i + 3) % 34 for i in range(34)})
    for name, content in (("a", graph), ("b", copy)):
        path = tmp_path / f"{name}.{'txt' if kind == 'edges' else kind}"
        if kind == "graphml":
            nx.write_graphml(content, path)
        elif kind == "gml":
            nx.write_gml(content, path)
        elif kind == "edges":
            nx.write_edgelist(content, path, data=False)
        else:
            np.save(path, nx.to_numpy_array(content, nodelist=range(34)))
    ending = "txt" if kind == "edges" else kind
    done = assay("transport", "align", tmp_path / f"a.{ending}", tmp_path / f"b.{ending}", "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["value"] <= 1e-9
    assert len(content["pairs"]) == 34


def test_bad_graphs_are_one_line(tmp_path):
    (tmp_path / "a.graphml").write_text("<graphml><not closed")
    np.save(tmp_path / "b.npy", np.arange(9.0).reshape(3, 3))
    for first in ("a.graphml", "b.npy"):
        done = assay("transport", "align", tmp_path / first, tmp_path / "b.npy")
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1


# --- supervised -------------------------------------------------------------------------------------------------------


def test_linear_core_on_a_table(tmp_path):
    wine = load_wine(as_frame=True)
    frame = wine.frame.assign(vineyard=np.where(wine.target == 0, "north", "south"))
    frame.loc[3, "ash"] = np.nan
    frame.to_csv(tmp_path / "wine.csv", index=False)
    done = assay("supervised", "linear-core", tmp_path / "wine.csv", "--target", "target", "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert np.mean(content["accuracy"]) > 0.9
    assert all(certificate["holds"] for certificate in content["certificates"])
    words = assay("supervised", "linear-core", tmp_path / "wine.csv", "--target", "vineyard")
    assert words.exit_code == 0
    assert "cross-validation" in words.stdout


def test_identifiers_do_not_blow_up_and_na_is_a_label(tmp_path):
    rng = np.random.default_rng(0)
    side = rng.integers(2, size=3000)
    frame = pd.DataFrame(
        {
            "id": [f"row {i}" for i in range(3000)],
            "x": side + 0.1 * rng.normal(size=3000),
            "country": np.where(side, "NA", "DE"),
        }
    )
    frame.to_csv(tmp_path / "data.csv", index=False)
    done = assay("supervised", "linear-core", tmp_path / "data.csv", "--target", "country", "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["classes"] == ["DE", "NA"]
    assert len(content["features"]) <= 52
    assert np.mean(content["accuracy"]) > 0.99


@pytest.mark.parametrize(
    "frame, message",
    [
        (pd.DataFrame({"x": [1, 2], "z": [0, 1]}), "--target must be a column"),
        (pd.DataFrame({"x": [1, 2, 3], "y": [0, 1, None]}), "must have a label in every row"),
        (pd.DataFrame({"y": [0, 1, 0, 1]}), "has no column besides"),
        (pd.DataFrame({"x": [1, 2], "y": [1, 1]}), "at least 2 classes"),
        (pd.DataFrame({"x": [1, 2, 3], "y": [1, 1, 2]}), "at least 2 rows of every class"),
        (pd.DataFrame({"x": [], "y": []}), "has no rows"),
    ],
)
def test_bad_tables_are_one_line(tmp_path, frame, message):
    frame.to_csv(tmp_path / "data.csv", index=False)
    done = assay("supervised", "linear-core", tmp_path / "data.csv", "--target", "y")
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_tables_that_cannot_be_parsed(tmp_path):
    (tmp_path / "twice.csv").write_text("x,x,y\n1,2,3\n")
    assert "distinct column names" in assay("supervised", "linear-core", tmp_path / "twice.csv", "--target", "y").stderr
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    assert assay("supervised", "linear-core", tmp_path / "bad.parquet", "--target", "y").exit_code == 2
    (tmp_path / "bad.xlsx").write_bytes(b"")
    done = assay("supervised", "linear-core", tmp_path / "bad.xlsx", "--target", "y")
    assert "must be a .csv, .tsv or .parquet file" in done.stderr


def test_scores_numbered_from_1_are_warned_about(tmp_path):
    (tmp_path / "square.tsp").write_text(SQUARE)
    (tmp_path / "scores.csv").write_text("i,j,p\n1,2,0.9\n2,3,0.9\n")
    done = assay("graphs", "tour", tmp_path / "square.tsp", "--heatmap", tmp_path / "scores.csv")
    assert done.exit_code == 0, done.stderr
    assert "has no score for city 0: cities are numbered from 0" in done.stderr


def test_fewer_folds_than_asked_for_are_warned_about(tmp_path):
    frame = pd.DataFrame({"age": np.arange(30.0), "city": ["a", "b", "c"] * 10, "y": [0] * 27 + [1] * 3})
    frame.to_csv(tmp_path / "data.csv", index=False)
    done = assay("supervised", "linear-core", tmp_path / "data.csv", "--target", "y", "--json")
    assert "3 folds instead of 5" in done.stderr
    assert json.loads(done.stdout)["features"][0] == "age"
