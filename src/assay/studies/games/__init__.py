"""Studies of the family ``assay.games``."""
