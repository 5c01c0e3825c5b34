"""The trainer: packed trees, edges, losses, and the loop that reads top to bottom."""

import os

# Read once, when torch loads OpenMP. By default its idle threads spin, which on a machine that
# shares its cores with harness programs made an update 17 times slower (two cores, load 5).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
