"""mixharness plugin agentloop."""
