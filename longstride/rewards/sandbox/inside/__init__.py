"""Scripts that run in the jail, on the standard library alone."""
