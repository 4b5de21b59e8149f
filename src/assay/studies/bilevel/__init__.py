"""Studies of the family ``assay.bilevel``."""
