"""Saves and resumes all that training depends on, without pickle. Publishing is weights.py's.

A checkpoint is a Hugging Face folder, which any engine loads, with a subfolder `trainer/` for
AdamW's state, the random state and the counters, and for the critic with all of its own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mixharness.errors import ConfigError
from mixharness.optimizer import CriticSettings
from mixharness.weights_rules import note_rules
from mixharness_trainer.adamw import restore_adamw
from mixharness_trainer.critic import Critic
from mixharness_trainer.policy import Policy, optimizer_state

log = structlog.get_logger()

_STATE, _TENSORS = "trainer/state.json", "trainer/state.safetensors"
_CRITIC = "trainer/critic.safetensors"


class CriticState(BaseModel):
    """What of the critic is no tensor."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: CriticSettings
    updates: int


class CheckpointState(BaseModel):
    """`trainer/state.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = 1
    step: int
    policy_version: int
    lr: float
    betas: tuple[float, float]
    weight_decay: float
    gap_history: list[float]
    render_rules: list[str]
    """Rules that shaped what the policy read, as `name@version`."""
    critic: CriticState | None = None
    loop: dict[str, Any]
    """What the train loop wants back, e.g. the tasks still to come."""


def save_checkpoint(
    policy: Policy,
    folder: Path,
    *,
    render_rules: Sequence[str] = (),
    loop: Mapping[str, Any] | None = None,
) -> None:
    """Save so that `folder` holds, at every moment, a whole checkpoint: the old one or this.

    `folder` is a symbolic link, turned from one sibling folder to the next in one step.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{folder.name}-{policy.step:06d}-"
    target = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    target.chmod(0o755)
    policy.save(target)
    note_rules(target, render_rules)
    (target / "trainer").mkdir()
    save_file(_tensors(policy), target / _TENSORS)
    if policy.critic is not None:
        save_file(_contiguous(policy.critic.tensors()), target / _CRITIC)
    state = _state(policy, render_rules, loop or {})
    (target / _STATE).write_text(state.model_dump_json(indent=2) + "\n")
    for file in (path for path in target.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    link = folder.with_name(f".{folder.name}.link")
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    link.replace(folder)
    for older in folder.parent.glob(f"{folder.name}-*"):
        if older != target:
            shutil.rmtree(older)
    log.info("checkpoint_saved", step=policy.step)


def load_checkpoint(folder: Path, *, device: str = "auto") -> tuple[Policy, CheckpointState]:
    """Return the policy as it was saved, and set torch's random state to the saved one.

    Raises:
        ConfigError: the folder holds no checkpoint, or one of another format.
    """
    try:
        state = CheckpointState.model_validate_json((folder / _STATE).read_bytes())
    except (OSError, ValidationError) as exc:
        message = f"holds no checkpoint this version reads ({_STATE}): {exc}"
        raise ConfigError("the checkpoint", [(str(folder), message)]) from exc
    policy = Policy.load(
        folder, lr=state.lr, betas=state.betas, weight_decay=state.weight_decay, device=device
    )
    policy.step, policy.version = state.step, state.policy_version
    policy.gap_alarm.history[:] = state.gap_history
    _restore(policy, load_file(folder / _TENSORS))
    if state.critic is not None:
        policy.critic = Critic.new(state.critic.settings, policy.model)
        policy.critic.updates = state.critic.updates
        policy.critic.restore(load_file(folder / _CRITIC))
    return policy, state


def _state(policy: Policy, render_rules: Sequence[str], loop: Mapping[str, Any]) -> CheckpointState:
    adam, critic = policy.adamw.param_groups[0], None
    if policy.critic is not None:
        critic = CriticState(settings=policy.critic.settings, updates=policy.critic.updates)
    return CheckpointState(
        step=policy.step,
        policy_version=policy.version,
        lr=policy.lr,
        betas=adam["betas"],
        weight_decay=adam["weight_decay"],
        gap_history=policy.gap_alarm.history,
        render_rules=list(render_rules),
        critic=critic,
        loop=dict(loop),
    )


def _tensors(policy: Policy) -> dict[str, Tensor]:
    tensors = {f"adamw.{name}": value for name, value in optimizer_state(policy).items()}
    tensors["rng.cpu"] = torch.get_rng_state()
    if policy.model.device.type == "cuda":
        tensors["rng.cuda"] = torch.cuda.get_rng_state(policy.model.device)
    return _contiguous(tensors)


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _restore(policy: Policy, tensors: dict[str, Tensor]) -> None:
    torch.set_rng_state(tensors.pop("rng.cpu"))
    cuda = tensors.pop("rng.cuda", None)
    if cuda is not None and policy.model.device.type == "cuda":
        torch.cuda.set_rng_state(cuda, policy.model.device)
    state = {name.removeprefix("adamw."): tensor for name, tensor in tensors.items()}
    restore_adamw(policy.adamw, dict(policy.model.named_parameters()), state)
