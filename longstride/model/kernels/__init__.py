"""Fused CPU kernels in C, compiled once on the machine that runs them.

They are optional: without a C compiler, on other devices and in other types, the PyTorch
operations beside each caller compute the same.
"""
