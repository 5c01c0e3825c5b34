import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxSpec
from mixharness.snapshot import MAX_DEPTH, SnapshotLimits, copy_tree, fill
from mixharness.types import Limits


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "source"
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)  # at any depth


def limits(max_mb: int = 1, max_files: int = 10, uid: int | None = None) -> SnapshotLimits:
    return SnapshotLimits(
        max_mb=max_mb, max_files=max_files, uid=os.geteuid() if uid is None else uid
    )


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_only_files_and_folders_are_copied(source: Path, tmp_path: Path) -> None:
    (source / "folder/empty").mkdir(parents=True)
    (source / "folder/file").write_text("x")
    (source / "to_file").symlink_to("/etc/passwd")
    (source / "to_folder").symlink_to("/etc")
    (source / "to_own_folder").symlink_to("folder")
    (source / "dangling").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(source / "socket"))
    if os.geteuid() == 0:
        os.mknod(source / "device", 0o20666, os.makedev(1, 3))
    copy_tree(source, tmp_path / "copy")
    copy_tree(source, tmp_path / "limited", limits(max_files=11))
    assert names(tmp_path / "copy") == ["folder", "folder/empty", "folder/file"]
    assert names(tmp_path / "limited") == names(tmp_path / "copy")


def test_modes_are_kept_without_special_bits(source: Path, tmp_path: Path) -> None:
    for name, mode in (("run", 0o6755), ("plain", 0o640), ("closed", 0o000)):
        (source / name).write_text("x")
        (source / name).chmod(mode)
    copy_tree(source, tmp_path / "copy")
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "copy").iterdir()}
    assert (modes["run"], modes["plain"]) == (0o755, 0o640)
    if os.geteuid() == 0:  # nobody else could read it
        assert modes["closed"] == 0o400


def test_files_of_others_are_left_out_of_a_snapshot(source: Path, tmp_path: Path) -> None:
    (source / "theirs").write_text("x")
    copy_tree(source, tmp_path / "copy", limits(uid=os.geteuid() + 1))
    assert names(tmp_path / "copy") == []


def test_what_is_too_large_is_never_on_the_host(source: Path, tmp_path: Path) -> None:
    for name in "abcd":
        with (source / name).open("wb") as file:
            file.truncate(400_000)
    copy_tree(source, tmp_path / "trusted")
    with pytest.raises(OSError, match="more than 1 MiB") as caught:
        copy_tree(source, tmp_path / "copy", limits())
    assert caught.value.errno == errno.EFBIG
    assert len(names(tmp_path / "trusted")) == 4
    assert len(names(tmp_path / "copy")) == 2


def test_too_many_entries_are_refused_before_any_is_copied(source: Path, tmp_path: Path) -> None:
    for number in range(11):
        (source / f"{number}").mkdir()
    with pytest.raises(OSError, match="more than 10 files") as caught:
        copy_tree(source, tmp_path / "copy", limits())
    assert caught.value.errno == errno.EFBIG
    assert names(tmp_path / "copy") == []


@pytest.mark.parametrize(("levels", "name"), [(MAX_DEPTH + 1, "n"), (3000, "n"), (20, "n" * 200)])
def test_a_nest_is_refused(source: Path, tmp_path: Path, levels: int, name: str) -> None:
    fd = os.open(source, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    with pytest.raises(OSError, match="deeper than") as caught:
        copy_tree(source, tmp_path / "copy", limits(max_files=10_000))
    assert caught.value.errno == errno.EFBIG


def spec(folders: dict[str, Path], **files: str) -> SandboxSpec:
    return SandboxSpec(rollout_id="r", limits=Limits(), folders=folders, files=files)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "sub").mkdir(parents=True)
    (first / "sub/old").write_text("old")
    (first / "file").write_text("first")
    second.mkdir()
    (second / "new").write_text("new")
    return first, second


def test_folders_are_put_in_order_and_files_last(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = folders
    workspace = tmp_path / "workspace"
    fill(workspace, spec({"": first, "sub": second}, file="last"))
    assert names(workspace) == ["file", "sub", "sub/new"]
    assert (workspace / "file").read_text() == "last"


def test_a_later_folder_takes_the_place_of_all_that_was_there(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = folders
    workspace = tmp_path / "workspace"
    fill(workspace, spec({"sub": first, "": second}))
    assert names(workspace) == ["new"]


def test_a_file_in_the_way_of_a_folder_gives_way(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = folders
    workspace = tmp_path / "workspace"
    fill(workspace, spec({"": first, "file": second, "sub/old/deep": second}))
    assert names(workspace) == [
        "file",
        "file/new",
        "sub",
        "sub/old",
        "sub/old/deep",
        "sub/old/deep/new",
    ]


@pytest.mark.parametrize("name", ["/absolute", "../above", "a/../../above"])
def test_a_name_outside_the_workspace_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SandboxError, match="relative path without"):
        fill(tmp_path / "workspace", spec({name: tmp_path}))
    with pytest.raises(SandboxError, match="relative path without"):
        fill(tmp_path / "workspace", spec({}, **{name: ""}))
    assert names(tmp_path) == []
