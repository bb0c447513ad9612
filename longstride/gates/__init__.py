"""Decisions as pure functions: measured facts in, a verdict or a ladder decision out."""
