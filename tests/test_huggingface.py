"""Architectures of Hugging Face, small and with random weights, against the oracle. `make huggingface` runs this.

Many compute norms or rotations in float32 whatever the dtype of the model, and products then have its errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
from torch import Tensor, nn

import torchtangent as tt

os.environ.setdefault("HF_HUB_OFFLINE", "1")
T: Any = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # what is said depends on the version
Build = Callable[[], tuple[nn.Module, dict[str, Tensor]]]
WIDTHS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
WORDS = {**WIDTHS, "vocab_size": 40, "pad_token_id": 0}
OLDER = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "n_positions": 32}
LAYERS = {"d_model": 16, "vocab_size": 40, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
LAYERS |= {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "pad_token_id": 0}
PATCHES = {**WIDTHS, "image_size": 32, "patch_size": 8}
SMALL = {"hidden_sizes": [8] * 4, "depths": [1] * 4}


def tokens(n: int = 4, length: int = 7) -> Tensor:
    return torch.randint(3, 40, (n, length), generator=torch.Generator().manual_seed(1))


def made(name: str, task: str, inputs: dict[str, Tensor], **options: Any) -> Build:
    """A model of a family for a task, and its inputs."""

    def build() -> tuple[nn.Module, dict[str, Tensor]]:
        return getattr(T, name + task)(getattr(T, name + "Config")(**options)), inputs

    return build


def classifies(name: str, **options: Any) -> Build:
    """A classifier of sentences, of which some are padded."""
    mask = torch.ones(4, 7, dtype=torch.long)
    mask[1, 5:], mask[3, 4:] = 0, 0
    inputs = {"input_ids": tokens() * mask, "attention_mask": mask}
    return made(name, "ForSequenceClassification", inputs, **({**WORDS, "num_labels": 3} | options))


def speaks(name: str, **options: Any) -> Build:
    """A causal language model."""
    options = {**WORDS, "num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 2} | options
    return made(name, "ForCausalLM", {"input_ids": tokens()}, **options)


def sees(name: str, size: int = 32, **options: Any) -> Build:
    """A classifier of images."""
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))
    return made(name, "ForImageClassification", {"pixel_values": images}, num_labels=3, **options)


MODELS: dict[str, Build] = {
    "BERT": classifies("Bert"),
    "RoBERTa": classifies("Roberta"),
    "ALBERT": classifies("Albert", embedding_size=8),
    "ELECTRA": classifies("Electra", embedding_size=8),
    "DeBERTa-v2": classifies("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "ModernBERT": classifies("ModernBert", cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2),
    "GPT-2": made("GPT2", "LMHeadModel", {"input_ids": tokens()}, **OLDER),
    "GPT-J": made("GPTJ", "ForCausalLM", {"input_ids": tokens()}, **OLDER, rotary_dim=4),
    "GPT-NeoX": speaks("GPTNeoX"),
    "OPT": speaks("OPT", ffn_dim=24, word_embed_proj_dim=16),
    "BLOOM": made("Bloom", "ForCausalLM", {"input_ids": tokens()}, hidden_size=16, n_layer=2, n_head=2, vocab_size=40),
    "Llama": speaks("Llama"),
    "Mistral": speaks("Mistral", sliding_window=4),
    "Qwen3": speaks("Qwen3", head_dim=8),
    "Gemma 2": speaks("Gemma2", head_dim=8),
    "Phi-3": speaks("Phi3"),
    "Falcon": speaks("Falcon"),
    "OLMo 2": speaks("Olmo2"),
    "Mamba": made("Mamba", "ForCausalLM", {"input_ids": tokens()}, hidden_size=16, num_hidden_layers=2, vocab_size=40),
    "T5": made(
        "T5",
        "ForConditionalGeneration",
        {"input_ids": tokens(), "decoder_input_ids": tokens(length=4)},
        **{"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 40},
    ),
    "BART": made(
        "Bart",
        "ForConditionalGeneration",
        {"input_ids": tokens(), "decoder_input_ids": tokens(length=4)},
        **LAYERS,
    ),
    "Whisper": made(
        "Whisper",
        "ForConditionalGeneration",
        {
            "input_features": torch.randn(4, 8, 20, generator=torch.Generator().manual_seed(1)),
            "decoder_input_ids": tokens(length=4),
        },
        **LAYERS,
        **{"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16},
        **{"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
    "ViT": sees("ViT", **PATCHES),
    "DeiT": sees("DeiT", **PATCHES),
    "BEiT": sees("Beit", **PATCHES, use_relative_position_bias=True),
    "DINOv2": sees("Dinov2", **PATCHES),
    "Swin": sees("Swin", image_size=32, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4),
    "ConvNeXt V2": sees("ConvNextV2", **SMALL),
    "ResNet": sees("ResNet", embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic"),
    "SegFormer": sees("Segformer", size=64, **SMALL, num_attention_heads=[1] * 4, decoder_hidden_size=8),
}


def output(result: Any) -> Tensor:
    """All classes, or some logits of the last two words."""
    return result.logits if result.logits.dim() == 2 else result.logits[:, -2:, :3]


@pytest.mark.parametrize("name", MODELS)
def test_architecture(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model = model.double().eval()
    x = {key: t.double() if t.is_floating_point() else t for key, t in x.items()}
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    reference = oracle.jacobian(model, x, output)
    flat, v = reference.flatten(1, -2), torch.randn(reference.shape[-1], dtype=torch.float64)
    kernel = torch.einsum("ncp,mep->nmce", flat, flat)

    J = tt.jacobian(model, x, output=output)
    oracle.assert_close(J.dense(), reference, 1e-7)
    u = reference @ v
    oracle.assert_close((J @ v).double(), u, 1e-5)
    oracle.assert_close(J.T @ u, torch.einsum("...p,...->p", reference, u), 1e-5)
    oracle.assert_close(tt.ntk(model, x, output=output), kernel, 1e-7)
    F = tt.fisher(model, (x, None), tt.EKFAC, likelihood="gaussian", output=output)
    oracle.assert_close(F.trace(), flat.square().sum() / len(flat), 1e-7)
    lin = tt.linearize(model, output=output)
    oracle.move(lin, v)
    oracle.assert_close((lin(**x) - output(model(**x))).double(), u, 1e-5)
