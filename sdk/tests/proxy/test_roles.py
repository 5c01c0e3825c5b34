from mixharness.component import ComponentConfig
from mixharness.harness import CallIdentity, RequestView
from mixharness.proxy.chat import ChatMessage, ChatRequest, Tool
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
