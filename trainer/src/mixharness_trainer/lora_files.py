"""What a folder with an adapter is, for those who only read or pass it on. Torch-free."""

from __future__ import annotations

from pathlib import Path

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def is_adapter(folder: Path) -> bool:
    """Say whether a folder holds an adapter alone, in peft's layout."""
    return (folder / ADAPTER_CONFIG).is_file()
