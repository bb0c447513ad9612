"""A model as judge: calls, verdicts, judgments, calibration and probes."""
