"""A harness is put into all situations, and the certificate says what became of them."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from mixharness import Harness, hookimpl
from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.certify import certify
from mixharness.certify.situations import load_situations
from mixharness.errors import ConfigError, PluginError, TemplateError
from mixharness.plugins import Registry, load_plugins
from mixharness.testing import EchoHarness

pytestmark = pytest.mark.anyio

NAMES = [situation.name for situation in load_situations()]
ONLY_TALKS = "".join(
    f'[{name}]\nnot_applicable = "it has no tools"\n' for name in NAMES if name != "plain_answer"
)


def registry_of(folder: Path, expectations: str) -> Registry:
    (folder / "plugin.toml").write_text(expectations)

    class Talker(EchoHarness):
        name = "talker"
        certify = str(folder)

    class Plugin:
        @staticmethod
        @hookimpl
        def register_harnesses() -> list[type[Harness[Any]]]:
            return [Talker]

    return load_plugins(Plugin, installed=False)


async def test_what_is_not_applicable_is_shown_and_the_rest_is_run(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    certificate = await certify(
        "talker", registry_of(tmp_path, ONLY_TALKS), done=lambda *step: steps.append(step)
    )
    assert certificate.ok
    assert [report.name for report in certificate.situations] == NAMES
    first, *others = certificate.situations
    assert (first.calls, first.exit) == (1, "completed")
    assert {report.exit for report in others} == {"not applicable: it has no tools"}
    assert steps == [(1, 1)]
    assert list(certificate.as_json()) == ["harness", "version", "ok", "situations"]


async def test_a_config_of_the_situation_is_used(tmp_path: Path) -> None:
    talks_more = f"{ONLY_TALKS}[plain_answer]\nconfig = {{ turns = 3 }}\n"
    certificate = await certify("talker", registry_of(tmp_path, talks_more))
    assert certificate.situations[0].problems == ("3 calls, not 1",)
    assert (certificate.situations[0].bridged, certificate.ok) == (2, False)
    with pytest.raises(ConfigError, match="turn"):
        await certify("talker", registry_of(tmp_path, talks_more.replace("turns", "turn")))


async def test_a_harness_without_tools_fails_where_it_needs_them(tmp_path: Path) -> None:
    silent = ONLY_TALKS.replace('[two_tools]\nnot_applicable = "it has no tools"\n', "")
    certificate = await certify("talker", registry_of(tmp_path, silent))
    (report,) = (report for report in certificate.situations if report.name == "two_tools")
    assert report.exit == "engine_error"
    assert "needs a shell tool; the prompt offers: none" in report.problems[0]


async def test_the_tokenizer_of_a_model_folder_is_used(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, ONLY_TALKS)
    with pytest.raises(ConfigError, match=r"no tokenizer\.json in this folder"):
        await certify("talker", registry, model=tmp_path)
    bare = Tokenizer(models.BPE())
    bare.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TemplateError, match="must each be one token"):
        await certify("talker", registry, model=tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert (await certify("talker", registry, model=tmp_path)).ok


async def test_an_unknown_harness_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="no harness named"):
        await certify("walker", registry_of(tmp_path, ONLY_TALKS))
