"""The policy: a causal LM with its tokenizer, as the trainer and the samplers use it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoConfig, AutoModelForCausalLM

from rlvr.config import ModelConfig
from rlvr.core.files.models import Place, Source, check_weights

from ..optim.sharding import (
    allocate,
    copy_without_weights,
    fill,
    gather_weights,
    leads,
    local,
    shard_model,
    with_weights,
)
from ..probe import Decoders, PackedTrial, SmallCopyTrial, check_causal, check_length
from ..text.rendering import Rendering
from .gguf import find_converted
from .lora import check_settings, load_adapter, merge_adapter, save_adapter, with_adapter
from .pretrained import (
    check_decoder,
    holds_every_weight,
    load_errors_as_value_error,
    load_tokenizer,
    make_empty_model,
    pick_device,
    pick_dtype,
    read_weights,
    recompute_activations,
    set_attention,
    shorten,
    store_weights,
    switch_off_dropout,
    use_template,
    weight_files,
)
from .tiny import tiny_config, tiny_model, tiny_tokenizer


class Policy(Rendering):
    """A causal LM with its tokenizer. `model` is what transformers or peft made, without any wrapper.

    causal: the transformers model inside (`model` itself unless peft wraps it). dtype: of the computation (trained
    weights may be stored in another). eos_ids: every id that ends a completion; generation configs may list several,
    and forgetting one turns finished answers into truncated ones. packs: the model can run on sequences laid end to end
    (rlvr.model.forward.packed), which `packed` False rules out; `trial` tells for which lengths, or why not.
    continues_adapter: the trained adapter was loaded, not newly made. mesh: of the ranks that hold the weights in
    shards (rlvr.model.optim.sharding); None: they are whole.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        dtype: torch.dtype = torch.float32,
        system_prompt: str | None = None,
        chat: str = "auto",
        adapter_off: bool = False,
        packed: bool = True,
        continues_adapter: bool = False,
        trust_remote_code: bool = False,
        trial: PackedTrial | None = None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        super().__init__(tokenizer, system_prompt=system_prompt, chat=chat)
        self.model = model
        self.dtype = dtype
        self.adapter_off = adapter_off
        self.continues_adapter = continues_adapter
        self.trust_remote_code = trust_remote_code
        self.causal: Any = model.get_base_model() if hasattr(model, "peft_config") else model
        self.eos_ids = _eos_ids(self.causal, tokenizer)
        self.trial = trial or PackedTrial(self.causal, packed)
        self.packs = not self.trial.why_not
        self.mesh: DeviceMesh | None = None
        self._blank: Any = None
        self._reference: Policy | None = None
        if mesh is not None:
            self.shard(mesh)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @property
    def architecture(self) -> str:
        """The name of the model's class in transformers. FSDP2 gives a model in shards a class of its own."""
        return type(self.causal).__name__.removeprefix("FSDP")

    @property
    def trial_model(self) -> Any:
        """The model on which fast paths are tried: this one or, if it is sharded, its small copy."""
        return self.causal if self.mesh is None else self.trial.causal

    @property
    def pad_id(self) -> int:
        """Any valid id: padding is masked out or skipped everywhere."""
        return int(self.tokenizer.pad_token_id or 0)

    @property
    def eos_id(self) -> int:
        """The id that ends a hand-written completion. Raises ValueError where the model has none."""
        if not self.eos_ids:
            raise ValueError("neither the tokenizer nor the model's config names an end-of-sequence token")
        own = self.tokenizer.eos_token_id
        return int(own) if own in self.eos_ids else min(self.eos_ids)

    @property
    def allows_threads(self) -> bool:
        """Whether several threads may compute with the model at once: not where a pass changes something in it.

        An adapter is switched off in the whole model; rotary scaling `longrope` and `dynamic` keeps the angles of the
        last pass in it.
        """
        return not (self.mesh is not None or self.adapter_off or self.trial.sides or self.trial.most is not None)

    def describe(self) -> str:
        """Return one line: model, sizes, dtype, device, and why rows are padded where they are."""
        total = sum(weight.numel() for weight in self.model.parameters())
        trained = sum(weight.numel() for weight in self.parameters())
        share = "" if trained == total else f", {trained / 1e6:,.2f}M trained"
        kind, dtype = self.architecture, str(self.dtype).removeprefix("torch.")
        stored = {str(weight.dtype).removeprefix("torch.") for weight in self.parameters()} - {"float32"}
        dtype += "".join(f", weights stored in {name}" for name in sorted(stored))
        slow = "" if self.packs else f"; rows are padded and prompts repeated, which is slower: {self.trial.why_not}"
        parts = "" if self.mesh is None else f" in {self.mesh.size(-1)} shards"
        return f"{kind} with {total / 1e6:,.2f}M parameters{share}{parts}, {dtype} on {self.device}{slow}"

    def check_rows(self, length: int, *, samples: bool) -> str:
        """Try the fast paths for rows of up to `length` tokens; return which are used. See rlvr.model.probe.

        samples: the torch sampler is used. Raises ValueError where no way equals the plain forward.
        """
        check_length(self.causal, self.trial, length)
        how = "packs them without padding" if self.trial.packs(length) else "pads them"
        line = f"sequences of up to {length} tokens: training {how}"
        if samples:
            decoders = Decoders(self.trial_model, self.trial, self.packs, self.dtype)
            line += f"; sampling {decoders.for_length(length).summary}"
        return line

    def parameters(self) -> list[nn.Parameter]:
        """Return the trainable weights, in the model's order."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Context for forward passes in `dtype`; of a LoRA policy's reference, without the adapter.

        Weights in shards are gathered in that dtype, and need no autocast.
        """
        with ExitStack() as stack:
            if self.dtype is not torch.float32 and self.mesh is None:
                stack.enter_context(torch.autocast(self.device.type, self.dtype))
            if self.adapter_off:
                stack.enter_context(self.model.disable_adapter())
            yield

    def reference(self) -> Policy:
        """Return the policy as it is now, frozen; made once. With LoRA: the model without its adapter, not a copy.

        Raises ValueError for an adapter that was loaded: without it the model is not the policy as it began.
        """
        if self.continues_adapter:
            raise ValueError(REFERENCE_OF_ADAPTER)
        if self._reference is None:
            if self.causal is not self.model:
                self._reference = self.without_adapter()
            elif self.mesh is not None:
                self._reference = self.copy_shards(frozen=True)
            else:
                model = copy.deepcopy(self.model).requires_grad_(False)
                shorten(model, self.dtype)
                self._reference = self._like(model)
        return self._reference

    def without_adapter(self) -> Policy:
        """Return a LoRA policy's model without its adapter, which is switched off while it computes; not a copy."""
        made = self._like(self.model, adapter_off=True)
        made.mesh = self.mesh
        return made

    def frozen_copy(self) -> Policy:
        """Return a second policy with the same weights, frozen; weights that are not trained are shared."""
        shared = {id(weight): weight for weight in self.model.parameters() if not weight.requires_grad}
        return self._like(copy.deepcopy(self.model, shared).requires_grad_(False))

    def _like(self, model: Any, **options: Any) -> Policy:
        """Return a policy with another model of the same kind, for which this one's trials hold."""
        made = Policy(model, self.tokenizer, dtype=self.dtype, chat="never", trial=self.trial, **options)
        made.system_prompt, made.chat = self.system_prompt, self.chat
        return made

    def shard(self, mesh: DeviceMesh) -> None:
        """Cut the weights into shards, in place. They must be equal on all ranks, or on the meta device."""
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(torch.device(mesh.device_type)))
        self._blank = copy_without_weights(self.model)
        self.trial.follow(self._blank)
        shard_model(self.model, self.causal, mesh, self.dtype)
        self.mesh = mesh

    def copy_shards(self, *, frozen: bool = False) -> Policy:
        """Return a second policy in shards with the same weights; frozen: in the dtype of the computation."""
        assert self.mesh is not None
        model = copy.deepcopy(self._blank)
        if frozen:
            store_weights(model.requires_grad_(False), self.dtype)
        made = self._like(model, mesh=self.mesh)
        allocate(made.model, self.device)
        with torch.no_grad():
            for weight, own in zip(made.model.parameters(), self.model.parameters(), strict=True):
                local(weight).copy_(local(own))
        return made

    def gather(self, *, keep: bool = True, device: str | None = None, dtype: torch.dtype | None = None) -> Policy:
        """Gather the full weights. If they are in shards, returns a copy, and every rank must call this.

        device, dtype: of the copy. With `keep` False the copy, which another rank wants, has no weights here.
        """
        if self.mesh is None:
            return self
        weights = gather_weights(self.model, keep=keep, device=device, dtype=dtype)
        return self._like(with_weights(self._blank, weights) if keep else self._blank, adapter_off=self.adapter_off)

    def snapshot(self) -> Policy | None:
        """Return a copy with full weights in the CPU's memory, which later updates do not change.

        If the weights are in shards, every rank must call this, and only the first one gets it. Frozen weights are
        shared.
        """
        if self.mesh is not None:
            gathered = self.gather(keep=leads(), device="cpu")
            return gathered if leads() else None
        weights = {
            name: weight.detach().to("cpu", copy=True) if weight.requires_grad else weight
            for name, weight in self.model.named_parameters()
        }
        return self._like(with_weights(self.model, weights), adapter_off=self.adapter_off)

    def save(self, folder: Path | str) -> None:
        """Write weights (safetensors), config and tokenizer as transformers and peft load them.

        If the weights are in shards, every rank must call this, and the first one writes.
        """
        if self.mesh is not None:
            gathered = self.snapshot()
            if gathered is not None:
                gathered.save(folder)
            return
        if self.causal is self.model:
            self.model.save_pretrained(folder)
        else:
            save_adapter(self.model, folder)
        self.tokenizer.save_pretrained(folder)

    def load_weights(self, folder: Path | str) -> None:
        """Load the weights that `save` wrote into this model, bit for bit."""
        if self.causal is not self.model:
            from peft import load_peft_weights, set_peft_model_state_dict

            if self.mesh is None:
                set_peft_model_state_dict(self.model, load_peft_weights(str(folder), device=str(self.device)))
                return
            # peft names the weights of an adapter without the adapter's own name.
            held = load_peft_weights(str(folder), device="cpu")
            for name, weight in self.model.named_parameters():
                if weight.requires_grad:
                    fill(weight, held[name.replace(".default.", ".")])
            return
        check_weights(Path(folder))
        files = weight_files(Place(str(folder)))
        if self.mesh is not None and holds_every_weight(self._blank, files):
            read_weights(self.model, files)
            return
        saved = type(self._blank or self.causal).from_pretrained(folder, dtype=next(self.model.parameters()).dtype)
        if self.mesh is None:
            self.model.load_state_dict(saved.state_dict())
            return
        held = dict(saved.named_parameters())
        for name, weight in self.model.named_parameters():
            fill(weight, held[name])


