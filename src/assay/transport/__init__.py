"""You have distributions: couplings with exact marginals, and bounds on how far from optimal they are."""

from assay.transport.exact_transport import exact_transport
from assay.transport.graph_aligner import GraphAligner
from assay.transport.gromov_wasserstein import GWResult, lobcd_gw
from assay.transport.gw_bounds import (
    coupling_violation,
    frank_wolfe_gap,
    gw_value,
    second_lower_bound,
)
from assay.transport.sinkhorn import round_to_marginals, sinkhorn_scaling

__all__ = [
    "GWResult",
    "GraphAligner",
    "coupling_violation",
    "exact_transport",
    "frank_wolfe_gap",
    "gw_value",
    "lobcd_gw",
    "round_to_marginals",
    "second_lower_bound",
    "sinkhorn_scaling",
]
