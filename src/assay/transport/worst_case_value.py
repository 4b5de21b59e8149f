"""Former place of :mod:`assay.transport.dual_value`."""

from assay.transport.dual_value import WorstCaseValue, worst_case_value

__all__ = ["WorstCaseValue", "worst_case_value"]
