"""Numbers as bits: each feature is compared with a threshold, or with several."""

from __future__ import annotations

import re

import numpy as np
from jaxtyping import Float, UInt8

__all__ = ["ThresholdFeatures"]


class ThresholdFeatures:
    """Bits of the form ``x_j > t``, and representative numbers for bits.

    Parameters
    ----------
    X : numpy.ndarray of shape (n_samples, n_features)
        Numbers from which thresholds are taken. A threshold lies between two of the values that occur, so that a
        feature with two values has one, and a constant feature none.
    binarize : str or None
        ``"median"`` for one threshold per feature, ``"quantile(k)"`` for k of them at equal steps of probability, None
        when all entries are 0 and 1 already.

    Attributes
    ----------
    columns : numpy.ndarray of shape (n_bits,)
        Feature of each bit.
    thresholds : numpy.ndarray of shape (n_bits,)
        Threshold of each bit.

    Raises
    ------
    ValueError
        If ``binarize`` is unknown, or None and there are other entries than 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from assay.supervised.threshold_features import ThresholdFeatures
    >>> bits = ThresholdFeatures(np.array([[1.0, 7.0], [2.0, 7.0], [5.0, 7.0], [6.0, 7.0]]), "median")
    >>> bits.encode(np.array([[1.5, 0.0], [3.6, 0.0]])).tolist(), bits.decode(np.array([[1]], dtype=np.uint8)).tolist()
    ([[0], [1]], [[5.5, 7.0]])
    """

    def __init__(self, X: Float[np.ndarray, "n_samples n_features"], binarize: str | None) -> None:
        quantiles = _quantiles(binarize)
        if binarize is None and not np.isin(X, (0.0, 1.0)).all():
            odd = X[~np.isin(X, (0.0, 1.0))][0]
            raise ValueError(f"X must have entries 0 and 1 when binarize is None, got {odd:g}; use binarize='median'")
        columns, thresholds = [], []
        self._neighbours: list[tuple[float, float]] = []
        self._representatives = []
        for j, column in enumerate(X.T):
            cuts, neighbours = _cuts(column, quantiles)
            columns += [j] * len(cuts)
            thresholds += cuts
            self._neighbours += neighbours
            level = np.searchsorted(cuts, column, side="left")
            self._representatives.append(np.array([np.median(column[level == k]) for k in range(len(cuts) + 1)]))
        self.columns = np.array(columns, dtype=np.int64)
        self.thresholds = np.array(thresholds, dtype=float)

    def written(self) -> list[str]:
        """Thresholds as text, with the digits (six at least) that part the values they were put between."""
        texts = []
        for cut, (below, above) in zip(self.thresholds, self._neighbours, strict=True):
            candidates = (f"{cut:.{digits}g}" for digits in range(6, 18))
            texts.append(next(text for text in candidates if below <= float(text) < above))
        return texts

    def encode(self, X: Float[np.ndarray, "n_samples n_features"]) -> UInt8[np.ndarray, "n_samples n_bits"]:
        """Bits of numbers."""
        return (X[:, self.columns] > self.thresholds).astype(np.uint8)

    def decode(self, bits: UInt8[np.ndarray, "B n_bits"]) -> Float[np.ndarray, "B n_features"]:
        """Numbers with these bits: the median of the training values between the same thresholds.

        Of several thresholds of one feature as many are taken to be passed as have a 1.
        """
        numbers = np.empty((len(bits), len(self._representatives)))
        for j, representatives in enumerate(self._representatives):
            numbers[:, j] = representatives[bits[:, self.columns == j].sum(axis=1)]
        return numbers


def _quantiles(binarize: str | None) -> np.ndarray:
    if binarize is None or binarize == "median":
        return np.array([0.5])
    found = re.fullmatch(r"quantile\((\d+)\)", binarize) if isinstance(binarize, str) else None
    if found is None or int(found[1]) < 1:
        raise ValueError(f"binarize must be 'median', 'quantile(k)' with k of at least 1, or None, got {binarize!r}")
    return np.arange(1, int(found[1]) + 1) / (int(found[1]) + 1)


def _cuts(column: np.ndarray, quantiles: np.ndarray) -> tuple[list[float], list[tuple[float, float]]]:
    """Thresholds at the quantiles, and the two values that occur next to each."""
    values = np.unique(column)
    if len(values) < 2:
        return [], []
    upper = np.clip(np.searchsorted(values, np.quantile(column, quantiles), side="right"), 1, len(values) - 1)
    cuts, neighbours = [], []
    for k in np.unique(upper):
        below, above = float(values[k - 1]), float(values[k])
        middle = below + 0.5 * (above - below)
        cuts.append(middle if middle < above else below)
        neighbours.append((below, above))
    return cuts, neighbours
