"""Studies of the family ``assay.optim``."""
