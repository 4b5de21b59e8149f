"""Logs of Markov games: what is accepted, files, OpenSpiel, and what is refused."""

import types
import zipfile

import numpy as np
import pandas as pd
import pytest

from assay.games.offline_data import OfflineGameData

GOOD = {
    "h": [1, 1, 2, 2],
    "s": [0, 1, 2, 0],
    "a": [0, 1, 1, 0],
    "b": [0, 0, 1, 2],
    "r": [0.0, 1.0, 0.5, 1.0],
    "s_next": [2, 0, 0, 1],
    "horizon": 2,
}


def make(**changes):
    return OfflineGameData(**(GOOD | changes))


def test_samples_are_sorted_by_step():
    order = [3, 1, 0, 2]
    shuffled = make(**{name: np.array(GOOD[name])[order] for name in ("h", "s", "a", "b", "r", "s_next")})
    assert shuffled.h.tolist() == [1, 1, 2, 2]
    assert shuffled.step(0).s.tolist() == [1, 0]
    assert shuffled.step(1).s_next.tolist() == [1, 0]
    assert (shuffled.n_states, shuffled.n_actions, shuffled.horizon) == (3, (2, 3), 2)
    assert shuffled.counts(0).sum() == 2
    assert shuffled.counts(1)[2, 1, 1] == 1
    assert repr(shuffled) == "OfflineGameData(4 samples, horizon=2, n_states=3, n_actions=(2, 3))"


def test_targets_and_ended_episodes():
    data = make(s_next=[2, -1, -1, 1])
    np.testing.assert_allclose(data.targets(0, np.array([0.1, 0.2, 0.3])), [0.3, 1.0])
    np.testing.assert_allclose(data.targets(1, np.zeros(3)), [0.5, 1.0])


def test_rescaled_rewards_and_what_follows_an_end():
    data = make(r=[-1.0, 3.0, 1.0, 3.0], s_next=[2, -1, 0, 1], rescale=True)
    assert (data.reward_low, data.reward_scale) == (-1.0, 4.0)
    np.testing.assert_allclose(data.r, [0, 1, 0.5, 1])
    # nothing, in the original units, is a quarter in the new ones, and one step is left
    np.testing.assert_allclose(data.targets(0, np.zeros(3)), [0.0, 1.25])
    # zero must be in the range where episodes end early, and need not where none does
    assert make(r=[2.0, 3.0, 3.0, 3.0], s_next=[2, -1, 0, 1], rescale=True).reward_low == 0.0
    assert make(r=[2.0, 3.0, 3.0, 3.0], rescale=True).reward_low == 2.0
    assert make(rescale=True).reward_scale == 1.0
    assert make(r=[7.0] * 4, rescale=True).r.tolist() == [0.0] * 4


def test_states_as_features():
    s = np.array([[0.5, 1.0], [2.0, 2.0], [0.5, 1.0], [3.0, 0.0]])
    after = np.array([[2.0, 2.0], [np.nan, np.nan], [3.0, 0.0], [9.0, 9.0]])
    data = make(s=s, s_next=after)
    assert data.n_states == 4
    np.testing.assert_array_equal(data.state_features[data.s], s)
    assert data.s_next[1] == -1
    np.testing.assert_array_equal(data.state_features[data.s_next[[0, 2, 3]]], after[[0, 2, 3]])


def test_halves_have_every_other_sample():
    data = make(
        h=[1, 1, 1, 2, 2], s=[0, 1, 2, 0, 1], a=[0] * 5, b=[0] * 5, r=[0.5] * 5, s_next=[0] * 5, n_actions=(2, 2)
    )
    one, two = data.halves()
    assert one.step(0).s.tolist() == [0, 2]
    assert two.step(0).s.tolist() == [1]
    assert one.step(1).s.tolist() == [0]
    assert two.step(1).s.tolist() == [1]
    assert two.n_samples.tolist() == [1, 1]
    assert make(h=[1, 2, 2, 2]).halves() is None


def test_halves_have_whole_episodes_where_they_are_known():
    # the second episode has no second step: counting within the steps would tear the others apart
    log = {"h": [1, 2, 1, 1, 2, 1, 2], "s": [0, 0, 1, 2, 2, 3, 3], "a": [0] * 7, "b": [0] * 7, "r": [0.5] * 7}
    data = make(**log, s_next=[0, -1, -1, 2, -1, 3, -1], episode=["w", "w", "x", "y", "y", "z", "z"])
    one, two = data.halves()
    assert one.s.tolist() == [0, 2, 0, 2]
    assert two.s.tolist() == [1, 3, 3]
    assert one.episode.tolist() == [0, 2, 0, 2]
    torn = make(**log, s_next=[0, -1, -1, 2, -1, 3, -1]).halves()
    assert torn[0].s.tolist() == [0, 2, 0, 3]
    assert make(**log, s_next=[0] * 7, episode=[0, 0, 0, 0, 0, 0, 0]).halves() is None


