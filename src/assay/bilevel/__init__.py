"""You have a problem inside a problem: hypergradients, differentiable optimization, and what bounds them."""

from assay.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
