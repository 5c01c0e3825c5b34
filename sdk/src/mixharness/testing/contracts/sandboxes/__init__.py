"""The contract of sandboxes, by topic. `SandboxContract` (contracts/sandbox.py) is all of it."""
