"""Laws on convex sets: mirror Langevin particles against particles that are projected or punished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study
from assay.studies.transport import _mirror_measures as measures
from assay.studies.transport import _mirror_problems as problems

__all__ = ["MirrorLangevinStudy"]

OURS = "mirror, log barrier"
ENTROPY = "mirror, entropy barrier"
PROJECTED = "projected, lr=0.01"
PROJECTED_SMALL = "projected, lr=0.002"
PENALIZED = "penalized, lr=0.01"
PENALIZED_SMALL = "penalized, lr=0.002"
FIXED = "scipy"
ADAM = "Adam and projection"

BASELINES: dict[str, tuple[str, dict[str, Any]]] = {
    PROJECTED: ("projected_langevin", {"lr": 0.01}),
    PROJECTED_SMALL: ("projected_langevin", {"lr": 0.002}),
    PENALIZED: ("penalized_langevin", {"lr": 0.01, "penalty": 0.01}),
    PENALIZED_SMALL: ("penalized_langevin", {"lr": 0.002, "penalty": 0.002}),
}

# Step sizes where the temperature is 1e-3 and the gradients are small: units, and matrices and mixing weights.
LARGE_LR = {PROJECTED: 0.2, PROJECTED_SMALL: 0.05, PENALIZED: 0.2, PENALIZED_SMALL: 0.05}
XOR_LR = {PROJECTED: 1.0, PROJECTED_SMALL: 0.2, PENALIZED: 1.0, PENALIZED_SMALL: 0.2}


class MirrorLangevinStudy(Study):
    """Particle methods for laws on the interval, the simplex, the ball and density matrices."""

    title = "Mirror mean-field Langevin dynamics"
    summary = (
        "For people who optimize a distribution over a constrained set: networks with bounded units, mixing measures, "
        "density matrices. Particles stay strictly inside, the limit is the right law, and the run says how far it is."
    )
    promise = (
        "All particles are strictly inside; their squared energy distance from the Gibbs law of their own first "
        "variation is at most three standard errors; in one dimension the linear rate is at least the computed one."
    )
    interface = "torch optimizer and solver"
    method = "assay.transport.mirror_langevin"
    paper = Paper(
        "Mirror Mean-Field Langevin Dynamics",
        "Anming Gu, Juno Kim",
        arxiv="2505.02621",
    )
    data = (
        "Mean matching on an interval and on the simplex, density matrices of 10 rows, noisy XOR for a two-layer "
        "network, and mixing weights of the digits of scikit-learn."
    )
    contenders = (
        Contender(OURS, "method", "mirror_langevin; lr 0.4 and 0.1 on the interval, 0.2 on the simplex, 1 for XOR"),
        Contender(ENTROPY, "ablation", "the entropy barrier, which the paper uses, with the same steps"),
        Contender(PROJECTED, "incumbent", "projected_langevin (lr 1 for XOR, 0.2 for matrices and mixing weights)"),
        Contender(PROJECTED_SMALL, "incumbent", "the same with steps four to five times smaller"),
        Contender(
            PENALIZED,
            "incumbent",
            "penalized_langevin, penalty 0.01 (both 1 for XOR, 0.2 for matrices and weights)",
        ),
        Contender(PENALIZED_SMALL, "incumbent", "the same with both four to five times smaller"),
        Contender(
            FIXED,
            "incumbent",
            "optimize.root and brentq on the finite-dimensional fixed point; SLSQP for the mixing weights",
            library="scipy",
        ),
        Contender(ADAM, "incumbent", "torch.optim.Adam (best of lr 0.1 and 0.02), units projected", library="torch"),
    )
    claims = (
        *(
            Claim(
                f"C1-{q:g}-{lr:g}",
                f"interval, q={q:g}, lr={lr:g}: the mean is within 0.01 of the fixed point at time 200",
                "mean_error",
                OURS,
                "<=",
                0.01,
                "design target: known fixed points 0.68136 and 0.85577",
                reduce="max",
                case=f"interval q={q:g} lr={lr:g}",
            )
            for q in (0.8, 1.2)
            for lr in (0.4, 0.1)
        ),
        Claim(
            "C2-mirror",
            "simplex without repulsion: at most 2 % of mirror particles within 1e-3 of the boundary",
            "boundary_share",
            OURS,
            "<=",
            0.02,
            "earlier run: 0.004",
            reduce="max",
            case="simplex beta=0",
        ),
        Claim(
            "C2-projected",
            "simplex without repulsion: projection (lr 0.01) puts at least 10 % there",
            "boundary_share",
            PROJECTED,
            ">=",
            0.1,
            "earlier run: 0.172",
            reduce="min",
            case="simplex beta=0",
        ),
        Claim(
            "C2-entropy",
            "simplex without repulsion: the entropy barrier puts at least half there",
            "boundary_share",
            ENTROPY,
            ">=",
            0.5,
            "earlier run: 0.60 to 0.95; the barrier is not self-concordant",
            reduce="min",
            case="simplex beta=0",
        ),
        *(
            Claim(
                f"C3-{key}",
                f"simplex with repulsion 0.02: the mean is within 0.03 of the fixed point, {name}",
                "mean_error",
                name,
                "<=",
                0.03,
                "design target: 300 steps of 0.2",
                reduce="max",
                case="simplex beta=0.02",
            )
            for key, name in (("log", OURS), ("entropy", ENTROPY))
        ),
        Claim(
            "C4-accuracy",
            "units in the ball learn noisy XOR to 99 %",
            "accuracy",
            OURS,
            ">=",
            0.99,
            "earlier run: 0.998",
            reduce="min",
            case="noisy xor",
        ),
        Claim(
            "C4-boundary",
            "less than 10 % of the units are beyond norm 0.999",
            "at_boundary",
            OURS,
            "<=",
            0.1,
            "earlier run: 3 %",
            reduce="max",
            case="noisy xor",
        ),
        Claim(
            "C4-projected",
            "projection puts at least half of the units there",
            "at_boundary",
            PROJECTED,
            ">=",
            0.5,
            "earlier run: 93 to 100 %",
            reduce="min",
            case="noisy xor",
        ),
        Claim(
            "C4b-gap",
            "density flow: the spectral gap is 0.384836",
            "gap_error",
            OURS,
            "<=",
            1e-6,
            "known value",
            reduce="max",
            case="flow",
        ),
        Claim(
            "C4b-rate",
            "density flow: the late decay is at least twice temperature times gap",
            "flow_rate",
            OURS,
            ">=",
            0.0385,
            "derived: the second variation can only add to it",
            reduce="min",
            case="flow",
        ),
        Claim(
            "C4b-values",
            "density flow: the objective above its minimum at times 0, 30, 120, 300, within 2 %",
            "known_value_error",
            OURS,
            "<=",
            0.02,
            "known values 1.63e-1, 2.1e-3, 1.7e-5, 3.4e-9",
            reduce="max",
            case="flow",
        ),
        Claim(
            "C5",
            "the variance of the mean is proportional to 1/N: slope within 0.25 of -1, N = 10 to 640",
            "slope_error",
            OURS,
            "<=",
            0.25,
            "paper: propagation of chaos, uniform in time",
            reduce="max",
            case="fluctuations",
        ),
        Claim(
            "C5-flow",
            "so is the squared distance of the mean from that of the density flow, all along the way",
            "slope_error",
            OURS,
            "<=",
            0.25,
            "paper: propagation of chaos, uniform in time",
            reduce="max",
            case="distance from the flow",
        ),
        Claim(
            "C6",
            "particles approach the fixed point at the linear rate of the flow until their floor (less 2 %)",
            "particle_rate",
            OURS,
            ">=",
            0.98 * 2 * 0.05 * 0.384836,
            "derived: twice temperature times gap",
            reduce="min",
        ),
        Claim(
            "C7",
            "no mirror particle is ever outside or on the boundary",
            "not_strictly_inside",
            OURS,
            "<=",
            0,
            "derived: the inverse mirror map",
            reduce="max",
        ),
        Claim(
            "C8",
            "all certificates hold",
            "certificates_failed",
            OURS,
            "<=",
            0,
            "derived",
            reduce="max",
        ),
        Claim(
            "P1",
            "a step on the simplex (N=2000, d=50) takes at most 6 times a projected one",
            "step_over_projected",
            OURS,
            "<=",
            6,
            "design target",
            case="simplex",
            timed=True,
        ),
        *(
            Claim(
                f"P2-{name}",
                f"a step on the {name} takes at most 2.5 times a projected one",
                "step_over_projected",
                OURS,
                "<=",
                2.5,
                "design target",
                case=name,
                timed=True,
            )
            for name in ("ball", "box")
        ),
        Claim(
            "P3",
            "a step holds at most 8 arrays of the size of the particles, theirs included",
            "memory_arrays",
            OURS,
            "<=",
            8,
            "design target",
            reduce="max",
        ),
        *(
            Claim(
                f"P4-{relation}",
                "the time of a step is linear in the number of particles (slope 1 within 0.15)",
                "time_slope",
                OURS,
                relation,
                number,
                "design target",
                case="simplex",
                timed=True,
            )
            for relation, number in (("<=", 1.15), (">=", 0.85))
        ),
    )
    sizes: ClassVar = {
        "quick": {
            "n": 300,
            "systems": 8,
            "baseline_systems": 2,
            "baseline_time": 4.0,
            "fluctuation_sizes": (10, 40, 160, 640),
            "fluctuation_systems": 16,
            "fluctuation_time": 120.0,
            "chaos_sizes": (20, 80, 320),
            "chaos_systems": 12,
            "chaos_time": 60.0,
            "xor_steps": 400,
            "n_train": 200,
            "large": False,
            "cost_particles": 2000,
            "repeats": 2,
            "cost_steps": 5,
        },
        "full": {
            "n": 2000,
            "systems": 1,
            "baseline_systems": 1,
            "baseline_time": 60.0,
            "fluctuation_sizes": (10, 20, 40, 80, 160, 320, 640),
            "fluctuation_systems": 16,
            "fluctuation_time": 1000.0,
            "chaos_sizes": (10, 40, 160, 640),
            "chaos_systems": 32,
            "chaos_time": 150.0,
            "xor_steps": 600,
            "n_train": 400,
            "large": True,
            "cost_particles": 2000,
            "repeats": 9,
            "cost_steps": 10,
        },
    }
    seeds: ClassVar = {"quick": 1, "full": 3}

    def problem(self, size: str, rng: np.random.Generator) -> dict[str, Any]:
        """The settings, and a seed from which every contender draws the same data."""
        return {**self.sizes[size], "seed": int(rng.integers(2**31))}

    def measure(self, contender: str, problem: dict[str, Any], rng: np.random.Generator) -> Measurement:
        """Run one method on all the problems that it can do."""
        measurement = Measurement()
        if contender == FIXED:
            self._measure_scipy(measurement, problem)
        elif contender == ADAM:
            self._measure_adam(measurement, problem, rng)
        elif contender in BASELINES:
            self._measure_baseline(measurement, contender, problem, rng)
        else:
            self._measure_mirror(measurement, contender, problem, rng)
        return measurement

    def _measure_mirror(
        self, measurement: Measurement, contender: str, options: dict[str, Any], rng: np.random.Generator
    ) -> None:
        ours = contender == OURS
        common = {"n": options["n"], "rng": rng, "barrier": "log" if ours else "entropy"}
        for q in (0.8, 1.2):
            problem = problems.interval_problem(q, options["systems"])
            for lr in (0.4, 0.1) if ours else (0.4,):
                case = f"{problem.name} lr={lr:g}"
                measures.run_problem(measurement, problem, "mirror_langevin", lr=lr, time=200.0, case=case, **common)
        for beta in (0.0, 0.02):
            problem = problems.simplex_problem(beta, options["systems"])
            measures.run_problem(measurement, problem, "mirror_langevin", lr=0.2, time=60.0, **common)
        if options["large"]:
            for problem, lr, time in self._large(options):
                measures.run_problem(measurement, problem, "mirror_langevin", lr=lr, time=time, **common)
        if ours:
            measures.run_problem(
                measurement, self._xor(options), "mirror_langevin", lr=1.0, time=options["xor_steps"], **common
            )
            measures.measure_flow(measurement)
            measures.measure_fluctuations(
                measurement,
                options["fluctuation_sizes"],
                options["fluctuation_systems"],
                options["fluctuation_time"],
                rng,
            )
            measures.measure_chaos(
                measurement, options["chaos_sizes"], options["chaos_systems"], options["chaos_time"], rng
            )
            measures.measure_costs(measurement, options["cost_particles"], options["repeats"], options["cost_steps"])
            measures.measure_memory(measurement)

    def _measure_baseline(
        self, measurement: Measurement, contender: str, options: dict[str, Any], rng: np.random.Generator
    ) -> None:
        method, settings = BASELINES[contender]
        systems, time = options["baseline_systems"], options["baseline_time"]
        common = {"n": options["n"], "rng": rng}
        cases = [problems.interval_problem(q, systems) for q in (0.8, 1.2)]
        cases += [problems.simplex_problem(beta, systems) for beta in (0.0, 0.02)]
        for problem in cases:
            measures.run_problem(measurement, problem, method, time=time, **settings, **common)
        lr = XOR_LR[contender]
        soft = {"penalty": lr} if "penalty" in settings else {}
        measures.run_problem(
            measurement, self._xor(options), method, lr=lr, time=lr * options["xor_steps"], **soft, **common
        )
        if options["large"]:
            lr = LARGE_LR[contender]
            soft = {"penalty": lr} if "penalty" in settings else {}
            for problem, mirror_lr, mirror_time in self._large(options):  # as many steps as the mirror method
                steps = round(mirror_time / mirror_lr)
                measures.run_problem(measurement, problem, method, lr=lr, time=lr * steps, **soft, **common)

    def _measure_adam(self, measurement: Measurement, options: dict[str, Any], rng: np.random.Generator) -> None:
        """Minimize the loss alone, without entropy, and project: the law collapses, but the network is trained."""
        import torch

        problem = self._xor(options)
        domain = problem.domain("log")
        start = domain.start(options["n"], rng)
        best: dict[str, float] = {}
        for lr in (0.1, 0.02):
            units = torch.tensor(start)
            optimizer = torch.optim.Adam([units], lr=lr)
            for _ in range(options["xor_steps"]):
                units.grad = torch.tensor(problem.grad(units.numpy()))
                optimizer.step()
                units.copy_(domain.project(units))
            found = problem.measure(units.numpy())
            if not best or found["functional"] < best["functional"]:
                best = found
        for metric, value in best.items():
            measurement.add(metric, value, case=problem.name)

    def _measure_scipy(self, measurement: Measurement, options: dict[str, Any]) -> None:
        from scipy.optimize import minimize

        known = {"interval q=0.8": 0.6813597858, "interval q=1.2": 0.8557719642}
        for case, value in known.items():
            found = problems.exact_interval_mean(float(case.split("=")[1]), 0.05)
            measurement.add("mean_error", abs(found - value), case=case)
        for beta, mean in ((0.0, (0.61961, 0.21825, 0.16215)), (0.02, (0.60274, 0.22403, 0.17323))):
            found_mean = problems.exact_simplex_mean(beta, 0.05)
            measurement.add("mean_error", float(np.abs(found_mean - mean).sum()), case=f"simplex beta={beta:g}")
        if options["large"]:
            problem = problems.mixture_problem(np.random.default_rng(options["seed"] + 2))
            answer = minimize(
                lambda w: problem.measure(w[None])["functional"],
                np.full(10, 0.1),
                jac=lambda w: problem.grad(w[None])[0],
                bounds=[(0, 1)] * 10,
                constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
                method="SLSQP",
                options={"ftol": 1e-12, "maxiter": 500},
            )
            for metric, value in problem.measure(answer.x[None]).items():
                measurement.add(metric, value, case=problem.name)

    @staticmethod
    def _xor(options: dict[str, Any]) -> problems.Problem:
        return problems.xor_problem(options["n_train"], np.random.default_rng(options["seed"]))

    @staticmethod
    def _large(options: dict[str, Any]) -> tuple[tuple[problems.Problem, float, float], ...]:
        """Density matrices and mixing weights, with the step size and the time of the mirror method."""
        return (
            (problems.matrix_problem(10, np.random.default_rng(options["seed"] + 1)), 1.0, 100.0),
            (problems.mixture_problem(np.random.default_rng(options["seed"] + 2)), 1.0, 500.0),
        )

    def demonstrate(self) -> Sequence[Certificate]:
        """A law on the simplex with its mean close to a target and as much entropy as possible."""
        import numpy as np

        from assay.transport import Simplex, mirror_langevin

        target = np.array([0.7, 0.2, 0.1])
        run = mirror_langevin(
            lambda x: np.tile(2 * (x.mean(axis=0) - target), (len(x), 1)),
            500,
            domain=Simplex(3),
            temperature=0.05,
            lr=0.2,
            n_steps=300,
            rng=0,
            first_variation=lambda points, x: 2 * points @ (x.mean(axis=0) - target),
        )
        print(f"mean {run.mean.round(3)}, all at least {run.inside:.1e} inside")
        return run.certificates
