"""Makes a tiny LLaVA with random weights; runs in vLLM's environment.

usage: tiny_vision.py FOLDER TINY, where TINY is a folder that `forebay.engines.tiny_model` made.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

IMAGE = "<image>"
SIDE, PATCH = 56, 14  #: pixels: 16 patches, each of which is a token of the prompt
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def rename_weights(path: Path) -> None:
    """To the names that published models have, and that vLLM knows."""
    weights = load_file(path)
    tower, inner = "vision_tower.", "vision_tower.vision_model."
    renamed = {
        name if inner in name else name.replace(tower, inner): weight for name, weight in weights.items()
    }
    save_file(renamed, path, metadata={"format": "pt"})


def main() -> None:
    folder, tiny = map(Path, sys.argv[1:])
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tiny / "tokenizer.json"), **special)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**small, image_size=SIDE, patch_size=PATCH, projection_dim=64),
        text_config=LlamaConfig(
            **small,
            vocab_size=len(tokenizer),
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=2048,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    rename_weights(folder / "model.safetensors")
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
        image_token=IMAGE,
    ).save_pretrained(folder)


if __name__ == "__main__":
    main()
