"""``assay games solve`` on trees, strategic games and Markov games, and ``assay games offline``."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from assay.cli.app import app

PENNIES = {
    "players": ["Even", "status"],
    "root": {
        "type": "decision",
        "player": "Even",
        "infoset": "hide",
        "actions": [
            {
                "label": side,
                "child": {
                    "type": "decision",
                    "player": "status",
                    "infoset": "guess",
                    "actions": [
                        {"label": guess, "child": {"type": "leaf", "payoffs": [payoff, -payoff]}}
                        for guess, payoff in replies.items()
                    ],
                },
            }
            for side, replies in {"heads": {"heads": 3, "tails": -1}, "tails": {"heads": -1, "tails": 1}}.items()
        ],
    },
}

CARDS = """EFG 2 R "cards" { "Ann" "Bob" } ""
c "" 1 "" { "red" 1/4 "black" 3/4 } 0
p "" 1 1 "Ann's" { "tell" "pass" } 0
t "" 1 "" { 1, -1 }
t "" 2 "" { 0, 0 }
p "" 2 1 "Bob's" { "red" "black" } 0
t "" 3 "" { 2, -2 }
t "" 4 "" { -3, 3 }
"""


def solve(*arguments):
    return CliRunner().invoke(app, ["games", "solve", *map(str, arguments)])


def one_line_error(done):
    assert done.exit_code == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


class TestTrees:
    @pytest.fixture
    def pennies(self, tmp_path):
        path = tmp_path / "pennies.json"
        path.write_text(json.dumps(PENNIES))
        return path

    def test_for_people(self, pennies):
        done = solve(pennies)
        assert done.exit_code == 0, done.stderr
        assert "receives 0.333333" in done.stdout
        assert "status'" in done.stdout  # a player of this name, after the line of this name
        assert "heads: 0.33333" in done.stdout
        assert "holds" in done.stdout

    def test_for_programs(self, pennies, tmp_path):
        done = solve(pennies, "--json", "--tol", "1e-6", "--out", tmp_path / "answer.json")
        content = json.loads(done.stdout)
        assert content == json.loads((tmp_path / "answer.json").read_text())
        assert content["strategies"]["status"]["guess"]["heads"] == pytest.approx(1 / 3, abs=1e-3)
        assert content["certificates"][0]["bound"] == 1e-6
        relative = json.loads(solve(pennies, "--json", "--tol", "1e-6", "--rtol").stdout)
        assert relative["certificates"][0]["bound"] == pytest.approx(3e-6)

    def test_stopped_early(self, pennies):
        done = solve(pennies, "--max-iter", "1")
        assert done.exit_code == 1
        assert "unresolved" in done.stdout
        assert "FAILS" in done.stdout
        assert "warning: " in done.stderr

    def test_refused(self, pennies, tmp_path):
        assert "max_nodes=3 nodes" in one_line_error(solve(pennies, "--max-nodes", "3"))
        assert "--beta must be left out" in one_line_error(solve(pennies, "--beta", "1"))
        assert "method must be one of 'auto', 'asymmetric', 'sos'" in one_line_error(solve(pennies, "--method", "ssn"))
        assert "tol must be finite" in one_line_error(solve(pennies, "--tol", "nan"))
        broken = tmp_path / "broken.json"
        for content, message in (
            ('{"root": 3}', "'players' and 'root'"),
            ('{"players": ["x"], "root": 3}', "type must be"),
            ('{"a": 3}', "must have a matrix under"),
            ("[" * 100_000, "broken.json"),
        ):
            broken.write_text(content)
            assert message in one_line_error(solve(broken))

    def test_gambit(self, tmp_path):
        pytest.importorskip("pygambit")
        (tmp_path / "cards.efg").write_text(CARDS)
        content = json.loads(solve(tmp_path / "cards.efg", "--json").stdout)
        np.testing.assert_allclose(content["payoffs"], [0.25 * 1 - 0.75 * 3, -0.25 * 1 + 0.75 * 3], atol=1e-8)
        (tmp_path / "cards.efg").write_text("EFG nothing")
        assert "Gambit cannot read it" in one_line_error(solve(tmp_path / "cards.efg"))

    def test_openspiel(self):
        pytest.importorskip("pyspiel")
        content = json.loads(solve("openspiel:kuhn_poker", "--tol", "1e-5", "--json").stdout)
        assert content["payoffs"][0] == pytest.approx(-1 / 18, abs=1e-5)
        assert "did you mean kuhn_poker" in one_line_error(solve("openspiel:kuhn_pocker"))
        assert "OpenSpiel has, got ''" in one_line_error(solve("openspiel:"))
        assert "max_nodes=100 nodes" in one_line_error(solve("openspiel:leduc_poker", "--max-nodes", "100"))


class TestStrategicGames:
    def test_zero_sum_is_a_matrix(self, tmp_path):
        (tmp_path / "game.nfg").write_text('NFG 1 R "pennies" { "A" "B" } { 2 2 } 1 -1 -1 1 -1 1 1 -1')
        content = json.loads(solve(tmp_path / "game.nfg", "--json").stdout)
        np.testing.assert_allclose(content["x"], 0.5, atol=1e-6)

    def test_others_are_trees(self, tmp_path):
        pytest.importorskip("pygambit")
        (tmp_path / "game.nfg").write_text('NFG 1 R "both" { "A" "B" } { 2 2 } 2 1 0 0 0 0 1 2')
        content = json.loads(solve(tmp_path / "game.nfg", "--json").stdout)
        assert content["method"] == "sos"
        assert max(content["gains"]) <= 2e-5
        (tmp_path / "game.nfg").write_text('NFG 1 R "three" { "A" "B" "C" } { 1 1 2 } 1 2 3 4 5 6')
        np.testing.assert_allclose(json.loads(solve(tmp_path / "game.nfg", "--json").stdout)["payoffs"], [4, 5, 6])

    def test_without_gambit(self, tmp_path, monkeypatch):
        from assay.extras import MissingExtraError
        from assay.games import tree_readers

        def missing(module, extra):
            raise MissingExtraError(f"{module} is not installed")

        monkeypatch.setattr(tree_readers, "import_extra", missing)
        (tmp_path / "game.nfg").write_text('NFG 1 R "both" { "A" "B" } { 2 2 } 2 1 0 0 0 0 1 2')
        line = one_line_error(solve(tmp_path / "game.nfg"))
        assert "not zero-sum" in line
        assert "pygambit is not installed" in line

    def test_broken(self, tmp_path):
        (tmp_path / "game.nfg").write_text("NFG nothing")
        assert "game.nfg, line 1" in one_line_error(solve(tmp_path / "game.nfg"))


class TestMarkovGames:
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(12), size=(12, 2, 3))
    r = rng.uniform(0, 1, (12, 2, 3))

    def save(self, path, **changes):
        columns = {"P": self.P, "r": self.r, "horizon": 2} | changes
        np.savez(path, **{name: column for name, column in columns.items() if column is not None})
        return path

    def test_for_people(self, tmp_path):
        done = solve(self.save(tmp_path / "game.npz", rho=np.eye(12)[3]), "--beta", "0.5")
        assert done.exit_code == 0, done.stderr
        assert "with pull 0.5 towards uniform play" in done.stdout
        assert "state 9, step 1" in done.stdout
        assert "2 more states" in done.stdout

    def test_for_programs(self, tmp_path):
        from assay.games import MarkovGameModel, regularized_equilibrium

        content = json.loads(solve(self.save(tmp_path / "game.npz"), "--json").stdout)
        want = regularized_equilibrium(MarkovGameModel(self.P, self.r, horizon=2), beta=0.1)
        np.testing.assert_allclose(content["V"], want.V)
        assert np.shape(content["mu"]) == (2, 12, 2)

    def test_stopped_early(self, tmp_path):
        done = solve(self.save(tmp_path / "game.npz"), "--max-iter", "1")
        assert done.exit_code == 1
        assert "did not reach tol" in done.stderr

    @pytest.mark.parametrize(
        "changes, options, message",
        [
            ({"horizon": None}, (), "horizon must be given"),
            ({"horizon": 2.5}, (), "horizon must be an integer, got 2.5"),
            ({"horizon": [1, 2]}, (), "horizon must be an integer, got [1, 2]"),
            ({"P": np.array([None])}, (), "must be a NumPy archive of numbers"),
            ({"P": P * 0}, (), "P must have probabilities"),
            ({"r": r * 9}, (), "r must be in [0, 1]"),
            ({}, ("--beta", "0"), "beta must be greater than 0"),
            ({}, ("--method", "ssn"), "--method must be left out"),
        ],
    )
    def test_refused(self, tmp_path, changes, options, message):
        path = self.save(tmp_path / "game.npz", **changes)
        assert message in one_line_error(solve(path, *options))

    def test_damaged(self, tmp_path, monkeypatch):
        whole = self.save(tmp_path / "game.npz").read_bytes()
        for content in (whole[:200], b"abc"):
            (tmp_path / "cut.npz").write_bytes(content)
            assert "cut.npz: not a NumPy archive" in one_line_error(solve(tmp_path / "cut.npz"))
        damaged = bytearray(whole)
        damaged[100:140] = bytes(40)
        (tmp_path / "game.npz").write_bytes(damaged)
        assert "game.npz" in one_line_error(solve(tmp_path / "game.npz"))
        monkeypatch.setattr("assay.cli.games._LARGEST_FILE", 100)
        self.save(tmp_path / "game.npz")
        assert "arrays of at most 100 bytes" in one_line_error(solve(tmp_path / "game.npz"))


class TestLogs:
    def log(self, path, scale=1.0):
        rows = ["episode,h,s,a,b,r,s_next"]
        rng = np.random.default_rng(0)
        for episode in range(60):
            a, b = rng.integers(2, size=2)
            rows.append(f"{episode},1,0,{a},{b},{scale * float(a == b)},")
        path.write_text("\n".join(rows))
        return path

    def test_rewards_in_other_units(self, tmp_path):
        path = self.log(tmp_path / "log.csv", 4.0)
        arguments = ["games", "offline", str(path), "--beta", "0.1", "--reference", "uniform"]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert "r must be in [0, 1]" in done.stderr
        done = CliRunner().invoke(app, [*arguments, "--rescale"])
        assert "0 + 4 r; value, gaps and beta are in units of r" in done.stdout
        assert "state 0, step 1" in done.stdout

    def test_the_value_is_that_of_the_first_states(self, tmp_path):
        rows = ["h,s,a,b,r,s_next", *("1,1,0,0,1,-1",) * 4, "1,0,0,0,0,-1"]
        (tmp_path / "log.csv").write_text("\n".join(rows))
        done = CliRunner().invoke(app, ["games", "offline", str(tmp_path / "log.csv"), "--beta", "1"])
        assert "0.8 on average over the first states of the log" in done.stdout
