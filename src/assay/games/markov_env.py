r"""A tabular two-player zero-sum Markov game as a gymnasium environment.

One action is a pair, of the max and of the min player, so that any program that plays gymnasium environments can play
both sides, or a wrapper can put a policy on one of them. gymnasium is needed to make an environment, not to import this
module.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from assay.extras import MissingExtraError, import_extra
from assay.games.markov_model import MarkovGameModel
from assay.games.offline_data import OfflineGameData
from assay.validation import check_choice

try:
    _Env: Any = import_extra("gymnasium", extra="games").Env
except MissingExtraError:
    _Env = object

__all__ = ["MatrixMarkovGame"]


class MatrixMarkovGame(_Env):
    r"""Simulator of a tabular two-player zero-sum Markov game.

    The observation is the number of the state, the action a pair of numbers, the reward that of the max player, who
    gets it from the min player. An episode has ``horizon`` steps.

    Parameters
    ----------
    P : array_like, sparse matrix, or MarkovGameModel
        Transition probabilities of shape (horizon, n_states, A, B, n_states) or (n_states, A, B, n_states), or in
        another form that :class:`~assay.games.markov_model.MarkovGameModel` takes, or such a model.
    r : array_like of shape (horizon, n_states, A, B) or (n_states, A, B), optional
        Expected rewards, in [0, 1]; not with a model.
    horizon : int, optional
        Number of steps; needed when neither ``P`` nor ``r`` has it.
    rho : array_like of shape (n_states,), optional
        Distribution of the first state; uniform by default.
    noise : {None, "bernoulli"}, default=None
        Give the expected rewards, or a 0 or 1 with this expectation.

    Attributes
    ----------
    model : MarkovGameModel
        The rules.
    observation_space : gymnasium.spaces.Discrete
        Numbers of states.
    action_space : gymnasium.spaces.MultiDiscrete
        Pairs of actions.

    Raises
    ------
    assay.extras.MissingExtraError
        If gymnasium is not installed.
    TypeError, ValueError
        If the arrays are not those of a game.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.markov_env import MatrixMarkovGame
    >>> rng = np.random.default_rng(0)
    >>> P = rng.dirichlet(np.ones(5), size=(5, 3, 3))
    >>> env = MatrixMarkovGame(P, rng.uniform(size=(5, 3, 3)), horizon=2)  # doctest: +SKIP
    >>> state, info = env.reset(seed=7)  # doctest: +SKIP
    >>> env.step(np.array([0, 2]))[3:]  # doctest: +SKIP
    (False, {'h': 2})
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        P: Any,
        r: ArrayLike | None = None,
        *,
        horizon: int | None = None,
        rho: ArrayLike | None = None,
        noise: str | None = None,
    ):
        spaces = import_extra("gymnasium", extra="games").spaces
        if isinstance(P, MarkovGameModel):
            if not (r is None and horizon is None and rho is None):
                raise ValueError("r, horizon and rho must be None when P is a MarkovGameModel")
            self.model = P
        else:
            if r is None:
                raise ValueError("r must be given unless P is a MarkovGameModel")
            self.model = MarkovGameModel(P, r, horizon=horizon, rho=rho)
        self.noise = None if noise is None else check_choice(noise, "noise", ("bernoulli",))
        self.render_mode = None
        self.observation_space = spaces.Discrete(self.model.n_states)
        self.action_space = spaces.MultiDiscrete(self.model.n_actions)
        self._state, self._step = 0, self.model.horizon

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Begin an episode.

        Parameters
        ----------
        seed : int, optional
            Begin a new sequence of random numbers.
        options : dict, optional
            ``{"state": s}`` begins in a state of one's choice.

        Returns
        -------
        observation : int
            Number of the state.
        info : dict
            ``{"h": 1}``, the step.

        Raises
        ------
        ValueError
            If there is no such state, or no such option.
        """
        super().reset(seed=seed)
        unknown = set(options or {}) - {"state"}
        if unknown:
            raise ValueError(f"options must have no other key than 'state', got {sorted(unknown)}")
        if options and "state" in options:
            if not self.observation_space.contains(options["state"]):
                raise ValueError(
                    f"options['state'] must be in 0 to {self.model.n_states - 1}, got {options['state']!r}"
                )
            self._state = int(options["state"])
        else:
            self._state = int(self.np_random.choice(self.model.n_states, p=self.model.rho))
        self._step = 0
        return self._state, {"h": 1}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Let both players act.

        Parameters
        ----------
        action : array_like of int, shape (2,)
            Actions of the max and of the min player.

        Returns
        -------
        observation : int
            Next state.
        reward : float
            What the max player gets from the min player.
        terminated : bool
            Whether that was the last step.
        truncated : bool
            False.
        info : dict
            ``{"h": step}``, that of the next action.

        Raises
        ------
        RuntimeError
            If the episode has ended, or not begun.
        ValueError
            If it is not a pair of actions.
        """
        if self._step >= self.model.horizon:
            raise RuntimeError("step must not be called after the last step of an episode: call reset first")
        pair = np.asarray(action)
        n_rows, n_columns = self.model.n_actions
        within = pair.shape == (2,) and pair.dtype.kind in "iu" and 0 <= pair[0] < n_rows and 0 <= pair[1] < n_columns
        if not within:
            raise ValueError(f"action must be a pair of actions below {n_rows} and {n_columns}, got {action!r}")
        a, b = int(pair[0]), int(pair[1])
        reward = float(self.model.rewards[self._step, self._state, a, b])
        if self.noise is not None:
            reward = float(self.np_random.random() < reward)
        matrix = self.model.transition_matrix(self._step)
        chances = matrix[[(self._state * n_rows + a) * n_columns + b]]
        chances = chances.toarray()[0] if hasattr(chances, "toarray") else chances[0]
        self._state = int(self.np_random.choice(self.model.n_states, p=chances / chances.sum()))
        self._step += 1
        return self._state, reward, self._step >= self.model.horizon, False, {"h": self._step + 1}

    def sample_dataset(self, n: int, behaviour: Any = "uniform", rng: Any = None) -> OfflineGameData:
        """Play ``n`` episodes and keep the log, with the noise of this environment.

        Parameters
        ----------
        n : int
            Number of episodes, which is the number of samples per step.
        behaviour : "uniform", pair of array_like, or array_like, default="uniform"
            Policies ``(mu, nu)``, or joint probabilities: see :meth:`~assay.games.MarkovGameModel.joint_policy`.
        rng : None, int or numpy.random.Generator
            Source of random numbers; the state of the environment is not touched.

        Returns
        -------
        OfflineGameData

        Raises
        ------
        TypeError, ValueError
            If an argument is not as described.
        """
        return self.model.sample_dataset(n, behaviour, rng, noise=self.noise)
