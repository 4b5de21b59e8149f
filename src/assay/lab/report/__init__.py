"""The report: a static site that opens from disk, with a page per study.

``results`` and ``pages`` say what is shown, ``site`` writes it; ``numbers`` and ``listing`` set numbers and code.
"""

from assay.lab.report.listing import example_code
from assay.lab.report.site import write_report

__all__ = ["example_code", "write_report"]
