import pytest

from mixharness.errors import ProgramMissingError
from mixharness.npm import NpmRelease, open_to_all

RELEASE = NpmRelease(harness="agent", package="@x/agent", version="1.2.3", executable="bin/agent")


def test_a_missing_program_names_the_command(tmp_path):
    with pytest.raises(ProgramMissingError, match="mixharness harness install agent"):
        RELEASE.find(tmp_path)


def test_a_half_installation_is_not_found(tmp_path):
    (tmp_path / "agent" / "1.2.3").mkdir(parents=True)
    with pytest.raises(ProgramMissingError):
        RELEASE.find(tmp_path)


@pytest.mark.anyio
async def test_a_failed_installation_leaves_nothing_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("npm_config_offline", "true")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    with pytest.raises(RuntimeError, match="could not install @x/agent"):
        await RELEASE.install(tmp_path / "cache")
    assert list((tmp_path / "cache" / "agent").iterdir()) == []


def test_the_folder_is_opened_to_all_users(tmp_path):
    (tmp_path / "sub").mkdir(mode=0o700)
    for name, mode in (("program", 0o700), ("text", 0o600)):
        (tmp_path / "sub" / name).touch(mode)
    open_to_all(tmp_path)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("sub", "sub/program")]
    assert modes == [0o755, 0o755]
    assert (tmp_path / "sub" / "text").stat().st_mode & 0o777 == 0o644


def test_the_second_of_two_installations_gives_way(tmp_path):
    for name in ("first", "second"):
        program = tmp_path / name / RELEASE.executable
        program.parent.mkdir(parents=True)
        program.write_text(name)
    RELEASE.publish(tmp_path / "first", tmp_path / "target")
    RELEASE.publish(tmp_path / "second", tmp_path / "target")
    assert (tmp_path / "target" / RELEASE.executable).read_text() == "first"
