"""Measures of text: what can be counted about a document, apart from what is decided by it."""
