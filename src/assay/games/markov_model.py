r"""Tabular two-player zero-sum Markov games with a finite horizon: what is known when the rules are known.

In state ``s`` at step ``h`` both players act at the same time, the max player receives ``r_h(s, a, b)`` from the min
player, and the next state is drawn from ``P_h(. | s, a, b)``. Transitions are kept as one matrix per step with a row
per state and pair of actions, dense or sparse, so that an expectation over next states is one product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from assay.games.markov_policies import as_references
from assay.games.markov_tables import read_transition_lists
from assay.games.offline_data import OfflineGameData
from assay.validation import as_float_array, as_generator, check_choice, check_integer

__all__ = ["MarkovGameModel", "as_markov_model"]

_MASS_TOLERANCE = 1e-6


class MarkovGameModel:
    r"""A tabular Markov game from arrays.

    Parameters
    ----------
    P : array_like or sparse matrix
        Transition probabilities: an array of shape (horizon, n_states, A, B, n_states), or (n_states, A, B, n_states)
        when they are the same in every step; or a sparse matrix of shape (n_states * A * B, n_states) with a row for
        each state and pair of actions in the order of ``r``, or a list of such matrices, one per step.
    r : array_like of shape (horizon, n_states, A, B) or (n_states, A, B)
        Expected rewards of the max player, in [0, 1].
    horizon : int, optional
        Number of steps; needed when neither ``P`` nor ``r`` has it.
    rho : array_like of shape (n_states,), optional
        Distribution of the first state; uniform by default.

    Attributes
    ----------
    horizon, n_states : int
        Steps and states.
    n_actions : tuple of int
        Actions of the max and of the min player.
    rewards : numpy.ndarray of shape (horizon, n_states, A, B)
        Expected rewards.
    rho : numpy.ndarray of shape (n_states,)
        Distribution of the first state.

    Raises
    ------
    TypeError
        If an argument is not an array of numbers.
    ValueError
        If shapes do not fit, probabilities are negative or do not sum to 1 within 1e-6, or a reward is outside [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from assay.games.markov_model import MarkovGameModel
    >>> rng = np.random.default_rng(0)
    >>> P = rng.dirichlet(np.ones(5), size=(5, 3, 3))
    >>> model = MarkovGameModel(P, rng.uniform(size=(5, 3, 3)), horizon=4)
    >>> model
    MarkovGameModel(horizon=4, n_states=5, n_actions=(3, 3))
    >>> data = model.sample_dataset(100, rng=rng)
    >>> len(data.r)
    400
    """

    def __init__(self, P: Any, r: ArrayLike, *, horizon: int | None = None, rho: ArrayLike | None = None):
        rewards = as_float_array(r, "r", ndim=(3, 4))
        if rewards.min() < 0 or rewards.max() > 1:
            raise ValueError(f"r must be in [0, 1], got values from {rewards.min():g} to {rewards.max():g}")
        self.n_states = n_states = rewards.shape[-3]
        self.n_actions = (rewards.shape[-2], rewards.shape[-1])
        matrices = _transition_matrices(P, n_states, self.n_actions)
        lengths = {len(rewards)} if rewards.ndim == 4 else set()
        lengths |= {len(matrices)} if len(matrices) > 1 or _has_steps(P) else set()
        lengths |= set() if horizon is None else {check_integer(horizon, "horizon", minimum=1)}
        if not lengths:
            raise ValueError("horizon must be given when P and r are the same in every step")
        if len(lengths) > 1:
            raise ValueError(f"horizon must agree with the steps of P and r, got {sorted(lengths)}")
        self.horizon = lengths.pop()
        self._matrices = matrices
        self.rewards = np.broadcast_to(np.array(rewards), (self.horizon, *rewards.shape[-3:]))
        self.rho = as_references(rho, "rho", (n_states,), full_support=False)

    def __repr__(self) -> str:
        return f"MarkovGameModel(horizon={self.horizon}, n_states={self.n_states}, n_actions={self.n_actions})"

    @classmethod
    def from_transition_lists(cls, table: Any, horizon: int, *, rho: ArrayLike | None = None) -> MarkovGameModel:
        """Read the tables that gymnasium's toy-text environments keep, with a pair of actions in place of one.

        Parameters
        ----------
        table : mapping
            ``table[s][a, b]`` is a list of ``(probability, next state, reward, ended)``. States and actions are
            numbered from 0, and every state has every pair. After ``ended`` no reward is received any more.
        horizon : int
            Number of steps.
        rho : array_like of shape (n_states,), optional
            Distribution of the first state; uniform over the states of the table by default.

        Returns
        -------
        MarkovGameModel
            With an absorbing state after the last one if any transition ends the game.

        Raises
        ------
        TypeError, ValueError
            If it is no such mapping, a pair of actions is missing or numbers are out of range.

        Examples
        --------
        >>> from assay.games.markov_model import MarkovGameModel
        >>> pennies = {0: {(a, b): [(1.0, 0, float(a == b), True)] for a in (0, 1) for b in (0, 1)}}
        >>> MarkovGameModel.from_transition_lists(pennies, horizon=1)
        MarkovGameModel(horizon=1, n_states=2, n_actions=(2, 2))
        """
        n_listed, P, rewards = read_transition_lists(table)
        ends = len(rewards) > n_listed
        if rho is None:
            rho = np.append(np.full(n_listed, 1 / n_listed), np.zeros(int(ends)))
        elif ends and np.size(rho) == n_listed:
            rho = np.append(as_float_array(rho, "rho", ndim=1), 0.0)
        return cls(P, rewards, horizon=horizon, rho=rho)

    def transition_matrix(self, step: int) -> np.ndarray | sp.csr_array:
        """Transition probabilities of a step, counted from 0, with a row per state and pair of actions.

        Parameters
        ----------
        step : int
            From 0 to ``horizon - 1``.

        Returns
        -------
        numpy.ndarray or scipy.sparse.csr_array of shape (n_states * A * B, n_states)
        """
        return self._matrices[step if len(self._matrices) > 1 else 0]

    def backup(self, step: int, values: Float[np.ndarray, " states"]) -> Float[np.ndarray, "states rows columns"]:
        """Expected reward of a step, counted from 0, plus ``values`` of the next state.

        Parameters
        ----------
        step : int
            From 0 to ``horizon - 1``.
        values : numpy.ndarray of shape (n_states,)
            Values of the states of the next step.

        Returns
        -------
        numpy.ndarray of shape (n_states, A, B)
        """
        expected = np.asarray(self.transition_matrix(step) @ values)
        return self.rewards[step] + expected.reshape(self.n_states, *self.n_actions)

    def joint_policy(self, behaviour: Any) -> Float[np.ndarray, "steps states rows columns"]:
        """Joint distribution of both players' actions from the ways to describe one.

        Parameters
        ----------
        behaviour : "uniform", pair of array_like, or array_like
            Policies ``(mu, nu)`` of two players who act independently, or joint probabilities of shape (A, B),
            (n_states, A, B) or (horizon, n_states, A, B).

        Returns
        -------
        numpy.ndarray of shape (horizon, n_states, A, B)

        Raises
        ------
        TypeError, ValueError
            If it is none of them.
        """
        (n_rows, n_columns), lead = self.n_actions, (self.horizon, self.n_states)
        if isinstance(behaviour, str):
            check_choice(behaviour, "behaviour", ("uniform",))
            return np.full((*lead, n_rows, n_columns), 1 / (n_rows * n_columns))
        if isinstance(behaviour, tuple):
            if len(behaviour) != 2:
                raise ValueError(f"behaviour must be a pair of policies, got {len(behaviour)} of them")
            mu = as_references(behaviour[0], "behaviour[0]", (*lead, n_rows), full_support=False)
            nu = as_references(behaviour[1], "behaviour[1]", (*lead, n_columns), full_support=False)
            return mu[..., :, None] * nu[..., None, :]
        joint = as_float_array(behaviour, "behaviour", ndim=(2, 3, 4))
        if joint.shape[-2:] != self.n_actions:
            raise ValueError(
                f"behaviour must have shape (..., {n_rows}, {n_columns}) of pairs of actions, got {joint.shape}"
            )
        flat = joint.reshape(*joint.shape[:-2], n_rows * n_columns)
        flat = as_references(flat, "behaviour", (*lead, n_rows * n_columns), full_support=False)
        return flat.reshape(*lead, n_rows, n_columns)

    def sample_dataset(
        self, n: int, behaviour: Any = "uniform", rng: Any = None, *, noise: str | None = None
    ) -> OfflineGameData:
        """Play episodes and keep the log.

        Parameters
        ----------
        n : int
            Number of episodes, which is the number of samples per step.
        behaviour : "uniform", pair of array_like, or array_like, default="uniform"
            Who plays: see :meth:`joint_policy`.
        rng : None, int or numpy.random.Generator
            Source of random numbers.
        noise : {None, "bernoulli"}, default=None
            Log the expected rewards, or a 0 or 1 with this expectation.

        Returns
        -------
        OfflineGameData
            Episode by episode within every step.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as described.
        """
        n = check_integer(n, "n", minimum=1)
        if noise is not None:
            check_choice(noise, "noise", ("bernoulli",))
        rng = as_generator(rng)
        joint = self.joint_policy(behaviour)
        n_pairs = self.n_actions[0] * self.n_actions[1]
        log: dict[str, list[np.ndarray]] = {name: [] for name in ("s", "a", "b", "r", "s_next")}
        state = _draw(self.rho[None], np.zeros(n, dtype=np.int64), rng)
        for step in range(self.horizon):
            pair = _draw(joint[step].reshape(self.n_states, n_pairs), state, rng)
            a, b = np.divmod(pair, self.n_actions[1])
            reward = self.rewards[step, state, a, b]
            if noise is not None:
                reward = (rng.random(n) < reward).astype(float)
            successor = _draw(self.transition_matrix(step), state * n_pairs + pair, rng)
            for name, column in zip(log, (state, a, b, reward, successor), strict=True):
                log[name].append(column)
            state = successor
        columns = {name: np.concatenate(parts) for name, parts in log.items()}
        return OfflineGameData(
            np.repeat(np.arange(1, self.horizon + 1), n),
            **columns,
            horizon=self.horizon,
            n_states=self.n_states,
            n_actions=self.n_actions,
        )


def as_markov_model(model: Any) -> MarkovGameModel:
    """Accept a model, what has one as ``model``, or what has arrays ``P`` and ``r`` (and ``rho``, ``horizon``).

    Parameters
    ----------
    model : MarkovGameModel, MatrixMarkovGame or object
        Any of them.

    Returns
    -------
    MarkovGameModel

    Raises
    ------
    TypeError
        If it is none of them.
    """
    if isinstance(model, MarkovGameModel):
        return model
    if isinstance(getattr(model, "model", None), MarkovGameModel):
        return model.model
    if hasattr(model, "P") and hasattr(model, "r"):
        return MarkovGameModel(
            model.P, model.r, horizon=getattr(model, "horizon", None), rho=getattr(model, "rho", None)
        )
    raise TypeError(
        f"model must be a MarkovGameModel, a MatrixMarkovGame or have arrays P and r, got {type(model).__name__}"
    )


def _transition_matrices(P: Any, n_states: int, n_actions: tuple[int, int]) -> list[np.ndarray | sp.csr_array]:
    """Copies of the matrices, with rows of mass 1 to the last digit."""
    shape = (n_states, *n_actions, n_states)
    rows = n_states * n_actions[0] * n_actions[1]
    matrices: list[np.ndarray | sp.csr_array]
    if sp.issparse(P) or (isinstance(P, list | tuple) and any(map(sp.issparse, P))):
        matrices = [_as_sparse(one, (rows, n_states)) for one in ([P] if sp.issparse(P) else P)]
    else:
        array = as_float_array(P, "P", ndim=(4, 5))
        if array.shape[-4:] != shape:
            raise ValueError(f"P must be of shape {shape} or (horizon, *{shape}) to fit r, got {array.shape}")
        matrices = list(np.array(array).reshape(-1, rows, n_states))
    for k, matrix in enumerate(matrices):
        smallest = matrix.data.min(initial=0.0) if sp.issparse(matrix) else matrix.min()
        if smallest < 0:
            raise ValueError(f"P must be non-negative, got a minimum of {smallest:g}")
        mass = np.asarray(matrix.sum(axis=1)).ravel()
        worst = mass[abs(mass - 1).argmax()]
        if abs(worst - 1) > _MASS_TOLERANCE:
            raise ValueError(f"P must have probabilities that sum to 1 (within 1e-6), got a sum of {worst:.9g}")
        if sp.issparse(matrix):
            matrices[k] = sp.csr_array(sp.diags_array(1 / mass) @ matrix)
        else:
            matrix /= mass[:, None]
            matrix.setflags(write=False)
    return matrices


def _as_sparse(matrix: Any, shape: tuple[int, int]) -> sp.csr_array:
    """A copy without duplicates and zeros."""
    if matrix.shape != shape:
        raise ValueError(f"P must be of shape {shape} when sparse, got {matrix.shape}")
    if np.iscomplexobj(matrix):
        raise TypeError(f"P must be of real numbers, got dtype {matrix.dtype}")
    copied = sp.csr_array(matrix, dtype=np.float64, copy=True)
    if not np.isfinite(copied.data).all():
        raise ValueError("P must be finite, got nan or infinite entries")
    copied.sum_duplicates()
    copied.eliminate_zeros()
    return copied


def _has_steps(P: Any) -> bool:
    if sp.issparse(P):
        return False
    return (isinstance(P, list | tuple) and any(map(sp.issparse, P))) or np.ndim(P) == 5


def _draw(
    chances: np.ndarray | sp.csr_array, rows: Int[np.ndarray, " samples"], rng: np.random.Generator
) -> Int[np.ndarray, " samples"]:
    """One column for each of ``rows``, with the chances of that row."""
    table = sp.csr_array(chances)
    # Sums run on from row to row, so that one search serves all samples.
    sums = np.cumsum(table.data)
    first, last = table.indptr[rows], table.indptr[rows + 1] - 1
    before = np.where(first > 0, sums[first - 1], 0.0)
    targets = before + rng.random(len(rows)) * (sums[last] - before)
    return table.indices[np.clip(np.searchsorted(sums, targets, side="right"), first, last)].astype(np.int64)
