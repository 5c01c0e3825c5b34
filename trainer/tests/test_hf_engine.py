"""The engine `hf` on a model of 60 thousand parameters: contract, sharing, weights and faults."""

import asyncio
import math
import shutil
import time
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from mixharness.engine import GenerateRequest, Generation, Sampling, SamplingCancelled
from mixharness.errors import EngineError
from mixharness.types import VersionSpan
from mixharness_trainer.engines.hf import HfConfig, HfEngine

SPECIAL_TOKENS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
]
VOCAB_SIZE = 512
PROMPT = tuple((7 * i + 3) % VOCAB_SIZE for i in range(150))


@pytest.fixture(scope="module")
def old_folder(tmp_path_factory, saved_model) -> Path:
    return saved_model(tmp_path_factory.mktemp("old"), seed=0)


@pytest.fixture(scope="module")
def new_folder(tmp_path_factory, saved_model) -> Path:
    return saved_model(tmp_path_factory.mktemp("new"), seed=1)


@pytest.fixture
async def engine(old_folder):
    engine = HfEngine(HfConfig(model=str(old_folder), cache_mb=32, seed=5))
    await engine.start()
    yield engine
    await engine.stop()


def request(name: str, prompt=PROMPT, temperature=1.0, max_tokens=20, stop=()) -> GenerateRequest:
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens, stop_ids=stop)
    return GenerateRequest(
        session_id="s", request_id=name, prompt_ids=tuple(prompt), sampling=sampling
    )


@torch.no_grad()
def plain_logprobs(folder: Path, prompt, ids, temperature: float) -> torch.Tensor:
    model = Qwen3ForCausalLM.from_pretrained(folder).eval()
    logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    logp = (logits / temperature).log_softmax(-1)
    return logp.gather(1, torch.tensor(ids)[:, None])[:, 0]


def gap(folder: Path, prompt, generation: Generation, temperature: float) -> float:
    expected = plain_logprobs(folder, prompt, generation.ids, temperature)
    return float((expected - torch.tensor(generation.logprobs)).abs().max())


def tokens_processed(engine: HfEngine) -> list[int]:
    """Record the number of query tokens of every step from now on."""
    manager, sizes = engine._manager, []
    step = manager._generation_step

    def counted_step() -> None:
        sizes.append(manager.batch_processor.inputs_and_outputs.num_q_tokens)
        step()

    manager._generation_step = counted_step
    return sizes


@pytest.mark.anyio
async def test_logprobs_are_of_the_distribution_sampled_at_each_temperature(engine, old_folder):
    temperatures = {"a": 1.0, "b": 0.7, "c": 1.3}
    generations = await asyncio.gather(
        *(engine.generate(request(name, temperature=t)) for name, t in temperatures.items())
    )
    for generation, t in zip(generations, temperatures.values(), strict=True):
        assert gap(old_folder, PROMPT, generation, t) <= 1e-5
    assert gap(old_folder, PROMPT, generations[1], 1.0) > 1e-2  # the check can fail


@pytest.mark.anyio
async def test_samples_follow_the_distribution(engine, old_folder):
    names = [str(i) for i in range(400)]
    generations = await asyncio.gather(
        *(engine.generate(request(n, temperature=0.7, max_tokens=1)) for n in names)
    )
    model = Qwen3ForCausalLM.from_pretrained(old_folder).eval()
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0, -1]
    probs = (logits / 0.7).softmax(-1)
    top = int(probs.argmax())
    share = sum(g.ids[0] == top for g in generations) / len(generations)
    p = float(probs[top])
    assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / len(generations))


@pytest.mark.anyio
async def test_thirty_two_at_once_are_each_right(engine, old_folder):
    prompts = [PROMPT[: 20 + 4 * i] for i in range(32)]
    sizes = tokens_processed(engine)
    generations = await asyncio.gather(
        *(engine.generate(request(str(i), prompt)) for i, prompt in enumerate(prompts))
    )
    gaps = [gap(old_folder, p, g, 1.0) for p, g in zip(prompts, generations, strict=True)]
    assert max(gaps) <= 1e-5
    assert sizes.count(32) >= 10  # they decoded together


