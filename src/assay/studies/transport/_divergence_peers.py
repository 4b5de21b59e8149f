"""What people estimate divergences with today: classifiers, neighbours, Gram matrices."""

from __future__ import annotations

import numpy as np

__all__ = ["gram_value", "logistic_value", "neighbour_value"]


def logistic_value(P: np.ndarray, Q: np.ndarray, alpha: float, rng: np.random.Generator) -> tuple[float, float]:
    """Functional of the log-odds of scikit-learn's logistic regression, on training and held-out points."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    from assay.studies.transport._neural_critics import split
    from assay.transport import AmariDivergence

    divergence = AmariDivergence(alpha)
    parts = [split(sample, rng) for sample in (P, Q)]
    X = np.concatenate([parts[0][0], parts[1][0]])
    y = np.repeat([1, 0], [len(parts[0][0]), len(parts[1][0])])
    # With squares, the true log-ratio of two normal laws is among the models.
    model = make_pipeline(
        PolynomialFeatures(2, include_bias=False), StandardScaler(), LogisticRegression(max_iter=1000)
    )
    model.fit(X, y)
    prior = np.log(len(parts[0][0]) / len(parts[1][0]))
    values = [
        divergence.p_integrand(model.decision_function(p) - prior)[0].mean()
        + divergence.q_integrand(model.decision_function(q) - prior)[0].mean()
        for p, q in zip(*parts, strict=True)
    ]
    return float(values[0]), float(values[1])


def neighbour_value(P: np.ndarray, Q: np.ndarray, alpha: float, k: int = 5) -> float:
    """Estimate of Poczos and Schneider from distances to the k-th neighbour, by scikit-learn's trees."""
    from scipy.special import gammaln
    from sklearn.neighbors import NearestNeighbors

    n, m, dimension = len(P), len(Q), P.shape[1]
    own = NearestNeighbors(n_neighbors=k + 1).fit(P).kneighbors(P)[0][:, k]
    other = NearestNeighbors(n_neighbors=k).fit(Q).kneighbors(P)[0][:, k - 1]
    log_ratio = np.log(n - 1) - np.log(m) + dimension * (np.log(own) - np.log(other))
    correction = 2 * gammaln(k) - gammaln(k - alpha + 1) - gammaln(k + alpha - 1)
    integral = float(np.mean(np.exp((1 - alpha) * log_ratio + correction)))
    return (integral - 1) / (alpha * (alpha - 1))


def gram_value(P: np.ndarray, Q: np.ndarray, alpha: float, ridge: float = 1e-4) -> float:
    """Penalised functional over the whole kernel space: Gram matrix, Cholesky factor, L-BFGS of SciPy."""
    from scipy.linalg import cholesky
    from scipy.optimize import minimize
    from scipy.spatial.distance import pdist
    from sklearn.metrics.pairwise import rbf_kernel

    from assay.transport import AmariDivergence

    divergence = AmariDivergence(alpha)
    X = np.concatenate([P, Q])
    scale = float(np.median(pdist(X[:: max(1, len(X) // 1000)])))
    gram = rbf_kernel(X, gamma=0.5 / scale**2)
    gram[np.diag_indices_from(gram)] += 1e-8
    factor = cholesky(gram, lower=True, overwrite_a=True, check_finite=False)
    n = len(P)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        g = factor @ theta
        p_value, p_slope, _ = divergence.p_integrand(g[:n])
        q_value, q_slope, _ = divergence.q_integrand(g[n:])
        slope = np.concatenate([p_slope / n, q_slope / len(Q)])
        return (
            0.5 * ridge * float(theta @ theta) - p_value.mean() - q_value.mean(),
            ridge * theta - slope @ factor,
        )

    return -float(minimize(loss, np.zeros(len(X)), jac=True, method="L-BFGS-B", options={"maxiter": 200}).fun)
