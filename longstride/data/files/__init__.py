"""Text of the user's own, streamed from a disk or an object store."""
