"""You have a torch training loop: optimizers that keep a promise at every step, and what checks it."""

from assay.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
