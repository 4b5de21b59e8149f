"""Logs of a two-player zero-sum Markov game: who was where, what both did, who got what, and where it led.

States are numbers, or vectors of features that a regression can generalise over; actions are numbers. Samples are
sorted by step once, so that the backward recursion reads one slice per step.
"""

from __future__ import annotations

import copy
import os
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.games.offline_columns import (
    as_action_counts,
    as_episodes,
    as_integers,
    as_names,
    as_rewards,
    as_states,
    check_range,
)
from assay.games.offline_files import episodes_from_open_spiel, read_npz_log, read_table_log
from assay.validation import as_float_array, check_integer

__all__ = ["OfflineGameData"]

ENDED = -1
"""Next state of a transition after which the episode was over."""

# Tables of a step have one number per state and pair of actions.
_MOST_CELLS = 2**31


class StepSamples(NamedTuple):
    """Samples of one step."""

    s: Int[np.ndarray, " samples"]
    a: Int[np.ndarray, " samples"]
    b: Int[np.ndarray, " samples"]
    r: Float[np.ndarray, " samples"]
    s_next: Int[np.ndarray, " samples"]


class OfflineGameData:
    r"""Transitions of a Markov game with a finite horizon.

    Parameters
    ----------
    h : array_like of int, shape (n,)
        Step of each sample, from 1 to ``horizon``.
    s : array_like, shape (n,) or (n, n_features)
        State: numbers from 0 on, or vectors of features.
    a, b : array_like of int, shape (n,)
        Actions of the max player and of the min player, from 0 on.
    r : array_like, shape (n,)
        What the max player received from the min player, in [0, 1].
    s_next : array_like, of the shape of ``s``
        Next state. -1 (or a row of nan) where the episode ended: no reward comes after it.
    horizon : int
        Number of steps; every one of them must have samples.
    n_states : int, optional
        Number of states; by default one more than the largest number that occurs.
    n_actions : pair of int, optional
        Numbers of actions ``(A, B)``; by default one more than the largest that occur.
    phi : array_like of shape (n_states, A, B, d) or callable, optional
        Features of states and actions for ``fit="linear"`` or a regressor: an array for numbered states, or a function
        ``phi(s, a, b)`` of states (numbers, or rows of features) and actions that returns an array of shape (n, d).
    rescale : bool, default=False
        Map rewards outside of [0, 1] to it. All values, gaps and ``beta`` are in the new units then: original rewards
        are ``reward_low + reward_scale * r``.
    state_names : sequence of n_states labels, optional
        Labels of the states.
    episode : array_like of shape (n,), optional
        Which episode each sample is of, by number or by name: then halves of the data have whole episodes. By default
        the k-th sample of every step counts as part of the k-th episode.

    Attributes
    ----------
    horizon, n_states : int
        Steps and states. With features of states, the states are the distinct vectors of the log.
    n_actions : tuple of int
        ``(A, B)``.
    h, s, a, b, r, s_next : numpy.ndarray of shape (n,)
        The samples, sorted by step.
    episode : numpy.ndarray of shape (n,), or None
        Numbers of the episodes, if they were given.
    n_samples : numpy.ndarray of shape (horizon,)
        Samples per step.
    state_features : numpy.ndarray of shape (n_states, n_features), or None
        Features of the states.
    reward_low, reward_scale : float
        0 and 1 unless rewards were rescaled.

    Raises
    ------
    TypeError
        If numbers of states, steps or actions are not integers.
    ValueError
        If lengths differ, a number is out of range or too large for tables, a reward is nan or outside [0, 1] without
        ``rescale``, or a step has no samples.

    Examples
    --------
    >>> from assay.games.offline_data import OfflineGameData
    >>> data = OfflineGameData([1, 1, 2, 2], [0, 0, 1, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 1, .5, 1], [1, 0, 0, 0], 2)
    >>> data
    OfflineGameData(4 samples, horizon=2, n_states=2, n_actions=(2, 2))
    """

    def __init__(
        self,
        h: ArrayLike,
        s: Any,
        a: ArrayLike,
        b: ArrayLike,
        r: ArrayLike,
        s_next: Any,
        horizon: int,
        n_states: int | None = None,
        n_actions: Any = None,
        phi: Any = None,
        *,
        rescale: bool = False,
        state_names: Any = None,
        episode: Any = None,
    ):
        self.horizon = check_integer(horizon, "horizon", minimum=1)
        steps = as_integers(h, "h", 1, self.horizon, f"steps from 1 to horizon={self.horizon}")
        n = len(steps)
        rewards = as_float_array(r, "r", ndim=1)
        self.state_features, s, s_next = as_states(s, s_next, ENDED)
        if n_states is None:
            n_states = 1 + max(int(s.max(initial=0)), int(s_next.max(initial=0)))
        self.n_states = check_integer(n_states, "n_states", minimum=1)
        if self.state_features is not None and self.n_states != len(self.state_features):
            raise ValueError(f"n_states must be None when states are vectors of features, got {n_states}")
        a, b = as_integers(a, "a", 0), as_integers(b, "b", 0)
        self.n_actions = as_action_counts((1 + int(a.max()), 1 + int(b.max())) if n_actions is None else n_actions)
        n_rows, n_columns = self.n_actions
        if self.n_states * n_rows * n_columns > _MOST_CELLS:
            raise ValueError(
                f"s, a and b must have at most {_MOST_CELLS} combinations at a step, got {self.n_states} states with "
                f"{n_rows} x {n_columns} actions; number them from 0 on without gaps"
            )
        columns = {
            "s": check_range(s, "s", 0, self.n_states - 1, f"states from 0 to {self.n_states - 1}"),
            "a": check_range(a, "a", 0, n_rows - 1, f"actions from 0 to {n_rows - 1}"),
            "b": check_range(b, "b", 0, n_columns - 1, f"actions from 0 to {n_columns - 1}"),
            "r": rewards,
            "s_next": check_range(
                s_next, "s_next", ENDED, self.n_states - 1, f"states from 0 to {self.n_states - 1}, or -1"
            ),
        }
        if episode is not None:
            columns["episode"] = as_episodes(episode)
        for name, column in columns.items():
            if len(column) != n:
                raise ValueError(f"{name} must be as long as h, {n}, got {len(column)}")
        logged = np.unique(steps)
        if len(logged) < self.horizon:
            empty = 1 + int((np.append(logged, 0) != np.arange(1, len(logged) + 2)).argmax())
            raise ValueError(f"h must have samples of every step from 1 to horizon={self.horizon}, got none of {empty}")
        self.n_samples = np.bincount(steps - 1, minlength=self.horizon)
        order = np.argsort(steps, kind="stable")
        self.h, self.episode = steps[order], columns.pop("episode")[order] if episode is not None else None
        self.s, self.a, self.b, self.r, self.s_next = (column[order] for column in columns.values())
        ends_early = bool(((self.s_next == ENDED) & (self.h < self.horizon)).any())
        self.r, self.reward_low, self.reward_scale = as_rewards(self.r, rescale, ends_early)
        self.phi = _as_phi(phi, self.n_states, self.n_actions, self.state_features)
        self.state_names = None if state_names is None else as_names(state_names, self.n_states)
        self._starts = np.concatenate(([0], np.cumsum(self.n_samples)))

    def __repr__(self) -> str:
        return (
            f"OfflineGameData({len(self.h)} samples, horizon={self.horizon}, n_states={self.n_states}, "
            f"n_actions={self.n_actions})"
        )

    @classmethod
    def from_npz(cls, path: str | os.PathLike[str], horizon: int | None = None, **options: Any) -> OfflineGameData:
        """Read arrays ``h``, ``s``, ``a``, ``b``, ``r``, ``s_next`` of a NumPy archive.

        It may have ``horizon``, ``phi`` and ``episode``, too.

        Parameters
        ----------
        path : path
            File of at most 2 GiB. Nothing is unpickled.
        horizon : int, optional
            By default that of the file, or the largest step.
        **options
            Passed on to the constructor.

        Returns
        -------
        OfflineGameData

        Raises
        ------
        ValueError
            If it is not such a file.
        """
        columns = read_npz_log(path)
        stored = {name: columns.pop(name) for name in ("horizon", "phi") if name in columns}
        if horizon is None:
            horizon = _stored_horizon(stored["horizon"]) if "horizon" in stored else _last_step(columns["h"])
        return cls(**{**columns, "phi": stored.get("phi"), "horizon": horizon, **options})

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], horizon: int | None = None, **options: Any) -> OfflineGameData:
        """Read a table with the columns ``h``, ``s``, ``a``, ``b``, ``r``, ``s_next``, and possibly ``episode``.

        Parameters
        ----------
        path : path
            A ``.csv`` of at most 2 GiB with a header. An empty cell in ``s_next`` is an ended episode.
        horizon : int, optional
            By default the largest step.
        **options
            Passed on to the constructor.

        Returns
        -------
        OfflineGameData

        Raises
        ------
        ValueError
            If it is not such a file.
        """
        columns = read_table_log(path, ".csv")
        return cls(**{**columns, "horizon": _last_step(columns["h"]) if horizon is None else horizon, **options})

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str], horizon: int | None = None, **options: Any) -> OfflineGameData:
        """Read a Parquet file with the columns of :meth:`from_csv`.

        Parameters
        ----------
        path : path
            A ``.parquet`` of at most 2 GiB.
        horizon : int, optional
            By default the largest step.
        **options
            Passed on to the constructor.

        Returns
        -------
        OfflineGameData

        Raises
        ------
        ValueError
            If it is not such a file.
        """
        columns = read_table_log(path, ".parquet")
        return cls(**{**columns, "horizon": _last_step(columns["h"]) if horizon is None else horizon, **options})

    @classmethod
    def from_openspiel_logs(
        cls, trajectories: Any, horizon: int | None = None, *, rescale: bool = True, **options: Any
    ) -> OfflineGameData:
        """Read episodes that were recorded with OpenSpiel.

        Parameters
        ----------
        trajectories : iterable of episodes
            An episode is a sequence of pairs ``(time_step, actions)`` of ``open_spiel.python.rl_environment``, the last
            of them with ``None`` for actions; or of mappings with the keys ``state`` (any label), ``actions`` (a pair)
            and ``rewards`` (of the first player, or of both). What counts are the rewards of player 0.
        horizon : int, optional
            By default the length of the longest episode.
        rescale : bool, default=True
            Map rewards, which in OpenSpiel are usually in [-1, 1], to [0, 1].
        **options
            Passed on to the constructor.

        Returns
        -------
        OfflineGameData
            States are numbered in the order in which they occur; their labels are in ``state_names``. Where only one
            player moves, the other has action 0.

        Raises
        ------
        TypeError, ValueError
            If an episode is not as described, or rewards are not zero-sum.

        Notes
        -----
        A state is what both players together see. That is a Markov game with simultaneous moves only when nobody has
        private information.
        """
        columns, names = episodes_from_open_spiel(trajectories)
        last = _last_step(columns["h"]) if horizon is None else horizon
        return cls(**{**columns, "horizon": last, "rescale": rescale, "state_names": names, **options})

    def step(self, step: int) -> StepSamples:
        """Samples of one step, counted from 0.

        Parameters
        ----------
        step : int
            From 0 to ``horizon - 1``.

        Returns
        -------
        StepSamples
            Views of ``s``, ``a``, ``b``, ``r`` and ``s_next``.
        """
        part = slice(self._starts[step], self._starts[step + 1])
        return StepSamples(self.s[part], self.a[part], self.b[part], self.r[part], self.s_next[part])

    def targets(self, step: int, values: Float[np.ndarray, " states"]) -> Float[np.ndarray, " samples"]:
        """Reward of every sample of a step, counted from 0, plus the value of its next state.

        Parameters
        ----------
        step : int
            From 0 to ``horizon - 1``.
        values : numpy.ndarray of shape (n_states,)
            Values of the states of the next step.

        Returns
        -------
        numpy.ndarray of shape (n_samples_of_the_step,)
        """
        samples = self.step(step)
        # What an ended episode would go on to receive: nothing, in the original units.
        nothing = -self.reward_low / self.reward_scale
        extended = np.append(values, (self.horizon - 1 - step) * nothing)
        return samples.r + extended[samples.s_next]

    def counts(self, step: int) -> Int[np.ndarray, "states rows columns"]:
        """How often each pair of actions was seen in each state at a step, counted from 0.

        Parameters
        ----------
        step : int
            From 0 to ``horizon - 1``.

        Returns
        -------
        numpy.ndarray of shape (n_states, A, B)
        """
        cells = self.cells(step)
        n_rows, n_columns = self.n_actions
        counted = np.bincount(cells, minlength=self.n_states * n_rows * n_columns)
        return counted.reshape(self.n_states, n_rows, n_columns)

    def cells(self, step: int) -> Int[np.ndarray, " samples"]:
        """Number of the (state, action, action) of every sample of a step, counted from 0."""
        samples = self.step(step)
        return (samples.s * self.n_actions[0] + samples.a) * self.n_actions[1] + samples.b

    def halves(self) -> tuple[OfflineGameData, OfflineGameData] | None:
        """Every other episode, and the rest; None when one of the two has no samples of a step."""
        if self.episode is None:
            second = (np.arange(len(self.h)) - self._starts[self.h - 1]) % 2 == 1
        else:
            second = self.episode % 2 == 1
        parts = self._subset(~second), self._subset(second)
        return parts if min(part.n_samples.min() for part in parts) else None

    def _subset(self, chosen: np.ndarray) -> OfflineGameData:
        part = copy.copy(self)
        for name in ("h", "s", "a", "b", "r", "s_next", "episode"):
            column = getattr(self, name)
            setattr(part, name, None if column is None else column[chosen])
        part.n_samples = np.bincount(part.h - 1, minlength=self.horizon)
        part._starts = np.concatenate(([0], np.cumsum(part.n_samples)))
        return part


def _as_phi(phi: Any, n_states: int, n_actions: tuple[int, int], features: np.ndarray | None) -> Any:
    if phi is None or callable(phi):
        return phi
    array = as_float_array(phi, "phi", ndim=4)
    if features is not None:
        raise ValueError("phi must be a function when states are vectors of features, got an array")
    if array.shape[:3] != (n_states, *n_actions):
        raise ValueError(f"phi must be of shape ({n_states}, {n_actions[0]}, {n_actions[1]}, d), got {array.shape}")
    return array


def _stored_horizon(array: np.ndarray) -> int:
    if array.size != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"horizon must be an integer, got an array of dtype {array.dtype} and shape {array.shape}")
    return int(array.item())


def _last_step(h: Any) -> int:
    return int(as_integers(h, "h", 1).max())
