"""mixharness plugin office."""
