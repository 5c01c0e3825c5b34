"""The trainer's tables of the run file. Torch-free, so that a run file is checked in no time."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Table(BaseModel):
    """A run-file table: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyTable(Table):
    """`[policy]`: the model that is trained."""

    model: str = ""
    """Hugging Face folder. Empty: `[cold_start]` makes one."""
    renderer: str = "qwen3"
    """Chat renderer of the model's family."""
    context: int = Field(4096, gt=0)
    """Longest prompt plus completion, in tokens."""
    lora_rank: int = Field(0, ge=0)
    """Train adapters of this rank on every linear layer while the weights stand still; 0 trains
    the weights. An adapter takes memory for AdamW in proportion, and a learning rate some ten times
    higher."""
    lora_alpha: float = Field(32.0, gt=0.0)
    """The adapters' change of the weights counts alpha / rank times."""


class TrainerTable(Table):
    """`[trainer]`: how many rollouts make a step, and how it is taken."""

    steps: int = Field(20, ge=0)
    tasks_per_step: int = Field(4, gt=0)
    """Tasks drawn per step; each is tried `group_size` times in every harness, unless harnesses
    differ in `weight` or fix their `groups`."""
    group_size: int = Field(8, gt=0)
    max_staleness: int = Field(0, ge=0)
    """Most updates that the weights may have had since any token of a group was sampled. With 0 a
    step's rollouts are all sampled by the weights that it trains. Above that, rollouts of later
    steps start while it waits and go on while it updates; it takes the first groups to be complete,
    and those that grow older are dropped whole (`stale_groups`)."""
    lr: float = Field(5e-4, ge=0.0)
    """Learning rate of AdamW; 0 runs everything and changes nothing."""
    weight_decay: float = Field(0.0, ge=0.0)
    max_grad_norm: float = Field(1.0, gt=0.0)
    minibatches: int = Field(1, gt=0)
    epochs: int = Field(1, gt=0)
    loss_normalization: Literal["group", "rollout", "token", "harness"] | None = None
    """None: the optimizer's own default."""
    drop_unanimous: bool = False
    """Take groups without any advantage out of the loss's denominators. It does not apply to an
    optimizer with a critic, for which such groups teach like others."""
    gradient_cosine_every: int = Field(10, ge=0)
    """Steps between measurements of how far the harnesses' gradients agree, pair by pair; 0 makes
    none. It takes no more memory on the GPU, and in the host's a gradient per harness."""
    resample_zero_variance: int = Field(0, ge=0)
    """Rounds in which groups without any advantage give way to fresh ones, of other tasks in the
    same harness, before the update; not with a critic."""
    max_tokens_per_batch: int = Field(8192, gt=0)
    """Packed tokens of one forward pass; only memory and speed depend on it."""
    checkpoint_every: int = Field(10, gt=0)
    """Steps between checkpoints; the last step always writes one."""


class EvalTable(Table):
    """`[eval]`: held-out tasks before the first and after the last update."""

    samples: int = Field(1, gt=0)
    """Rollouts per held-out task and harness."""
    before: bool = True
    """Whether the policy is scored before the first update too, so that the gain is known."""


class ColdStartTable(Table):
    """`[cold_start]`: make a small policy out of scripted demonstrations in the run's harnesses."""

    script: str
    """`module:attribute` of a demonstrator: prompt text in, assistant turn out."""
    captures: int = Field(40, gt=0)
    """Cold-start tasks whose prompts the tokenizer is trained on."""
    vocab_size: int = Field(2048, ge=300)
    layers: int = Field(4, gt=0)
    hidden: int = Field(128, gt=0)
    heads: int = Field(4, gt=0)
    kv_heads: int = Field(1, gt=0)
    intermediate: int = Field(384, gt=0)
    epochs: int = Field(8, gt=0)
    groups_per_step: int = Field(8, gt=0)
    """(task, harness) pairs of one SFT update."""
    lr: float = Field(3e-3, gt=0.0)
    """Peak: ten updates up, level, and down to nothing over the last 40 %."""
    pass_threshold: float = Field(0.0, ge=0.0, le=1.0)
    """Demonstrations that score less are not imitated; 0 imitates mistakes too."""


TABLES: dict[str, type[BaseModel]] = {
    "policy": PolicyTable,
    "trainer": TrainerTable,
    "eval": EvalTable,
    "cold_start": ColdStartTable,
}
