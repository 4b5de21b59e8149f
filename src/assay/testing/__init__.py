"""Contracts to check one's own implementation against, as scikit-learn's ``check_estimator`` does for estimators."""

from assay.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
