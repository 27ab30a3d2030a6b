"""Chat templates of families of models, by what they render, and tiny tokenizers with their control tokens."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_CHATML_TURN = "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
_CHATML_ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
_SYSTEM = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}{% endif %}"
_TOOL = """{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"""
_CHATML_TOOLS = """{% if tools %}{{ '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}{{ '\\n</tools><|im_end|>\\n' }}{% endif %}"""
# Of Qwen3: thinking is kept after the last question of the user only, and is there, if empty, in the last turn.
_QWEN3 = (
    """{% set ns = namespace(asks=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}{% set index = messages|length - 1 - loop.index0 %}
{%- if ns.asks and message.role == 'user' and not (message.content.startswith('<tool_response>') and
 message.content.endswith('</tool_response>')) %}{% set ns.asks = false %}{% set ns.last = index %}{% endif %}
{%- endfor %}{% for message in messages %}{% set content = message.content %}
{%- if message.role == 'assistant' %}{% set thought = '' %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{ content }}{% endif %}{{ '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}"""
    + _TOOL
    + "{% else %}"
    + _CHATML_TURN
    + "{% endif %}{% endfor %}"
    + _CHATML_ASK
)

_LLAMA_TURN = (
    """{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}"""
)
_LLAMA_ASK = "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"

TEMPLATES = {
    "qwen2": _SYSTEM + "{% for message in messages %}" + _CHATML_TURN + "{% endfor %}" + _CHATML_ASK,
    "qwen2.5": (
        _SYSTEM
        + _CHATML_TOOLS
        + "{% for message in messages %}{% if message.role == 'tool' %}"
        + _TOOL
        + "{% else %}"
        + _CHATML_TURN
        + "{% endif %}{% endfor %}"
        + _CHATML_ASK
    ),
    "qwen3": _QWEN3,
    # The one that Qwen3's is replaced by: thinking stays.
    "qwen3_kept": (
        _CHATML_TOOLS
        + "{% for message in messages %}{% if message.role == 'tool' %}"
        + _TOOL
        + "{% else %}"
        + _CHATML_TURN
        + "{% endif %}{% endfor %}"
        + _CHATML_ASK
    ),
    "llama3": "{{ bos_token }}{% for message in messages %}" + _LLAMA_TURN + "{% endfor %}" + _LLAMA_ASK,
    "llama3.1": (
        "{{ bos_token }}{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
        "{% if tools %}{{ 'Environment: ipython\\n' }}{% endif %}{{ 'Today Date: 26 Jul 2024\\n\\n<|eot_id|>' }}"
        "{% for message in messages %}{% if message.role in ('tool', 'ipython') %}"
        "{{ '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}"
        "{{ message.content | tojson }}{{ '<|eot_id|>' }}"
        "{% else %}" + _LLAMA_TURN + "{% endif %}{% endfor %}" + _LLAMA_ASK
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if message.role == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message.role %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\\n' + message.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
    ),
    # The end of a turn takes the whitespace behind it, and a tool's role is left out.
    "phi3": (
        "{% for message in messages %}{% if message.role in ('user', 'assistant', 'system') %}"
        "{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
    ),
    "plain": (
        "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    ),
}
_GLM_ASK = "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
# Of GLM-4: a turn ends where the next message begins, with a token of its role; a tool is called observation.
GLM_TEMPLATES = {
    "glm4": (
        "{{ '[gMASK]<sop>' }}{% for item in messages %}{% if item['content'] %}"
        "{{ '<|' + item['role'] + '|>' + (item['metadata'] | default('')) + '\\n' + item['content'] }}"
        "{% endif %}{% endfor %}" + _GLM_ASK
    ),
    "glm4_0414": (
        "{{ '[gMASK]<sop>' }}{% for message in messages %}{% if message.role == 'user' %}{{ '<|user|>\\n' }}"
        "{{ message.content }}{% elif message.role == 'assistant' %}{{ '<|assistant|>\\n' + message.content }}"
        "{% elif message.role == 'observation' %}{{ '<|observation|>\\n' + message.content }}{% endif %}{% endfor %}"
        + _GLM_ASK
    ),
    # It writes an empty thought into the turns before the last question, and a tool's reply as an observation.
    "glm4.5": (
        "{{ '[gMASK]<sop>' }}{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'user' %}"
        "{{ '<|user|>\\n' + m.content }}{% elif m.role == 'assistant' %}{{ '<|assistant|>' }}"
        "{% set content = m.content %}{% set thought = '' %}{% if '</think>' in content %}"
        "{% set thought = content.split('</think>')[0].split('<think>')[-1] %}"
        "{% set content = content.split('</think>')[-1] %}{% endif %}"
        "{% if loop.index0 > ns.last and thought %}{{ '\\n<think>' + thought | trim + '</think>' }}"
        "{% else %}{{ '\\n<think></think>' }}{% endif %}"
        "{% if content | trim %}{{ '\\n' + content | trim }}{% endif %}"
        "{% elif m.role == 'tool' %}{{ '<|observation|>\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
        "{% endif %}{% endfor %}" + _GLM_ASK
    ),
}
_GLM = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
_CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
# By family: control tokens, added tokens that are not, the token that ends a turn, the one that begins a text.
_TOKENS: dict[str, tuple[list[str], list[str], str, str | None]] = {
    "qwen2": (_CHATML, [], "<|im_end|>", None),
    "qwen2.5": (_CHATML, ["<tool_call>", "</tool_call>"], "<|im_end|>", None),
    "qwen3": (_CHATML, _MARKS, "<|im_end|>", None),
    "qwen3_kept": (_CHATML, _MARKS, "<|im_end|>", None),
    **dict.fromkeys(
        ("llama3", "llama3.1"),
        (
            [
                "<|begin_of_text|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
                "<|eot_id|>",
                "<|eom_id|>",
                "<|python_tag|>",
            ],
            [],
            "<|eot_id|>",
            "<|begin_of_text|>",
        ),
    ),
    "gemma": (
        ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
        ["\n\n", "  ", "<table>"],
        "<end_of_turn>",
        "<bos>",
    ),
    "phi3": (["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"], [], "<|end|>", None),
    "plain": (["</s>"], [], "</s>", None),
    **dict.fromkeys(GLM_TEMPLATES, (_GLM, ["<think>", "</think>"], "<|endoftext|>", None)),
}
FAMILIES = tuple(name for name in TEMPLATES if name != "qwen3")
_CORPUS = ["user assistant model ipython: the answer is 12 and 7.\n\nadd: 1 + 1 = 2\n", 'Traceback: print("12")'] * 4
_JOINED = [("t", "h"), ("th", "e"), ("▁", "▁"), ("1", "2"), ("m", "o"), ("\n", "\n")]


@cache
def chat_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the template and the control tokens of a family.

    Byte-level BPE; of Gemma, Phi-3 and the plain one characters with spaces as ▁, of Phi-3 with one before a text.
    """
    special, others, end, begin = _TOKENS[family]
    if family in ("gemma", "phi3", "plain"):
        pieces = [*(f"<0x{n:02X}>" for n in range(256)), "<unk>", "▁", "\n", *map(chr, range(33, 127))]
        vocabulary = {text: number for number, text in enumerate([*pieces, *map("".join, _JOINED)])}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=_JOINED, byte_fallback=True, unk_token="<unk>"))
        spaces = normalizers.Replace(" ", "▁")
        first = family == "phi3"
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if first else spaces
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, rstrip=family == "phi3", normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in others])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end, bos_token=begin)
    made.chat_template = {**TEMPLATES, **GLM_TEMPLATES}[family]
    made.name_or_path = f"tiny/{family}"
    return made
