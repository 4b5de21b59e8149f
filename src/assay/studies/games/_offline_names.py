"""The names of the contenders, which listing the studies needs and nothing else."""

ROSE = "ROSE"
SOS_MD = "SOS-MD"
HARMONIC = "SOS-MD, harmonic"
PLUGIN = "plug-in"
PESSIMISTIC = "pessimistic VI"
TRUE_MODEL = "true model"
OPEN_SPIEL = "OpenSpiel"
