"""What the answer of the hierarchy promises, evaluated from its moments, its multipliers and its atoms."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from assay.certificate import Assumption, Certificate
from assay.transport.atom_extraction import moment_ranks
from assay.transport.mixture_level import INSIDE, Level, mixing_matrix, mixing_moments, rank_step
from assay.transport.mixture_problem import MixtureProblem

__all__ = ["mixture_certificates"]

# By how much a lower bound may fall from one level to the next: the accuracy of the solver.
_MONOTONE = 1e-6

# A value above its lower bound by no more than this is solved, tie-break aside.
_SOLVED = 1e-4


def mixture_certificates(
    problem: MixtureProblem,
    levels: Sequence[Level],
    lower: float,
    upper: float,
    upper_se: float,
    trace_weight: float,
) -> tuple[Certificate, ...]:
    """Promises in scaled units, each from the moments, the multipliers and the atoms anew."""
    level = levels[-1]
    relaxation, phi, atoms = level.relaxation, level.solution.phi, level.atoms
    matrix = mixing_matrix(phi, relaxation)
    certificates = []
    if not np.isnan(upper):
        draws = (Assumption("the distance of the mixture, estimated from draws, is not too low by chance"),)
        certificates.append(
            Certificate(
                "lower bound on the distance to the family, against the distance of the returned mixture",
                lower,
                # Two standard errors of chance, and the quadrature.
                upper + 2.0 * upper_se + 1e-9,
                assumptions=draws if upper_se else (),
            )
        )
    certificates.append(
        Certificate(
            "value of the relaxation above the proved lower bound, the tie-break aside",
            level.solution.value - level.lower,
            _SOLVED + trace_weight * float(np.trace(matrix)),
        )
    )
    if len(levels) > 1:
        fall = max(a.lower - b.lower for a, b in itertools.pairwise(levels))
        certificates.append(Certificate("fall of the lower bound from a level to the next", fall, _MONOTONE))
    step = rank_step(problem)
    ranks = moment_ranks(matrix, problem.n_params, relaxation.order, level.rank_tol)
    certificates.append(
        Certificate(
            f"rank of the moment matrix of the mixing measure, beyond that of {step} order{'s' * (step > 1)} below",
            ranks[-1] - ranks[max(relaxation.order - step, 0)],
            0.0,
        )
    )
    if len(atoms.weights):
        certificates += [
            Certificate("distance of the atoms from the parameter set", problem.set_violation(atoms.points), INSIDE),
            Certificate("error of the sum of the weights", abs(float(atoms.weights.sum()) - 1.0), 1e-12),
            Certificate(
                "moments of the atoms, against those of the relaxation (up to what the rank test neglects)",
                float(abs(mixing_moments(atoms, relaxation) - phi).max()),
                level.rank_tol * float(np.linalg.eigvalsh(matrix)[-1]),
            ),
        ]
    return tuple(certificates)
