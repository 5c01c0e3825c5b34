"""The contract of commands in a sandbox: streams, codes, timeouts, cancels, daemons."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from mixharness.sandbox import Sandbox, SandboxBackend
from mixharness.testing.contracts.sandboxes.base import (
    SandboxFixtures,
    asleep,
    background,
    becomes,
    marker,
    shell,
    spec,
)
from mixharness.types import Limits


class CommandBehaviours(SandboxFixtures):
    """What `exec`, `processes` and `kill` do."""

    async def test_output_and_exit_code(self, opened: Sandbox) -> None:
        """Streams are apart, the code is the program's."""
        result = await opened.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        assert not result.timed_out

    async def test_environment_and_folder(self, opened: Sandbox) -> None:
        """The given environment is there; the workspace is the folder, `home` is HOME."""
        result = await opened.exec(["sh", "-c", "echo $WORD; pwd; echo $HOME"], env={"WORD": "ö"})
        assert result.stdout.decode().splitlines() == ["ö", opened.workspace, opened.home]

    async def test_nothing_of_the_runners_environment(
        self, started: SandboxBackend[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing of the runner's, in no process that a program can see."""
        monkeypatch.setenv("MIXHARNESS_TEST_SECRET", "hunter2")
        async with started.open(spec()) as sandbox:
            own = (await sandbox.exec(["env"])).stdout
            seen = (await shell(sandbox, "cat /proc/1/environ /proc/$PPID/environ || true")).stdout
        assert b"PATH=" in own
        assert b"hunter2" not in own + seen

    async def test_stdin_is_closed(self, opened: Sandbox) -> None:
        """A program that asks does not hang."""
        result = await opened.exec(["cat"], timeout_s=20)
        assert (result.exit_code, result.stdout) == (0, b"")

    async def test_arguments_are_handed_on_as_they_are(self, opened: Sandbox) -> None:
        """No shell in between: blanks, quotes, new lines, letters of all kinds."""
        words = ["", " a  b ", "'\"", "$HOME `id` \\", "new\nline", "-n", "üñ→字", "x" * 100_000]
        result = await opened.exec(["printf", "%s\\0", *words])
        assert result.stdout.decode().split("\0")[:-1] == words

    async def test_output_is_bytes(self, opened: Sandbox) -> None:
        """Nothing is decoded or translated on the way."""
        octal = "".join(f"\\{byte:03o}" for byte in range(256))
        result = await opened.exec(["printf", octal])
        assert result.stdout == bytes(range(256))

    async def test_large_output_does_not_block(self, opened: Sandbox) -> None:
        """More than a pipe holds, on both streams."""
        script = "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2"
        result = await shell(opened, script)
        assert (len(result.stdout), len(result.stderr)) == (300_000, 300_000)

    async def test_output_beyond_the_limit_keeps_its_end(
        self, started: SandboxBackend[Any]
    ) -> None:
        """A program's result comes last."""
        script = "head -c 3000000 /dev/zero; echo out; head -c 2000000 /dev/zero >&2; echo err >&2"
        async with started.open(spec(limits=Limits(output_mb=1))) as sandbox:
            result = await shell(sandbox, script)
        assert (len(result.stdout), len(result.stderr)) == (1 << 20, 1 << 20)
        assert (result.stdout[-5:], result.stderr[-5:]) == (b"\0out\n", b"\0err\n")

    async def test_cwd(self, opened: Sandbox) -> None:
        """Relative to the workspace or absolute; a missing one is reported, no raise."""
        await opened.write("deep/er/x", b"")
        assert (await opened.exec(["ls"], cwd="deep/er")).stdout == b"x\n"
        assert (await opened.exec(["pwd"], cwd=opened.home)).stdout.decode() == f"{opened.home}\n"
        assert (await opened.exec(["pwd"], cwd="missing")).exit_code in (126, 127)

    async def test_death_by_signal(self, opened: Sandbox) -> None:
        """A negative code, as of the standard library's subprocess."""
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV):
            result = await opened.exec(["sh", "-c", f"kill -{number.value} $$; sleep 9"])
            assert result.exit_code == -number.value

    async def test_an_unknown_program_is_reported(self, opened: Sandbox) -> None:
        """As a shell does: 126 or 127, no raise."""
        assert (await opened.exec(["no-such-program"])).exit_code in (126, 127)
        assert (await opened.exec(["./in.txt"])).exit_code in (126, 127)

    async def test_stdout_arrives_while_the_command_runs(self, opened: Sandbox) -> None:
        """And is in the result as well."""
        seen: list[bytes] = []
        script = "echo one; until [ -e go ]; do sleep 0.02; done; echo two"
        running = asyncio.create_task(opened.exec(["sh", "-c", script], on_stdout=seen.append))
        assert await becomes(lambda: bool(seen))
        assert b"".join(seen) == b"one\n"
        await opened.write("go", b"")
        assert (await running).stdout == b"one\ntwo\n" == b"".join(seen)

    async def test_a_timeout_kills_the_whole_tree(self, opened: Sandbox) -> None:
        """Children too; what was printed is kept."""
        seconds = marker()
        script = f"echo hi; sleep {seconds} & sleep {seconds}"
        result = await opened.exec(["sh", "-c", script], timeout_s=1.0)
        assert (result.timed_out, result.stdout) == (True, b"hi\n")
        assert await opened.processes() == 0
        assert asleep(seconds) == 0

    async def test_a_timeout_does_not_ask(self, opened: Sandbox) -> None:
        """A program that ignores signals dies as well."""
        script = "trap '' TERM INT HUP; while :; do sleep 0.1; done"
        result = await opened.exec(["sh", "-c", script], timeout_s=0.5)
        assert (result.timed_out, result.exit_code) == (True, -signal.SIGKILL)

    async def test_a_timeout_hits_one_command_only(self, opened: Sandbox) -> None:
        """Another one in the same sandbox goes on."""
        async with background(opened, "until [ -e go ]; do sleep 0.02; done; echo done") as other:
            assert (await opened.exec(["sleep", "60"], timeout_s=0.3)).timed_out
            await opened.write("go", b"")
            assert (await asyncio.wait_for(other, 20)).stdout == b"up\ndone\n"

    async def test_a_cancel_kills_the_command(self, opened: Sandbox) -> None:
        """The sandbox can be used afterwards."""
        seconds = marker()
        async with background(opened, f"sleep {seconds} & sleep {seconds}") as running:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert await becomes(lambda: not asleep(seconds))
        assert (await opened.exec(["true"])).exit_code == 0

    async def test_two_commands_at_once(self, opened: Sandbox) -> None:
        """Each has its own streams, and they can wait for each other."""
        script = "{ echo x > %s; until [ -e %s ]; do sleep 0.02; done; echo %s; }"
        first, second = await asyncio.gather(
            shell(opened, script % ("a", "b", "first")),
            shell(opened, script % ("b", "a", "second")),
        )
        assert (first.stdout, second.stdout) == (b"first\n", b"second\n")

    async def test_many_commands_at_once(self, opened: Sandbox) -> None:
        """None gets another's output or code."""
        jobs = [shell(opened, f"echo {i}; echo {i} >&2; exit {i}") for i in range(24)]
        for i, result in enumerate(await asyncio.gather(*jobs)):
            text = f"{i}\n".encode()
            assert (result.exit_code, result.stdout, result.stderr) == (i, text, text)

    async def test_a_daemon_does_not_hold_its_command(self, opened: Sandbox) -> None:
        """It is counted while it lives, also when it keeps the streams open."""
        daemon = f"(setsid sleep {marker()} &); echo started"
        result = await asyncio.wait_for(opened.exec(["sh", "-c", daemon]), 10)
        assert result.stdout == b"started\n"
        assert await opened.processes() == 1

    async def test_kill_ends_daemons_and_keeps_files(self, opened: Sandbox) -> None:
        """Sessions of their own and empty environments do not help."""
        seconds = marker()
        await shell(opened, f"(setsid env -i sleep {seconds} &); echo kept > f")
        await opened.kill()
        assert (await opened.processes(), asleep(seconds)) == (0, 0)
        assert await opened.read("f") == b"kept\n"

    async def test_kill_ends_a_command_that_somebody_awaits(self, opened: Sandbox) -> None:
        """Who awaits it learns of it."""
        async with background(opened, "sleep 60") as running:
            await opened.kill()
            assert (await asyncio.wait_for(running, 10)).exit_code != 0

    async def test_kill_may_come_twice(self, opened: Sandbox) -> None:
        """And commands can run afterwards."""
        await opened.kill()
        await opened.kill()
        assert (await opened.exec(["echo", "on"])).stdout == b"on\n"

    async def test_nothing_runs_by_itself(self, opened: Sandbox) -> None:
        """A finished command leaves no process, and what keeps the sandbox is not counted."""
        assert await opened.processes() == 0
        await opened.exec(["true"])
        assert await opened.processes() == 0
