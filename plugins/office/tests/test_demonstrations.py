from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from mixharness import ComponentConfig, GroupKey, Rollout, Task, Workspace
from mixharness_office.demonstrations import ACCURACY, demonstrate, demonstrate_expert
from mixharness_office.tasks import OfficeTasks, OfficeTasksConfig
from mixharness_office.verifier import OfficeVerifier
from mixharness_office.words import NOTE

NESTED = {"type": "function", "function": {"name": "bash", "parameters": {}}}
OTHER = {"type": "function", "function": {"name": "read", "parameters": {}}}


def prompt_of(user: str, tools: list[dict[str, object]], *exchanges: tuple[str, str]) -> str:
    """Write a conversation as Qwen3's chat template does."""
    listing = "".join("\n" + json.dumps(tool) for tool in tools)
    text = f"<|im_start|>system\nHi.\n\n# Tools\n\n<tools>{listing}\n</tools><|im_end|>\n"
    text += f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    for turn, result in exchanges:
        text += f"{turn}<|im_end|>\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response>"
        text += "<|im_end|>\n<|im_start|>assistant\n"
    return text


def call_of(turn: str) -> dict[str, object]:
    match = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", turn)
    assert match is not None
    call: dict[str, object] = json.loads(match[1])
    return call


def command_of(turn: str) -> str:
    arguments = call_of(turn)["arguments"]
    assert isinstance(arguments, dict)
    return str(arguments["command"])


def tasks(split: str, count: int) -> list[Task]:
    config = OfficeTasksConfig.model_validate({"split": split, "count": count})
    return list(OfficeTasks(config).tasks())


@pytest.mark.anyio
@pytest.mark.parametrize("split", ["cold_start", "train", "held_out"])
async def test_the_expert_solves_every_task_in_three_calls(split: str, tmp_path: Path) -> None:
    verifier = OfficeVerifier(ComponentConfig())
    for task in tasks(split, 18):
        workspace = tmp_path / task.id
        for name, text in task.files.items():
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace / name).write_text(text)
        exchanges: list[tuple[str, str]] = []
        while (turn := demonstrate_expert(prompt_of(task.prompt, [NESTED], *exchanges))) != "Done.":
            done = subprocess.run(
                ["bash", "-c", command_of(turn)], cwd=workspace, capture_output=True, check=True
            )
            exchanges.append((turn, done.stdout.decode().strip()))
        rollout = Rollout(id="r", key=GroupKey(task.id, "h"), calls=())
        score = await verifier.score(task, rollout, Workspace(workspace))
        assert score.value == 1.0
        assert len(exchanges) == 2


def test_the_clerk_is_right_as_often_as_it_says() -> None:
    right = 0
    for task in tasks("cold_start", 2000):
        prompt = prompt_of(task.prompt, [NESTED], ("", task.files[NOTE]))
        right += demonstrate(prompt) == demonstrate_expert(prompt)
    assert abs(right / 2000 - ACCURACY) < 0.05


def test_the_clerk_errs_the_same_way_twice_and_in_every_harness() -> None:
    task = tasks("cold_start", 1)[0]
    text = task.files[NOTE]
    plain = {"name": "Bash", "input_schema": {}}
    one = demonstrate(prompt_of(task.prompt, [OTHER, NESTED], ("", text)))
    other = demonstrate(prompt_of(task.prompt, [plain], ("", text.strip())))
    assert (call_of(one)["name"], call_of(other)["name"]) == ("bash", "Bash")
    assert call_of(one)["arguments"] == call_of(other)["arguments"]


def test_a_prompt_without_a_shell_is_refused() -> None:
    with pytest.raises(ValueError, match=r"exec_command; the prompt offers \['read'\]"):
        demonstrate(prompt_of("Read note.txt.", [OTHER]))


def test_a_prompt_without_a_task_is_refused() -> None:
    with pytest.raises(ValueError, match="no office task"):
        demonstrate(prompt_of("Hello.", [NESTED]))


def test_a_text_without_a_cue_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nothing in 'Hm\.' points to a folder"):
        demonstrate(prompt_of("Read note.txt.", [NESTED], ("", "Hm.")))


def test_other_shells_are_called_with_their_own_argument() -> None:
    task = tasks("cold_start", 1)[0]
    for name, argument in (("exec", "command"), ("exec_command", "cmd"), ("Bash", "command")):
        tool = {"type": "function", "function": {"name": name, "parameters": {}}}
        call = call_of(demonstrate_expert(prompt_of(task.prompt, [tool])))
        assert call == {"name": name, "arguments": {argument: f"cat {NOTE}"}}


def test_lines_that_a_program_puts_around_the_note_change_nothing() -> None:
    task = tasks("cold_start", 1)[0]
    note = task.files[NOTE]
    read = demonstrate(prompt_of(task.prompt, [NESTED]))
    plain = demonstrate(prompt_of(task.prompt, [NESTED], (read, note)))
    wrapped = f"Chunk ID: 1f\nProcess exited with code 0\nOutput:\n{note}"
    assert demonstrate(prompt_of(task.prompt, [NESTED], (read, wrapped))) == plain
