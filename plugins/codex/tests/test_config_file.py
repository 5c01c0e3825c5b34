import tomllib
from dataclasses import replace

from mixharness_codex.config_file import KEY_VARIABLE, ConfigFile

FILE = ConfigFile(
    model='po"licy é\n',
    base_url="http://127.0.0.1:1/r/x/s/v1",
    instructions="/home/codex/instructions.md",
    sandbox_mode="workspace-write",
    context_window=32768,
    agents=False,
    max_retries=2,
    idle_timeout_s=900.0,
    wait_s=150.5,
    mcp_servers={"my words": "http://127.0.0.1:2/mcp"},
)


def test_the_file_says_what_it_was_given():
    read = tomllib.loads(FILE.text())
    assert read["model"] == 'po"licy é\n'
    assert read["model_instructions_file"] == "/home/codex/instructions.md"
    provider = read["model_providers"][read["model_provider"]]
    assert provider["base_url"] == "http://127.0.0.1:1/r/x/s/v1"
    assert (provider["wire_api"], provider["env_key"]) == ("responses", KEY_VARIABLE)
    assert provider["stream_idle_timeout_ms"] == 900_000
    assert read["background_terminal_max_timeout"] == 150_500
    assert KEY_VARIABLE in read["shell_environment_policy"]["exclude"]
    assert read["features"]["unbounded_connection_retries"] is False
    assert read["agents"]["enabled"] is False
    assert read["mcp_servers"]["my words"]["url"] == "http://127.0.0.1:2/mcp"


def test_without_instructions_the_program_keeps_its_own():
    assert "model_instructions_file" not in replace(FILE, instructions="").text()