def test_tensors_and_other_arrays():
    torch = pytest.importorskip("torch")
    plain = make()
    tensors = {name: torch.tensor(GOOD[name]) for name in ("h", "a", "b", "s_next")}
    tensors |= {"s": torch.tensor([0.0, 1.0, 2.0, 0.0], requires_grad=True), "n_actions": np.array([2, 3])}
    data = make(**tensors, r=torch.tensor(GOOD["r"], requires_grad=True), episode=torch.tensor([0, 1, 0, 1]))
    for name in ("h", "s", "a", "b", "r", "s_next"):
        np.testing.assert_array_equal(getattr(data, name), getattr(plain, name))
    features = torch.zeros(4, 2, dtype=torch.bfloat16, requires_grad=True)
    assert make(s=features, s_next=features).n_states == 1
    series = {name: pd.Series(GOOD[name], index=[5, 3, 2, 9]) for name in ("h", "s", "a", "b", "r", "s_next")}
    np.testing.assert_array_equal(make(**series).s, plain.s)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"h": [0, 1, 2, 2]}, "h must have steps from 1 to horizon=2, got 0 in sample 0"),
        ({"h": [1, 1, 2, 3]}, "h must have steps from 1 to horizon=2, got 3"),
        ({"horizon": 3}, "h must have samples of every step from 1 to horizon=3, got none of 3"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"h": [1, 1, 1, 1]}, "got none of 2"),
        ({"s": [0, 1, 2, 3], "n_states": 3}, "s must have states from 0 to 2, got 3"),
        ({"s": [0, -1, 2, 0]}, "s must have states from 0"),
        ({"s_next": [0, 0, 0, 7], "n_states": 3}, "s_next must have states from 0 to 2, or -1, got 7"),
        ({"s_next": [0, 0, 0, -2]}, "s_next must have states from 0"),
        ({"a": [0, 1, 5, 0], "n_actions": (2, 3)}, "a must have actions from 0 to 1, got 5"),
        ({"b": [0, 0, 0, 3], "n_actions": (2, 3)}, "b must have actions from 0 to 2, got 3"),
        ({"a": [0, -1, 0, 0]}, "a must have"),
        ({"r": [0, np.nan, 0, 0]}, "r must be a finite 1-D array, got 1 nan"),
        ({"r": [0, 2.0, 0, 0]}, "r must be in .0, 1. unless rescale=True, got rewards from 0 to 2"),
        ({"r": [0, -0.1, 0, 0]}, "r must be in .0, 1. unless rescale=True"),
        ({"r": [0.0, 0.0]}, "r must be as long as h, 4, got 2"),
        ({"s": [], "h": []}, "h must be a finite 1-D array and not empty"),
        ({"s": np.zeros((4, 2)), "s_next": np.zeros((4, 3))}, "s_next must be of the shape of s"),
        ({"s": np.zeros((4, 2)), "s_next": np.zeros((4, 2)), "n_states": 5}, "n_states must be None"),
        ({"s": np.full((4, 2), np.nan), "s_next": np.zeros((4, 2))}, "s must be a finite 1-D or 2-D array, got 8 nan"),
        ({"s": [0, 10**18, 2, 0]}, "s must have states from 0 on, got 1e.18, which is too large"),
        ({"s": np.array([2**63 + 5, 0, 1, 0], dtype=np.uint64)}, "s must have states from 0 on, got 9.22"),
        ({"a": [1e300, 0, 1, 0]}, "a must have numbers from 0 on, got 1e.300, which is too large"),
        ({"s": [0, 10**10, 2, 0]}, "s, a and b must have at most 2147483648 combinations at a step, got 10000000001"),
        ({"horizon": 10**9}, "got none of 3"),
        ({"s": np.ma.array([0, 1, 2, 0], mask=[1, 0, 0, 0])}, "s must be .* got 1 masked"),
        ({"s": [[1, 2], [3], [4], [5]]}, "s must be .* rows of different lengths"),
        ({"r": [0, 1 + 1e-12, 0, 0]}, "got rewards from 0 to 1.000000000001"),
        ({"r": [-1.7e308, 1.7e308, 0, 0], "rescale": True}, "r must have a range below"),
        ({"s": np.zeros((4, 2)), "s_next": np.zeros((3, 2))}, "s_next must be as long as h, 4, got 3"),
        ({"state_names": ["a"]}, "state_names must have one label per state, 3, got 1"),
        ({"episode": [0, 0, 1]}, "episode must be as long as h, 4, got 3"),
        ({"episode": [0, None, 1, 1]}, "episode must have no gaps, got nan or None in sample 1"),
        ({"episode": np.zeros((4, 1))}, "episode must be a vector"),
        ({"episode": [[0], [0, 1], [1], [1]]}, "episode must be a vector of numbers or names, got rows"),
        ({"phi": np.zeros((3, 2, 2, 5))}, r"phi must be of shape \(3, 2, 3, d\)"),
        ({"s": np.zeros((4, 2)), "s_next": np.zeros((4, 2)), "phi": np.zeros((1, 2, 3, 4))}, "phi must be a function"),
    ],
)
def test_bad_values(change, message):
    with pytest.raises(ValueError, match=message):
        make(**change)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"a": [0.5, 1, 1, 0]}, "a must be a vector of integers"),
        ({"a": [True, False, True, False]}, "a must be a vector of integers"),
        ({"n_actions": 3}, "n_actions must be a pair"),
        ({"n_actions": (2, 3, 1)}, "n_actions must be a pair"),
        ({"n_actions": (2.0, 3)}, "n_actions must be an integer"),
        ({"s": ["a", "b", "c", "d"]}, "s must be a finite 1-D or 2-D array of real numbers"),
        ({"s": None}, "s must be"),
        ({"s": np.zeros((4, 2)), "s_next": [["a", "b"]] * 4}, "s_next must be an array of numbers"),
        ({"state_names": 3}, "state_names must be a sequence of 3 labels"),
        ({"horizon": 2.0}, "horizon"),
        ({"rescale": 1}, "rescale"),
        ({"r": ["x"] * 4}, "r must be a finite 1-D array of real numbers"),
    ],
)
def test_bad_types(change, message):
    with pytest.raises(TypeError, match=message):
        make(**change)


