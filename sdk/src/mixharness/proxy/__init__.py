"""The model-serving boundary: wire dialects outside, token ids inside."""
