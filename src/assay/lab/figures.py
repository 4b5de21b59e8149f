"""Figures of a report: plotly charts with a title and a sentence that says what to see."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from assay.lab.study import Study
from assay.lab.table import Table

__all__ = ["DARK_TWINS", "PALETTE", "Figure", "bar_figure", "contender_styles", "curve_figures"]

#: Colours of contenders, ours first: the hues of Okabe and Ito, shifted until each has a contrast of 3:1 with a
#: light page and people with a red-green deficiency can tell them apart.
PALETTE = ("#145DA8", "#B8561C", "#118A5E", "#A24A81", "#C08600", "#4397D2", "#5A4320", "#8A8C8C")

#: What a page with a dark background draws in the place of each.
DARK_TWINS = dict(
    zip(
        PALETTE,
        ("#4AA8F0", "#F08A46", "#6FD69A", "#C98AB4", "#FFC83A", "#BEE0FA", "#B08A5E", "#B9B4B2"),
        strict=True,
    )
)

_MOST_POINTS = 2000
_MOST_POINTS_OF_A_FIGURE = 200_000  # what a browser draws without delay, in about 4 MB of the page
_FEW_POINTS = 16


@dataclass(frozen=True)
class Figure:
    """One figure of a study's page.

    Parameters
    ----------
    title : str
        What is shown.
    caption : str
        What to see in it, in a sentence or two.
    plot : plotly.graph_objects.Figure
        The chart. The page gives it fonts, backgrounds, a legend, and menus for its ``updatemenus``; a colour of
        ``PALETTE`` is exchanged for its twin of ``DARK_TWINS`` on a dark page.
    """

    title: str
    caption: str
    plot: go.Figure


def contender_styles(study: Study | type[Study]) -> dict[str, dict[str, Any]]:
    """Line styles by contender: the method in front and bold, ablations dashed, incumbents thin.

    Returns
    -------
    dict of str to dict
        ``color``, ``dash`` and ``width`` for plotly's ``line``.
    """
    dashes = {"method": "solid", "ablation": "dash", "incumbent": "solid"}
    ordered = sorted(study.contenders, key=lambda c: c.role != "method")
    return {
        contender.name: {
            "color": PALETTE[index % len(PALETTE)],
            "dash": dashes[contender.role] if index < len(PALETTE) else "dot",
            "width": 3 if contender.role == "method" else 1.75,
        }
        for index, contender in enumerate(ordered)
    }


def curve_figures(study: Study | type[Study], table: Table, seed: int = 0) -> list[Figure]:
    """One figure per name of a curve; the cases of one name are chosen from a menu.

    Parameters
    ----------
    study : Study
        Gives contenders their order and style.
    table : Table
        Results.
    seed : int, default=0
        Which seed to draw (the first one that is there, if this one is not).

    Returns
    -------
    list of Figure
    """
    if table.curves.empty:
        return []
    seeds = sorted(table.curves["seed"].unique())
    shown = table.curves[table.curves["seed"] == (seed if seed in seeds else seeds[0])]
    styles = contender_styles(study)
    return [_curve_figure(str(name), group, styles) for name, group in shown.groupby("name", sort=False)]


def _curve_figure(name: str, curves: pd.DataFrame, styles: dict[str, dict[str, Any]]) -> Figure:
    cases = list(dict.fromkeys(curves["case"]))
    plot, owners, n_hidden = go.Figure(), [], 0
    most = max(100, min(_MOST_POINTS, _MOST_POINTS_OF_A_FIGURE // len(curves)))
    for row in curves.itertuples():
        drawable = ((row.x > 0) | (not row.x_log)) & ((row.y > 0) | (not row.y_log))
        n_hidden += int(np.sum(~drawable & np.isfinite(row.x) & np.isfinite(row.y)))
        x, y = _thinned(row.x, np.where(drawable, row.y, np.nan), row.x_log, most)
        plot.add_scatter(
            x=x,
            y=y,
            name=_literal(row.contender),
            mode="lines+markers" if len(x) <= _FEW_POINTS else "lines",
            line=styles.get(row.contender),
            visible=row.case == cases[0],
        )
        owners.append(row.case)
    first = curves.iloc[0]
    plot.update_xaxes(title=_literal(first["x_label"]), **_scale(bool(first["x_log"])))
    plot.update_yaxes(title=_literal(first["y_label"]), **_scale(bool(first["y_log"])))
    if len(cases) > 1:
        plot.update_layout(updatemenus=[_menu(cases, owners)])
    caption = f"One line per contender, seed {int(first['seed'])}."
    if len(cases) > 1:
        caption += f" {len(cases)} cases: choose one from the menu."
    if n_hidden:
        points = "One point is" if n_hidden == 1 else f"{n_hidden} points are"
        caption += f" {points} zero or negative and cannot be shown on a logarithmic axis."
    return Figure(name, caption, plot)


def bar_figure(
    study: Study | type[Study],
    table: Table,
    metric: str,
    *,
    title: str,
    caption: str,
    y_label: str,
    x_label: str = "",
    y_log: bool = False,
    cases: Sequence[str] | None = None,
) -> Figure:
    """Bars of one scalar: a group per case, a bar per contender, whiskers over the seeds.

    Parameters
    ----------
    study : Study
        Gives contenders their order and colour.
    table : Table
        Results.
    metric : str
        Name of the scalar.
    title, caption, y_label : str
        Words of the figure; give units.
    x_label : str, default=""
        What the cases are.
    y_log : bool, default=False
        Whether the axis is logarithmic.
    cases : sequence of str, optional
        Only these, in this order.

    Returns
    -------
    Figure
    """
    rows = table.scalars[table.scalars["metric"] == metric]
    order = list(cases) if cases is not None else list(dict.fromkeys(rows["case"]))
    styles = contender_styles(study)
    plot = go.Figure()
    for contender in dict.fromkeys(rows["contender"]):
        own = rows[rows["contender"] == contender].groupby("case")["value"]
        median = own.median().reindex(order)
        plot.add_bar(
            x=[_literal(case or "all") for case in order],
            y=median,
            name=_literal(contender),
            marker_color=styles.get(contender, {}).get("color"),
            error_y={
                "type": "data",
                "symmetric": False,
                "array": (own.max().reindex(order) - median).fillna(0),
                "arrayminus": (median - own.min().reindex(order)).fillna(0),
                "thickness": 1,
            },
        )
    plot.update_layout(barmode="group")
    # Cases called "50" and "100" are names, not positions on a line.
    plot.update_xaxes(title=_literal(x_label), type="category")
    plot.update_yaxes(title=_literal(y_label), **_scale(y_log))
    return Figure(title, caption, plot)


def _literal(text: str) -> str:
    """Text that plotly shows as it is: what looks like a tag would be taken for one."""
    return html.escape(text, quote=False)


def _scale(log: bool) -> dict[str, Any]:
    return {"type": "log" if log else "linear", "exponentformat": "power"}


def _thinned(x: np.ndarray, y: np.ndarray, x_log: bool, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most ``most`` points that look like all of them: the lowest and highest of each stretch."""
    n = len(x)
    if n <= most:
        return x, y
    stretches = most // 2 - 1
    edges = np.geomspace(1, n, stretches + 1) - 1 if x_log else np.linspace(0, n, stretches + 1)
    edges = np.unique(np.append(edges.astype(int), n))
    kept = {0, n - 1}
    for start, stop in itertools.pairwise(edges):
        stretch = y[start:stop]
        if np.isnan(stretch).all():
            kept.add(int(start))  # keeps the gap
        else:
            kept |= {int(start + np.nanargmin(stretch)), int(start + np.nanargmax(stretch))}
    chosen = sorted(kept)
    return x[chosen], y[chosen]


def _menu(cases: list[str], owners: list[str]) -> dict[str, Any]:
    return {
        "buttons": [
            {
                "label": _literal(case or "all"),
                "method": "update",
                "args": [{"visible": [owner == case for owner in owners]}],
            }
            for case in cases
        ],
        "direction": "down",
        "x": 0,
        "xanchor": "left",
        "y": 1.12,
        "yanchor": "bottom",
    }
