import errno
import io
import tarfile
from pathlib import Path

import pytest

from mixharness.builtin.docker.archive import Spool, pack, unpack
from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxSpec
from mixharness.types import Limits


def entry(name: str, data: bytes | None = None, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data or b"")
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data or b""


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    file.seek(0)
    return file


def packed(**parts: object) -> dict[str, bytes | None]:
    """Return the names in a spec's archive, with the bytes of files."""
    file = io.BytesIO()
    pack(SandboxSpec(rollout_id="r", limits=Limits(), **parts), file)  # type: ignore[arg-type]
    with tarfile.open(fileobj=file) as tar:
        return {
            member.name: (data.read() if (data := tar.extractfile(member)) else None)
            for member in tar
        }


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=kind, linkname=target)


HOSTILE = {
    "absolute": [entry("/tmp/mixharness-escaped", b"x")],
    "parent": [entry("../escaped", b"x"), entry("a/../../escaped", b"x")],
    "link and file through it": [link("out", "../.."), entry("out/escaped", b"x")],
    "link over itself": [link("f", "../escaped"), entry("f", b"x")],
    "hard link outside": [link("f", "../secret", tarfile.LNKTYPE)],
    "hard link to an absolute name": [link("f", "/etc/passwd", tarfile.LNKTYPE)],
    "device": [entry("d", type=tarfile.BLKTYPE, devmajor=8), entry("c", type=tarfile.CHRTYPE)],
    "pipe": [entry("p", type=tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
def test_nothing_leads_out_of_the_target(
    entries: list[tuple[tarfile.TarInfo, bytes]], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    target = tmp_path / "deep" / "target"
    unpack(archive(*entries, entry("kept", b"k")), target, 1, 10)
    outside = {path for path in tmp_path.rglob("*") if path.is_file()} - {tmp_path / "secret"}
    assert all(path.is_relative_to(target) for path in outside)
    inside = [path for path in target.rglob("*") if not path.is_dir()]
    assert all(path.is_file() and not path.is_symlink() for path in inside)
    assert {path.read_bytes() for path in inside} <= {b"k", b"x"}
    assert not Path("/tmp/mixharness-escaped").exists()


def test_hard_links_within_are_files_of_their_own(tmp_path: Path) -> None:
    unpack(archive(entry("a", b"one"), link("b/c", "a", tarfile.LNKTYPE)), tmp_path, 1, 10)
    (tmp_path / "a").write_bytes(b"two")
    assert (tmp_path / "b/c").read_bytes() == b"one"


def test_modes_are_kept_without_special_bits(tmp_path: Path) -> None:
    unpack(archive(entry("a", b"x", mode=0o4755), entry("b", b"x", mode=0o000)), tmp_path, 1, 10)
    assert (tmp_path / "a").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "b").read_bytes() == b"x"


@pytest.mark.parametrize(
    "entries",
    [
        [entry("a", bytes(600_000)), entry("b", bytes(600_000))],
        [entry("a", bytes(600_000)), link("b", "a", tarfile.LNKTYPE)],
        [entry(str(number), b"") for number in range(11)],
        [entry("d/" * 300 + "f", b"")],
        [entry("/".join(["n" * 200] * 20), b"")],
    ],
    ids=["size", "size by hard links", "number", "depth", "length"],
)
def test_too_much_is_refused(entries: list[tuple[tarfile.TarInfo, bytes]], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the workspace holds") as caught:
        unpack(archive(*entries), tmp_path, 1, 10)
    assert caught.value.errno == errno.EFBIG
    assert sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()) <= 1 << 20


def test_a_size_that_only_a_header_claims(tmp_path: Path) -> None:
    file = archive(entry("a", b"x"))
    info = tarfile.TarInfo("huge")
    info.size = 1 << 40
    whole = io.BytesIO(file.getvalue()[:1024] + info.tobuf())
    with pytest.raises(OSError, match="MiB") as caught:
        unpack(whole, tmp_path, 1, 10)
    assert caught.value.errno == errno.EFBIG


def test_an_archive_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    file = archive(entry("a", bytes(100_000)))
    with pytest.raises(tarfile.TarError):
        unpack(io.BytesIO(file.getvalue()[:50_000]), tmp_path, 1, 10)


def test_a_spool_takes_no_more_than_any_archive_within_the_limits() -> None:
    file = io.BytesIO()
    spool = Spool(file, max_mb=1, max_files=1)
    spool(bytes(1 << 20))
    with pytest.raises(OSError, match="1 MiB or 1 files") as caught:
        spool(bytes(1 << 20))
    assert caught.value.errno == errno.EFBIG
    assert len(file.getvalue()) == 1 << 20


def test_later_parts_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "d").mkdir(parents=True)
        (tmp_path / name / "d" / name).write_text(name)
        (tmp_path / name / "f").write_text(name)
    first, second = tmp_path / "first", tmp_path / "second"
    assert packed(folders={"": first, "d": second}, files={"f/g": "text"}) == {
        "d": None,
        "d/d": None,
        "d/d/second": b"second",
        "d/f": b"second",
        "f/g": b"text",
    }
    assert set(packed(folders={"": first, "./": second})) == {"d", "d/second", "f"}


def test_links_and_special_files_stay_here(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").symlink_to("/etc")
    assert packed(folders={"": tmp_path}) == {"real": b"x"}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x"])
def test_names_outside_are_refused(name: str, tmp_path: Path) -> None:
    for parts in ({"files": {name: ""}}, {"folders": {name: tmp_path}}):
        with pytest.raises(SandboxError, match="relative path"):
            packed(**parts)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no folder"):
        packed(folders={"a": tmp_path / "missing"})
