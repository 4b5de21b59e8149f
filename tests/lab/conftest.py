"""Small studies and a store with their results, for the tests of what is written about them."""

import numpy as np
import plotly.graph_objects as go
import pytest

from assay import Assumption, Certificate
from assay.lab import (
    Cell,
    CellRecord,
    Claim,
    Contender,
    Figure,
    Measurement,
    Paper,
    Store,
    Study,
    bar_figure,
    curve_figures,
)
from assay.lab.figures import PALETTE
from assay.lab.provenance import code_hash

ENVIRONMENT = {
    "assay": "0.1.0",
    "python": "3.12.1",
    "platform": "Linux-6.1-x86_64",
    "processor": "Fancy(R) CPU @ 2.10GHz",
    "cores": 8,
    "threads": 1,
    "versions": {"numpy": "2.2.0", "scipy": "1.15.0"},
}
TRACEBACK = """Traceback (most recent call last):
  File "newton.py", line 1, in <module>
ValueError: <b>payoff</b> must be finite"""
HOSTILE = """Tags <script>window.broken = 1</script> & "double" 'single' </script>"""


class Shown(Study):
    """A study whose results are written by hand."""

    def problem(self, size, rng):
        raise NotImplementedError

    def measure(self, contender, problem, rng):
        raise NotImplementedError

    def demonstrate(self):
        return ()


class Newton(Shown):
    name = "games/newton"
    title = "Semismooth Newton for matrix games"
    summary = "For people who solve zero-sum games to high accuracy. A dozen steps where others need thousands."
    promise = "The duality gap of the returned strategies is at most tol, recomputed from the strategies."
    interface = "solver"
    method = "assay.games.solve_matrix_game"
    paper = Paper("A Newton method", "Ada Lovelace, Emmy Noether", arxiv="2601.00001", code="https://example.org/code")
    data = "Uniform and low-rank payoffs."
    contenders = (
        Contender("HiGHS", "incumbent", "linear program, interior point", "highspy"),
        Contender("Newton", "method", "tol 1e-10"),
        Contender("Newton, no line search", "ablation", "full steps"),
    )
    claims = (
        Claim("C1", "reaches a gap of 1e-10", "gap", "Newton", "<=", 1e-10, "paper, Theorem 1", reduce="max"),
        Claim("C2", "is fast", "seconds", "HiGHS", ">=", 10, "paper, Table 2", versus="Newton", timed=True),
        Claim("C3", "needs at most 11 steps", "steps", "Newton", "<=", 11, "paper, Fig. 3", reduce="max", case="uni*"),
        Claim("C4", "scales to a million rows", "rows", "Newton", ">=", 1e6, "paper, Section 5", sizes=("full",)),
    )
    sizes = {"quick": {}, "full": {}}
    seeds = {"quick": 2, "full": 3}

    def demonstrate(self):
        """Solve a small game."""
        # rock, paper, scissors
        payoff = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
        strategy = np.full(3, 1 / 3)
        gap = np.max(payoff @ strategy) - np.min(strategy @ payoff)
        return (Certificate("duality gap", gap, 1e-10),)

    def figures(self, table):
        bars = bar_figure(
            self,
            table,
            "seconds",
            title="Time to a gap of 1e-10",
            caption="Lower is better; whiskers over the seeds.",
            x_label="payoff",
            y_label="time until the duality gap of the returned strategies is certified (s)",
            y_log=True,
        )
        plot = go.Figure()
        for half in (0, 1):
            plot.add_scatter(x=[half, 1 + half], y=[0, 1], name="halves", legendgroup="halves", showlegend=half == 0)
        plot.add_scatter(x=[0, 2], y=[1, 1], name="on demand", visible="legendonly", line={"color": PALETTE[1]})
        plot.add_scatter(x=[0, 2], y=[0, 2], fill="tozeroy", fillcolor="rgba(20, 93, 168, 0.2)", name="band")
        plot.add_annotation(x=1, y=1.5, text="a note", showarrow=False, font={"color": "black"})
        plot.update_layout(
            title="a title of the plot",
            xaxis_title="time (s)",
            yaxis_title="share",
            template="plotly_dark",
            updatemenus=[
                {
                    "name": "scale",
                    "active": 1,
                    "buttons": [
                        {"label": "log", "method": "relayout", "args": [{"yaxis.type": "log"}]},
                        {"label": "linear", "method": "relayout", "args": [{"yaxis.type": "linear"}]},
                    ],
                },
                {"buttons": [{"label": "thin", "method": "restyle", "args": [{"line.width": [1, 1]}, [0, 1]]}]},
                {"buttons": []},
            ],
        )
        return [*curve_figures(self, table), bars, Figure("Drawn by hand", "With menus of its own.", plot)]


