import re

import pytest
from jinja2.exceptions import SecurityError, TemplateError

from mixharness import errors
from mixharness.proxy.rendering.jinja_template import JinjaTemplate

USER = [{"role": "user", "content": "é <b>"}]


def render(text, messages=USER, tools=None, prompt=False, **tokens):
    return JinjaTemplate(text, tokens).render(messages, tools, prompt=prompt)


def test_templates_run_as_transformers_runs_them():
    text = """
    {%- for m in messages %}
        {%- if m.role == 'system' %}{% continue %}{% endif %}
        {{- bos_token + m.content + (m | tojson) }}
    {%- endfor %}
    {%- if add_generation_prompt %}{{ '!' }}{% endif %}"""
    assert render(text, bos_token="^") == '^é <b>{"role": "user", "content": "é <b>"}'
    assert render(text, bos_token="^", prompt=True).endswith("}!")
    assert render("{{ messages | tojson(indent=1) }}").startswith("[\n {")
    assert render("{% generation %}{{ messages[0].role }}{% endgeneration %}.") == "user."
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}"))


def test_what_a_template_refuses_is_raised():
    with pytest.raises(TemplateError, match="not today"):
        render("{{ raise_exception('not today') }}")


def test_a_template_cannot_reach_the_interpreter():
    with pytest.raises(SecurityError):
        render("{{ messages.__class__.__mro__ }}")
    with pytest.raises(SecurityError):
        render("{{ messages.append(1) }}")


def test_a_broken_template_says_where():
    with pytest.raises(errors.TemplateError, match="the chat template's line 2: "):
        render("\n{% if %}")
