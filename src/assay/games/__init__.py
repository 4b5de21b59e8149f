"""You have a game or a saddle point: solvers that say how far from equilibrium they stopped."""

from assay.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
