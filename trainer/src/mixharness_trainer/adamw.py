"""AdamW's state as named tensors, and back. Files are checkpoint.py's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def adamw_state(
    adamw: torch.optim.AdamW, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, Tensor]:
    """Return its tensors as `<parameter>.<state>`; empty before the first step."""
    return {
        f"{name}.{key}": value
        for name, parameter in parameters.items()
        for key, value in adamw.state.get(parameter, {}).items()
    }


def restore_adamw(
    adamw: torch.optim.AdamW,
    parameters: Mapping[str, torch.nn.Parameter],
    state: Mapping[str, Tensor],
) -> None:
    """Put back what `adamw_state` returned."""
    for full_name, tensor in state.items():
        name, key = full_name.rsplit(".", 1)
        # AdamW keeps its step counter on the CPU, whatever the parameter's device.
        device = "cpu" if key == "step" else parameters[name].device
        adamw.state[parameters[name]][key] = tensor.to(device)
