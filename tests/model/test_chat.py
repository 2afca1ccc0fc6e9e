"""Chat templates: the prompts of real models, and templates that are broken or hostile."""

from __future__ import annotations

import pytest

from minfer.model import chat
from minfer.model.chat import ChatTemplate, TemplateError
from minfer.model.gguf_file import GGUFFile
from minfer.model.tokenizer import Tokenizer

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def qwen(data_dir):
    metadata = GGUFFile.open(data_dir / "vocab-qwen2.5.gguf").metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    return ChatTemplate.for_tokenizer(metadata["tokenizer.chat_template"], tokenizer), tokenizer


def test_qwen_prompt(qwen):
    template, _ = qwen
    assert template.render(USER) == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    conversation = [
        {"role": "system", "content": "Be brief."},
        *USER,
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "<b> & {{ 1 }}"},
    ]
    assert template.render(conversation, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\n<b> & {{ 1 }}<|im_end|>\n"
    )


def test_qwen_prompt_has_control_tokens(qwen):
    template, tokenizer = qwen
    ids = template.encode(tokenizer, USER)
    assert ids[0] == tokenizer.encode("<|im_start|>")[0]
    assert ids.count(tokenizer.eos_id) == 2
    assert tokenizer.decode(ids) == template.render(USER)


@pytest.mark.network
def test_smollm2_prompt(smollm2_path):
    template = ChatTemplate(GGUFFile.open(smollm2_path).metadata["tokenizer.chat_template"])
    assert template.render(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_hugging_face_templates_expect():
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}\n"
        "    {% if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "{{ m.content | tojson }}{% endfor %}{{ eos_token }}{{ strftime_now('%Y') | length }}",
        bos="<s>",
        eos="</s>",
    )
    messages = [{"role": "skip", "content": "no"}, {"role": "user", "content": "é <b>"}]
    assert template.render(messages) == '<s>"é <b>"</s>4'


def test_arithmetic_in_templates():
    assert (
        ChatTemplate("{{ 2 ** 10 }} {{ 3 * 4 }} {{ '-' * 3 }} {{ 2 * [1] }}").render(USER)
        == "1024 12 --- [1, 1]"
    )


def test_bos_is_not_doubled(qwen):
    _, tokenizer = qwen
    text = "{{ bos_token }}{{ messages[0].content }}"
    template = ChatTemplate.for_tokenizer(text, tokenizer)
    ids = template.encode(tokenizer, USER)
    assert ids[0] == tokenizer.bos_id
    tokenizer.add_bos = True
    try:
        assert template.encode(tokenizer, USER) == ids
        assert ChatTemplate("{{ messages[0].content }}").encode(tokenizer, USER) == ids
    finally:
        tokenizer.add_bos = False


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "raises: roles must alternate"),
        ("{{ messages[0].content + 1 }}", "raises: TypeError"),
        ("{{ 1 // 0 }}", "raises: ZeroDivisionError"),
        ("{{ missing.name }}", "raises: 'missing' is undefined"),
        ("{{ messages.append(1) }}", "raises: .*not safely callable|raises: .*unsafe"),
        ("{{ ''.__class__.__mro__ }}", "raises: access to attribute"),
        ("{% for i in range(10000000) %}{% endfor %}", "raises: OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "raises: RecursionError"),
        ("{{ 9 ** (9 ** 9) }}", "raises: a power of 9 to 387420489"),
        ("{% set n = 99 ** 99 %}{{ n ** n }}", "raises: a power"),
        ("{{ 'a' * 10 ** 11 }}", "raises: a text or list repeated to 100000000000 items"),
        ("{{ 10 ** 11 * ['a'] }}", "raises: a text or list repeated"),
        (r"{{ '\ud800' }}", "raises: UnicodeEncodeError"),
    ],
)
def test_a_template_that_raises_is_one_line(source, message):
    with pytest.raises(TemplateError, match=message) as caught:
        ChatTemplate(source).render(USER)
    assert "\n" not in str(caught.value)


def test_a_template_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(chat, "RENDER_LIMIT_S", 0.05)
    loop = "{% for i in range(99999) %}"
    source = loop * 4 + "{% endfor %}" * 4
    with pytest.raises(TemplateError, match="it has not ended after"):
        ChatTemplate(source).render(USER)
    assert ChatTemplate("ok").render(USER) == "ok"


@pytest.mark.parametrize("source", ["{% for %}", "{{ a", "{% nonsense %}", "{% include 'x' %}{% endif %}"])
def test_a_template_that_does_not_parse_names_the_line(source):
    with pytest.raises(TemplateError, match="does not parse: line 1: "):
        ChatTemplate(source)


def test_a_model_without_template(qwen):
    with pytest.raises(TemplateError, match="has no chat template"):
        ChatTemplate.for_tokenizer(None, qwen[1])
