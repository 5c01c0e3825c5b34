from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.engine import EngineTokenizer, Generation
from mixharness.harness import CallIdentity
from mixharness.proxy.admission import Plan, lane_of
from mixharness.proxy.chat import ChatMessage, ChatRequest, Tool
from mixharness.proxy.fingerprint import Fingerprinter
from mixharness.proxy.history import History
from mixharness.proxy.prompt import build_prompt
from mixharness.proxy.records import Outcome, Recorder, make_answer, shown_message
from mixharness.proxy.renderer import ChatRenderer
from mixharness.proxy.tokenizer_adapter import TokenizerAdapter

TOKENIZER = byte_tokenizer()
RENDERER = ChatRenderer(EngineTokenizer(tokenizer=TOKENIZER, renderer="qwen3", context=99999))
TOOLS = (Tool(name="t", description="d", parameters={}),)
USER = ChatMessage(role="user", content="Go.")
PLAIN = "Fine.<|im_end|>"
CALLING = 'Go.\n<tool_call>\n{"name": "t", "arguments": {"a":  1}}\n</tool_call><|im_end|>'


class Talk:
    """The session's core without its I/O: requests in, calls out."""

    def __init__(self):
        self.history = History(Fingerprinter())
        self.recorder = Recorder(rollout_id="r", temperature=1.0, renderer_hash="", began=0.0)
        self.calls = {}

    def request(self, messages):
        return ChatRequest(messages=tuple(messages), tools=TOOLS)

    def ask(self, messages, turn, agent=""):
        request, identity = self.request(messages), CallIdentity(agent=agent)
        prints = self.history.prints(request, lane_of(identity))
        resolved = self.history.resolve(request, lane_of(identity), prints)
        prompt = build_prompt(RENDERER, request, resolved, self.history.shared_ids(resolved))
        ids = tuple(TOKENIZER.encode(turn, add_special_tokens=False).ids)
        plan = Plan(
            index=len(self.calls),
            identity=identity,
            request=request,
            resolved=resolved,
            prompt=prompt,
            max_tokens=1,
            rules=(),
            started=0.0,
        )
        sampled = Generation(ids=ids, logprobs=(0.0,) * len(ids), versions=(), finish_reason="stop")
        call = self.recorder.record(plan, Outcome(generation=sampled))
        shown = shown_message(make_answer(plan, RENDERER.parse(ids), sampled))
        self.history.add(call, plan, shown)
        self.calls[call.id] = call
        assert list(prompt.ids) == self.prompt(call)
        return call, shown

    def prompt(self, call):
        known = []
        if call.parent_call:
            parent = self.calls[call.parent_call]
            known = [*self.prompt(parent), *parent.sampled_ids][: call.parent_len]
        return [*known, *call.environment_ids]


def test_an_unsampled_assistant_message_is_environment():
    talk = Talk()
    one, shown = talk.ask([USER], PLAIN)
    stranger = ChatMessage(role="assistant", content="Nobody said this.")
    two, _ = talk.ask([USER, shown, USER, stranger, USER], PLAIN)
    assert two.fork == "unknown_assistant"
    assert two.parent_len == len(one.environment_ids) + len(one.sampled_ids)
    assert two.replayed == ()
    request = [USER, shown, USER, stranger, USER]
    three, _ = talk.ask([*request, ChatMessage(role="assistant", content="Fine."), USER], PLAIN)
    assert (three.parent_call, three.fork) == (two.id, "")


def test_a_new_beginning_is_a_fork_with_its_span():
    talk = Talk()
    talk.ask([USER], PLAIN)
    other, _ = talk.ask([ChatMessage(role="user", content="Summary.")], PLAIN)
    assert (other.parent_call, other.fork) == (None, "user_changed")
    assert "Summary." in other.fork_span
    elsewhere, _ = talk.ask([ChatMessage(role="user", content="Sub.")], PLAIN, agent="sub")
    assert elsewhere.fork == ""


def test_stripped_ids_still_match_by_content():
    talk = Talk()
    one, shown = talk.ask([USER], CALLING)
    bare = replace(shown, tool_calls=tuple(replace(c, id="") for c in shown.tool_calls))
    two, _ = talk.ask([USER, bare, ChatMessage(role="tool", content="ok")], PLAIN)
    assert (two.parent_call, two.fork) == (one.id, "")


def test_ids_of_parallel_calls_survive_programs_that_strip_and_cut_them():
    talk, parallel = Talk(), CALLING.removesuffix("<|im_end|>") * 12 + "<|im_end|>"
    shown = [talk.ask([USER], parallel)[1] for _ in range(12)]
    ids = [call.id for message in shown for call in message.tool_calls]
    stripped = {"".join(filter(str.isalnum, minted))[:40] for minted in ids}
    assert (len(ids), stripped) == (144, set(ids))
    asked = [USER, shown[1], ChatMessage(role="tool", content="ok")]
    assert talk.ask(asked, PLAIN)[0].parent_call == "call_1"


