r"""Zero-sum games with perfect recall in sequence form: a bilinear saddle point over two treeplexes.

Both players' strategies are realisation plans (:mod:`assay.games.treeplex`), and what the first player pays to the
second is ``x'Ay``, where the sparse matrix ``A`` has an entry for every pair of sequences that ends in a leaf: minus
the payoff of the first player, times the probability that chance plays along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.extras import import_extra
from assay.games.game_tree import LEAF, GameTree
from assay.games.treeplex import Treeplex
from assay.validation import as_float_array, check_integer

__all__ = ["SequenceFormGame"]

_PLAN_TOLERANCE = 1e-8
_LARGEST_PAYOFF = 1e300


@dataclass(frozen=True, eq=False)
class SequenceFormGame:
    """A two-player zero-sum game with perfect recall.

    Made by :meth:`from_tree`, :meth:`from_openspiel`, :meth:`from_gambit`, :meth:`from_file` or :meth:`from_arrays`.

    Parameters
    ----------
    trees : tuple of Treeplex
        Information sets of both players, parents first.
    payoff : scipy.sparse.csr_array of shape (n_sequences_0, n_sequences_1)
        What player 0, who minimises, pays to player 1, for every pair of sequences.
    labels : tuple of tuple of str
        Names of the information sets of both players.
    source : pyspiel.Game, optional
        The game of OpenSpiel that it was made from.

    Examples
    --------
    >>> from assay.games.sequence_form import SequenceFormGame
    >>> pennies = SequenceFormGame.from_arrays(
    ...     parents=([0], [0]), actions=([2], [2]), payoff_triplets=([1, 1, 2, 2], [1, 2, 1, 2], [1.0, -1, -1, 1]))
    >>> pennies
    SequenceFormGame(sequences (3, 3), information sets (1, 1), 4 non-zeros)
    >>> x = [1.0, 0.75, 0.25]
    >>> pennies.nashconv(x, pennies.uniform(1))
    0.5
    """

    trees: tuple[Treeplex, Treeplex]
    payoff: sp.csr_array
    labels: tuple[tuple[str, ...], tuple[str, ...]]
    source: Any = None

    def __repr__(self) -> str:
        sequences, infosets = tuple(t.size for t in self.trees), tuple(t.length.size for t in self.trees)
        return f"SequenceFormGame(sequences {sequences}, information sets {infosets}, {self.payoff.nnz} non-zeros)"

    # ------------------------------------------------------------------ where it comes from

    @classmethod
    def from_tree(cls, tree: GameTree) -> SequenceFormGame:
        """From a game in extensive form.

        Parameters
        ----------
        tree : GameTree

        Returns
        -------
        SequenceFormGame

        Raises
        ------
        TypeError, ValueError
            If it is not a game of two players, not zero-sum, or a player forgets; the message names the information
            set.
        """
        if not isinstance(tree, GameTree):
            raise TypeError(f"tree must be a GameTree, got {type(tree).__name__}")
        if len(tree.players) != 2:
            raise ValueError(f"tree must have two players, got {len(tree.players)}")
        if not tree.is_zero_sum():
            raise ValueError("tree must be zero-sum (payoffs of both players sum to one constant), got one that is not")
        starts, orders = np.zeros(len(tree.infosets), dtype=np.int64), ([], [])
        sizes = [1, 1]
        for index, infoset in enumerate(tree.infosets):
            starts[index] = sizes[infoset.player]
            sizes[infoset.player] += len(infoset.actions)
            orders[infoset.player].append(index)
        parents, sequences, reach = _walk(tree, starts.tolist())
        leaves = np.flatnonzero(tree.player == LEAF)
        rows, columns = sequences[leaves].T
        payoff = sp.csr_array((-reach[leaves] * tree.payoffs[leaves, 0], (rows, columns)), shape=tuple(sizes))
        trees = tuple(
            Treeplex(
                np.array([parents[i] for i in order], dtype=np.int64),
                starts[order].astype(np.int64),
                np.array([len(tree.infosets[i].actions) for i in order], dtype=np.int64),
            )
            for order in orders
        )
        labels = tuple(tuple(tree.infosets[i].label for i in order) for order in orders)
        return cls(trees, _canonical(payoff), labels)

    @classmethod
    def from_openspiel(cls, game: Any, *, max_nodes: int = 5_000_000) -> SequenceFormGame:
        """From a game of OpenSpiel, or its name; simultaneous moves are taken in turn, unseen.

        Raises
        ------
        MissingExtraError
            If OpenSpiel is not installed.
        TypeError
            If it is neither a game nor a name.
        ValueError
            If OpenSpiel does not know the name, or it is not a two-player zero-sum game with perfect recall, or it is
            larger than ``max_nodes``.

        Examples
        --------
        >>> from assay.games.sequence_form import SequenceFormGame
        >>> kuhn = SequenceFormGame.from_openspiel("kuhn_poker")  # doctest: +SKIP
        >>> kuhn  # doctest: +SKIP
        SequenceFormGame(sequences (13, 13), information sets (6, 6), 30 non-zeros)
        """
        pyspiel = import_extra("pyspiel", extra="games")
        if isinstance(game, str):
            try:
                game = pyspiel.load_game(game)
            except pyspiel.SpielError as error:
                reason = str(error).splitlines()[0]
                raise ValueError(f"game must be one that OpenSpiel can load, got {game!r}: {reason}") from None
        if not isinstance(game, pyspiel.Game):
            raise TypeError(f"game must be a pyspiel.Game or the name of one, got {type(game).__name__}")
        if game.num_players() != 2:  # before a large tree is walked in vain
            raise ValueError(f"game must have two players, got {game.num_players()}")
        if game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
            game = pyspiel.convert_to_turn_based(game)
        form = cls.from_tree(GameTree.from_openspiel(game, max_nodes=max_nodes))
        return cls(form.trees, form.payoff, form.labels, game)

    @classmethod
    def from_gambit(cls, game: Any, *, max_nodes: int = 5_000_000) -> SequenceFormGame:
        """From a game of Gambit.

        Raises
        ------
        ValueError
            If it is not a two-player zero-sum game with perfect recall, or larger than ``max_nodes``.
        """
        return cls.from_tree(GameTree.from_gambit(game, max_nodes=max_nodes))

    @classmethod
    def from_file(cls, path: Any, *, max_nodes: int = 5_000_000) -> SequenceFormGame:
        """From a file: ``.efg`` or ``.nfg`` of Gambit, or ``.json`` (see :class:`~assay.games.game_tree.GameTree`).

        Raises
        ------
        OSError, ValueError
            If it cannot be read, or is not a two-player zero-sum game with perfect recall.
        """
        return cls.from_tree(GameTree.from_file(path, max_nodes=max_nodes))

    @classmethod
    def from_arrays(
        cls,
        parents: Sequence[Sequence[int]],
        actions: Sequence[Sequence[int]],
        payoff_triplets: tuple[ArrayLike, ArrayLike, ArrayLike],
        labels: Sequence[Sequence[str]] | None = None,
    ) -> SequenceFormGame:
        """From flat arrays.

        Parameters
        ----------
        parents : pair of sequence of int
            For each player and information set the sequence that leads there, 0 being the empty one.
        actions : pair of sequence of int
            For each player and information set its number of actions. Sequences are numbered in this order, from 1.
        payoff_triplets : tuple of array_like of shape (n_leaves,)
            Sequence of player 0, sequence of player 1, and what player 0 pays, times the probability of chance moves;
            pairs that are listed twice are added up.
        labels : pair of sequence of str, optional
            Names of the information sets; their numbers by default.

        Returns
        -------
        SequenceFormGame

        Raises
        ------
        TypeError, ValueError
            If an array is not as described.
        """
        for name, pair in (("parents", parents), ("actions", actions), ("payoff_triplets", payoff_triplets)):
            if not hasattr(pair, "__len__"):
                raise TypeError(f"{name} must be a sequence of sequences, got {type(pair).__name__}")
        for name, pair in (("parents", parents), ("actions", actions)):
            if len(pair) != 2:
                raise ValueError(f"{name} must have one sequence for each of two players, got {len(pair)}")
        trees = tuple(Treeplex.from_actions(parents[i], actions[i], f"parents[{i}]") for i in (0, 1))
        if len(payoff_triplets) != 3:
            raise ValueError(f"payoff_triplets must be rows, columns and values, got {len(payoff_triplets)} arrays")
        values = as_float_array(payoff_triplets[2], "payoff_triplets[2]", ndim=1, allow_empty=True)
        if values.size and float(np.abs(values).max()) > _LARGEST_PAYOFF:
            raise ValueError(f"payoff_triplets must have payoffs of at most {_LARGEST_PAYOFF:g}, got larger ones")
        indices = []
        for i in (0, 1):
            index = np.asarray(payoff_triplets[i])
            if index.shape != values.shape or (index.dtype.kind not in "iu" and index.size):
                raise ValueError(
                    f"payoff_triplets[{i}] must be {values.size} integers, got shape {index.shape} of {index.dtype}"
                )
            if index.size and not 0 <= int(index.min()) <= int(index.max()) < trees[i].size:
                raise ValueError(f"payoff_triplets[{i}] must be sequences from 0 to {trees[i].size - 1}, got others")
            indices.append(index.astype(np.int64))
        payoff = sp.csr_array((values, tuple(indices)), shape=(trees[0].size, trees[1].size))
        if labels is None:
            names = tuple(tuple(str(j) for j in range(tree.length.size)) for tree in trees)
        else:
            if not (_is_list(labels) and all(_is_list(row) for row in labels)):
                raise TypeError(f"labels must be a list of names for each player, got {labels!r}")
            names = tuple(tuple(map(str, row)) for row in labels)
            if [len(row) for row in names] != [tree.length.size for tree in trees]:
                raise ValueError(f"labels must name every information set, got {[len(row) for row in names]} names")
        return cls(trees, _canonical(payoff), names)

    # ------------------------------------------------------------------ what can be asked of it

    def _tree(self, player: int) -> Treeplex:
        player = check_integer(player, "player", minimum=0)
        if player > 1:
            raise ValueError(f"player must be 0 or 1, got {player}")
        return self.trees[player]

    def _plan(self, player: int, plan: ArrayLike, name: str) -> np.ndarray:
        tree, vector = self._tree(player), as_float_array(plan, name, ndim=1)
        if vector.size != tree.size:
            raise ValueError(
                f"{name} must have length {tree.size}, the sequences of player {player}, got {vector.size}"
            )
        violation = tree.violation(vector)
        if not violation <= _PLAN_TOLERANCE:
            raise ValueError(
                f"{name} must be a realisation plan of player {player} (non-negative, 1 for the empty sequence, "
                f"actions adding up to the sequence before), got a violation of {violation:.3g}"
            )
        return vector

    def uniform(self, player: int) -> Float[np.ndarray, " sequences"]:
        """Realisation plan of uniform local strategies."""
        tree = self._tree(player)
        return tree.plan(tree.uniform)

    def best_response(self, player: int, loss: ArrayLike) -> Float[np.ndarray, " sequences"]:
        """Pure realisation plan at which ``loss @ plan`` is least.

        Parameters
        ----------
        player : {0, 1}
        loss : array_like of shape (n_sequences,)
            For the best response to ``y`` of player 0, ``game.payoff @ y``; to ``x`` of player 1,
            ``-game.payoff.T @ x``.

        Returns
        -------
        numpy.ndarray of shape (n_sequences,)

        Raises
        ------
        TypeError, ValueError
            If the player is unknown, or the loss is not a finite vector of the right length.
        """
        tree, vector = self._tree(player), as_float_array(loss, "loss", ndim=1)
        if vector.size != tree.size:
            raise ValueError(f"loss must have length {tree.size}, the sequences of player {player}, got {vector.size}")
        return tree.best_response(vector)

    def nashconv(self, x: ArrayLike, y: ArrayLike) -> float:
        """What both players together could gain by deviating from ``(x, y)``.

        Parameters
        ----------
        x, y : array_like of shape (n_sequences_0,) and (n_sequences_1,)
            Realisation plans (within 1e-8).

        Returns
        -------
        float

        Raises
        ------
        TypeError, ValueError
            If they are no realisation plans.
        """
        x, y = self._plan(0, x, "x"), self._plan(1, y, "y")
        return float(-self.trees[1].least(-(self.payoff.T @ x)) - self.trees[0].least(self.payoff @ y))

    def value(self, x: ArrayLike, y: ArrayLike) -> float:
        """What player 0 pays on average; player 0's payoff is minus that."""
        x, y = self._plan(0, x, "x"), self._plan(1, y, "y")
        return float(x @ (self.payoff @ y))

    def behaviour(self, player: int, plan: ArrayLike) -> dict[str, np.ndarray]:
        """Local strategies of a plan by the label of the information set; uniform where the plan never goes."""
        tree = self._tree(player)
        local = tree.local(self._plan(player, plan, "plan"))
        return {
            label: local[start : start + length]
            for label, start, length in zip(self.labels[player], tree.start, tree.length, strict=True)
        }

    def to_policy(self, player: int, plan: ArrayLike, policy: Any = None) -> Any:
        """The plan as a policy of OpenSpiel.

        Parameters
        ----------
        player : {0, 1}
        plan : array_like of shape (n_sequences,)
            Realisation plan.
        policy : open_spiel.python.policy.TabularPolicy, optional
            The policy in which the player's states are set; by default a new one, in which the other player is
            uniform.

        Returns
        -------
        open_spiel.python.policy.TabularPolicy

        Raises
        ------
        TypeError, ValueError
            If the game does not come from OpenSpiel, the plan is no realisation plan, or the policy not one of
            OpenSpiel.
        """
        if self.source is None:
            raise ValueError("game must come from from_openspiel for to_policy, got one from elsewhere")
        tabular = import_extra("open_spiel.python.policy", extra="games")
        policy = tabular.TabularPolicy(self.source) if policy is None else policy
        if not isinstance(policy, tabular.TabularPolicy):
            raise TypeError(f"policy must be None or a TabularPolicy of OpenSpiel, got {type(policy).__name__}")
        for label, local in self.behaviour(player, plan).items():
            # Where both players have a state of one name, that of one of them was given a prefix.
            name = label if label in policy.state_lookup else label.partition(": ")[2]
            row = policy.state_lookup[name]
            legal = np.flatnonzero(policy.legal_actions_mask[row])
            policy.action_probability_array[row] = 0.0
            policy.action_probability_array[row, legal] = local
        return policy


