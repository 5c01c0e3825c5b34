"""The contract of sandboxes: commands, files, limits, isolation, release."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mixharness.sandbox import Sandbox, SandboxBackend, SandboxSpec
from mixharness.testing.contracts.component import ComponentContract
from mixharness.types import Limits


def _spec(rollout_id: str, **files: str) -> SandboxSpec:
    named = {name.replace("__", "."): text for name, text in files.items()}
    return SandboxSpec(rollout_id=rollout_id, files=named, limits=Limits())


@pytest.mark.anyio
class SandboxContract(ComponentContract):
    """A sandbox runs commands, keeps files, and leaves nothing behind."""

    @pytest.fixture
    async def opened(self, component: SandboxBackend[Any]) -> AsyncIterator[Sandbox]:
        """An open sandbox with one file."""
        async with component.open(_spec("contract", in__txt="grüße\n")) as sandbox:
            yield sandbox

    async def test_output_and_exit_code(self, opened: Sandbox) -> None:
        """Streams are apart, the code is the program's."""
        result = await opened.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        assert not result.timed_out

    async def test_environment_and_folder(self, opened: Sandbox) -> None:
        """Only the given environment; the workspace is the folder."""
        result = await opened.exec(["sh", "-c", "echo $WORD; pwd"], env={"WORD": "grün"})
        word, folder = result.stdout.decode().splitlines()
        assert word == "grün"
        assert folder == opened.workspace

    async def test_stdin_is_closed(self, opened: Sandbox) -> None:
        """A program that asks does not hang."""
        result = await opened.exec(["cat"], timeout_s=20)
        assert (result.exit_code, result.stdout) == (0, b"")

    async def test_files(self, opened: Sandbox) -> None:
        """Text, binary, new folders; a missing file is an error."""
        assert (await opened.read("in.txt")).decode() == "grüße\n"
        await opened.write("deep/er/data.bin", bytes(range(256)))
        assert await opened.read("deep/er/data.bin") == bytes(range(256))
        with pytest.raises(FileNotFoundError):
            await opened.read("gone.txt")

    async def test_programs_may_change_what_was_written(self, opened: Sandbox) -> None:
        """Files belong to the sandbox's user."""
        await opened.write("a/b.txt", b"one\n")
        result = await opened.exec(["sh", "-c", "echo two >> a/b.txt; rm in.txt"])
        assert result.exit_code == 0, result.stderr
        assert await opened.read("a/b.txt") == b"one\ntwo\n"

    async def test_large_output_does_not_block(self, opened: Sandbox) -> None:
        """More than a pipe holds, on both streams."""
        script = "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2"
        result = await opened.exec(["sh", "-c", script], timeout_s=30)
        assert (len(result.stdout), len(result.stderr)) == (300_000, 300_000)

    async def test_a_timeout_kills_the_whole_tree(self, opened: Sandbox) -> None:
        """Children too."""
        result = await opened.exec(["sh", "-c", "sleep 60 & sleep 60"], timeout_s=0.5)
        assert result.timed_out
        assert await opened.processes() == 0

    async def test_an_unknown_program_is_reported(self, opened: Sandbox) -> None:
        """As a shell does: 126 or 127, no raise."""
        assert (await opened.exec(["no-such-program"])).exit_code in (126, 127)

    async def test_two_are_apart(self, component: SandboxBackend[Any]) -> None:
        """One cannot see the other's files."""
        async with component.open(_spec("a")) as one, component.open(_spec("b")) as two:
            await one.write("mine.txt", b"x")
            with pytest.raises(FileNotFoundError):
                await two.read("mine.txt")

    async def test_a_snapshot_leaves_links_out(self, opened: Sandbox, tmp_path: Path) -> None:
        """Nothing in it can point outside."""
        await opened.exec(["sh", "-c", "ln -s /etc/passwd link; echo kept > kept.txt"])
        workspace = await opened.snapshot(tmp_path / "snapshot")
        assert workspace.list() == ["in.txt", "kept.txt"]
        assert workspace.read("link") is None
        assert workspace.read("kept.txt") == "kept\n"

    async def test_a_raise_inside_releases(self, component: SandboxBackend[Any]) -> None:
        """Rule 8: released on every path."""
        with pytest.raises(KeyError):
            async with component.open(_spec("raising")) as sandbox:
                raise KeyError
        assert not Path(sandbox.workspace).exists()
