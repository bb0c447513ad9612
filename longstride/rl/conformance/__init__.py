"""Numeric cases that every implementation of these objectives must agree with."""
