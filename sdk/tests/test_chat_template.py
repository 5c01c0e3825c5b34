import json

import pytest

from mixharness.chat_template import read_chat_template
from mixharness.errors import EngineError


def write(folder, **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_text_and_tokens_of_a_tokenizer_config(tmp_path):
    eos = {"content": "</s>", "special": True}
    write(tmp_path, chat_template="A", bos_token="<s>", eos_token=eos, unk_token=None, add_bos=True)
    assert read_chat_template(tmp_path) == ("A", {"bos_token": "<s>", "eos_token": "</s>"})


def test_a_file_of_its_own_wins(tmp_path):
    write(tmp_path, chat_template="A")
    (tmp_path / "chat_template.jinja").write_text("é")
    assert read_chat_template(tmp_path) == ("é", {})


def test_of_several_templates_the_one_for_tools_is_taken(tmp_path):
    default = {"name": "default", "template": "D"}
    write(tmp_path, chat_template=[default, {"name": "tool_use", "template": "T"}])
    assert read_chat_template(tmp_path)[0] == "T"
    write(tmp_path, chat_template=[default, {"name": "rag", "template": "R"}])
    assert read_chat_template(tmp_path)[0] == "D"


def test_a_folder_without_one(tmp_path):
    assert read_chat_template(tmp_path) == ("", {})


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_config_is_named(tmp_path, text):
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(EngineError, match=r"tokenizer_config\.json"):
        read_chat_template(tmp_path)
