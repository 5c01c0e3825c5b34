from mixharness.component import ComponentConfig
from mixharness.harness import CallIdentity, RequestView
from mixharness.proxy.chat import ChatMessage, ChatRequest, Tool, ToolCall
from mixharness.proxy.fingerprint import Fingerprinter
from mixharness.proxy.roles import Roles
from mixharness.types import CallRole

VIEW = RequestView(headers={"x-agent": "sub"}, body={})
TOOLS = (Tool(name="t", description="", parameters={}),)
USER = ChatMessage(role="user", content="u")


def request(system, tools=TOOLS):
    messages = (ChatMessage(role="system", content=system), USER)
    return ChatRequest(messages=messages, tools=tools)


def test_structure_tells_agents_apart(harness):
    roles = Roles(harness, Fingerprinter())
    title = roles.identify(VIEW, request("title", tools=()))
    main = roles.identify(VIEW, request("main"))
    sub = roles.identify(VIEW, request("sub"))
    later_title = roles.identify(VIEW, request("title", tools=()))
    assert title == main == CallIdentity() == roles.identify(VIEW, request("main"))
    assert sub.role is CallRole.SUBAGENT
    assert sub.agent
    assert later_title.role is CallRole.AUXILIARY


def test_a_harness_without_tools_is_main(harness):
    roles = Roles(harness, Fingerprinter())
    assert roles.identify(VIEW, ChatRequest(messages=(USER,))) == CallIdentity()


def test_hints_win_and_their_failure_is_survived(harness):
    class Hinting(type(harness)):
        def role_of(self, view):
            return CallIdentity(CallRole.SUBAGENT, view.headers["x-agent"])

    roles = Roles(Hinting(ComponentConfig()), Fingerprinter())
    assert roles.identify(VIEW, request("a")) == CallIdentity(CallRole.SUBAGENT, "sub")
    bare = RequestView(headers={}, body={})
    assert roles.identify(bare, request("a")) == CallIdentity()


def first(text, tools=TOOLS, *more):
    return ChatRequest(messages=(ChatMessage(role="user", content=text), *more), tools=tools)


def answer(text="", *arguments):
    calls = (ToolCall(id=str(i), name="t", arguments=a) for i, a in enumerate(arguments))
    return ChatMessage(role="assistant", content=text, tool_calls=tuple(calls))


def test_an_agent_that_begins_with_a_tools_input_is_a_subagent(harness):
    roles = Roles(harness, Fingerprinter())
    assert roles.identify(VIEW, first("Do it.")) == CallIdentity()
    task = "Look at everything in the folder."
    roles.saw("call_0", answer("", f'{{"tasks": [{{"prompt": "{task}"}}]}}'), guessed=True)
    sub = roles.identify(VIEW, first(task))
    wrapped = roles.identify(VIEW, first(f"You are a sub-agent.\n\n{task}"))
    assert (sub.role, wrapped.role) == (CallRole.SUBAGENT, CallRole.SUBAGENT)
    assert sub.agent != wrapped.agent
    assert roles.identify(VIEW, first("A new conversation.")) == CallIdentity()
    roles.saw("call_1", answer("", '{"command": "Do it."}'), guessed=True)
    assert roles.identify(VIEW, first("Do it.")) == CallIdentity()


def test_tools_that_come_late_change_no_agent(harness):
    roles = Roles(harness, Fingerprinter())
    more = (*TOOLS, Tool(name="u", description="", parameters={}))
    for tools in ((), TOOLS, more):
        assert roles.identify(VIEW, first("Do it.", tools)) == CallIdentity()
        roles.saw("call_0", answer("Yes."), guessed=True)
    assert roles.demoted == []


def test_what_was_asked_before_the_main_agent_is_demoted(harness):
    roles = Roles(harness, Fingerprinter())
    title = request("title", tools=())
    assert roles.identify(VIEW, title) == CallIdentity()
    roles.saw("call_0", answer("A title"), guessed=True)
    assert roles.identify(VIEW, request("main")) == CallIdentity()
    assert roles.demoted == ["call_0"]
    assert roles.guess(title).role is CallRole.AUXILIARY


def test_the_main_history_without_its_tools_is_a_compaction(harness):
    roles = Roles(harness, Fingerprinter())
    roles.identify(VIEW, first("Do it."))
    assert roles.identify(VIEW, first("Do it.", (), answer("Yes."), USER)) == CallIdentity(
        CallRole.COMPACTION
    )


def test_the_latest_quoted_answer_is_found(harness):
    roles = Roles(harness, Fingerprinter())
    summary = "The user wants a copy of a file."
    for number, text in enumerate(("Short.", summary, summary)):
        roles.saw(f"call_{number}", answer(text), guessed=True)
    roles.saw("call_3", answer(summary), guessed=False)
    assert roles.quoted(first(f"Continued.\n{summary}\nGo on.")) == "call_2"
    assert roles.quoted(first("Short. And more.")) is None
