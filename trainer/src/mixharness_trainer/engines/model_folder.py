"""What every engine reads of a model folder: tokenizer, template and parsers. Weights are not read.

The keys of `[engine]` that say how stand here too.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from tokenizers import Tokenizer

from mixharness.chat_template import read_chat_template
from mixharness.component import ComponentConfig
from mixharness.engine import EngineTokenizer
from mixharness.errors import EngineError
from mixharness_trainer.engines.vllm_parsers import VllmParsers


class ModelFolderConfig(ComponentConfig):
    """Keys that the engines of this package share."""

    model: str = ""
    """Model folder; empty when the run makes the model itself and fills this in."""
    renderer: str = "qwen3"
    """A family of chat templates, or `template` for the model folder's own (docs/tokens.md)."""
    rerender: bool = False
    """Follow the template to the letter and fork where that changes history; see docs/tokens.md."""
    tool_parser: str = ""
    """vLLM's parser of tool calls, by its name there, for `renderer = "template"`. Without one,
    vLLM's are tried if it is installed and nothing else reads the template's calls."""
    reasoning_parser: str = ""
    """vLLM's parser of reasoning, by its name there; for templates that never show reasoning."""
    context: int = Field(default=0, ge=0)
    """Longest prompt plus completion in tokens; 0 means the model's own limit."""


def model_folder(config: ModelFolderConfig, engine: str) -> Path:
    """Return the folder that the config names.

    Raises:
        EngineError: it names none, or one without `config.json`.
    """
    if not config.model:
        raise EngineError(f"engine {engine} has no model folder: set `model` in [engine]")
    folder = Path(config.model)
    if not (folder / "config.json").is_file():
        raise EngineError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    return folder


def read_tokenizer(config: ModelFolderConfig, context: int) -> EngineTokenizer:
    """Read what the proxy needs of the model folder.

    Args:
        config: names the folder and the parsers.
        context: longest prompt plus completion of the loaded model, in tokens.

    Raises:
        EngineError: there is no `tokenizer.json`, or vLLM has no such parser.
    """
    folder = Path(config.model)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise EngineError(f"{folder} has no tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    template, special_tokens = read_chat_template(folder)
    return EngineTokenizer(
        tokenizer=tokenizer,
        renderer=config.renderer,
        context=context,
        chat_template=template,
        special_tokens=special_tokens,
        rerender=config.rerender,
        parsers=VllmParsers(tokenizer, config.tool_parser, config.reasoning_parser),
    )
