"""You have distributions: couplings and maps, divergences, mixtures, worst cases, and how far off each is."""

from assay.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
