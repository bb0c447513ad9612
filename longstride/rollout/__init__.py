"""Sampling from a policy: the generator protocol, the native generator, stop rules."""
