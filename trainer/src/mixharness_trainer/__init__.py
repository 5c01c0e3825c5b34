"""The trainer: packed trees, edges, losses, and the loop that reads top to bottom."""
