"""Held-out tasks, avg@k with clustered intervals, and paired comparisons."""
