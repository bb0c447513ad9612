"""The jail of programs that a model wrote: what builds it, its limits, and those that wait."""
