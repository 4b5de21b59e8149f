"""Logs of Markov games: what is accepted, files, OpenSpiel, and what is refused."""

import types

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
        ({"s": [], "h": []}, "h must be a vector of integers that is not empty"),
        ({"s": np.zeros((4, 2)), "s_next": np.zeros((4, 3))}, "s_next must be of the shape of s"),
        ({"s": np.zeros((4, 2)), "s_next": np.zeros((4, 2)), "n_states": 5}, "n_states must be None"),
        ({"s": np.full((4, 2), np.nan), "s_next": np.zeros((4, 2))}, "s must be a finite 2-D array"),
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
        ({"n_actions": 3}, "n_actions"),
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
        with pytest.raises(ValueError, match="a must have numbers, got 'left' in row 1"):
            OfflineGameData.from_csv(tmp_path / "log.csv")
        (tmp_path / "log.csv").write_text("h,s,a,b,r,s_next\n")
        with pytest.raises(ValueError, match="at least one row"):
            OfflineGameData.from_csv(tmp_path / "log.csv")
        np.savez(tmp_path / "log.npz", h=[1])
        with pytest.raises(ValueError, match="got no s, a, b, r, s_next"):
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
            ([[3]], TypeError, "mappings or of pairs"),
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
