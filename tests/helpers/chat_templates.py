"""Chat templates of families of models, by what they render, and tiny tokenizers with their control tokens."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.helpers.files import GOLDEN

FOLDER = GOLDEN / "chat_templates"
# qwen3 keeps thinking only after the last question of the user, and writes an empty thought into the last turn;
# qwen3_kept replaces it. In phi3 the end of a turn swallows the white space behind it, and a tool's role is left out.
# In glm4 a turn ends where the next message begins, with a token of its role; glm4.5 writes empty thoughts into earlier
# turns.
_TEXTS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}
GLM_TEMPLATES = {name: text for name, text in _TEXTS.items() if name.startswith("glm")}
TEMPLATES = {name: text for name, text in _TEXTS.items() if name not in GLM_TEMPLATES}
_GLM = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
_LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"]
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
            _LLAMA,
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
    made.chat_template = _TEXTS[family]
    made.name_or_path = f"tiny/{family}"
    return made
