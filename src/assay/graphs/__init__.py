"""You have a graph: tours from edge scores, with a certificate, and what they are made of."""

from assay.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
