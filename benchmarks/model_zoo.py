"""Models that people have: classes of transformers with random weights, two layers and hidden size 64.

What `benchmarks/models.py --read` exports and reads. Each is a `Specimen`; those with a cache are exported as a step of
decoding, too: the keys and values of earlier tokens come in, longer ones go out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

HIDDEN, HEADS, SEQUENCE, PAST, VOCABULARY, LAYERS, BATCH, IMAGE = 64, 4, 16, 8, 200, 2, 2, 32


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many tokens inputs have.

    Attributes:
        batch: sequences.
        sequence: tokens of each.
        vocabulary: kinds of tokens.
    """

    batch: int = BATCH
    sequence: int = SEQUENCE
    vocabulary: int = VOCABULARY


TINY = Sizes()


@dataclass(frozen=True, slots=True)
class Specimen:
    """A model.

    Attributes:
        config: the class in transformers that describes it.
        model: the class itself, with its module where transformers does not export it.
        options: of the configuration.
        inputs: by parameter, `ids` or `mask` of tokens, or an array's shape, whose first dimension is the batch.
        result: which of its results is the model's.
        made: what the class is given besides its configuration.
        cache: the shape of a layer's past keys and values, `PAST` long at dimension 2; none where it has no cache.
    """

    config: str
    model: str
    options: Mapping[str, Any]
    inputs: Mapping[str, str | tuple[int, ...]]
    result: str = "last_hidden_state"
    made: Mapping[str, Any] = field(default_factory=dict)
    cache: tuple[int, ...] = ()


