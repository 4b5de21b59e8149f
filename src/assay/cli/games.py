"""``assay games``: equilibria of games in files."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.console import JsonOption, OutOption, QuietOption, present, reporting_errors, waiting

__all__ = ["games_app"]

_MOST_INFOSETS = 30
_MOST_STATES = 10
_LARGEST_FILE = 2**30

games_app = typer.Typer(help="Games and saddle points.", no_args_is_help=True)


@games_app.callback()
def _family() -> None:
    """Games and saddle points."""


@games_app.command("solve")
@reporting_errors
def solve(
    game: Annotated[
        str,
        typer.Argument(
            metavar="GAME",
            help="A file, or openspiel:NAME. Payoffs of a matrix game (to the column player; the row player pays): "
            "csv, tsv, txt, npy, npz, json or nfg. A game tree: efg or json, or nfg with more players. A tabular "
            "Markov game: npz with P and r.",
        ),
    ],
    method: Annotated[
        str,
        typer.Option("--method", help="Matrix: hpssn, pssn, ssn, prm+ or asymmetric. Tree: asymmetric or sos."),
    ] = "auto",
    tol: Annotated[float | None, typer.Option("--tol", help="Gap to reach, in units of the payoffs.")] = None,
    rtol: Annotated[bool, typer.Option("--rtol", help="Let --tol be relative to the largest payoff.")] = False,
    max_iter: Annotated[int, typer.Option("--max-iter", help="First-order iterations at most.")] = 100_000,
    beta: Annotated[
        float | None, typer.Option("--beta", help="Markov game: pull towards uniform policies, 0.1 if not given.")
    ] = None,
    max_nodes: Annotated[int, typer.Option("--max-nodes", help="Largest game tree that is read.")] = 1_000_000,
    as_json: JsonOption = False,
    out_file: OutOption = None,
    quiet: QuietOption = False,
) -> None:
    """Solve a game: strategies (per information set in a tree), values, and how far from equilibrium they are."""
    with waiting(f"reading {game}", quiet):
        kind, content, name = _read(game, max_nodes)
    if kind != "markov" and beta is not None:
        raise ValueError(f"--beta must be left out unless the game is a Markov game, got {beta:g}")
    if kind == "markov" and method != "auto":
        raise ValueError(f"--method must be left out when the game is a Markov game, got {method!r}")
    if kind == "matrix":
        _solve_matrix(content, name, method, tol, rtol, max_iter, as_json, out_file, quiet)
    elif kind == "tree":
        _solve_tree(content, name, method, tol, rtol, max_iter, as_json, out_file, quiet)
    else:
        _solve_markov(content, name, 0.1 if beta is None else beta, tol, max_iter, as_json, out_file, quiet)


def _read(game: str, max_nodes: int) -> tuple[str, Any, str]:
    """What kind of game it is, the game, and its name."""
    from assay.data import read_game
    from assay.extras import MissingExtraError
    from assay.games import GameTree

    if game.startswith("openspiel:"):
        return "tree", GameTree.from_openspiel(game.removeprefix("openspiel:"), max_nodes=max_nodes), game
    path = Path(game)
    suffix = path.suffix.lower()
    if suffix == ".efg":
        return "tree", GameTree.from_file(path, max_nodes=max_nodes), path.name
    if suffix == ".json" and path.is_file() and (tree := _with_root(path)) is not None:
        return "tree", GameTree.from_json(tree, max_nodes=max_nodes), path.name
    if suffix == ".npz" and path.is_file() and _has_transitions(path):
        return "markov", _markov_of(path), path.name
    try:
        return "matrix", read_game(path), path.name
    except ValueError as error:
        if suffix != ".nfg":
            raise
        try:  # another number of players, or a common interest
            return "tree", GameTree.from_file(path, max_nodes=max_nodes), path.name
        except MissingExtraError as missing:
            raise ValueError(f"{error}; other games need Gambit: {missing}") from None
        except ValueError:
            raise error from None


def _with_root(path: Path) -> dict[str, Any] | None:
    """The content of a file that is a tree in JSON; None for any other, of which the reader of matrices says more."""
    if path.stat().st_size > _LARGEST_FILE:
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and "root" in content else None


def _has_transitions(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return {"P.npy", "r.npy"} <= set(archive.namelist())
    except zipfile.BadZipFile:
        return False


def _markov_of(path: Path) -> Any:
    from assay.games import MarkovGameModel
    from assay.games.offline_files import read_archive

    arrays = read_archive(path, ("P", "r", "horizon", "rho"), _LARGEST_FILE)
    horizon = arrays.get("horizon")
    if horizon is not None and (horizon.size != 1 or horizon.dtype.kind not in "iu"):
        raise ValueError(f"{path.name}: horizon must be an integer, got {horizon.tolist()!r}")
    return MarkovGameModel(
        arrays["P"], arrays["r"], horizon=None if horizon is None else int(horizon.item()), rho=arrays.get("rho")
    )


def _solve_matrix(
    payoff: Any,
    name: str,
    method: str,
    tol: float | None,
    rtol: bool,
    max_iter: int,
    as_json: bool,
    out_file: Path | None,
    quiet: bool,
) -> None:
    shape = f"{payoff.shape[0]} x {payoff.shape[1]}"
    tol = 1e-10 if tol is None else tol
    with waiting(f"solving {name}, {shape}", quiet):
        if method == "asymmetric":
            from assay.games import asym_gda

            result = asym_gda(payoff, mu="auto", eps=tol, rtol=rtol, n_iter=max_iter)
            value, gap = (result.value_lower + result.value_upper) / 2, result.nashconv
            iterations = f"{result.n_iter} per player, {result.halvings} halvings"
        else:
            from assay.games import solve_matrix_game

            chosen = "hpssn" if method == "auto" else method
            result = solve_matrix_game(payoff, method=chosen, tol=tol, rtol=rtol, max_iter=max_iter)
            value, gap = result.value, result.gap
            iterations = f"{result.n_prm} first-order, {result.n_newton} Newton, {result.n_interior} interior-point"
    summary = {
        "game": f"{name}, {shape}",
        "value": f"{value:.12g}",
        "duality gap": f"{gap:.3g}",
        "row strategy": _strategy(result.x),
        "column strategy": _strategy(result.y),
        "iterations": iterations,
    }
    present(summary, result, result.certificates, as_json=as_json, out_file=out_file)


def _solve_tree(
    tree: Any,
    name: str,
    method: str,
    tol: float | None,
    rtol: bool,
    max_iter: int,
    as_json: bool,
    out_file: Path | None,
    quiet: bool,
) -> None:
    import numpy as np

    from assay.games import solve_game_tree

    if rtol and tol is not None:
        tol *= float(np.abs(tree.payoffs).max()) or 1.0
    with waiting(f"solving {name}, {len(tree.parent)} nodes", quiet):
        solution = solve_game_tree(tree, method=method, tol=tol, max_iter=max_iter)
    sizes = f"{len(tree.players)} player{'s' * (len(tree.players) > 1)}, {len(tree.infosets)} information sets"
    summary = {"game": f"{name}, {sizes}", "status": solution.status.replace("_", " ")}
    for player, payoff, gain in zip(solution.players, solution.payoffs, solution.gains, strict=True):
        _put(summary, player, f"receives {payoff:.10g}, could gain {gain:.3g}")
    shown = 0
    for player, infosets in solution.strategies.items():
        for label, actions in infosets.items():
            if shown < _MOST_INFOSETS:
                by_action = ", ".join(f"{action}: {p:.6g}" for action, p in actions.items())
                _put(summary, f"{player} at {_one_line(label)}", by_action)
            shown += 1
    if shown > _MOST_INFOSETS:
        summary["..."] = f"{shown - _MOST_INFOSETS} more information sets; --json has all"
    present(summary, solution, solution.certificates, as_json=as_json, out_file=out_file)


def _solve_markov(
    model: Any,
    name: str,
    beta: float,
    tol: float | None,
    max_iter: int,
    as_json: bool,
    out_file: Path | None,
    quiet: bool,
) -> None:
    from assay.games import regularized_equilibrium

    options = {} if tol is None else {"tol": tol}
    with waiting(f"solving {name}, {model.n_states} states", quiet):
        result = regularized_equilibrium(model, beta=beta, max_iter=max_iter, **options)
    summary = {
        "game": f"{name}, {model.n_states} states, {model.horizon} steps",
        "value": f"{float(model.rho @ result.V[0]):.10g}, with pull {beta:g} towards uniform play",
    }
    summary |= _first_step(result)
    present(summary, result, result.certificates, as_json=as_json, out_file=out_file)


def _first_step(result: Any) -> dict[str, str]:
    """Policies of both players at the first step."""
    n_states = result.mu.shape[1]
    lines = {
        f"state {s}, step 1": f"max player {_strategy(result.mu[0, s])}; min player {_strategy(result.nu[0, s])}"
        for s in range(min(n_states, _MOST_STATES))
    }
    if n_states > _MOST_STATES:
        lines["..."] = f"{n_states - _MOST_STATES} more states; --json has all, at all steps"
    return lines


def _put(summary: dict[str, str], key: str, text: str) -> None:
    """Add a line, whatever names a game has: a prime tells apart two lines of one name."""
    while key in summary:
        key += "'"
    summary[key] = text


def _one_line(label: str) -> str:
    return " ".join(label.split())


def _strategy(probabilities, most: int = 8) -> str:
    """The actions that are played, most likely first."""
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
    played = [i for i in order if probabilities[i] > 0]
    shown = ", ".join(f"{i}: {probabilities[i]:.6g}" for i in played[:most])
    return shown + (f", ... ({len(played)} actions)" if len(played) > most else "")


@games_app.command("offline")
@reporting_errors
def offline(
    log: Annotated[
        Path, typer.Argument(help="Log with columns (episode,) h, s, a, b, r, s_next: csv, parquet or npz.")
    ],
    beta: Annotated[float, typer.Option("--beta", help="Pull towards the reference policies.")],
    method: Annotated[str, typer.Option("--method", help="rose or sos-md.")] = "rose",
    reference: Annotated[str, typer.Option("--reference", help="clone (what the log did) or uniform.")] = "clone",
    rescale: Annotated[bool, typer.Option("--rescale", help="Map rewards outside of [0, 1] to it.")] = False,
    as_json: JsonOption = False,
    out_file: OutOption = None,
    quiet: QuietOption = False,
) -> None:
    """Learn equilibrium policies of a Markov game from a log of play."""
    from assay.games import OfflineGameData, rose, sos_md
    from assay.validation import check_choice

    check_choice(method, "--method", ("rose", "sos-md"))
    check_choice(reference, "--reference", ("clone", "uniform"))
    readers = {
        ".csv": OfflineGameData.from_csv,
        ".parquet": OfflineGameData.from_parquet,
        ".npz": OfflineGameData.from_npz,
    }
    reader = readers.get(log.suffix.lower())
    if reader is None:
        raise ValueError(f"path must end in one of {', '.join(readers)}, got {log.name!r}")
    data = reader(log, rescale=rescale)
    policies = None if reference == "clone" else "uniform"
    with waiting(f"solving {log.name}, {data.horizon} steps", quiet):
        result = (rose if method == "rose" else sos_md)(data, beta, policies, policies)
    summary = {
        "log": f"{log.name}, {int(result.n_samples.sum())} transitions, {data.horizon} steps",
        "value": f"{result.V[0][data.step(0).s].mean():.6g} on average over the first states of the log, regularised",
        "gap of the worst stage game": f"{float(result.opt_gap_per_step.max()):.3g}",
    }
    if data.reward_scale != 1 or data.reward_low != 0:
        summary["rewards"] = f"{data.reward_low:g} + {data.reward_scale:g} r; value, gaps and beta are in units of r"
    summary |= _first_step(result)
    present(summary, result, result.certificates, as_json=as_json, out_file=out_file)


@games_app.command("price")
@reporting_errors
def price(
    market: Annotated[Path, typer.Argument(help="csv with columns buyer, seller, value (, budget, weight).")],
    dynamics: Annotated[str, typer.Option("--dynamics", help="inertial, fictitious or regret.")] = "inertial",
    max_rounds: Annotated[int, typer.Option("--max-rounds", help="Rounds at most.")] = 1000,
    as_json: JsonOption = False,
    out_file: OutOption = None,
    quiet: QuietOption = False,
) -> None:
    """Price datasets for buyers with budgets: schedules that no seller can better by much."""
    from assay.games import DataMarket, solve_pricing

    game = DataMarket.from_csv(market)
    n_buyers, n_sellers = game.values.shape
    with waiting(f"pricing {market.name}, {n_sellers} sellers", quiet):
        result = solve_pricing(game, dynamics=dynamics, max_rounds=max_rounds, rng=0)
    summary = {
        "market": f"{market.name}, {n_buyers} buyers, {n_sellers} sellers",
        "incentive ratio": f"{result.incentive_ratio:.6g}",
        "rounds": str(result.n_rounds),
    }
    for name, prices, lengths, revenue in zip(
        game.seller_names, result.prices, result.lengths, result.revenue, strict=True
    ):
        parts = ", ".join(
            f"{share:.4g} at {unit:.4g}" for unit, share in zip(prices, lengths, strict=True) if share > 0
        )
        summary[str(name)] = f"earns {revenue:.6g}; sells {parts}"
    present(summary, result, result.certificates, as_json=as_json, out_file=out_file)