@pytest.mark.anyio
async def test_ends_with_length_or_with_the_stop_token(engine):
    cut = await engine.generate(request("cut", max_tokens=7))
    assert (len(cut.ids), cut.finish_reason) == (7, "length")
    assert cut.versions == (VersionSpan(0, 0, 7),)
    everything = tuple(range(VOCAB_SIZE))
    stopped = await engine.generate(request("stopped", stop=everything))
    assert (len(stopped.ids), len(stopped.logprobs), stopped.finish_reason) == (1, 1, "stop")


@pytest.mark.anyio
async def test_a_completion_ends_at_the_context(engine):
    prompt = [1] * 1020
    generation = await engine.generate(request("long", prompt, max_tokens=50))
    assert (len(generation.ids), generation.finish_reason) == (4, "length")


@pytest.mark.anyio
async def test_a_continuation_costs_its_new_tokens_and_is_right(engine, old_folder):
    first = await engine.generate(request("first"))
    longer = (*PROMPT, *first.ids, *range(100, 140))
    sizes = tokens_processed(engine)
    second = await engine.generate(request("second", longer))
    page_size = engine.config.page_size
    assert sizes[0] <= len(longer) - len(PROMPT) + page_size
    assert gap(old_folder, longer, second, 1.0) <= 1e-5


@pytest.mark.anyio
async def test_new_weights_leave_nothing_of_the_old(engine, new_folder, old_folder):
    await engine.generate(request("before"))  # its prefix is cached under the old weights
    storages = [p.data_ptr() for p in engine._model.parameters()]
    await engine.load_weights(new_folder, 3)
    assert [p.data_ptr() for p in engine._model.parameters()] == storages
    assert engine._model.lm_head.weight is engine._model.model.embed_tokens.weight
    assert engine.policy_version == 3

    after = await engine.generate(request("after"))
    assert after.versions == (VersionSpan(3, 0, len(after.ids)),)
    assert gap(new_folder, PROMPT, after, 1.0) <= 1e-5
    longer = (*PROMPT, *after.ids, *range(40))
    reused = await engine.generate(request("reused", longer))
    assert gap(new_folder, longer, reused, 1.0) <= 1e-5
    assert gap(old_folder, PROMPT, after, 1.0) > 1e-2  # the check can fail


@pytest.mark.anyio
async def test_nearly_greedy_output_equals_a_fresh_engine_on_the_new_weights(engine, new_folder):
    await engine.generate(request("before", temperature=1e-3))
    await engine.load_weights(new_folder, 1)
    reloaded = await engine.generate(request("after", temperature=1e-3))
    fresh = HfEngine(HfConfig(model=str(new_folder), cache_mb=32))
    await fresh.start()
    expected = await fresh.generate(request("after", temperature=1e-3))
    await fresh.stop()
    assert reloaded.ids == expected.ids


@pytest.mark.anyio
async def test_weights_that_do_not_fit_change_nothing(engine, old_folder, tmp_path):
    with pytest.raises(EngineError, match=r"embed_tokens.weight is missing"):
        await engine.load_weights(tmp_path, 1)
    generation = await engine.generate(request("still"))
    assert engine.policy_version == 0
    assert gap(old_folder, PROMPT, generation, 1.0) <= 1e-5