def _walk(tree: GameTree, starts: list[int]) -> tuple[dict[int, int], np.ndarray, np.ndarray]:
    """Sequence before each information set, the sequences of both players and the chance probability at each node."""
    parents: dict[int, int] = {}
    above, mover, infoset, action = (array.tolist() for array in (tree.parent, tree.player, tree.infoset, tree.action))
    sequences, reach = [(0, 0)] * len(above), tree.chance.tolist()
    for node in range(len(above)):
        if node:
            before = above[node]
            reach[node] *= reach[before]
            own = sequences[before]
            if mover[before] >= 0:
                taken = starts[infoset[before]] + action[node]
                own = (taken, own[1]) if mover[before] == 0 else (own[0], taken)
            sequences[node] = own
        if mover[node] >= 0:
            last = sequences[node][mover[node]]
            if parents.setdefault(infoset[node], last) != last:
                label = tree.infosets[infoset[node]].label
                raise ValueError(
                    f"tree must have perfect recall, got information set {label!r} of player {mover[node]} reached by "
                    "different own sequences"
                )
    return parents, np.array(sequences, dtype=np.int64), np.array(reach)


def _is_list(names: Any) -> bool:
    return hasattr(names, "__iter__") and not isinstance(names, str)


def _canonical(payoff: sp.csr_array) -> sp.csr_array:
    payoff.sum_duplicates()
    payoff.eliminate_zeros()
    return payoff
