"""You have a graph: tours from edge scores, with a certificate, and what they are made of."""

from assay.graphs.edge_heatmap import EdgeHeatmapClassifier, edge_features
from assay.graphs.heatmap_tour import TourResult, christofides, decode_heatmap, heatmap_error, heatmap_tsp
from assay.graphs.local_search import or_opt, two_opt
from assay.graphs.matching import (
    MatchingResult,
    dual_bound,
    matching_lower_bound,
    min_weight_perfect_matching,
    perfect_matching,
)
from assay.graphs.tour_bounds import HeldKarpResult, held_karp_bound, one_tree_bound
from assay.graphs.tour_certificates import MetricCheck, triangle_check
from assay.graphs.tour_decoders import beam_decode, greedy_decode, kopt_decode

__all__ = [
    "EdgeHeatmapClassifier",
    "HeldKarpResult",
    "MatchingResult",
    "MetricCheck",
    "TourResult",
    "beam_decode",
    "christofides",
    "decode_heatmap",
    "dual_bound",
    "edge_features",
    "greedy_decode",
    "heatmap_error",
    "heatmap_tsp",
    "held_karp_bound",
    "kopt_decode",
    "matching_lower_bound",
    "min_weight_perfect_matching",
    "one_tree_bound",
    "or_opt",
    "perfect_matching",
    "triangle_check",
    "two_opt",
]