@pytest.mark.anyio
async def test_weights_are_refused_while_sampling(engine, new_folder):
    running = asyncio.create_task(engine.generate(request("running", max_tokens=500)))
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="close the gate"):
        await engine.load_weights(new_folder, 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await engine.load_weights(new_folder, 1)  # a cancelled request does not stand in the way
    generation = await engine.generate(request("after"))
    assert gap(new_folder, PROMPT, generation, 1.0) <= 1e-5


@pytest.mark.anyio
async def test_a_cancelled_request_hands_over_what_it_has_sampled(engine, old_folder):
    victim = asyncio.create_task(engine.generate(request("victim", max_tokens=800)))
    active = engine._manager.batch_processor.scheduler.active_requests
    while "victim" not in active or len(active["victim"].logprobs) < 3:
        await asyncio.sleep(0.005)
    victim.cancel()
    with pytest.raises(SamplingCancelled) as caught:
        await victim
    cut = caught.value.generation
    assert (len(cut.ids) >= 3, cut.finish_reason) == (True, "cancelled")
    assert gap(old_folder, PROMPT, cut, 1.0) <= 1e-5


@pytest.mark.anyio
async def test_cancelling_frees_the_slot_within_a_second(engine, old_folder):
    victim = asyncio.create_task(engine.generate(request("victim", max_tokens=800)))
    other = asyncio.create_task(engine.generate(request("other", max_tokens=200)))
    active = engine._manager.batch_processor.scheduler.active_requests
    while "victim" not in active:
        await asyncio.sleep(0.005)
    victim.cancel()
    cancelled_s = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await victim
    while "victim" in active:
        assert time.monotonic() - cancelled_s < 1.0
        await asyncio.sleep(0.005)
    generation = await other
    assert len(generation.ids) == 200
    assert gap(old_folder, PROMPT, generation, 1.0) <= 1e-5


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("t", temperature=0.0), "temperature must be above 0"),
        (request("v", prompt=[VOCAB_SIZE]), "token ids in"),
        (request("e", prompt=[]), "token ids in"),
        (request("c", prompt=[1] * 1024), "fills the context of 1024"),
        (request("m", max_tokens=0), "max_tokens must be at least 1"),
    ],
)
async def test_a_bad_request_is_refused_and_hurts_nobody(engine, bad, message):
    with pytest.raises(EngineError, match=message):
        await engine.generate(bad)
    assert len((await engine.generate(request("good"))).ids) == 20


@pytest.mark.anyio
async def test_a_dead_engine_fails_who_waits_and_who_comes(engine):
    def broken_step() -> None:
        raise RuntimeError("out of luck")

    engine._manager._generation_step = broken_step
    waiting = [engine.generate(request(str(i))) for i in range(4)]
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), timeout=3)
    assert [type(r) for r in results] == [EngineError] * 4
    assert "out of luck" in str(results[0])
    with pytest.raises(EngineError, match=r"engine hf (died|has stopped)"):
        await asyncio.wait_for(engine.generate(request("late")), timeout=3)


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_just_ends_fails_who_waits(engine):
    def vanish() -> None:
        raise SystemExit  # passes by every handler of the loop

    engine._manager._generation_step = vanish
    with pytest.raises(EngineError):
        await asyncio.wait_for(engine.generate(request("waiting")), timeout=3)


@pytest.mark.anyio
async def test_stop_fails_who_waits_and_may_come_twice(engine):
    waiting = asyncio.create_task(engine.generate(request("waiting", max_tokens=800)))
    await asyncio.sleep(0.05)
    await engine.stop()
    await engine.stop()
    with pytest.raises(EngineError):
        await waiting
    with pytest.raises(EngineError, match="not running"):
        await engine.generate(request("late"))


@pytest.mark.anyio
async def test_the_same_seed_samples_the_same_whatever_is_beside_it(old_folder):
    outputs = []
    for names in (["x"], ["a", "x", "b"]):
        engine = HfEngine(HfConfig(model=str(old_folder), cache_mb=32, seed=9))
        await engine.start()
        done = await asyncio.gather(*(engine.generate(request(name)) for name in names))
        outputs.append({name: each.ids for name, each in zip(names, done, strict=True)})
        await engine.stop()
    assert outputs[0]["x"] == outputs[1]["x"] != outputs[1]["a"]


@pytest.mark.anyio
async def test_the_tokenizer_keeps_special_tokens_whole(engine):
    assert engine.tokenizer.context == 1024
    assert engine.tokenizer.renderer == "qwen3"
    for token in SPECIAL_TOKENS:
        assert len(engine.tokenizer.tokenizer.encode(token).ids) == 1


@pytest.mark.anyio
async def test_a_folder_that_cannot_serve_says_what_is_wrong(old_folder, tmp_path):
    with pytest.raises(EngineError, match="no model folder"):
        await HfEngine(HfConfig()).start()
    with pytest.raises(EngineError, match=r"no config\.json"):
        await HfEngine(HfConfig(model=str(tmp_path))).start()
    copy = tmp_path / "copy"
    shutil.copytree(old_folder, copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(EngineError, match=r"no tokenizer\.json"):
        await HfEngine(HfConfig(model=str(copy))).start()
    with pytest.raises(EngineError, match="raise cache_mb or lower context"):
        await HfEngine(HfConfig(model=str(old_folder), context=10**6, cache_mb=1)).start()
