"""The name of the default base image, apart so that reading it does not import docker."""

from __future__ import annotations

IMAGE_VERSION = "1"
"""Goes up with every change of what is in the image."""
DEFAULT_IMAGE = f"mixharness-base:{IMAGE_VERSION}"
