"""You have distributions: couplings and maps, divergences, mixtures, worst cases, and how far off each is."""

from assay.transport.alpha_divergence import AlphaDivergence, AlphaResult, alpha_divergence
from assay.transport.amari_divergence import AmariDivergence, CriticDivergence
from assay.transport.armijo_sgd import ArmijoSGD
from assay.transport.atom_extraction import Atoms, extract_atoms
from assay.transport.closest_mixture import MixtureResult, closest_mixture
from assay.transport.convex_domain import Domain
from assay.transport.divergence_error_terms import ArmijoRate, ErrorTerms, armijo_rate, divergence_error_terms
from assay.transport.dro_certificate import DROCertificate, certify_robustness
from assay.transport.dro_flow import DROTrainer
from assay.transport.dual_value import WorstCaseValue, worst_case_value
from assay.transport.exact_transport import exact_transport
from assay.transport.flow_sampler import FlowSampler, WorstCase
from assay.transport.gan_critic import RFFCritic, gan_value
from assay.transport.generalized_convex import GCFLayer
from assay.transport.graph_aligner import GraphAligner
from assay.transport.gromov_wasserstein import GWResult, lobcd_gw
from assay.transport.gw_bounds import coupling_violation, frank_wolfe_gap, gw_value, second_lower_bound
from assay.transport.langevin_baselines import penalized_langevin, projected_langevin
from assay.transport.langevin_residual import FixedPointResidual, fixed_point_residual
from assay.transport.langevin_run import LangevinResult
from assay.transport.mechanism_certificates import incentive_violation, mechanism_certificates, participation_violation
from assay.transport.mirror_domains import Ball, Box, Orthant
from assay.transport.mirror_flow import FlowResult, mirror_flow_1d
from assay.transport.mirror_langevin import mirror_langevin
from assay.transport.mirror_langevin_certificate import certify_langevin, certify_scaling
from assay.transport.mirror_optimizer import MirrorLangevin
from assay.transport.mirror_polytope import Polytope
from assay.transport.mirror_simplex import Simplex, Spectraplex
from assay.transport.mirror_user_domain import as_domain
from assay.transport.mixture_families import (
    ExponentialFamily,
    GaussianFamily,
    MixtureFamily,
    PoissonFamily,
    PolynomialFamily,
)
from assay.transport.moment_matrices import raw_moments
from assay.transport.moment_mixture_clustering import MomentMixtureClustering
from assay.transport.optimal_auction import AuctionResult, QuadraticProductionCost, bundle_grid, optimal_auction
from assay.transport.robust_classifier import RobustClassifier
from assay.transport.semidiscrete_transport import TransportResult, transport_map
from assay.transport.separable_transport import SeparableTransport
from assay.transport.sinkhorn import round_to_marginals, sinkhorn_scaling
from assay.transport.temperature_schedules import cosine_temperature, geometric_temperature
from assay.transport.transport_kernels import DotKernel, HingeKernel, NegatedCost, PowerCost, SquaredEuclideanCost

__all__ = [
    "AlphaDivergence",
    "AlphaResult",
    "AmariDivergence",
    "ArmijoRate",
    "ArmijoSGD",
    "Atoms",
    "AuctionResult",
    "Ball",
    "Box",
    "CriticDivergence",
    "DROCertificate",
    "DROTrainer",
    "Domain",
    "DotKernel",
    "ErrorTerms",
    "ExponentialFamily",
    "FixedPointResidual",
    "FlowResult",
    "FlowSampler",
    "GCFLayer",
    "GWResult",
    "GaussianFamily",
    "GraphAligner",
    "HingeKernel",
    "LangevinResult",
    "MirrorLangevin",
    "MixtureFamily",
    "MixtureResult",
    "MomentMixtureClustering",
    "NegatedCost",
    "Orthant",
    "PoissonFamily",
    "PolynomialFamily",
    "Polytope",
    "PowerCost",
    "QuadraticProductionCost",
    "RFFCritic",
    "RobustClassifier",
    "SeparableTransport",
    "Simplex",
    "Spectraplex",
    "SquaredEuclideanCost",
    "TransportResult",
    "WorstCase",
    "WorstCaseValue",
    "alpha_divergence",
    "armijo_rate",
    "as_domain",
    "bundle_grid",
    "certify_langevin",
    "certify_robustness",
    "certify_scaling",
    "closest_mixture",
    "cosine_temperature",
    "coupling_violation",
    "divergence_error_terms",
    "exact_transport",
    "extract_atoms",
    "fixed_point_residual",
    "frank_wolfe_gap",
    "gan_value",
    "geometric_temperature",
    "gw_value",
    "incentive_violation",
    "lobcd_gw",
    "mechanism_certificates",
    "mirror_flow_1d",
    "mirror_langevin",
    "optimal_auction",
    "participation_violation",
    "penalized_langevin",
    "projected_langevin",
    "raw_moments",
    "round_to_marginals",
    "second_lower_bound",
    "sinkhorn_scaling",
    "transport_map",
    "worst_case_value",
]
