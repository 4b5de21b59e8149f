"""What lazy smooth boosting promises, evaluated anew from the learners and the constants of the projections."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from assay.certificate import Assumption, Certificate
from assay.supervised.amplitude_estimation import median_failure
from assay.supervised.lazy_boosting import BoostingTask

__all__ = ["boosting_certificates"]

_REPEATS = 7

# Beyond, the exponential is not a float; a weight never is that large.
_LARGEST = 700.0


def boosting_certificates(
    task: BoostingTask, estimators: list[Any], constants: list[float], projected_rounds: list[int], tests: int = 0
) -> tuple[Certificate, ...]:
    """Replay a run, and say what it promises.

    Parameters
    ----------
    task : BoostingTask
        Data and parameters.
    estimators : list of classifiers
        Weak learners in order.
    constants : list of float
        Logarithms of the constants of the projections.
    projected_rounds : list of int
        The rounds after which they were done.
    tests : int, default=0
        Densities that were estimated by amplitude estimation.

    Returns
    -------
    tuple of Certificate
        The potential, the training error, the smoothness, the number of projections and, if there were any, the
        smallest and largest density after one.
    """
    m, share, gamma, epsilon = len(task.codes), task.share, task.gamma, task.epsilon
    penalty = math.log1p(-gamma)
    log_measure = np.full(m, math.log(epsilon))
    after = dict(zip(projected_rounds, constants, strict=True))
    votes = np.zeros(m, dtype=np.int64)
    gains, densities, largest = [], [], 0.0
    for t, estimator in enumerate(estimators, start=1):
        relative = np.exp(log_measure - log_measure.max())
        total = float(share @ relative)
        largest = max(largest, epsilon * float(relative[share > 0.0].max()) / total)
        right = task.rounds.again(estimator) == task.codes
        gains.append(-math.log1p(-gamma * float((share * relative) @ right) / total))
        votes += right
        log_measure = log_measure + penalty * right
        if t in after:
            log_measure = np.minimum(0.0, log_measure + after[t])
            densities.append(float(share @ np.exp(log_measure)))
    rounds = len(estimators)
    error = float(share @ (2 * votes <= rounds))
    bound = max([epsilon, *densities])
    # The potential has to exceed what it is compared with.
    potential = Certificate(
        f"potential of the run, above which fewer than {bound:.4g} of the training examples are wrong",
        math.fsum(gains) + 0.5 * rounds * penalty,
        math.nextafter(math.log(1.0 / bound), math.inf),
        ">=",
    )
    lazy = min(task.period, max(rounds, 1)) - 1.0
    certificates = [
        potential,
        Certificate(
            "training error, even votes counted as errors",
            error,
            bound,
            assumptions=(Assumption("the potential is large enough", potential.holds),),
        ),
        Certificate(
            "largest weight of an example times epsilon n_samples, over all rounds",
            largest,
            math.exp(min(-lazy * penalty, _LARGEST)) * (1.0 + 1e-9),
        ),
        Certificate(
            "number of projections", float(len(constants)), math.floor(rounds / task.period) if task.period else 0.0
        ),
    ]
    if densities:
        failure = f", which fails with probability {min(1.0, tests * median_failure(_REPEATS)):.2g} at most"
        note = failure if tests else ""
        slack = 0.0 if task.projection == "exact" else task.delta
        certificates += [
            Certificate(f"smallest density after a projection{note}", min(densities), epsilon * (1.0 - 1e-9), ">="),
            Certificate(
                f"largest density after a projection{note}", max(densities), epsilon * (1.0 + slack) * (1.0 + 1e-9)
            ),
        ]
    return tuple(certificates)
