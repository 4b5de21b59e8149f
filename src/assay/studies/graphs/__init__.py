"""Studies of the family ``assay.graphs``."""
