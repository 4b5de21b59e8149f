"""Studies of the family ``assay.transport``."""
