"""You have labels, preferences or responses: losses, estimators, and what their training losses promise."""

from assay.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
