"""The policy under training: model, AdamW, and a new small one from nothing. Steps: update.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mixharness.optimizer import Optimizer
from mixharness_trainer.adamw import adamw_state
from mixharness_trainer.attention import TREE_ATTENTION, Layout, layout_for
from mixharness_trainer.critic import Critic
from mixharness_trainer.lora import Lora, add_adapters, merged, save_adapter
from mixharness_trainer.loss import GapAlarm

log = structlog.get_logger()

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
INIT_STD = 0.04
"""Twice the family's default, which suits far wider models and leaves this one on a plateau."""
END_OF_TURN, PADDING = "<|im_end|>", "<|endoftext|>"


@dataclass(slots=True, kw_only=True)
class Policy:
    """The weights being trained and what lives as long as they do. Owned by the train loop."""

    model: PreTrainedModel
    adamw: torch.optim.AdamW
    layout: Layout
    tokenizer_files: dict[str, bytes]
    """File name to content, carried from the source folder into every saved one."""
    version: int = 0
    """Number of the weights as the engine knows them."""
    step: int = 0
    """Updates done."""
    gap_alarm: GapAlarm = field(default_factory=GapAlarm)
    reference: PreTrainedModel | None = None
    """The policy as the run began, frozen; only for an optimizer that reads it."""
    critic: Critic | None = None
    """The value model; only for an optimizer that asks for one."""
    lora: Lora | None = None
    """Adapters that are trained while the rest stands still; None trains all weights."""

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        device: str = "auto",
        lora: Lora | None = None,
    ) -> Policy:
        """Load a Hugging Face folder: float32 on a CPU, bfloat16 and FlexAttention on CUDA.

        With `lora` the folder's weights stay, and new adapters are trained.

        Raises:
            ConfigError: the model family cannot be trained here, with the reason.
        """
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        model, layout = _load_model(folder, device)
        if lora is not None:
            add_adapters(model, lora)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        adamw = torch.optim.AdamW(trained, lr=lr, betas=betas, weight_decay=weight_decay)
        files = [Path(folder, name) for name in TOKENIZER_FILES]
        contents = {file.name: file.read_bytes() for file in files if file.exists()}
        return cls(model=model, adamw=adamw, layout=layout, tokenizer_files=contents, lora=lora)

    def equip(self, optimizer: Optimizer[Any], folder: Path) -> None:
        """Load the reference and make the critic that the optimizer asks for, if any.

        A critic that a checkpoint brought along is kept.

        Args:
            optimizer: of the run.
            folder: the policy's as the run began.
        """
        if optimizer.reference != "none":
            model, _ = _load_model(folder, str(self.model.device))
            self.reference = model.requires_grad_(False)
        if optimizer.critic is not None and self.critic is None:
            self.critic = Critic.new(optimizer.critic, self.model)

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        """Return the parameters that updates move."""
        return list(self.adamw.param_groups[0]["params"])

    @property
    def lr(self) -> float:
        """Return the learning rate of the next step."""
        return float(self.adamw.param_groups[0]["lr"])

    def set_lr(self, value: float) -> None:
        """Set the learning rate of the steps to come."""
        for group in self.adamw.param_groups:
            group["lr"] = value

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder (safetensors, configs, tokenizer) that any engine loads.

        Adapters are merged into the weights.
        """
        state = None if self.lora is None else merged(self.model)
        self.model.save_pretrained(folder, state_dict=state)
        for name, content in self.tokenizer_files.items():
            Path(folder, name).write_bytes(content)

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter alone, as peft does.

        Raises:
            ValueError: there is none.
        """
        if self.lora is None:
            raise ValueError("a policy without adapters has none to save")
        save_adapter(self.model, self.lora, folder)


def _load_model(folder: Path, device: str) -> tuple[PreTrainedModel, Layout]:
    on_cuda = device.startswith("cuda")
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16 if on_cuda else torch.float32,
        attn_implementation="sdpa",
    )
    layout, reason = layout_for(model.config)
    if layout is Layout.TREE:
        model.set_attn_implementation("flex_attention" if on_cuda else TREE_ATTENTION)
    log.info("policy_loaded", layout=layout.value, reason=reason, device=device)
    model.to(device)
    model.eval()  # no dropout, ever: three passes must see one function
    return model, layout


def weight_hash(policy: Policy) -> str:
    """Return a SHA-256 over all weights, names included."""
    return _hash(policy.model.named_parameters())


def optimizer_hash(policy: Policy) -> str:
    """Return a SHA-256 over AdamW's state and all of the critic, names included."""
    critic = policy.critic.tensors() if policy.critic is not None else {}
    named = {f"critic.{name}": tensor for name, tensor in critic.items()}
    return _hash((optimizer_state(policy) | named).items())


def optimizer_state(policy: Policy) -> dict[str, Tensor]:
    """Return AdamW's tensors as `<parameter>.<state>`; empty before the first step."""
    return adamw_state(policy.adamw, dict(policy.model.named_parameters()))


def _hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        digest.update(name.encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyShape:
    """Size of a policy made from nothing; the default has about a million parameters."""

    layers: int = 4
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 384
    context: int = 4096


def new_policy(folder: Path, tokenizer: Tokenizer, shape: PolicyShape, seed: int) -> Path:
    """Make an untrained Qwen3-type policy in `folder` and return the folder.

    The same seed gives the same weights; torch's global random state is left as it was.

    Raises:
        ValueError: the tokenizer lacks the end-of-turn or the padding token.
    """
    end, padding = (_special_id(tokenizer, token) for token in (END_OF_TURN, PADDING))
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        initializer_range=INIT_STD,
        eos_token_id=end,
        pad_token_id=padding,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    # vLLM samples by this file where a request is silent: state the training distribution.
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, top_k=0, eos_token_id=end, pad_token_id=padding
    )
    model.save_pretrained(folder)
    tokenizer.save(str(Path(folder, "tokenizer.json")))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": PADDING,
        "model_max_length": shape.context,
        "clean_up_tokenization_spaces": False,
    }
    Path(folder, "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return folder


def _special_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token!r}, which ends or pads a turn")
    return int(found)