class TestFiles:
    def frame(self):
        return pd.DataFrame({name: GOOD[name] for name in ("h", "s", "a", "b", "r", "s_next")}).assign(episode=0)

    def assert_same(self, data, other):
        for name in ("h", "s", "a", "b", "r", "s_next"):
            np.testing.assert_array_equal(getattr(data, name), getattr(other, name))
        assert (data.horizon, data.n_actions) == (other.horizon, other.n_actions)

    def test_csv_and_parquet(self, tmp_path):
        frame = self.frame().astype({"s_next": "Int64"})
        frame.loc[1, "s_next"] = pd.NA
        frame.to_csv(tmp_path / "log.csv", index=False)
        frame.to_parquet(tmp_path / "log.parquet")
        expected = make(s_next=[2, -1, 0, 1])
        self.assert_same(OfflineGameData.from_csv(tmp_path / "log.csv"), expected)
        self.assert_same(OfflineGameData.from_parquet(tmp_path / "log.parquet"), expected)
        wider = OfflineGameData.from_csv(tmp_path / "log.csv", n_actions=(4, 4), n_states=9)
        assert (wider.n_states, wider.n_actions) == (9, (4, 4))

    def test_npz(self, tmp_path):
        columns = {name: np.array(GOOD[name]) for name in ("h", "s", "a", "b", "r", "s_next")}
        np.savez(tmp_path / "log.npz", **columns)
        self.assert_same(OfflineGameData.from_npz(tmp_path / "log.npz"), make())
        np.savez(tmp_path / "more.npz", **columns, horizon=2, phi=np.ones((3, 2, 3, 4)))
        assert OfflineGameData.from_npz(tmp_path / "more.npz").phi.shape == (3, 2, 3, 4)
        with pytest.raises(ValueError, match="got none of 3"):
            OfflineGameData.from_npz(tmp_path / "log.npz", horizon=3)

    def test_nothing_is_unpickled(self, tmp_path):
        columns = {name: np.array(GOOD[name]) for name in ("h", "s", "a", "b", "r")}
        np.savez(tmp_path / "log.npz", **columns, s_next=np.array([{}, 1, 2, 3], dtype=object))
        with pytest.raises(ValueError, match="allow_pickle=False"):
            OfflineGameData.from_npz(tmp_path / "log.npz")

    @pytest.mark.parametrize(
        "reader, name", [("from_csv", "x.csv"), ("from_parquet", "x.parquet"), ("from_npz", "x.npz")]
    )
    def test_damaged_files(self, reader, name, tmp_path):
        read = getattr(OfflineGameData, reader)
        path = tmp_path / name
        with pytest.raises(FileNotFoundError):
            read(path)
        with pytest.raises(ValueError, match="path must end in"):
            read(tmp_path / "x.txt")
        path.write_bytes(b"")
        with pytest.raises(ValueError, match="path must be a file of 1 byte"):
            read(path)
        path.write_bytes(b"\x00\xff\x00garbage")
        with pytest.raises(ValueError, match="path must"):
            read(path)

    def test_missing_columns_and_words(self, tmp_path):
        self.frame().drop(columns="b").to_csv(tmp_path / "log.csv", index=False)
        with pytest.raises(ValueError, match="got no b"):
            OfflineGameData.from_csv(tmp_path / "log.csv")
        self.frame().assign(a=["left", 0, 0, 0]).to_csv(tmp_path / "log.csv", index=False)
        with pytest.raises(ValueError, match="a must have numbers, got left in row 1"):
            OfflineGameData.from_csv(tmp_path / "log.csv")
        (tmp_path / "log.csv").write_text("h,s,a,b,r,s_next\n")
        with pytest.raises(ValueError, match="at least one row"):
            OfflineGameData.from_csv(tmp_path / "log.csv")
        self.frame().assign(a=[True, False, True, True]).to_csv(tmp_path / "log.csv", index=False)
        with pytest.raises(TypeError, match="a must have numbers, got True and False"):
            OfflineGameData.from_csv(tmp_path / "log.csv")
        # one cell too many in every row, which would shift the columns
        (tmp_path / "log.csv").write_text("h,s,a,b,r,s_next\n1,0,0,0,1,0,7\n")
        with pytest.raises(ValueError, match="rows of 6 cells as in the header"):
            OfflineGameData.from_csv(tmp_path / "log.csv")
        np.savez(tmp_path / "log.npz", h=[1])
        with pytest.raises(ValueError, match="got no s, a, b, r, s_next"):
            OfflineGameData.from_npz(tmp_path / "log.npz")

    def test_blanks_after_commas_and_episodes(self, tmp_path):
        (tmp_path / "log.csv").write_text(
            "episode, h, s, a, b, r, s_next\nx, 1, 0, 0, 0, 1, -1\ny, 1, 1, 0, 0, 0.5, \n"
        )
        data = OfflineGameData.from_csv(tmp_path / "log.csv")
        assert data.episode.tolist() == [0, 1]
        assert data.s_next.tolist() == [-1, -1]
        assert [part.s.tolist() for part in data.halves()] == [[0], [1]]

    @pytest.mark.parametrize(
        "change, error, message",
        [
            ({"horizon": 2.5}, TypeError, "horizon must be an integer"),
            ({"horizon": [2, 3]}, TypeError, "horizon must be an integer"),
            ({"r": np.array([None] * 4)}, ValueError, "path must be a NumPy archive of numbers"),
        ],
    )
    def test_archives(self, tmp_path, change, error, message):
        columns = {name: GOOD[name] for name in ("h", "s", "a", "b", "r", "s_next")} | change
        np.savez(tmp_path / "log.npz", **columns)
        with pytest.raises(error, match=message):
            OfflineGameData.from_npz(tmp_path / "log.npz")

    @pytest.mark.parametrize("suffix", ["npz", "parquet"])
    def test_files_with_wrong_bytes(self, tmp_path, suffix):
        path, rng = tmp_path / f"log.{suffix}", np.random.default_rng(0)
        if suffix == "npz":
            np.savez(path, **{name: GOOD[name] for name in ("h", "s", "a", "b", "r", "s_next")})
        else:
            self.frame().to_parquet(path)
        read = {"npz": OfflineGameData.from_npz, "parquet": OfflineGameData.from_parquet}[suffix]
        whole, refused = path.read_bytes(), 0
        for _ in range(120):
            damaged = bytearray(whole)
            for place in rng.integers(len(whole), size=5):
                damaged[place] = rng.integers(256)
            path.write_bytes(damaged)
            try:
                read(path)
            except (ValueError, TypeError):
                refused += 1
        assert refused > 60

    def test_archives_of_something_else(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "log.npz", "w") as archive:
            for name in ("h", "s", "a", "b", "r", "s_next"):
                archive.writestr(f"{name}.npy", b"garbage")
        with pytest.raises(ValueError, match="h must be an array in NumPy's format"):
            OfflineGameData.from_npz(tmp_path / "log.npz")


