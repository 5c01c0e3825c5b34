"""The model-serving boundary: three wire dialects outside, token ids inside."""
