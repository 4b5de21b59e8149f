"""You have labels, preferences or responses: losses, estimators, and what their training losses promise."""

from assay.supervised.amplitude_estimation import amplitude_estimate
from assay.supervised.best_path import viterbi
from assay.supervised.boolean_influence import influences
from assay.supervised.bregman_projection import Projection, bregman_project
from assay.supervised.choice_models import (
    BradleyTerry,
    Cauchit,
    ChoiceModel,
    ImpliedChoiceModel,
    RaoKupper,
    Thurstone,
    implied_choice_model,
)
from assay.supervised.greedy_tree import GreedyTree, build_topdown_tree
from assay.supervised.influence_tree_classifier import InfluenceTreeClassifier, distill
from assay.supervised.linear_core import LinearCoreTail, linear_core, linear_core_conjugate, linear_core_slope
from assay.supervised.linear_core_certificate import (
    ConsistencyReport,
    calibration_gap,
    consistency_certificate,
    consistency_constant_certificate,
)
from assay.supervised.linear_core_classifier import LinearCoreClassifier
from assay.supervised.linear_core_loss import LinearCoreLoss
from assay.supervised.policy_links import LogLink, PolicyLink, PowerLink
from assay.supervised.preference import PreferenceLoss, PreferenceOutput
from assay.supervised.preference_batches import PreferenceBatch, preference_batch
from assay.supervised.preference_certificate import PreferenceLossCertificate, certify_preference_loss
from assay.supervised.preference_files import read_preference_pairs
from assay.supervised.preference_fit import PreferenceFit, certify_preference_fit
from assay.supervised.preference_psi import FunctionLoss, MarginLoss
from assay.supervised.preference_ranker import PreferenceRanker
from assay.supervised.preference_trainer import PreferenceTrainer
from assay.supervised.proper_losses import ProperLoss, proper_loss
from assay.supervised.quantum_boost import QuantumBoostClassifier
from assay.supervised.rasch import RaschResult, fit_rasch
from assay.supervised.rasch_ability import rasch_abilities
from assay.supervised.rasch_calibration import ItemCalibration
from assay.supervised.rasch_certificate import rasch_certificates
from assay.supervised.rasch_conditional import rasch_cml
from assay.supervised.rasch_estimator import RaschPGEM
from assay.supervised.rasch_files import read_responses
from assay.supervised.rasch_fit import RaschFitStatistics, rasch_fit_statistics
from assay.supervised.rasch_joint import rasch_jml
from assay.supervised.rasch_marginal import rasch_mml
from assay.supervised.rasch_spectral import spectral_rasch
from assay.supervised.response_log_probs import SequenceLogProbs, sequence_log_probs
from assay.supervised.sequence_tagger import SequenceTagger
from assay.supervised.structured_consistency import structured_certificates, structured_consistency_certificate
from assay.supervised.structured_linear_core import StructuredLinearCore
from assay.supervised.tabular_policies import TabularPolicy, tabular_policy

__all__ = [
    "BradleyTerry",
    "Cauchit",
    "ChoiceModel",
    "ConsistencyReport",
    "FunctionLoss",
    "GreedyTree",
    "ImpliedChoiceModel",
    "InfluenceTreeClassifier",
    "ItemCalibration",
    "LinearCoreClassifier",
    "LinearCoreLoss",
    "LinearCoreTail",
    "LogLink",
    "MarginLoss",
    "PolicyLink",
    "PowerLink",
    "PreferenceBatch",
    "PreferenceFit",
    "PreferenceLoss",
    "PreferenceLossCertificate",
    "PreferenceOutput",
    "PreferenceRanker",
    "PreferenceTrainer",
    "Projection",
    "ProperLoss",
    "QuantumBoostClassifier",
    "RaoKupper",
    "RaschFitStatistics",
    "RaschPGEM",
    "RaschResult",
    "SequenceLogProbs",
    "SequenceTagger",
    "StructuredLinearCore",
    "TabularPolicy",
    "Thurstone",
    "amplitude_estimate",
    "bregman_project",
    "build_topdown_tree",
    "calibration_gap",
    "certify_preference_fit",
    "certify_preference_loss",
    "consistency_certificate",
    "consistency_constant_certificate",
    "distill",
    "fit_rasch",
    "implied_choice_model",
    "influences",
    "linear_core",
    "linear_core_conjugate",
    "linear_core_slope",
    "preference_batch",
    "proper_loss",
    "rasch_abilities",
    "rasch_certificates",
    "rasch_cml",
    "rasch_fit_statistics",
    "rasch_jml",
    "rasch_mml",
    "read_preference_pairs",
    "read_responses",
    "sequence_log_probs",
    "spectral_rasch",
    "structured_certificates",
    "structured_consistency_certificate",
    "tabular_policy",
    "viterbi",
]
