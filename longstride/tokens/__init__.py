"""Text to token ids and back: the byte-level BPE tokenizer and the chat template."""
