"""The report: a static site that opens from disk, with a page per study.

``pages`` says what a page shows, ``site`` writes it; ``numbers`` and ``listing`` set numbers and code.
"""

from assay.lab.report.listing import example_code
from assay.lab.report.site import write_report

__all__ = ["example_code", "write_report"]