def test_of_equal_siblings_the_minted_id_chooses():
    talk = Talk()
    first, shown = talk.ask([USER], CALLING)
    talk.ask([USER], CALLING)
    chosen, _ = talk.ask([USER, shown, ChatMessage(role="tool", content="ok")], PLAIN)
    assert chosen.parent_call == first.id


def test_changed_tools_replay_the_whole_conversation():
    talk = Talk()
    one, shown = talk.ask([USER], CALLING)
    request = ChatRequest(messages=(USER, shown, USER), tools=(*TOOLS, *TOOLS))
    lane = lane_of(CallIdentity())
    prints = talk.history.prints(request, lane)
    resolved = talk.history.resolve(request, lane, prints)
    assert (resolved.parent, resolved.fork) == (None, "tools_changed")
    prompt = build_prompt(RENDERER, request, resolved, talk.history.shared_ids(resolved))
    start, end = prompt.replayed[0]
    assert prompt.ids[start:end] == one.sampled_ids


def test_continues_names_what_no_ancestor_holds():
    talk = Talk()
    one, first = talk.ask([USER], PLAIN)
    two, second = talk.ask([USER, first, USER], PLAIN)
    three, _ = talk.ask([USER, first, USER, second, USER], PLAIN)
    again, _ = talk.ask([USER, first, USER, second, USER], PLAIN)
    assert [c.continues for c in (one, two, three)] == [(), (one.id,), (two.id,)]
    assert again.continues == (two.id,)
    assert again.checksum == three.checksum != two.checksum


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["<|im_end|>", "</tool_call>\n", "\n\n", "<tool_response>x</tool_response>"]
)
AFTER = st.lists(
    st.builds(ChatMessage, role=st.sampled_from(["user", "tool", "system"]), content=TEXTS),
    min_size=1,
    max_size=3,
)
TURNS = st.one_of(
    TEXTS.map(lambda text: text + "<|im_end|>"),
    st.sampled_from(["cut off", "<think>\nHm", "<think>a<|im_end|>", CALLING[:-30]]),
    st.sampled_from([PLAIN, CALLING]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(AFTER, TURNS), min_size=2, max_size=5))
def test_append_only_turns_give_previous_prompt_sampled_and_delta(rounds):
    talk, messages, previous = Talk(), [], None
    for after, turn in rounds:
        messages += after
        call, shown = talk.ask(messages, turn)
        if previous is not None:
            assert call.parent_call == previous.id
            expected = [*talk.prompt(previous), *previous.sampled_ids, *call.environment_ids]
            assert talk.prompt(call) == expected
            assert (call.fork, call.replayed) == ("", ())
        messages.append(shown)
        previous = call


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(AFTER, TURNS), min_size=3, max_size=5), st.data())
def test_whatever_is_edited_sampled_ids_are_never_tokenised_again(rounds, data):
    talk, messages, owners = Talk(), [], {}
    for after, turn in rounds:
        messages += after
        call, shown = talk.ask(messages, turn)
        owners[len(messages)] = call
        messages.append(shown)
    at = data.draw(st.sampled_from([i for i in range(len(messages)) if i not in owners]))
    edited = [*messages]
    edited[at] = replace(edited[at], content=edited[at].content + "!")
    call, _ = talk.ask([*edited, USER], PLAIN)
    spliced = [call.environment_ids[start:end] for start, end in call.replayed]
    later = [owner for index, owner in owners.items() if index > at]
    assert spliced == [owner.sampled_ids for owner in later]
    assert call.fork.endswith("_changed")


@pytest.fixture
def encoded(monkeypatch):
    """Lengths of the texts that were tokenised."""
    encoded = []
    encode = TokenizerAdapter.encode

    def counting(self, text, *args, **options):
        encoded.append(len(text))
        return encode(self, text, *args, **options)

    monkeypatch.setattr(TokenizerAdapter, "encode", counting)
    return encoded


def test_a_block_that_moves_to_the_end_costs_only_what_is_new(encoded):
    """Every request drops a message from the middle: what stands before it is shared."""
    talk, messages, costs = Talk(), [replace(USER, content="x" * 5000)], []
    for number in range(9):
        encoded.clear()
        block = ChatMessage(role="user", content=f"Block {number}.")
        call, shown = talk.ask([*messages, block], CALLING)
        costs.append(sum(encoded))
        messages += [shown, ChatMessage(role="tool", content="y" * 100)]
    assert call.fork == "user_changed"
    assert len(set(costs[2:])) == 1
    assert costs[2] < 1000


def test_only_what_is_new_is_tokenised(encoded):
    talk, messages, costs = Talk(), [replace(USER, content="x" * 5000)], []
    for _ in range(9):
        encoded.clear()
        _, shown = talk.ask(messages, CALLING)
        costs.append(sum(encoded))
        messages += [shown, ChatMessage(role="tool", content="y" * 100)]
    assert costs[0] > 5000
    assert len(set(costs[1:])) == 1
    assert costs[1] < 400