class TestOpenSpielLogs:
    def test_mappings(self):
        episodes = [
            [
                {"state": "start", "actions": (0, 1), "rewards": [0.0, 0.0]},
                {"state": [1, 2], "actions": (1, 1), "rewards": (1.0, -1.0)},
            ],
            [{"state": "start", "actions": (1, 0), "rewards": -1.0}],
        ]
        data = OfflineGameData.from_openspiel_logs(episodes)
        assert data.state_names == ["start", (1, 2)]
        assert (data.horizon, data.n_states) == (2, 2)
        assert data.step(0).s_next.tolist() == [1, -1]
        assert data.step(1).s_next.tolist() == [-1]
        assert (data.reward_low, data.reward_scale) == (-1.0, 2.0)
        assert data.episode.tolist() == [0, 1, 0]

    def test_time_steps(self):
        def at(seen, player, rewards=None):
            return types.SimpleNamespace(
                observations={"info_state": [seen, seen], "current_player": player}, rewards=rewards
            )

        episode = [(at([0.0], -2), [1, 0]), (at([1.0], 1, [0.0, 0.0]), [2]), (at([2.0], -4, [1.0, -1.0]), None)]
        data = OfflineGameData.from_openspiel_logs([episode])
        assert data.a.tolist() == [1, 0]
        assert data.b.tolist() == [0, 2]
        assert data.s_next.tolist() == [1, -1]
        assert data.r.tolist() == [0.0, 1.0]

    def test_a_real_environment(self):
        pytest.importorskip("pyspiel")
        from open_spiel.python import rl_environment

        env = rl_environment.Environment("goofspiel", num_cards=3, imp_info=False, points_order="descending", players=2)
        rng = np.random.default_rng(0)
        episodes = []
        for _ in range(20):
            now, episode = env.reset(), []
            while not now.last():
                actions = [rng.choice(legal) for legal in now.observations["legal_actions"]]
                episode.append((now, actions))
                now = env.step(actions)
            episodes.append([*episode, (now, None)])
        data = OfflineGameData.from_openspiel_logs(episodes)
        assert data.n_samples[0] == 20
        assert data.n_states > 2
        assert set(data.r) <= {0.0, 0.5, 1.0}

    @pytest.mark.parametrize(
        "episodes, error, message",
        [
            ([], ValueError, "at least one episode"),
            ([[{"state": 1, "actions": (0, 0)}]], ValueError, "the key 'rewards'"),
            ([[{"state": 1, "actions": (0,), "rewards": 0}]], ValueError, "a pair of actions"),
            ([[{"state": 1, "actions": (0, 1), "rewards": [1, 1]}]], ValueError, "sum to 0"),
            ([[{"state": 1, "actions": 3, "rewards": 0}]], ValueError, "a pair of actions"),
            ([[{"state": 1, "actions": (0.7, 0), "rewards": 0}]], TypeError, "actions that are integers"),
            ([[{"state": 1, "actions": (0, 0), "rewards": "x"}]], TypeError, "rewards that are numbers"),
            ([[{"state": 1, "actions": (0, 0), "rewards": (np.nan, 1)}]], ValueError, "sum to 0"),
            ([[{"state": {1}, "actions": (0, 0), "rewards": 0}]], TypeError, "states that can be keys"),
            ([[3]], TypeError, "mappings or of pairs"),
            ([3], TypeError, "sequences of steps"),
            (3, TypeError, "a sequence of episodes"),
        ],
    )
    def test_refused(self, episodes, error, message):
        with pytest.raises(error, match=message):
            OfflineGameData.from_openspiel_logs(episodes)

    def test_an_episode_without_an_end(self):
        seen = types.SimpleNamespace(observations={"info_state": [[0], [0]], "current_player": -2}, rewards=None)
        with pytest.raises(ValueError, match="end with a pair"):
            OfflineGameData.from_openspiel_logs([[(seen, [0, 0]), (seen, [0, 0])]])
        with pytest.raises(ValueError, match="actions before the last"):
            OfflineGameData.from_openspiel_logs([[(seen, None), (seen, None)]])
