"""From a task and a harness to a scored rollout on disk. What is sampled is the proxy's."""
