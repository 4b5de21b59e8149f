"""Studies of the family ``assay.supervised``."""
