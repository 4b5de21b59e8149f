"""Study of anchored optimistic steps against extragradient, optimistic gradients and Adam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Contender, Measurement, Paper, Study
from assay.studies.games._goma_claims import CLAIMS
from assay.studies.games._goma_costs import measure_numpy_costs, measure_torch_costs
from assay.studies.games._goma_runs import (
    ADAM,
    DSEG,
    DSEG_BOTH,
    EAG,
    EG,
    EXPLORE,
    GOMA,
    HORIZON,
    NOISY,
    OGDA,
    PAPER,
    SEG,
    SGDA,
    measure_deterministic,
    measure_minibatches,
    measure_noise,
    measure_small_steps,
    measure_well_conditioned,
)
from assay.studies.games._saddle_problems import (
    Saddle,
    bilinear,
    hard_instance,
    nonlinear,
    robust_logistic,
    well_conditioned,
)

__all__ = ["GomaStudy"]


@dataclass(frozen=True)
class Problem:
    """The operators, and the parameters of the size."""

    saddles: list[Saddle]
    conditioned: Saddle
    weakest: float
    parameters: dict[str, Any]


class GomaStudy(Study):
    """Anchored methods for monotone operators."""

    title = "Anchored optimistic steps for saddle points"
    summary = (
        "For those who train min-max models or solve monotone equations and use extragradient, optimistic gradients or "
        "Adam. One call per step, and a bound on the last iterate that can be checked on the run."
    )
    promise = (
        "The squared norm of the operator at the last iterate is at most 17.95 L^2 D^2 / (k + 1)^2, and the potential "
        "behind that bound never grows; with noise the mean falls like 1 / sqrt(k)."
    )
    interface = "solver and torch optimizer"
    method = "assay.games.goma"
    paper = Paper(
        "Accelerated and Stable Convergence with Anchored (Generalized) Optimistic Method",
        "Sohrabi, You, Lacoste-Julien, Gorbunov, Gidel",
        venue="PMLR 306, 2026",
        arxiv="2606.21528",
    )
    data = (
        "Bilinear games with singular values 0.01 to 1, spread evenly or logarithmically; a quadratic with constraints "
        "that is hard for first-order methods; a nonlinear operator; noisy rotations; breast cancer data with "
        "adversarial shifts of the scores."
    )
    contenders = (
        Contender(GOMA, "method", "goma, preset halpern, default step 1 / (2 L)"),
        Contender(PAPER, "method", "goma, preset paper, default step"),
        Contender(EXPLORE, "method", "goma, preset explore, default step"),
        Contender(NOISY, "method", "goma with noise, schedule of the paper"),
        Contender(HORIZON, "method", "goma with noise, schedule for a known number of steps"),
        Contender(EG, "incumbent", "extragradient, step 1 / (2 L)"),
        Contender(OGDA, "incumbent", "optimistic gradients, step 1 / (2 L)"),
        Contender(EAG, "incumbent", "extra anchored gradient, step 1 / (8 L)"),
        Contender(SGDA, "incumbent", "simultaneous gradients, step 1 / (2 L sqrt(k))"),
        Contender(SEG, "incumbent", "stochastic extragradient, both steps 1 / (2 L)"),
        Contender(DSEG, "incumbent", "stochastic extragradient, exploration 1 / (2 L), update over k^(2/3)"),
        Contender(DSEG_BOTH, "incumbent", "stochastic extragradient, exploration 1 / (L k^(3/4)), update half of it"),
        Contender(ADAM, "incumbent", "torch.optim.Adam on both players; default rate 1e-3", library="torch"),
    )
    claims = CLAIMS
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {
            "calls": 20_000,
            "adam_calls": 5000,
            "tuned": ("bilinear",),
            "data": False,
            "replicas": 200,
            "noisy_steps": 6400,
            "horizons": (400, 1600, 6400),
            "dimensions": (10**5, 3 * 10**5, 10**6),
            "repeats": 15,
            "seconds": 0.6,
        },
        "full": {
            "calls": 20_000,
            "adam_calls": 20_000,
            "tuned": ("bilinear", "hard", "nonlinear", "robust logistic"),
            "data": True,
            "replicas": 200,
            "noisy_steps": 25_600,
            "horizons": (400, 1600, 6400, 25_600),
            "dimensions": (10**5, 3 * 10**5, 10**6, 3 * 10**6),
            "repeats": 60,
            "seconds": 20.0,
        },
    }
    seeds: ClassVar[dict[str, int]] = {"quick": 1, "full": 3}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """The operators; the noisy rotation and the minibatches are made by those who run on them."""
        parameters = dict(self.sizes[size])
        saddles = [bilinear(rng), hard_instance(), nonlinear(rng), bilinear(rng, spread="logarithmic")]
        conditioned, weakest = well_conditioned(rng)
        if parameters["data"]:
            saddles += [bilinear(rng, start="random"), robust_logistic()]
        return Problem(saddles, conditioned, weakest, parameters)

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Residuals at equal numbers of calls, and what belongs to the contender alone."""
        measurement, parameters = Measurement(), problem.parameters
        calls = parameters["adam_calls" if contender == ADAM else "calls"]
        if contender in (NOISY, HORIZON, SEG, DSEG, DSEG_BOTH):
            steps, horizons = parameters["noisy_steps"], parameters["horizons"]
            measure_noise(measurement, contender, parameters["replicas"], steps, horizons, rng)
        else:
            saddles = problem.saddles
            if contender in (SGDA, ADAM) and not parameters["data"]:
                saddles = saddles[:1]
            measure_deterministic(measurement, contender, saddles, calls, parameters["tuned"])
        if contender in (NOISY, SGDA, SEG, DSEG, DSEG_BOTH, ADAM) and parameters["data"]:
            measure_minibatches(measurement, contender, problem.saddles[-1], calls, rng)
        if contender == PAPER:
            measure_small_steps(measurement, problem.saddles[0], calls)
        if contender == GOMA:
            measure_well_conditioned(measurement, problem.conditioned, problem.weakest, 5000)
            measure_torch_costs(measurement, 10**6, parameters["repeats"], parameters["seconds"])
            measure_numpy_costs(measurement, parameters["dimensions"], parameters["repeats"], parameters["seconds"])
        return measurement

    def demonstrate(self) -> Sequence[Certificate]:
        """A bilinear game with 50 variables of each player."""
        from assay.games import goma

        rng = np.random.default_rng(0)
        payoff = rng.normal(size=(50, 50)) / 20
        lipschitz = float(np.linalg.norm(payoff, 2))

        def field(z: np.ndarray) -> np.ndarray:  # of min over x and max over y of x' payoff y
            x, y = z[:50], z[50:]
            return np.concatenate([payoff @ y, -payoff.T @ x])

        result = goma(field, rng.normal(size=100), lipschitz, n_iter=2000, check_every=10, z_star=np.zeros(100))
        print(f"squared norm {result.residual_sq:.1e} after {result.n_calls} calls, exponent {result.slope:.2f}")
        return result.certificates
