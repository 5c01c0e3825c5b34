"""Replays of requests that come twice, too late, or whose client does not wait for the answer."""

import anyio
import pytest

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.engine import Generation, SamplingCancelled
from mixharness.proxy.log import read_calls
from mixharness.types import Delivery

pytestmark = pytest.mark.anyio

ASK = "<|im_start|>assistant\n"
END = "<|im_end|>"
START = "<|im_start|>user\nGo.<|im_end|>\n" + ASK
GO = {"role": "user", "content": "Go."}
MORE = {"role": "user", "content": "More."}


def ids(text):
    return tuple(byte_tokenizer().encode(text, add_special_tokens=False).ids)


class HeldEngine(ScriptedEngine):
    """Samples when it is told to; a cancelled request leaves its first five tokens."""

    def __init__(self, *turns):
        super().__init__(ScriptedConfig(turns=turns))
        self.prompts, self.started, self.may_sample = {}, anyio.Event(), anyio.Event()

    async def generate(self, request):
        self.prompts[request.request_id.rpartition("/")[2]] = request.prompt_ids
        whole = await super().generate(request)
        self.started.set()
        try:
            await self.may_sample.wait()
        except BaseException as exc:
            cut = Generation(
                ids=whole.ids[:5],
                logprobs=whole.logprobs[:5],
                versions=(),
                finish_reason="cancelled",
            )
            raise SamplingCancelled(cut) from exc
        return whole


def message(content):
    return {"role": "assistant", "content": content}


async def test_retry_with_identical_body_in_flight(open_replay):
    engine = HeldEngine("One.", "Two.")
    async with open_replay(engine=engine) as replay:
        answers = []

        async def ask(stream):
            answers.append(await replay.post_anthropic([GO], stream=stream))

        async with anyio.create_task_group() as group:
            group.start_soon(ask, False)
            await engine.started.wait()
            group.start_soon(ask, True)
            await replay.wait_for_duplicates(1)
            engine.may_sample.set()
        assert ["One." in answer.text for answer in answers] == [True, True]
        await replay.anthropic(GO, message("One."), MORE)

        assert [(one.id, one.duplicates) for one in replay.calls] == [("call_0", 1), ("call_1", 0)]
        assert replay.graph == {"call_0": (), "call_1": ("call_0",)}
        second = START + "One." + END + "\n<|im_start|>user\nMore.<|im_end|>\n" + ASK
        replay.assert_prompts(call_0=START, call_1=second)
        assert replay.edges == [
            ("call_0", len(ids(START)), "One." + END),
            ("call_1", len(ids(second)), "Two." + END),
        ]


async def test_retry_with_identical_body_after_completion(open_replay):
    """Served again twice, then sampled anew; the program goes on with the new answer."""
    async with open_replay("One.", "Two.", "Three.") as replay:
        texts = [(await replay.anthropic(GO))[0]["text"] for _ in range(4)]
        assert texts == ["One.", "One.", "One.", "Two."]
        await replay.anthropic(GO, message("Two."), MORE)

        assert [one.duplicates for one in replay.calls] == [2, 0, 0]
        assert replay.graph == {"call_0": (), "call_1": (), "call_2": ("call_1",)}
        assert replay.reasons == {"call_0": "superseded"}
        last = START + "Two." + END + "\n<|im_start|>user\nMore.<|im_end|>\n" + ASK
        replay.assert_prompts(call_0=START, call_1=START, call_2=last)
        assert replay.edges == [
            ("call_1", len(ids(START)), "Two." + END),
            ("call_2", len(ids(last)), "Three." + END),
        ]


async def test_an_acknowledged_answer_is_not_served_again(open_replay):
    async with open_replay("One.", "Two.", "Three.", "Four.") as replay:
        await replay.anthropic(GO)
        await replay.anthropic(GO, message("One."), MORE)
        again = await replay.anthropic(GO)
        assert again[0]["text"] == "Three."
        assert replay.graph["call_2"] == ()
        assert replay.reasons == {"call_2": "superseded"}


async def test_client_gone_mid_way(open_replay):
    """What was sampled until then is kept and never trained; the retry is sampled anew."""
    engine = HeldEngine("A long answer.", "Done.")
    async with open_replay(engine=engine) as replay:
        async with anyio.create_task_group() as group:
            group.start_soon(replay.anthropic, GO)
            await engine.started.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(5):
            while replay.session.pending:
                await anyio.sleep(0.005)
        engine.may_sample.set()
        await replay.anthropic(GO)

        gone, kept = replay.calls
        assert (gone.delivery, gone.finish_reason) == (Delivery.CANCELLED, "cancelled")
        assert gone.sampled_ids == ids("A lon")
        assert (kept.delivery, kept.fork) == (Delivery.DELIVERED, "")
        assert replay.graph == {"call_0": (), "call_1": ()}
        assert replay.reasons == {"call_0": "cancelled"}
        replay.assert_prompts(call_0=START, call_1=START)
        assert replay.edges == [("call_1", len(ids(START)), "Done." + END)]
        assert read_calls(replay.folder) == replay.calls


async def test_a_late_call_is_refused_and_noted(open_replay):
    async with open_replay("One.", "Two.") as replay:
        await replay.anthropic(GO)
        await replay.session.close()
        late = await replay.post_anthropic([GO, message("One."), MORE])
        assert late.status_code == 409
        assert late.json()["error"]["message"] == "this rollout has ended"
        assert [note.partition(":")[0] for note in replay.session.notes] == ["late_call"]
        assert len(replay.calls) == 1
