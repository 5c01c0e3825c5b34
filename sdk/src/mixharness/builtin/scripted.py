"""The `scripted` engine: plays turns instead of sampling them. A double that is product.

Its ids are consistent with a real tokenizer; its log-probs are made up and marked so.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import model_validator
from tokenizers import Tokenizer

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.chat_template import read_chat_template
from mixharness.component import ComponentConfig
from mixharness.engine import EngineTokenizer, GenerateRequest, Generation, InferenceEngine
from mixharness.types import VersionSpan

_LOGPROB = -1.0
_END = "<|im_end|>"


class ScriptedConfig(ComponentConfig):
    """What to play, over which tokenizer. Exactly one of `turns` and `script`."""

    turns: tuple[str, ...] = ()
    """Assistant turns in the model's own wire form, played in order in each session; the last one
    is repeated."""
    script: str = ""
    """`module:attribute` of a callable from the decoded prompt to the assistant's turn."""
    tokenizer: str = ""
    """Folder with a `tokenizer.json`; empty for a built-in one of single bytes."""
    renderer: str = "qwen3"
    """A family of chat templates, or `template` for the one in the tokenizer's folder."""
    context: int = 32768
    """Longest prompt plus completion, in tokens."""

    @model_validator(mode="after")
    def _one_source(self) -> ScriptedConfig:
        if bool(self.turns) == bool(self.script):
            raise ValueError("set exactly one of `turns` and `script`")
        return self


class ScriptedEngine(InferenceEngine[ScriptedConfig]):
    """Plays a script per session; same requests, same ids."""

    name: ClassVar[str] = "scripted"
    config_type: ClassVar[type[ComponentConfig]] = ScriptedConfig
    fake_logprobs: ClassVar[bool] = True

    def __init__(self, config: ScriptedConfig) -> None:
        super().__init__(config)
        self._version = 0
        self._played: Counter[str] = Counter()
        self._script: Callable[[str], str] | None = None
        self._tokenizer: Tokenizer | None = None
        self._template, self._special_tokens = "", dict[str, str]()

    async def start(self) -> None:
        """Load tokenizer and script.

        Raises:
            ValueError: the script cannot be imported.
        """
        folder = self.config.tokenizer
        path = str(Path(folder) / "tokenizer.json")
        self._tokenizer = Tokenizer.from_file(path) if folder else byte_tokenizer()
        if folder:
            self._template, self._special_tokens = read_chat_template(Path(folder))
        self._script = _load(self.config.script) if self.config.script else None

    @property
    def tokenizer(self) -> EngineTokenizer:
        """The tokenizer; valid after `start`."""
        return EngineTokenizer(
            tokenizer=self._loaded,
            renderer=self.config.renderer,
            context=self.config.context,
            chat_template=self._template,
            special_tokens=self._special_tokens,
        )

    @property
    def policy_version(self) -> int:
        """Number of the weights that would sample now."""
        return self._version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Play the session's next turn, cut off at `max_tokens`."""
        text = self._turn(request).removesuffix(_END) + _END
        ids = self._loaded.encode(text, add_special_tokens=False).ids
        limit = request.sampling.max_tokens
        cut = tuple(ids[:limit])
        return Generation(
            ids=cut,
            logprobs=(_LOGPROB,) * len(cut),
            versions=(VersionSpan(self._version, 0, len(cut)),),
            finish_reason="stop" if len(ids) <= limit else "length",
        )

    async def load_weights(self, source: Path, policy_version: int) -> None:
        """Take the version number; there are no weights."""
        self._version = policy_version

    async def stop(self) -> None:
        """Release nothing."""

    @property
    def _loaded(self) -> Tokenizer:
        if self._tokenizer is None:
            raise RuntimeError("the engine is not started")
        return self._tokenizer

    def _turn(self, request: GenerateRequest) -> str:
        if self._script is not None:
            return self._script(_text(self._loaded, request.prompt_ids))
        played = self._played[request.session_id]
        self._played[request.session_id] += 1
        return self.config.turns[min(played, len(self.config.turns) - 1)]


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def _load(target: str) -> Callable[[str], str]:
    module, _, attribute = target.partition(":")
    try:
        script: Callable[[str], str] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ValueError(f"script {target!r}: `module:attribute` is wanted: {exc}") from exc
    return script
