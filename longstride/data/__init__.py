"""From sources to training rows: readers, the mixture, tasks, traces, packing and curation."""