TEXT: Mapping[str, str] = {"input_ids": "ids", "attention_mask": "mask"}
_PIXELS = {"pixel_values": (BATCH, 3, IMAGE, IMAGE)}
_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * HIDDEN,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA = _BERT | {"num_key_value_heads": 2, "head_dim": HIDDEN // HEADS, "use_cache": False}
_KEPT = (BATCH, 2, PAST, HIDDEN // HEADS)
_ALL = (BATCH, HEADS, PAST, HIDDEN // HEADS)
_VIT = {k: v for k, v in _BERT.items() if "_token_id" not in k and k not in ("vocab_size", "max_position_embeddings")}
_VIT |= {"image_size": IMAGE, "patch_size": 8}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": HIDDEN,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "d_kv": HIDDEN // HEADS,
    "d_ff": 2 * HIDDEN,
    "use_cache": False,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": HIDDEN,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * HIDDEN,
    "decoder_ffn_dim": 2 * HIDDEN,
    "max_position_embeddings": 64,
    "use_cache": False,
}
_WHISPER = {k: v for k, v in _BART.items() if k != "max_position_embeddings"} | {
    "num_mel_bins": 20,
    "max_source_positions": SEQUENCE,
    "max_target_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_BOTH = {"input_ids": "ids", "decoder_input_ids": "ids"}
_STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}

SPECIMENS: Mapping[str, Specimen] = MappingProxyType(
    {
        "bert": Specimen("BertConfig", "BertModel", _BERT, TEXT),
        "bert-classifier": Specimen("BertConfig", "BertForSequenceClassification", _BERT, TEXT, "logits"),
        "distilbert": Specimen(
            "DistilBertConfig",
            "DistilBertModel",
            {"vocab_size": VOCABULARY, "dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 2 * HIDDEN}
            | {"max_position_embeddings": 64},
            TEXT,
        ),
        "roberta": Specimen("RobertaConfig", "RobertaModel", _BERT, TEXT),
        "albert": Specimen("AlbertConfig", "AlbertModel", _BERT | {"embedding_size": 32}, TEXT),
        "electra": Specimen("ElectraConfig", "ElectraModel", _BERT | {"embedding_size": 32}, TEXT),
        "deberta": Specimen(
            "DebertaV2Config",
            "DebertaV2Model",
            _BERT
            | {"relative_attention": True}
            | {
                "position_buckets": 8,
                "pos_att_type": ["p2c", "c2p"],
                "norm_rel_ebd": "layer_norm",
                "share_att_key": True,
            },
            TEXT,
        ),
        "mpnet": Specimen("MPNetConfig", "MPNetModel", _BERT, TEXT),
        "modernbert": Specimen("ModernBertConfig", "ModernBertModel", _BERT | {"local_attention": 8}, TEXT),
        "gpt2": Specimen(
            "GPT2Config",
            "GPT2LMHeadModel",
            {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
            | {"use_cache": False, "bos_token_id": 1, "eos_token_id": 2},
            TEXT,
            "logits",
            cache=_ALL,
        ),
        "gpt-neox": Specimen(
            "GPTNeoXConfig", "GPTNeoXForCausalLM", _BERT | {"use_cache": False}, TEXT, "logits", cache=_ALL
        ),
        "opt": Specimen(
            "OPTConfig",
            "OPTForCausalLM",
            {k: v for k, v in _BERT.items() if k != "intermediate_size"}
            | {"ffn_dim": 2 * HIDDEN, "word_embed_proj_dim": HIDDEN, "use_cache": False},
            TEXT,
            "logits",
            cache=_ALL,
        ),
        "bloom": Specimen(
            "BloomConfig",
            "BloomForCausalLM",
            {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "use_cache": False},
            TEXT,
            "logits",
            cache=_ALL,
        ),
        "llama": Specimen("LlamaConfig", "LlamaForCausalLM", _LLAMA, TEXT, "logits", cache=_KEPT),
        "mistral": Specimen("MistralConfig", "MistralForCausalLM", _LLAMA | {"sliding_window": 8}, TEXT, "logits"),
        "qwen2": Specimen("Qwen2Config", "Qwen2ForCausalLM", _LLAMA, TEXT, "logits", cache=_KEPT),
        "qwen3": Specimen("Qwen3Config", "Qwen3ForCausalLM", _LLAMA, TEXT, "logits", cache=_KEPT),
        "qwen3-moe": Specimen(
            "Qwen3MoeConfig",
            "Qwen3MoeForCausalLM",
            _LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
            TEXT,
            "logits",
        ),
        "gemma2": Specimen("Gemma2Config", "Gemma2ForCausalLM", _LLAMA | {"sliding_window": 8}, TEXT, "logits"),
        "gemma3": Specimen("Gemma3TextConfig", "Gemma3ForCausalLM", _LLAMA | {"sliding_window": 8}, TEXT, "logits"),
        "phi": Specimen("PhiConfig", "PhiForCausalLM", _BERT | {"use_cache": False}, TEXT, "logits", cache=_ALL),
        "phi3": Specimen("Phi3Config", "Phi3ForCausalLM", _LLAMA, TEXT, "logits", cache=_KEPT),
        "falcon": Specimen(
            "FalconConfig",
            "FalconForCausalLM",
            {k: v for k, v in _BERT.items() if k != "intermediate_size"} | {"use_cache": False, "multi_query": True},
            TEXT,
            "logits",
        ),
        "t5-encoder": Specimen("T5Config", "T5EncoderModel", _T5, TEXT),
        "t5": Specimen("T5Config", "T5ForConditionalGeneration", _T5, _BOTH, "logits"),
        "bart": Specimen("BartConfig", "BartForConditionalGeneration", _BART, _BOTH, "logits"),
        "whisper-encoder": Specimen(
            "WhisperConfig",
            "transformers.models.whisper.modeling_whisper.WhisperEncoder",
            _WHISPER,
            {"input_features": (BATCH, 20, 2 * SEQUENCE)},
        ),
        "whisper": Specimen(
            "WhisperConfig",
            "WhisperForConditionalGeneration",
            _WHISPER,
            {"input_features": (BATCH, 20, 2 * SEQUENCE), "decoder_input_ids": "ids"},
            "logits",
        ),
        "vit": Specimen("ViTConfig", "ViTForImageClassification", _VIT, _PIXELS, "logits"),
        "deit": Specimen("DeiTConfig", "DeiTForImageClassification", _VIT, _PIXELS, "logits"),
        "dinov2": Specimen("Dinov2Config", "Dinov2Model", _VIT, _PIXELS),
        "swin": Specimen(
            "SwinConfig",
            "SwinForImageClassification",
            {"image_size": IMAGE, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
            | {"window_size": 4},
            _PIXELS,
            "logits",
        ),
        "clip": Specimen(
            "CLIPConfig",
            "CLIPModel",
            {
                "projection_dim": 32,
                "text_config": _BERT,
                "vision_config": _VIT,
            },
            {**TEXT, **_PIXELS},
            "logits_per_image",
        ),
        "siglip-vision": Specimen("SiglipVisionConfig", "SiglipVisionModel", _VIT, _PIXELS),
        "resnet": Specimen(
            "ResNetConfig", "ResNetForImageClassification", {"embedding_size": 16} | _STAGES, _PIXELS, "logits"
        ),
        "convnext": Specimen("ConvNextConfig", "ConvNextForImageClassification", _STAGES, _PIXELS, "logits"),
        "mobilenet": Specimen(
            "MobileNetV2Config",
            "MobileNetV2ForImageClassification",
            {"image_size": IMAGE, "depth_multiplier": 0.25},
            _PIXELS,
            "logits",
        ),
        "efficientnet": Specimen(
            "EfficientNetConfig",
            "EfficientNetForImageClassification",
            {
                "image_size": IMAGE,
                "width_coefficient": 0.25,
                "depth_coefficient": 0.25,
                "hidden_dim": 320,
                "kernel_sizes": [3, 3, 5],
                "in_channels": [32, 16, 24],
                "out_channels": [16, 24, 40],
                "strides": [1, 2, 2],
                "num_block_repeats": [1, 1, 1],
                "expand_ratios": [1, 6, 6],
                "depthwise_padding": [],
                "squeeze_expansion_ratio": 0.25,
            },
            _PIXELS,
            "logits",
        ),
        "segformer": Specimen(
            "SegformerConfig",
            "SegformerForSemanticSegmentation",
            {
                "hidden_sizes": [16, 32],
                "depths": [1, 1],
                "num_encoder_blocks": 2,
                "sr_ratios": [2, 1],
                "num_attention_heads": [1, 2],
                "patch_sizes": [7, 3],
                "strides": [4, 2],
                "mlp_ratios": [2, 2],
                "decoder_hidden_size": 32,
            },
            _PIXELS,
            "logits",
        ),
        "wav2vec2": Specimen(
            "Wav2Vec2Config",
            "Wav2Vec2ForCTC",
            {k: v for k, v in _BERT.items() if k != "max_position_embeddings"}
            | {
                "conv_dim": (16, 16),
                "conv_stride": (5, 2),
                "conv_kernel": (10, 3),
                "num_conv_pos_embeddings": 8,
                "num_conv_pos_embedding_groups": 2,
                "num_feat_extract_layers": 2,
            },
            {"input_values": (BATCH, 400)},
            "logits",
        ),
        "mamba": Specimen(
            "MambaConfig",
            "MambaForCausalLM",
            {
                "vocab_size": VOCABULARY,
                "hidden_size": HIDDEN,
                "num_hidden_layers": LAYERS,
                "state_size": 4,
                "use_cache": False,
            }
            | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
            {"input_ids": "ids"},
            "logits",
        ),
    }
)


def built(spec: Specimen) -> torch.nn.Module:
    """A model of transformers with random weights, the same each time."""
    import torch

    torch.manual_seed(0)
    transformers = import_module("transformers")
    owner: Any = transformers
    *modules, last = spec.model.removeprefix("transformers.").split(".")
    for part in modules:
        owner = getattr(owner, part)
    found: torch.nn.Module = getattr(owner, last)(getattr(transformers, spec.config)(**spec.options), **spec.made)
    return found


def made(spec: Specimen, sizes: Sizes = TINY, past: bool = False) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model that takes its tensors in order and returns one tensor, or one and its cache; and inputs for it.

    Args:
        spec: the model.
        sizes: of the inputs.
        past: whether it decodes: its tokens come after `PAST` earlier ones.
    """
    import torch

    model = built(spec).eval()
    with torch.no_grad():  # norms' gains and biases start as ones and zeros, which would hide what is left out
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))
    inputs: dict[str, torch.Tensor] = {}
    for key, kind in spec.inputs.items():
        match kind:
            case "ids":
                inputs[key] = torch.randint(3, sizes.vocabulary, (sizes.batch, sizes.sequence))
            case "mask":
                mask = torch.ones(sizes.batch, sizes.sequence + PAST * past, dtype=torch.int64)
                mask[1:, -5:] = 0
                inputs[key] = mask
            case shape:
                inputs[key] = torch.randn([int(n) for n in shape])
    names = tuple(inputs)
    if past:
        for n in range(LAYERS):
            inputs |= {f"past_{n}_{which}": torch.randn(spec.cache) for which in ("key", "value")}

    class One(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: torch.Tensor) -> Any:
            given: dict[str, Any] = dict(zip(names, args, strict=False))
            kept = args[len(names) :]
            if kept:
                cache = import_module("transformers").DynamicCache(list(zip(kept[::2], kept[1::2], strict=True)))
                given |= {"past_key_values": cache, "use_cache": True}
            found = self.inner(**given, return_dict=True)
            result = getattr(found, spec.result)
            if not kept:
                return result
            layers = found.past_key_values.layers
            return (result, *(t for layer in layers for t in (layer.keys, layer.values)))

    return One(model).eval(), inputs


def export(name: str, file: Path, opset: int, exporter: str, dynamic: bool, past: bool) -> None:
    """Write a model as ONNX; where it is dynamic, batch and lengths of text are free."""
    import torch

    spec = SPECIMENS[name]
    model, inputs = made(spec, past=past)
    free: dict[str, dict[int, str]] = {}
    for key in inputs:
        free[key] = {0: "batch"}
        match spec.inputs.get(key):
            case "ids":
                free[key][1] = "seq"
            case "mask":
                free[key][1] = "total" if past else "seq"
            case None:
                free[key][2] = "past"
    results = ["result", *(f"new_{k}" for k in inputs if k not in spec.inputs)]
    args = tuple(inputs.values())
    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        if exporter == "legacy":
            axes = {
                **free,
                results[0]: {0: "batch"},
                **{f"new_{k}": {0: "batch", 2: "total"} for k in inputs if k not in spec.inputs},
            }
            torch.onnx.export(
                model,
                args,
                str(file),
                dynamo=False,
                opset_version=opset,
                input_names=list(inputs),
                output_names=results,
                dynamic_axes=axes if dynamic else None,
            )
            return
        dims = tuple(dict.fromkeys(free[k], torch.export.Dim.DYNAMIC) for k in inputs)
        program = torch.onnx.export(
            model, args, dynamo=True, opset_version=opset, input_names=list(inputs), output_names=results,
            dynamic_shapes=(dims,) if dynamic else None, verbose=False,
        )  # fmt: skip
        assert program is not None
        program.save(str(file), external_data=False)