REFERENCE_OF_ADAPTER = (
    "with model.lora_rank the reference policy is the model without its adapter, and model.name is an adapter that has "
    "been trained: `rlvr merge` it first and name the merged model, or leave out algo.kl_coef"
)


def load_policy(
    config: ModelConfig, *, corpus: Iterable[str] = (), seed: int = 0, mesh: DeviceMesh | None = None
) -> Policy:
    """Return the policy that a config names.

    "tiny": a small model whose tokenizer is made from the corpus by `tiny_tokens`, and whose weights depend only on the
    seed. Otherwise: a GGUF file, or the hub name or folder of a transformers causal LM or of an adapter on one. An
    adapter is merged into its base, and all weights are trained; with `lora_rank` the adapter is trained further, if it
    matches the lora settings. mesh: of the ranks that hold the weights in shards. Raises ValueError where the name does
    not exist, is not a causal LM, or cannot be set up as configured.
    """
    device = pick_device(config.device)
    short = config.weights == "bfloat16" and not config.lora_rank
    dtype = torch.bfloat16 if short else pick_dtype(config.dtype, device)
    source = None if config.name == "tiny" else find_converted(config.name, config.revision)
    continued = bool(config.lora_rank and source is not None and source.adapter)
    if source is not None and continued:
        check_settings(source, config)
    tokenizer, model = _without_adapter(source, config, corpus, seed, dtype, in_parts=mesh is not None)
    use_template(tokenizer, config.chat_template, config.chat_option)
    if mesh is None:
        if source is None or source.adapter is None:
            model = model.to(device)  # a CPU would take minutes for the trials of a large model
        check_causal(model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if source is not None and source.adapter:
        with load_errors_as_value_error(config.name):
            model = load_adapter(model, source, trained=continued)
        model = model if continued else merge_adapter(model)
    elif config.lora_rank:
        model = with_adapter(model, config, seed=seed, task_type="CAUSAL_LM")
    if short:
        store_weights(model, torch.bfloat16)
    switch_off_dropout(model)
    if config.gradient_checkpointing:
        recompute_activations(model, lora=bool(config.lora_rank))
    # transformers recomputes activations only in training mode; without dropout the modes differ in nothing else.
    model.train(bool(config.gradient_checkpointing))
    trial = None
    if mesh is None:
        model = model.to(device)
    else:
        causal = model.get_base_model() if hasattr(model, "peft_config") else model
        trial = SmallCopyTrial(causal, device, config.attention == "auto")
    policy = Policy(
        model,
        tokenizer,
        dtype=dtype,
        system_prompt=config.system_prompt,
        chat=config.chat,
        packed=config.attention == "auto",
        continues_adapter=continued,
        trust_remote_code=config.trust_remote_code,
        trial=trial,
        mesh=mesh,
    )
    if source is not None and policy.device.type == "meta":
        allocate(policy.model, device)
        read_weights(policy.model, weight_files(source.weights))
    return policy


def _without_adapter(
    source: Source | None,
    config: ModelConfig,
    corpus: Iterable[str],
    seed: int,
    dtype: torch.dtype,
    *,
    in_parts: bool,
) -> tuple[Any, Any]:
    """Return tokenizer and model, without the adapter that the source may be. dtype: of the computation."""
    if source is None:
        tokenizer = tiny_tokenizer(corpus, config.tiny_tokens)
        model = tiny_model(tokenizer, seed, config.tiny_layers, config.tiny_width)
        set_attention(model, config.attention)
        return tokenizer, model
    # Frozen weights may have the computation's dtype; in trained ones it would round small updates away, unless the
    # optimizer has a copy of them. An adapter is merged in float32.
    as_computed = config.lora_rank or (config.weights == "bfloat16" and not source.adapter)
    in_parts = in_parts and source.adapter is None and not config.lora_rank
    return load_pretrained(source, config, dtype if as_computed else torch.float32, in_parts=in_parts)


def load_rendering(config: ModelConfig, *, corpus: Iterable[str] = ()) -> tuple[Rendering, Any]:
    """Return a config's prompt rendering and model config (also of "tiny"), without loading weights."""
    if config.name == "tiny":
        tokenizer: Any = tiny_tokenizer(corpus, config.tiny_tokens)
        settings: Any = tiny_config(tokenizer, config.tiny_layers, config.tiny_width)
    else:
        source = find_converted(config.name, config.revision)
        trust = {"trust_remote_code": config.trust_remote_code}
        with load_errors_as_value_error(config.name):
            settings = AutoConfig.from_pretrained(source.weights.name, **source.weights.options(), **trust)
            tokenizer = load_tokenizer(source.tokenizer.name, **source.tokenizer.options(), **trust)
    use_template(tokenizer, config.chat_template, config.chat_option)
    return Rendering(tokenizer, system_prompt=config.system_prompt, chat=config.chat), settings


def load_pretrained(
    source: Source, config: ModelConfig, dtype: torch.dtype, *, in_parts: bool = False
) -> tuple[Any, Any]:
    """Return tokenizer and model of a source; of an adapter, its base.

    With `in_parts` the weights are on the meta device, to be read later (`read_weights`), if its files allow it.
    """
    place, trust = source.weights, {"trust_remote_code": config.trust_remote_code}
    attention = {} if config.attention == "auto" else {"attn_implementation": config.attention}
    with load_errors_as_value_error(config.name):
        settings = AutoConfig.from_pretrained(place.name, **place.options(), **trust)
        check_decoder(settings, config.name)
        tokenizer = load_tokenizer(source.tokenizer.name, **source.tokenizer.options(), **trust)
        if in_parts and holds_every_weight(model := make_empty_model(place, config, dtype), weight_files(place)):
            return tokenizer, model
        model = AutoModelForCausalLM.from_pretrained(
            place.name, dtype=dtype, **place.model_options(), **trust, **attention
        )
    if place.converted_from:
        model.name_or_path = place.converted_from  # adapters name it as their base
    return tokenizer, model


def _eos_ids(causal: Any, tokenizer: Any) -> frozenset[int]:
    """Return every id that ends a completion, by tokenizer, model config and generation config."""
    sources: list[Any] = [tokenizer.eos_token_id, getattr(causal.config.get_text_config(), "eos_token_id", None)]
    if getattr(causal, "generation_config", None) is not None:
        sources.append(causal.generation_config.eos_token_id)
    ids: set[int] = set()
    for source in sources:
        ids.update(source if isinstance(source, (list, tuple)) else [] if source is None else [source])
    return frozenset(int(i) for i in ids if 0 <= i < causal.get_input_embeddings().num_embeddings)
