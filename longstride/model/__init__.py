"""The hybrid model: layers, log-probabilities, checkpoints, decoding.

Import from the modules themselves (`longstride.model.hybrid` and so on): this package imports
nothing, so that looking at it does not load torch.
"""
