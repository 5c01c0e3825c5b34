"""Saves and resumes all that training depends on, without pickle. Publishing is weights.py's.

A checkpoint is a Hugging Face folder, which any engine loads, with a subfolder `trainer/` for
AdamW's state and the counters, and for the critic with all of its own. Adapters are merged into the
weights, and stand in `adapter/` too, to go on from with the weights that they were made for. No
generator's state is in it: what is random in a step is drawn from the run's seed and the step's
number.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mixharness.errors import ConfigError
from mixharness.optimizer import CriticSettings
from mixharness.weights_rules import note_rules
from mixharness_trainer.adamw import restore_adamw
from mixharness_trainer.critic import Critic
from mixharness_trainer.lora import ADAPTER, Lora, restore_adapter
from mixharness_trainer.policy import Policy, optimizer_state

log = structlog.get_logger()

_STATE, _TENSORS = "trainer/state.json", "trainer/state.safetensors"
_CRITIC = "trainer/critic.safetensors"


class CriticState(BaseModel):
    """What of the critic is no tensor."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: CriticSettings
    updates: int


class LoopState(BaseModel):
    """How far the train loop is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int = 0
    """Steps taken, those without an update included: the cursor in the tasks' order."""
    history: list[dict[str, Any]] = Field(default_factory=list)
    """The metrics of each step."""
    wall_s: float = 0.0
    """Time taken; what was lost by kills is not in it."""


class CheckpointState(BaseModel):
    """`trainer/state.json`."""

    # A gap may be no number, which pydantic would write as null and not read again.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    format: Literal[2] = 2
    step: int
    policy_version: int
    lr: float
    betas: tuple[float, float]
    weight_decay: float
    gap_history: list[float]
    render_rules: list[str]
    """Rules that shaped what the policy read, as `name@version`."""
    critic: CriticState | None = None
    loop: LoopState


def save_checkpoint(
    policy: Policy,
    folder: Path,
    *,
    render_rules: Sequence[str] = (),
    loop: LoopState | None = None,
) -> None:
    """Save so that `folder` holds, at every moment, a whole checkpoint: the old one or this.

    `folder` is a symbolic link, turned from one sibling folder to the next in one step.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{folder.name}-{policy.step:06d}-"
    target = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    target.chmod(0o755)
    policy.save(target)
    if policy.lora is not None:
        policy.save_adapter(target / ADAPTER)
    note_rules(target, render_rules)
    (target / "trainer").mkdir()
    save_file(_contiguous(optimizer_state(policy)), target / _TENSORS)
    if policy.critic is not None:
        save_file(_contiguous(policy.critic.tensors()), target / _CRITIC)
    state = _state(policy, render_rules, loop or LoopState())
    (target / _STATE).write_text(state.model_dump_json(indent=2) + "\n")
    for file in (path for path in target.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    link = folder.with_name(f".{folder.name}.link")
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    link.replace(folder)
    remove_unfinished(folder)
    log.info("checkpoint_saved", step=policy.step)


def remove_unfinished(folder: Path) -> None:
    """Remove what a save that was killed left beside the checkpoint, and older ones."""
    for other in folder.parent.glob(f"{folder.name}-*"):
        if other.name != folder.readlink().name:
            shutil.rmtree(other)


def load_checkpoint(
    folder: Path, *, device: str = "auto", base: Path | None = None, lora: Lora | None = None
) -> tuple[Policy, CheckpointState]:
    """Return the policy as it was saved, and all else of the checkpoint.

    Args:
        folder: the checkpoint.
        device: see `Policy.load`.
        base: the folder of the policy as the run began; needed with `lora` only.
        lora: what the run trains.

    Raises:
        ConfigError: the folder holds no checkpoint, or one of another format.
    """
    try:
        state = CheckpointState.model_validate_json((folder / _STATE).read_bytes())
    except (OSError, ValidationError) as exc:
        message = f"holds no checkpoint this version reads ({_STATE}): {exc}"
        raise ConfigError("the checkpoint", [(str(folder), message)]) from exc
    policy = Policy.load(
        folder if lora is None or base is None else base,
        lr=state.lr,
        betas=state.betas,
        weight_decay=state.weight_decay,
        device=device,
        lora=lora,
    )
    if lora is not None:
        restore_adapter(policy.model, folder / ADAPTER)
    policy.step, policy.version = state.step, state.policy_version
    policy.gap_alarm.history[:] = state.gap_history
    restore_adamw(policy.adamw, dict(policy.model.named_parameters()), load_file(folder / _TENSORS))
    if state.critic is not None:
        policy.critic = Critic.new(state.critic.settings, policy.model)
        policy.critic.updates = state.critic.updates
        policy.critic.restore(load_file(folder / _CRITIC))
    return policy, state


def _state(policy: Policy, render_rules: Sequence[str], loop: LoopState) -> CheckpointState:
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
        loop=loop,
    )


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
