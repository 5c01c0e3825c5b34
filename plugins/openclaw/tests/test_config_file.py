import json
from dataclasses import replace

import pytest

from mixharness_openclaw.config_file import APPEND_ONLY_TOOLS, ConfigFile

FILE = ConfigFile(
    api="openai-completions",
    base_url="http://127.0.0.1:1/r/x/s",
    secret="s",
    model="policy",
    workspace="/workspace",
    tools=APPEND_ONLY_TOOLS,
    compact=False,
    context_window=131_072,
    max_output_tokens=4096,
    wall_s=900.5,
    command_s=150.5,
    mcp_servers={},
)


def read(file: ConfigFile):
    return json.loads(file.text())


def test_the_file_says_what_it_was_given():
    config = read(FILE)
    provider = config["models"]["providers"]["proxy"]
    assert (provider["apiKey"], provider["api"]) == ("s", "openai-completions")
    assert provider["timeoutSeconds"] == 900
    (model,) = provider["models"]
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("policy", 131_072, 4096)
    agent = config["agents"]["defaults"]
    assert agent["model"]["primary"] == "proxy/policy"
    assert agent["workspace"] == "/workspace"
    assert agent["compaction"]["enabled"] is False
    assert config["tools"]["allow"] == list(APPEND_ONLY_TOOLS)
    assert config["tools"]["exec"]["timeoutSeconds"] == 150
    assert config["tools"]["deny"] == ["apply_patch"]
    assert config["mcp"] == {"servers": {}}


@pytest.mark.parametrize(
    ("api", "ending"),
    [("openai-completions", "/v1"), ("openai-responses", "/v1"), ("anthropic-messages", "")],
)
def test_the_address_is_what_each_client_takes_for_its_base(api, ending):
    provider = read(replace(FILE, api=api))["models"]["providers"]["proxy"]
    assert provider["baseUrl"] == f"http://127.0.0.1:1/r/x/s{ending}"


def test_all_tools_means_no_list():
    tools = read(replace(FILE, tools=()))["tools"]
    assert "allow" not in tools
    assert "toolSearch" not in tools


def test_what_is_asked_for_is_not_denied():
    tools = read(replace(FILE, tools=("write", "apply_patch")))["tools"]
    assert (tools["allow"], tools["deny"]) == (["write", "apply_patch"], [])


def test_servers_are_named_and_their_tools_allowed():
    config = read(replace(FILE, mcp_servers={"words": "http://127.0.0.1:2/mcp"}))
    server = {"url": "http://127.0.0.1:2/mcp", "transport": "streamable-http"}
    assert config["mcp"]["servers"] == {"words": server}
    assert config["tools"]["allow"][-1] == "bundle-mcp"


def test_compaction_has_two_switches():
    compaction = read(replace(FILE, compact=True))["agents"]["defaults"]["compaction"]
    assert compaction["enabled"] is compaction["midTurnPrecheck"]["enabled"] is True