class CannotDraw(Shown):
    name = "graphs/cannot_draw"
    title = "A study that cannot draw"
    summary = "It raises when it draws."
    promise = "Nothing."
    interface = "scikit-learn estimator"
    method = "assay.graphs.cannot_draw"
    paper = Paper("On drawing", "Nobody")
    contenders = (Contender("ours", "method"),)
    claims = ()
    sizes = {"quick": {}}

    def figures(self, table):
        raise RuntimeError("no <pencil>")


class Hostile(Shown):
    name = "transport/hostile"
    title = summary = promise = interface = data = HOSTILE
    method = "assay.transport.hostile"
    paper = Paper(HOSTILE, HOSTILE, arxiv="2601.<b>", code="javascript:window.broken = 1")
    contenders = (
        Contender('it\'s </script> "best" <b>bold</b>', "method", HOSTILE),
        Contender("<img src=x onerror='window.broken = 1'>", "incumbent", HOSTILE, "<i>lib</i>"),
    )
    claims = (Claim("<C1>", HOSTILE, "<m>", contenders[0].name, ">=", 1.0, HOSTILE, versus=contenders[1].name),)
    sizes = {"quick": {}}

    def demonstrate(self):
        return (Certificate("</script><script>window.broken = 1</script>", 1, 2),)


class NotRun(Shown):
    name = "optim/not_run"
    title = "A schedule that nobody has run"
    summary = "For people who train networks."
    promise = "The step size stays below 2/L."
    interface = "torch optimizer"
    method = "assay.optim.NotRun"
    paper = Paper("On schedules", "Grace Hopper")
    contenders = (Contender("ours", "method"), Contender("AdamW", "incumbent", "as in torch", "torch"))
    claims = (Claim("C1", "is <better> than AdamW", "loss", "ours", "<=", 1.0, "paper", versus="AdamW"),)
    sizes = {"quick": {}, "full": {}}


def _newton(contender, seed):
    steps = {"HiGHS": 40, "Newton": 12, "Newton, no line search": 15}[contender.name]
    incumbent = contender.role == "incumbent"
    measurement = Measurement()
    for case in ("uniform 50 x 100", "uniform 100 x 100", "low rank"):
        n = steps + seed + (9 if case == "low rank" else 0)
        measurement.add_curve(
            "duality gap against time",
            np.arange(1, n + 2) * (0.002 if incumbent else 0.0004),
            np.append(10.0 ** -np.linspace(0, 11, n), 0.0),
            case=case,
            x_label="time (s)",
            y_label="duality gap (payoff units)",
            y_log=True,
        )
        measurement.add("gap", 3.1e-11 * (1 + seed / 10), case)
        measurement.add("steps", n, case)
        measurement.add("seconds", 0.002 * n * (1 if incumbent else 0.21), case)
        bound = 1e-10 if contender.role == "method" else 1e-12
        finite = Assumption("the payoff is finite", True)
        measurement.certify(Certificate("duality gap of the strategies", 3.1e-11, bound, assumptions=(finite,)), case)
    measurement.add_curve("steps to a gap", [1, 2, 3], [4, 6, 9], x_label="digits", y_label="steps (count)")
    return measurement


def _hostile(value):
    measurement = Measurement()
    measurement.add("<m>", value, "<case>")
    for case in ('<b>first</b> & "one"', "</script>second"):
        measurement.add_curve(
            "</script><script>window.broken = 1</script>",
            [1, 2, 3],
            [3 * value, 2, 1],
            case=case,
            x_label="<time>",
            y_label="a < b & c",
        )
    measurement.certify(Certificate("</script><script>window.broken = 1</script>", value, 1.5), "<case>")
    return measurement


@pytest.fixture(scope="session")
def fake_studies():
    """A study with everything, one that cannot draw, one full of markup, and one without results."""
    return [Newton, CannotDraw, Hostile, NotRun]


@pytest.fixture(scope="session")
def fake_store(tmp_path_factory):
    """Results of the fake studies; one cell has failed, one claim is not reproduced, one is not measured."""
    store = Store(tmp_path_factory.mktemp("store"))

    def write(study, size, contender, seed, measurement):
        environment = dict(ENVIRONMENT)
        if contender.library:
            environment["versions"] = ENVIRONMENT["versions"] | {contender.library: "1.2.3"}
        cell = Cell.of(study, size, contender.name, seed)
        store.write(CellRecord(cell, "done", measurement, 1.5, "", code_hash(study), environment))

    for size in Newton.sizes:
        for contender in Newton.contenders:
            for seed in range(Newton.seeds[size]):
                write(Newton, size, contender, seed, _newton(contender, seed))
    store.write(CellRecord(Cell.of(Newton, "quick", "HiGHS", 1), "error", message=TRACEBACK, code=code_hash(Newton)))
    for contender, value in zip(Hostile.contenders, (1.0, 2.0), strict=True):
        write(Hostile, "quick", contender, 0, _hostile(value))
    unclear = Measurement()
    unclear.add("loss", float("nan"))
    write(CannotDraw, "quick", CannotDraw.contenders[0], 0, unclear)
    return store
