"""Study of decentralised bilevel optimisation with first derivatives: bias, consensus, noise, tuning and pruning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study
from assay.studies.bilevel import _decentralized_digits as digits
from assay.studies.bilevel import _decentralized_noise as noise
from assay.studies.bilevel import _decentralized_quadratic as quadratic

__all__ = ["DecentralizedPLStudy"]

OURS = "DecentralizedBilevel"
NO_TRACKING, CENTRAL, LOCAL, FIXED = "no tracking", "centralised", "local only", "fixed"
STORM, SGD = "storm", "sgd"
HVP, TIMESCALES, SKLEARN = "HVP", "two timescales", "one ridge"
MAGNITUDE, RETRAINED, RANDOM = "magnitude pruning", "magnitude, retrained", "random pruning"
REGULARISED = {f"regularised {rho:g}": rho for rho in (0.01, 0.1, 0.3)}

_RING = "ring 8, sigma=0.05"
_FULL = ("full",)


@dataclass(frozen=True)
class Problem:
    """The instances are made where they are solved, from a seed."""

    seed: int
    parameters: dict[str, Any]


def _value(id_: str, sigma: str, number: float, spread: float) -> Claim:
    return Claim(
        id_,
        f"without noise the squared hypergradient is {number:g} in the end for sigma={sigma}, within {spread - 1:.0%}",
        "gradient_square",
        OURS,
        "<=",
        number * spread,
        "measured here",
        case=f"ring 8, sigma={sigma}",
        reduce="max",
        sizes=_FULL,
    )


def _point(id_: str, contender: str, number: float, sigma: str, relation: str) -> Claim:
    bound = number * (1.01 if relation == "<=" else 0.99)
    side = "at most" if relation == "<=" else "at least"
    return Claim(
        id_,
        f"where the penalised problem is stationary, the squared hypergradient is {side} {number:g} (1 % for rounding) "
        f"with sigma={sigma}",
        "stationary_point_square",
        contender,
        relation,  # type: ignore[arg-type]
        bound,
        "derived: linear algebra",
        case=f"sigma={sigma}",
        reduce="max" if relation == "<=" else "min",
    )


class DecentralizedPLStudy(Study):
    """First-order bilevel optimisation on a graph against second-order, regularised and two-timescale methods."""

    title = "Decentralised bilevel optimisation under the PL condition"
    summary = (
        "For groups of workers without a server that tune shared hyper-parameters, sample weights or gates on private "
        "data. Gradients only, one constant step size, neighbours only, and a lower loss that may be nonconvex."
    )
    promise = (
        "The squared hypergradient at the mean of the nodes, with a bound on the bias of the penalty, and that nodes "
        "agree; means of trackers and states move as mixing says they do."
    )
    interface = "solver"
    method = "assay.bilevel.DecentralizedBilevel"
    paper = Paper(
        title=(
            "Convergence Analysis of Decentralized Hessian-/Jacobian-Free Algorithm for Nonconvex Stochastic Bilevel "
            "Optimization"
        ),
        authors="Authors of ICML 2026 poster 64280",
    )
    data = (
        "Handwritten digits from scikit-learn at 8 nodes, with 64 columns of noise, or without for pruning; least "
        "squares of deficient rank and a nonconvex PL loss with closed forms."
    )
    contenders = (
        Contender(OURS, "method", "eta=.3, a=3, momentum, tracking, Metropolis weights; sigma=.05 if not said"),
        Contender(NO_TRACKING, "ablation", "nodes follow their own gradients"),
        Contender(CENTRAL, "ablation", "all entries of the mixing matrix 1/8"),
        Contender(LOCAL, "ablation", "no communication: every node solves its own problem"),
        Contender(STORM, "ablation", "recursive variance reduction: two gradients per sample"),
        Contender(SGD, "ablation", "the latest gradient in place of a moving average"),
        *(
            Contender(name, "ablation", f"{rho:g} / 2 of the squared norm of y added to the lower loss")
            for name, rho in REGULARISED.items()
        ),
        Contender(
            HVP, "incumbent", "5 conjugate gradient steps with Hessian products, 20 rounds of gossip each, best of 3 "
            "dampings"
        ),
        Contender(
            TIMESCALES, "incumbent", "single-agent penalty method: steps t^-3/4 and t^-1/2, penalty t^-1/4, best of 3 "
            "scales"
        ),
        Contender(FIXED, "incumbent", "all penalties exp(-4), weights trained to the end"),
        Contender(
            SKLEARN, "incumbent", "LogisticRegression on pooled rows, best of 10 penalties", library="scikit-learn"
        ),
        Contender(MAGNITUDE, "incumbent", "the same network trained without gates, units of largest norms kept"),
        Contender(
            RETRAINED, "incumbent", "the same in half of the iterations, and the units kept trained in the other half"
        ),
        Contender(RANDOM, "incumbent", "units kept at random, mean of 20 draws"),
    )  # fmt: skip
    claims = (
        _value("C1a", "0.2", 5.7e-2, 1.05),
        _value("C1b", "0.05", 4.8e-3, 1.05),
        _value("C1c", "0.0125", 3.5e-4, 1.25),
        Claim("C1d", "the slope of the bias law in sigma is at least 1.7", "bias_slope", OURS, ">=", 1.7,
              "derived: bias of the penalty of order sigma", reduce="min", sizes=_FULL),
        Claim("C1e", "and at most 2.1", "bias_slope", OURS, "<=", 2.1,
              "derived: bias of the penalty of order sigma", reduce="max", sizes=_FULL),
        Claim("C2a", "nodes agree on x to 1e-10 after 9000 iterations (4000 in quick size)", "consensus_x", OURS, "<=",
              1e-10, "measured here: 3.8e-14", case=_RING, reduce="max"),
        Claim("C2b", "and without tracking not to 1e-3", "consensus_x", NO_TRACKING, ">=", 1e-3,
              "measured here: 1.4e-2", case=_RING, reduce="min"),
        Claim("C3", "noise floor times number of nodes is constant within a factor of 2.5, for 2 to 16 nodes",
              "excess_spread", OURS, "<=", 2.5, "measured here: .79, .85, 1.43, .94", reduce="max"),
        Claim("C3b", "and at most 1.3 times what the covariance of the linear iteration says", "excess_over_theory",
              OURS, "<=", 1.3, "derived: a Lyapunov equation", reduce="max"),
        Claim("C3c", "and at least .7 times", "excess_over_theory", OURS, ">=", 0.7, "derived: a Lyapunov equation",
              reduce="min"),
        Claim("C4a", "tuned ridge: test cross-entropy at most .25 (3000 iterations)", "test_loss", OURS, "<=", 0.25,
              "measured here: .196", case="ridge", sizes=_FULL),
        Claim("C4b", "and accuracy at least .93", "test_accuracy", OURS, ">=", 0.93,
              "measured here: .941", case="ridge"),
        Claim("C4c", "with fixed penalties the cross-entropy is at least .6", "test_loss", FIXED, ">=", 0.6,
              "measured here: .72", case="ridge"),
        Claim("C4d", "mean log penalty of noise columns at least 1.5 above that of pixels", "noise_above_pixels", OURS,
              ">=", 1.5, "measured here: -3.6 against -6.2", case="ridge", reduce="min"),
        Claim("C4e", "cross-entropy at most .25 also with z, which has seen training rows only", "test_loss_z", OURS,
              "<=", 0.25, "this library", case="ridge", sizes=_FULL),
        Claim("C5", "half of the gates kept: accuracy at least that of magnitude pruning less .01", "pruned_accuracy",
              OURS, ">=", -0.01, "target", versus=MAGNITUDE, compare="difference", case="pruning", sizes=_FULL),
        Claim("C5b", "with z, which has seen training rows only, at least that of a network cut half way, less .01",
              "pruned_accuracy_z", OURS, ">=", -0.01, "this library", versus=RETRAINED, compare="difference",
              case="pruning", sizes=_FULL),
        Claim("C6", "no backward pass keeps a graph: no product with a Hessian or Jacobian", "hessian_products", OURS,
              "<=", 0.0, "paper, abstract", reduce="max"),
        Claim("C7a", "nonconvex lower loss: squared hypergradient at most 5e-4 after 30000 iterations",
              "gradient_square", OURS, "<=", 5e-4, "measured here: 2.2e-4", reduce="max", sizes=_FULL,
              case="not convex, sigma=0.1"),
        Claim("C7b", "and the value within 1e-4 of the best", "excess_value", OURS, "<=", 1e-4,
              "measured here: 7.0e-5", reduce="max", sizes=_FULL, case="not convex, sigma=0.1"),
        Claim("C7c", "with a lower residual of at most 1e-4", "lower_residual", OURS, "<=", 1e-4,
              "measured here", reduce="max", sizes=_FULL, case="not convex, sigma=0.1"),
        Claim("C7d", "although negative curvature was met on the way", "least_curvature", OURS, "<=", 0.0,
              "measured here: -2.8", reduce="max", case="not convex, sigma=0.1"),
        _point("C8a", OURS, 0.00475, "0.05", "<="),
        _point("C8b", "regularised 0.01", 0.0079, "0.05", ">="),
        _point("C8c", "regularised 0.1", 0.126, "0.05", ">="),
        _point("C8d", "regularised 0.3", 0.945, "0.05", ">="),
        _point("C8e", OURS, 2.1e-4, "0.01", "<="),
        _point("C8f", "regularised 0.1", 0.106, "0.01", ">="),
        Claim("C8g", "a regulariser of .1 costs at least 20 times the squared hypergradient", "stationary_point_square",
              "regularised 0.1", ">=", 20.0, "derived: linear algebra", versus=OURS, case="sigma=0.05"),
        Claim("C9", "two timescales need at least twice the iterations to 1e-2, with noise .5", "iterations_to_level",
              TIMESCALES, ">=", 2.0, "target, no number seen", versus=OURS, case="best", sizes=_FULL),
        Claim("P1", "16 nodes in a batch are at least 5 times as fast as a loop over them", "loop_speedup", OURS, ">=",
              5.0, "target", timed=True),
        Claim("P2", "a link carries exactly 2 (d_x + 2 d_y) numbers in each direction and iteration", "message_off",
              OURS, "<=", 0.0, "derived", reduce="max"),
        Claim("P3", "a node holds 9 vectors", "vectors_per_node", OURS, "<=", 9.0, "derived", reduce="max"),
        Claim("P4", "time grows at most linearly with the number of nodes of a ring (exponent at most 1.1)",
              "time_exponent", OURS, "<=", 1.1, "derived", sizes=_FULL, timed=True),
    )  # fmt: skip
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {
            "iterations": 4000,
            "sigmas": {0.2: 4000, 0.05: 4000},
            "graphs": (),
            "noise": 4000,
            "regularised_runs": False,
            "nonconvex": {0.1: 400},
            "ridge": 1000,
            "ridge_contenders": (OURS, NO_TRACKING, FIXED, SKLEARN),
            "hvp": 400,
            "reach": 0,
            "pruning": 0,
            "scale": (),
            "repeats": 5,
        },
        "full": {
            "iterations": 9000,
            "sigmas": {0.2: 9000, 0.05: 9000, 0.0125: 24000},
            "graphs": tuple((kind, n) for kind in ("ring", "grid", "complete", "Erdos-Renyi") for n in (4, 8, 16)),
            "noise": 12000,
            "regularised_runs": True,
            "nonconvex": {0.1: 30000, 0.2: 30000},
            "ridge": 3000,
            "ridge_contenders": (OURS, NO_TRACKING, CENTRAL, LOCAL, FIXED, HVP, SKLEARN),
            "hvp": 3000,
            "reach": 12000,
            "pruning": 3000,
            "scale": (64, 128, 256, 512, 1024),
            "repeats": 9,
        },
    }
    seeds: ClassVar[dict[str, int]] = {"quick": 1, "full": 3}

    def problem(self, size: str, rng: np.random.Generator) -> Problem:
        """A seed for rows, batches and noise; the quadratic and the nonconvex problem are those of seed 0."""
        return Problem(int(rng.integers(2**31)), dict(self.sizes[size]))

    def measure(self, contender: str, problem: Problem, rng: np.random.Generator) -> Measurement:
        """Run the parts of the study that the contender takes part in."""
        measurement, parameters, seed = Measurement(), problem.parameters, problem.seed
        n_iter = parameters["iterations"]
        if contender == OURS:
            self._measure_ours(measurement, problem)
        elif contender == NO_TRACKING:
            quadratic.measure_convergence(measurement, n_iter, {0.05: n_iter}, parameters["graphs"], tracking=False)
        elif contender == CENTRAL:
            quadratic.measure_convergence(measurement, n_iter, {0.05: n_iter}, (), centralised=True)
        elif contender == LOCAL:
            quadratic.measure_local(measurement, n_iter)
        elif contender in (STORM, SGD):
            noise.measure_noise_floor(measurement, parameters["noise"], (8,), seed, contender)
        elif contender in REGULARISED:
            rho = REGULARISED[contender]
            quadratic.measure_stationary_point(measurement, rho)
            if parameters["regularised_runs"]:
                quadratic.measure_convergence(measurement, n_iter, {0.05: n_iter}, (), lower_regularizer=rho)
        elif contender == HVP:
            quadratic.measure_hessian_method(measurement, parameters["hvp"])
        elif contender == TIMESCALES and parameters["reach"]:
            noise.measure_reach(
                measurement, lambda factor: noise.two_timescales(factor, parameters["reach"], seed), (0.3, 1.0, 3.0)
            )
        elif contender in (MAGNITUDE, RETRAINED, RANDOM) and parameters["pruning"]:
            digits.measure_magnitude(measurement, contender, seed, parameters["pruning"])
        if contender in parameters["ridge_contenders"]:
            if contender == SKLEARN:
                digits.measure_sklearn(measurement, seed)
            else:
                digits.measure_ridge(measurement, contender, seed, parameters["ridge"])
        return measurement

    def _measure_ours(self, measurement: Measurement, problem: Problem) -> None:
        parameters, seed = problem.parameters, problem.seed
        quadratic.measure_convergence(measurement, parameters["iterations"], parameters["sigmas"], parameters["graphs"])
        noise.measure_noise_floor(measurement, parameters["noise"], (2, 4, 8, 16), seed)
        quadratic.measure_stationary_point(measurement, 0.0)
        quadratic.measure_nonconvex(measurement, parameters["nonconvex"])
        quadratic.measure_first_order(measurement)
        quadratic.measure_costs(measurement, parameters["repeats"], parameters["scale"])
        if parameters["reach"]:
            noise.measure_reach(
                measurement,
                lambda step_size: noise.decentralised_squares(step_size, parameters["reach"], seed),
                (0.03, 0.1, 0.3),
            )
        if parameters["pruning"]:
            digits.measure_pruning(measurement, seed, parameters["pruning"])

    def demonstrate(self) -> Sequence[Certificate]:
        """Eight nodes on a ring tune one shared variable, each with data of its own."""
        import networkx as nx

        from assay.bilevel import DecentralizedBilevel, quadratic_pl_problem

        problem = quadratic_pl_problem(8)  # f and g are losses of all nodes; lists with a function per node will do
        solver = DecentralizedBilevel(
            problem.f, problem.g, [0.0] * 5, [0.0] * 12, nx.cycle_graph(8), sigma=0.1, smoothness=problem.L
        )
        result = solver.run(400)
        start, end, best = (problem.F(x)[0] for x in ([0.0] * 5, result.x, problem.x_star))
        print(f"F: {start:.3f} -> {end:.3f}, best {best:.3f}")
        print(f"squared hypergradient {result.stationarity:.2g}, {result.bytes_sent} bytes sent")
        return result.certificates
