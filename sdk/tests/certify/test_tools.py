"""Tools are found in the prompt, whatever they are called."""

import json
from typing import Any

import pytest

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.certify.situations import Call
from mixharness.certify.tools import Offered, offered_tools, tool_call
from mixharness.engine import EngineTokenizer
from mixharness.proxy.chat import ChatMessage, Tool
from mixharness.proxy.renderer import ChatRenderer


def schema(required: tuple[str, ...] = (), **types: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "properties": properties, "required": list(required)}


SHELL = schema(("command",), command="string", timeout="number")


def test_tools_are_read_from_a_rendered_prompt() -> None:
    tokenizer = byte_tokenizer()
    renderer = ChatRenderer(EngineTokenizer(tokenizer=tokenizer, renderer="qwen3", context=9999))
    tools = (
        Tool(name="Bash", description='Says {"name": "x"} and more.', parameters=SHELL),
        Tool(name="Read", description="", parameters=schema(file_path="string")),
    )
    said = ChatMessage(role="user", content='{"name": "no_tool", "arguments": {}}')
    prompt = tokenizer.decode(renderer.render([said], tools), skip_special_tokens=False)
    assert [(tool.name, dict(tool.schema)) for tool in offered_tools(prompt)] == [
        ("Bash", SHELL),
        ("Read", schema(file_path="string")),
    ]


def test_a_list_of_tools_without_wrapping_is_read_too() -> None:
    listing = json.dumps([{"name": "exec_command", "parameters": schema(cmd="string")}], indent=4)
    (tool,) = offered_tools(f"Use these: {{broken {listing} end")
    assert (tool.name, tool.key(("command", "cmd"))) == ("exec_command", "cmd")


@pytest.mark.parametrize(
    ("name", "keys", "call", "arguments"),
    [
        ("BASH", SHELL, Call(shell="ls"), {"command": "ls"}),
        (
            "run_shell_command",
            schema(("command", "is_background"), command="string", is_background="boolean"),
            Call(shell="ls"),
            {"command": "ls", "is_background": False},
        ),
        ("exec_command", schema(cmd="string"), Call(write="x"), {"cmd": "echo x > b.txt"}),
        (
            "Write",
            schema(("file_path", "content"), file_path="string", content="string"),
            Call(write="x"),
            {"file_path": "b.txt", "content": "x\n"},
        ),
        (
            "multi_agent_v1__spawn_agent",
            schema(("message", "label"), message="string", label="string"),
            Call(agent="look"),
            {"message": "look", "label": "certify"},
        ),
    ],
)
def test_a_call_has_the_names_that_are_offered(
    name: str, keys: dict[str, Any], call: Call, arguments: dict[str, Any]
) -> None:
    made = tool_call(call, [Offered("other", schema(command="string")), Offered(name, keys)])
    assert (made.name, json.loads(made.arguments)) == (name, arguments)


def test_arguments_are_spelled_as_the_script_says() -> None:
    call = Call(shell_json='{@number@ "@command@" :\t"\\u0061"}')
    assert tool_call(call, [Offered("bash", SHELL)]).arguments == (
        '{"timeout" : 5.0e3 , "command" :\t"\\u0061"}'
    )
    bare = Offered("bash", schema(command="string"))
    assert tool_call(call, [bare]).arguments == '{ "command" :\t"\\u0061"}'


def test_a_missing_tool_is_named_with_what_there_is() -> None:
    with pytest.raises(LookupError, match="needs a shell tool; the prompt offers: Read"):
        tool_call(Call(shell="ls"), [Offered("Read", schema(path="string"))])
