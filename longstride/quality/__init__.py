"""Quality gates: measure an artifact, run its edge's suite, decide, and say so.

`gate.run_gate` is the entry. Measuring (`measure_*`) is apart from judging (`run_suite`, the only
place that imports Great Expectations) and from deciding (`longstride.gates`).
"""
