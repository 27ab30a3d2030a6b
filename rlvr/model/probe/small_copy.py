"""Runs the checks of trial.py on a two-layer copy of the model, because the real model is sharded.

Each rank holds the copy whole: no rank waits for another's trial, and no model is gathered for it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from rlvr.model.forward.packed import pack
from rlvr.model.probe.trial import PackedTrial, check_causal

LAYERS, VOCABULARY = 2, 512


def make_small_copy(causal: Any, device: torch.device) -> Any:
    """Return a model of the same class and sizes with random weights, few layers and a small vocabulary.

    There are as many layers as show every type of layer that the config names.
    """
    config = copy.deepcopy(causal.config)
    text = config.get_text_config()
    total = text.num_hidden_layers
    types = getattr(text, "layer_types", None) or []
    count = next(n for n in range(min(LAYERS, total), total + 1) if set(types[:n]) == set(types) or n == total)
    small: dict[str, Any] = text.to_dict()
    # One entry for each layer, under whatever name.
    small = {name: v[:count] if isinstance(v, list) and len(v) == total else v for name, v in small.items()}
    small |= {"num_hidden_layers": count, "vocab_size": min(VOCABULARY, text.vocab_size)}
    small |= {name: None for name in small if name.endswith("_token_id")}
    text = type(text).from_dict(small)
    if config.get_text_config() is config:
        config = text
    else:
        setattr(config, next(n for n, v in vars(config).items() if v is config.get_text_config()), text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = type(causal)(config)
    made.set_attn_implementation(causal.config._attn_implementation)
    made.base_model_prefix = causal.base_model_prefix
    return made.to(device, causal.get_input_embeddings().weight.dtype).train(causal.training)


class SmallCopyTrial(PackedTrial):
    """The trial of a model by its small copy, whose pass and windows the model is given.

    Raises ValueError as `check_causal` does.
    """

    def __init__(self, causal: Any, device: torch.device, wanted: bool = True) -> None:
        self.followers = [causal]
        self.longest = 0
        small = make_small_copy(causal, device)
        check_causal(small)
        causal.base_model_prefix = small.base_model_prefix
        super().__init__(small, wanted)
        if not self.why_not:
            pack(causal)
            causal.rlvr_pass = small.rlvr_pass
            self._tell_windows()

    def follow(self, model: Any) -> None:
        """Give another model of the kind what is found out later."""
        self.followers.append(model)

    def packs(self, length: int) -> bool:
        """Return whether rows of up to `length` tokens are packed: if all lengths that were asked for can be.

        Rows of different lengths are then packed on all ranks, or on none.
        """
        self.longest = max(self.longest, length)
        lengths = [*(n for n in self.boundaries if n < self.longest), self.longest]
        found = [super(SmallCopyTrial, self).packs(n) for n in lengths]
        self._tell_windows()
        return all(found)

    def _tell_windows(self) -> None:
        """Set the windows of the followers' attention to those that were read from the small copy's masks."""
        types = getattr(self.followers[0].config.get_text_config(), "layer_types", None)
        found = {m.layer_idx: m.rlvr_window for m in self.causal.modules() if hasattr(m, "rlvr_window")}
        if not found:
            return
        for model in self.followers:
            for module in model.modules():
                index = getattr(module, "layer_idx", None)
                if isinstance(index, int):
                    same = [j for j in found if types and types[j] == types[index]]
                    module.rlvr_window = found.get(index, found[same[0] if same else max(found)])
