"""mixharness plugin claude_code."""
