"""The contract of files in a sandbox: folders and files in, reading, writing, snapshots out."""

from __future__ import annotations

import errno
import stat
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from mixharness.errors import SandboxError
from mixharness.sandbox import Sandbox, SandboxBackend
from mixharness.testing.contracts.sandboxes.base import (
    Behaviour,
    SandboxFixtures,
    shell,
    spec,
)
from mixharness.types import Limits

ODD_NAMES = ("new\nline", "-rf", "two words", "quote'\"", "üñ→字", "back\\slash", "...", "*")


class FileBehaviours(SandboxFixtures):
    """What `folders`, `files`, `read`, `write` and `snapshot` do."""

    async def test_files(self, opened: Sandbox) -> None:
        """Text, binary, new folders; a missing file is an error."""
        assert (await opened.read("in.txt")).decode() == "grüße\n"
        await opened.write("deep/er/data.bin", bytes(range(256)) * 2000)
        assert await opened.read("deep/er/data.bin") == bytes(range(256)) * 2000
        with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
            await opened.read("gone.txt")
        with pytest.raises(OSError, match="deep"):
            await opened.read("deep")

    async def test_absolute_paths(self, opened: Sandbox) -> None:
        """They mean what they mean to programs in the sandbox."""
        await opened.write(f"{opened.home}/own.txt", b"1")
        assert (await shell(opened, "cat ~/own.txt")).stdout == b"1"
        assert await opened.read(f"{opened.workspace}/in.txt") == "grüße\n".encode()

    async def test_programs_may_change_what_was_written(self, opened: Sandbox) -> None:
        """Files and folders belong to the sandbox's user."""
        await opened.write("a/b.txt", b"one\n")
        result = await shell(opened, "echo two >> a/b.txt; touch a/new; rm in.txt")
        assert result.exit_code == 0, result.stderr
        assert await opened.read("a/b.txt") == b"one\ntwo\n"

    async def test_odd_names(self, opened: Sandbox, tmp_path: Path) -> None:
        """A name is a name."""
        for name in ODD_NAMES:
            await opened.write(f"odd/{name}", name.encode())
            assert await opened.read(f"odd/{name}") == name.encode()
        workspace = await opened.snapshot(tmp_path / "snapshot")
        assert workspace.list() == ["in.txt", *sorted(f"odd/{name}" for name in ODD_NAMES)]

    async def test_a_link_gives_no_rights(self, opened: Sandbox) -> None:
        """Reading and writing happen with the sandbox user's rights."""
        await shell(opened, "ln -s /etc/shadow secret; ln -s /usr/bin/env tool")
        before = Path("/usr/bin/env").read_bytes()
        with pytest.raises(OSError, match=r"denied|secret|shadow"):
            await opened.read("secret")
        with pytest.raises(OSError, match=r".+"):
            await opened.write("tool", b"#!/bin/sh\n")
        assert Path("/usr/bin/env").read_bytes() == before

    async def test_folders_come_in_order(
        self, started: SandboxBackend[Any], tmp_path: Path
    ) -> None:
        """Each takes the place of what was there, files come last, modes stay, links do not."""
        first, second = tmp_path / "first", tmp_path / "second"
        (first / "sub").mkdir(parents=True)
        (first / "sub/old.txt").write_text("old")
        (first / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (first / "run.sh").chmod(0o755)
        (first / "to_file").symlink_to("/etc/passwd")
        (first / "to_folder").symlink_to("/etc")
        second.mkdir()
        (second / "new.txt").write_text("new")
        asked = spec(folders={"": first, "sub": second}, files={"sub/more.txt": "more"})
        async with started.open(asked) as sandbox:
            listed = (await shell(sandbox, "find . -mindepth 1 | LC_ALL=C sort")).stdout.decode()
            ran = await shell(sandbox, "./run.sh && rm -r sub run.sh")
        assert listed.split() == ["./run.sh", "./sub", "./sub/more.txt", "./sub/new.txt"]
        assert (ran.exit_code, ran.stdout) == (0, b"ran\n")

    async def test_a_folder_takes_the_place_of_a_file(
        self, started: SandboxBackend[Any], tmp_path: Path
    ) -> None:
        """What an agent left where a grader belongs cannot keep the grader out."""
        left, grader = tmp_path / "left", tmp_path / "grader"
        left.mkdir()
        (left / "reward").write_text("in the way")
        grader.mkdir()
        (grader / "check.sh").write_text("echo 1.0")
        folders = {"": left, "reward/helpers": grader}
        async with started.open(spec(folders=folders)) as sandbox:
            assert (await shell(sandbox, "sh reward/helpers/check.sh")).stdout == b"1.0\n"

    @pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
    async def test_a_name_outside_the_workspace_is_refused(
        self, started: SandboxBackend[Any], name: str
    ) -> None:
        """And said."""
        with pytest.raises(SandboxError, match="relative path"):
            async with started.open(spec(files={name: ""})):
                pass

    async def test_home_is_private_and_apart(self, opened: Sandbox, tmp_path: Path) -> None:
        """It is the user's, outside the workspace, and in no snapshot."""
        home, workspace = PurePosixPath(opened.home), PurePosixPath(opened.workspace)
        assert not home.is_relative_to(workspace)
        assert not workspace.is_relative_to(home)
        result = await shell(opened, 'echo x > "$HOME/f"; stat -c "%a %u" "$HOME"; id -u')
        mode, owner, user = result.stdout.decode().split()
        assert (mode, owner) == ("700", user)
        assert (await opened.snapshot(tmp_path / "snapshot")).list() == ["in.txt"]

    async def test_a_snapshot_leaves_links_out(self, opened: Sandbox, tmp_path: Path) -> None:
        """Nothing in it can point outside: no link, pipe, socket or other user's file."""
        script = (
            "ln -s /etc/passwd file; ln -s /etc folder; ln -s nowhere dangling; mkfifo pipe; "
            "ln /usr/bin/env hard 2>/dev/null; mknod null c 1 3 2>/dev/null; "
            "mkdir kept; echo kept > kept/f; ln kept/f twin"
        )
        await shell(opened, script)
        workspace = await opened.snapshot(tmp_path / "snapshot")
        assert workspace.list() == ["in.txt", "kept/f", "twin"]
        assert {path.name for path in workspace.path.iterdir()} == {"in.txt", "kept", "twin"}
        assert (workspace.read("file"), workspace.read("twin")) == (None, "kept\n")

    async def test_a_snapshot_keeps_modes_but_no_special_ones(
        self, opened: Sandbox, tmp_path: Path
    ) -> None:
        """A program that takes its owner's rights would take the runner's."""
        await shell(opened, "echo x > tool; chmod 6755 tool; echo x > plain; chmod 640 plain")
        workspace = await opened.snapshot(tmp_path / "snapshot")
        modes = [stat.S_IMODE((workspace.path / n).stat().st_mode) for n in ("tool", "plain")]
        assert modes == [0o755, 0o640]

    async def test_a_snapshot_is_of_that_moment(self, opened: Sandbox, tmp_path: Path) -> None:
        """Later changes do not show, and it can be taken again."""
        before = await opened.snapshot(tmp_path / "before")
        await opened.write("in.txt", b"changed")
        after = await opened.snapshot(tmp_path / "after")
        assert (before.read("in.txt"), after.read("in.txt")) == ("grüße\n", "changed")

    async def test_closed_folders_do_not_break_a_snapshot(
        self, opened: Sandbox, tmp_path: Path
    ) -> None:
        """A program may take its own rights away."""
        await shell(opened, "mkdir shut; echo x > shut/f; echo y > f; chmod 000 shut")
        assert {"f", "in.txt"} <= set((await opened.snapshot(tmp_path / "snapshot")).list())

    async def test_deep_folders(self, opened: Sandbox, tmp_path: Path) -> None:
        """Those that people make are kept; an endless nest is too large, no crash."""
        deep = "/".join(["d"] * 40)
        await opened.write(f"{deep}/f", b"x")
        assert f"{deep}/f" in (await opened.snapshot(tmp_path / "deep")).list()
        dig = "i=0; while [ $i -lt 1100 ]; do mkdir n && cd n || exit 1; i=$((i+1)); done"
        assert (await shell(opened, dig)).exit_code == 0
        try:
            with pytest.raises(OSError, match="deep") as caught:
                await opened.snapshot(tmp_path / "nest")
        finally:  # a copy of it would be too deep for pytest to remove
            subprocess.run(["rm", "-rf", tmp_path / "nest"], check=True)
        assert caught.value.errno == errno.EFBIG

    async def test_a_snapshot_of_too_many_files_is_refused(
        self, opened: Sandbox, tmp_path: Path
    ) -> None:
        """More than 20,000, that is: it is the policy's doing."""
        await shell(opened, "mkdir many; cd many; seq 21000 | xargs touch")
        with pytest.raises(OSError, match="files") as caught:
            await opened.snapshot(tmp_path / "snapshot")
        assert caught.value.errno == errno.EFBIG

    async def test_files_that_are_large_only_by_name_do_not_fill_the_host(
        self, started: SandboxBackend[Any], tmp_path: Path
    ) -> None:
        """A file with holes takes no space in the sandbox; its copy would."""
        limits = Limits(disk_mb=32, file_mb=256)
        async with started.open(spec(limits=limits)) as sandbox:
            await shell(sandbox, "for i in 1 2 3 4 5 6 7 8; do truncate -s 200M hole$i; done")
            with pytest.raises(OSError, match="MiB") as caught:
                await sandbox.snapshot(tmp_path / "snapshot")
        assert caught.value.errno == errno.EFBIG
        copied = (f.stat().st_size for f in tmp_path.rglob("*") if f.is_file())
        assert sum(copied) <= 32 << 20

    async def test_a_full_disk(self, started: SandboxBackend[Any], tmp_path: Path) -> None:
        """What a sandbox writes is limited, and the sandbox can be used afterwards."""
        async with started.open(spec(limits=Limits(disk_mb=16))) as sandbox:
            result = await shell(sandbox, "head -c 40000000 /dev/zero > big; echo $?")
            if Behaviour.DISK in self.differs:
                assert result.stdout == b"0\n"
                with pytest.raises(OSError, match="16 MiB") as caught:
                    await sandbox.snapshot(tmp_path / "full")
                assert caught.value.errno == errno.EFBIG
            else:
                assert result.stdout != b"0\n"
                assert b"No space left" in result.stderr
            await shell(sandbox, "rm -f big")
            await sandbox.write("small", b"fits")
            assert (await sandbox.snapshot(tmp_path / "small")).read("small") == "fits"
