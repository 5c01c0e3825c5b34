import pytest
from pydantic import ValidationError

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.engine import GenerateRequest, Sampling

TOKENIZER = byte_tokenizer()


def request(session="s", prompt="<|im_start|>user\nhi", max_tokens=100):
    return GenerateRequest(
        session_id=session,
        request_id="r",
        prompt_ids=tuple(TOKENIZER.encode(prompt, add_special_tokens=False).ids),
        sampling=Sampling(temperature=1.0, max_tokens=max_tokens, stop_ids=()),
    )


def upper(prompt):
    """Answer with the prompt's last line, in capitals."""
    return prompt.splitlines()[-1].upper()


async def started(**config):
    engine = ScriptedEngine(ScriptedConfig(**config))
    await engine.start()
    return engine


def test_byte_tokenizer_is_lossless():
    text = "naïve \x00\n<tool_call>🙂<|im_end|>"
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
    assert TOKENIZER.get_vocab_size() == 256 + 9
    assert TOKENIZER.token_to_id("<tool_call>") in ids


@pytest.mark.anyio
async def test_turns_are_played_per_session_and_the_last_repeats():
    engine = await started(turns=("One.", "Two."))
    said = [await engine.generate(request()) for _ in range(3)]
    other = await engine.generate(request(session="other"))
    texts = [TOKENIZER.decode(list(g.ids), skip_special_tokens=False) for g in (*said, other)]
    assert texts == [t + "<|im_end|>" for t in ("One.", "Two.", "Two.", "One.")]
    assert said[0].finish_reason == "stop"
    assert len(said[0].logprobs) == len(said[0].ids)


@pytest.mark.anyio
async def test_max_tokens_cuts():
    engine = await started(turns=("One.",))
    generation = await engine.generate(request(max_tokens=2))
    assert (len(generation.ids), generation.finish_reason) == (2, "length")


@pytest.mark.anyio
async def test_script_sees_the_prompt(monkeypatch):
    monkeypatch.setattr("mixharness.builtin.scripted.upper", upper, raising=False)
    engine = await started(script="mixharness.builtin.scripted:upper")
    generation = await engine.generate(request(prompt="<|im_start|>user\nhi"))
    assert TOKENIZER.decode(list(generation.ids)) == "HI"


@pytest.mark.anyio
async def test_wrong_scripts_are_named():
    with pytest.raises(ValueError, match="'nowhere:x': `module:attribute` is wanted"):
        await started(script="nowhere:x")


def test_exactly_one_source_is_wanted():
    for config in ({}, {"turns": ("a",), "script": "b:c"}):
        with pytest.raises(ValidationError, match="exactly one of"):
            ScriptedConfig(**config)


@pytest.mark.anyio
async def test_a_tokenizer_of_ones_own(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["Hello"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    engine = await started(turns=("Hello",), tokenizer=str(tmp_path), context=77)
    generation = await engine.generate(request())
    assert len(generation.ids) == 2
    assert (engine.tokenizer.context, engine.tokenizer.renderer) == (77, "qwen3")


@pytest.mark.anyio
async def test_weights_only_change_the_version(tmp_path):
    engine = await started(turns=("One.",))
    await engine.load_weights(tmp_path, 4)
    assert engine.policy_version == 4
    assert (await engine.generate(request())).versions[0].version == 4
    assert engine.fake_logprobs


@pytest.mark.anyio
async def test_a_folders_chat_template_is_handed_over(tmp_path):
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    engine = await started(turns=("One.",), tokenizer=str(tmp_path), renderer="template")
    assert engine.tokenizer.chat_template == "{{ messages }}"
    assert engine.tokenizer.renderer == "template"
    assert (await started(turns=("One.",))).tokenizer.chat_template == ""
