r"""A game in which players forget, as the polynomials that its payoffs are.

A player who cannot tell two nodes apart plays the same mixture at both. The payoff of a profile of such behavioural
strategies is then a polynomial,

.. math:: u_i(x) = \sum_z p(z)\, r_i(z) \prod_{(I, a) \text{ on the way to } z} x_{I}(a),

over the leaves :math:`z`, reached by chance with probability :math:`p(z)`. It has degree one in the strategy of each
information set exactly when nobody is absent-minded, that is, when no path visits an information set twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from assay.games.game_tree import LEAF, GameTree, InformationSet
from assay.games.imperfect_polynomials import (
    CompiledPolynomial,
    Polynomial,
    checked_polynomial,
    eliminate_last,
    listed,
    total,
)
from assay.games.matrix_game import project_simplex
from assay.games.sos_program import machine_memory
from assay.validation import as_distribution, as_generator, check_integer

__all__ = ["ImperfectRecallGame"]

# Coefficients of a power above this are known to no digit after the point.
_NO_DIGITS = 2**52

# Bytes of a term besides its exponents: a tuple, a number, and their place in a dict.
_TERM_BYTES = 200


@dataclass(frozen=True, eq=False, repr=False)
class ImperfectRecallGame:
    """A game of players who may forget, in behavioural strategies.

    Make one with :meth:`from_json`, :meth:`from_gambit`, :meth:`from_openspiel`, :meth:`from_tree` or
    :meth:`from_polynomials`.

    Attributes
    ----------
    players : tuple of str
        Their names.
    infosets : tuple of InformationSet
        Each with ``player``, ``label`` and ``actions``.
    polynomials : tuple of dict
        Payoff of each player: coefficient by exponents, with one variable per action of each information set.
    simplices : tuple of tuple of int
        The variables of each information set.
    payoff_scale : float
        Largest absolute payoff at a leaf (largest absolute coefficient for a game made from polynomials).
    tree : GameTree or None
        What it was made from.

    References
    ----------
    .. [1] Zheng, Sim, Varvitsiotis. Solving Imperfect-Recall Games via Sum-of-Squares Optimization. ICML 2026.
       arXiv:2602.21722.
    .. [2] M. Piccione, A. Rubinstein. On the Interpretation of Decision Problems with Imperfect Recall. Games and
       Economic Behavior 20, 1997.

    Examples
    --------
    The absent-minded driver has to leave a motorway at the second exit, and cannot tell the exits apart:

    >>> from assay.games.imperfect_recall_game import ImperfectRecallGame
    >>> leaf = lambda payoff: {"type": "leaf", "payoffs": [payoff]}
    >>> exit_at = lambda payoff, further: {
    ...     "type": "decision", "infoset": "exit",
    ...     "actions": [{"label": "continue", "child": further}, {"label": "leave", "child": leaf(payoff)}]}
    >>> game = ImperfectRecallGame.from_json({"players": ["driver"], "root": exit_at(0, exit_at(4, leaf(1)))})
    >>> game
    ImperfectRecallGame(players ('driver',), 1 information sets, degrees (2,), absent-minded: ('driver',))
    >>> round(game.utility(0, [[2 / 3, 1 / 3]]), 6)
    1.333333
    """

    players: tuple[str, ...]
    infosets: tuple[InformationSet, ...]
    polynomials: tuple[Polynomial, ...]
    simplices: tuple[tuple[int, ...], ...]
    payoff_scale: float
    tree: GameTree | None = None

    # ------------------------------------------------------------------ where it comes from

    @classmethod
    def from_tree(cls, tree: GameTree) -> ImperfectRecallGame:
        """Take over a game in extensive form.

        Parameters
        ----------
        tree : GameTree
            Join information sets with :meth:`GameTree.merged` to make players forget.

        Returns
        -------
        ImperfectRecallGame
            One pass over the nodes, O(nodes x actions of all information sets).
        """
        if not isinstance(tree, GameTree):
            raise TypeError(f"tree must be a GameTree, got {type(tree).__name__}")
        simplices = _consecutive([len(infoset.actions) for infoset in tree.infosets])
        start = np.array([simplex[0] for simplex in simplices])
        n_nodes, n_variables = len(tree.parent), sum(map(len, simplices))
        exponents = np.zeros((n_nodes, n_variables), dtype=np.int16)
        reach = np.ones(n_nodes)
        for node in range(1, n_nodes):
            above = tree.parent[node]
            exponents[node] = exponents[above]
            reach[node] = reach[above] * tree.chance[node]
            if tree.infoset[above] >= 0:
                exponents[node, start[tree.infoset[above]] + tree.action[node]] += 1
        leaves = np.flatnonzero(tree.player == LEAF)
        keys = [tuple(row) for row in exponents[leaves].tolist()]
        weighted = reach[leaves, None] * tree.payoffs[leaves]
        polynomials = tuple(
            total(*({key: float(amount)} for key, amount in zip(keys, weighted[:, i], strict=True)))
            for i in range(len(tree.players))
        )
        largest = float(np.abs(tree.payoffs).max())
        return cls(tree.players, tree.infosets, polynomials, simplices, largest, tree)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> ImperfectRecallGame:
        """Read a tree written out in JSON: a file, or its content; see :meth:`GameTree.from_json` for the format."""
        return cls.from_tree(GameTree.from_json(source))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ImperfectRecallGame:
        """Read a ``.json`` file, or an ``.efg`` or ``.nfg`` file of Gambit; see :meth:`GameTree.from_file`."""
        return cls.from_tree(GameTree.from_file(path))

    @classmethod
    def from_gambit(cls, game: Any) -> ImperfectRecallGame:
        """Take over a game of pygambit; see :meth:`GameTree.from_gambit`."""
        return cls.from_tree(GameTree.from_gambit(game))

    @classmethod
    def from_openspiel(cls, game: Any, merge: Callable[[str], str] | None = None) -> ImperfectRecallGame:
        """Take over a game of OpenSpiel, and make its players forget.

        Parameters
        ----------
        game : pyspiel.Game or str
            A game, or the name of one.
        merge : callable, optional
            From an information state string to a label; information states of one player with one label become one.

        Returns
        -------
        ImperfectRecallGame
        """
        if merge is not None and not callable(merge):
            raise TypeError(f"merge must be None or a function from labels to labels, got {type(merge).__name__}")
        tree = GameTree.from_openspiel(game)
        return cls.from_tree(tree if merge is None else tree.merged(merge))

    @classmethod
    def from_polynomials(
        cls, u: Sequence[Polynomial], simplices: Sequence[Sequence[int]], owner: Sequence[int]
    ) -> ImperfectRecallGame:
        """Make a game of payoffs that are given as polynomials.

        Parameters
        ----------
        u : list of dict
            Payoff of each player, coefficient by tuple of exponents, one exponent per variable.
        simplices : list of list of int
            Variables of each information set, which are probabilities that sum to one. Each variable is in exactly one.
        owner : list of int
            Player of each information set.

        Returns
        -------
        ImperfectRecallGame

        Raises
        ------
        TypeError, ValueError
            If the exponents, the simplices and the owners do not fit together, or a coefficient is not finite.

        Examples
        --------
        >>> from assay.games.imperfect_recall_game import ImperfectRecallGame
        >>> game = ImperfectRecallGame.from_polynomials([{(1, 1): 4.0, (2, 0): 1.0}], [[0, 1]], [0])
        >>> game.is_absentminded(0)
        True
        """
        simplices = tuple(
            tuple(check_integer(k, f"simplices[{j}]") for k in listed(simplex, f"simplices[{j}]", "variables"))
            for j, simplex in enumerate(listed(simplices, "simplices", "lists of variables"))
        )
        n = sum(map(len, simplices))
        if not simplices or any(not simplex for simplex in simplices):
            raise ValueError("simplices must be a list of at least one list of at least one variable")
        if sorted(k for simplex in simplices for k in simplex) != list(range(n)):
            raise ValueError(f"simplices must contain each variable 0, ..., {n - 1} once, got {list(simplices)}")
        owners = [check_integer(player, "owner", minimum=0) for player in listed(owner, "owner", "players")]
        if len(owners) != len(simplices):
            raise ValueError(f"owner must have one player per simplex ({len(simplices)}), got {len(owners)}")
        if isinstance(u, Mapping):
            raise TypeError("u must be a list of polynomials, one per player, got one of them")
        u = listed(u, "u", "polynomials, one per player")
        if not u:
            raise ValueError("u must be a list of at least one polynomial, one per player")
        if max(owners) >= len(u):
            raise ValueError(f"owner must be less than {len(u)}, the number of polynomials, got {max(owners)}")
        polynomials = tuple(total(checked_polynomial(one, n, f"u[{i}]")) for i, one in enumerate(u))
        if not any(any(exponent) for one in polynomials for exponent in one):
            raise ValueError("u must depend on some decision, got constants only")
        infosets = tuple(
            InformationSet(player, f"infoset {j}", tuple(str(k) for k in simplex))
            for j, (player, simplex) in enumerate(zip(owners, simplices, strict=True))
        )
        largest = max(abs(c) for one in polynomials for c in one.values())
        players = tuple(f"player {i}" for i in range(len(u)))
        return cls(players, infosets, polynomials, simplices, largest)

    # ------------------------------------------------------------------ what it is

    def __repr__(self) -> str:
        degrees = tuple(max((sum(e) for e in one), default=0) for one in self.polynomials)
        absent = tuple(name for i, name in enumerate(self.players) if self.is_absentminded(i))
        return (
            f"ImperfectRecallGame(players {self.players}, {len(self.infosets)} information sets, degrees {degrees}, "
            f"absent-minded: {absent})"
        )

    @property
    def n_variables(self) -> int:
        """Number of actions of all information sets."""
        return sum(map(len, self.simplices))

    @cached_property
    def free_variables(self) -> tuple[tuple[int, ...], ...]:
        """For each information set the variables of the reduced polynomials that belong to it."""
        return _consecutive([len(simplex) - 1 for simplex in self.simplices])

    @cached_property
    def reduced(self) -> tuple[dict[tuple[int, ...], float], ...]:
        """Payoffs without the last action of each information set, divided by ``payoff_scale``.

        Raises ``ValueError`` where powers of the last actions would leave no digits, or too many terms to hold.
        """
        self._refuse_if_too_many_terms()
        unit = self.payoff_scale if self.payoff_scale > 0 else 1.0  # divided by: the inverse of a tiny one overflows
        return tuple(eliminate_last({e: c / unit for e, c in one.items()}, self.simplices) for one in self.polynomials)

    def _refuse_if_too_many_terms(self) -> None:
        n_terms = 0
        for one in self.polynomials:
            for exponent in one:
                terms, magnitude = 1, 1
                for simplex in self.simplices:
                    power = exponent[simplex[-1]]
                    terms *= math.comb(power + len(simplex) - 1, power)
                    magnitude *= len(simplex) ** power
                if terms < magnitude and magnitude > _NO_DIGITS:
                    raise ValueError(
                        "game must have smaller powers of the last actions of its information sets: replacing them by "
                        f"one minus the others leaves no digits of a payoff with exponents {exponent}"
                    )
                n_terms += terms
        limit = machine_memory() // 2
        if n_terms * (_TERM_BYTES + 8 * self.n_variables) > limit:
            raise ValueError(
                f"game must have polynomials that fit into half of the memory ({limit / 2**30:.3g} GiB) without the "
                f"last actions, got about {float(n_terms):.3g} terms"
            )

    @cached_property
    def _compiled(self) -> tuple[CompiledPolynomial, ...]:
        return tuple(CompiledPolynomial(one, self.n_variables) for one in self.polynomials)

    def player_index(self, player: int) -> int:
        """Check that there is a player of that number and return it."""
        player = check_integer(player, "player", minimum=0)
        if player >= len(self.players):
            raise ValueError(f"player must be less than {len(self.players)}, the number of players, got {player}")
        return player

    def infosets_of(self, player: int) -> tuple[int, ...]:
        """Indices of a player's information sets."""
        player = self.player_index(player)
        return tuple(j for j, infoset in enumerate(self.infosets) if infoset.player == player)

    def is_absentminded(self, player: int) -> bool:
        """Whether some path visits an information set of the player twice.

        For a game made from polynomials: whether a payoff has a term of degree two or more in one of them.
        """
        player = self.player_index(player)
        if self.tree is not None:
            return self.tree.is_absent_minded(player)
        return any(
            sum(exponent[k] for k in self.simplices[j]) > 1
            for j in self.infosets_of(player)
            for one in self.polynomials
            for exponent in one
        )

    # ------------------------------------------------------------------ strategies

    def strategy(self, x: Sequence[ArrayLike] | np.ndarray, name: str = "x") -> tuple[Float[np.ndarray, " _"], ...]:
        """Check a profile of behavioural strategies: one distribution per information set.

        Parameters
        ----------
        x : sequence of array_like
            One distribution over actions per information set, in the order of ``infosets``.
        name : str, default="x"
            Name of the argument, for messages.

        Returns
        -------
        tuple of numpy.ndarray

        Raises
        ------
        TypeError, ValueError
            If there are not as many distributions as information sets, or one is not a distribution.
        """
        if isinstance(x, np.ndarray) and x.dtype != object and x.ndim == 1:
            raise ValueError(f"{name} must be a list of one distribution per information set, got one vector")
        rows = listed(x, name, "one distribution per information set")
        if len(rows) != len(self.infosets):
            raise ValueError(f"{name} must have {len(self.infosets)} distributions, got {len(rows)}")
        return tuple(
            as_distribution(row, f"{name}[{j}]", size=len(simplex))
            for j, (row, simplex) in enumerate(zip(rows, self.simplices, strict=True))
        )

    def random_strategy(self, rng: Any = None) -> tuple[Float[np.ndarray, " _"], ...]:
        """A profile drawn uniformly from all behavioural strategies."""
        rng = as_generator(rng)
        return tuple(rng.dirichlet(np.ones(len(simplex))) for simplex in self.simplices)

    def utility(self, i: int, x: Sequence[ArrayLike] | np.ndarray) -> float:
        """Expected payoff of player ``i`` when all play ``x``.

        Parameters
        ----------
        i : int
            The player.
        x : sequence of array_like
            One distribution over actions per information set.

        Returns
        -------
        float
        """
        return self._compiled[self.player_index(i)](self._flat(self.strategy(x)))

    def gradient(self, i: int, x: Sequence[ArrayLike] | np.ndarray) -> tuple[Float[np.ndarray, " _"], ...]:
        """Derivatives of the payoff of player ``i`` by the probability of each action, one array per infoset.

        Parameters
        ----------
        i : int
            The player.
        x : sequence of array_like
            One distribution over actions per information set.

        Returns
        -------
        tuple of numpy.ndarray
            Of the polynomial in all variables, as if they could be varied independently.
        """
        slopes = self._compiled[self.player_index(i)].gradient(self._flat(self.strategy(x)))
        return tuple(slopes[list(simplex)] for simplex in self.simplices)

    def free_part(self, x: Sequence[np.ndarray]) -> Float[np.ndarray, " free"]:
        """A profile as a point for the reduced polynomials: without the last action of each information set."""
        return np.concatenate([row[:-1] for row in x]) if x else np.empty(0)

    def profile(self, free: Float[np.ndarray, " free"]) -> tuple[Float[np.ndarray, " _"], ...]:
        """The nearest profile to a point of the reduced polynomials: each part projected on its simplex."""
        rows = []
        for variables in self.free_variables:
            part = free[list(variables)]
            rows.append(project_simplex(np.append(part, 1.0 - part.sum())))
        return tuple(rows)

    def _flat(self, x: Sequence[np.ndarray]) -> Float[np.ndarray, " variables"]:
        flat = np.empty(self.n_variables)
        for simplex, row in zip(self.simplices, x, strict=True):
            flat[list(simplex)] = row
        return flat


def _consecutive(sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Consecutive numbers in groups of the given sizes."""
    ends = np.cumsum(sizes).tolist()
    return tuple(tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True))
