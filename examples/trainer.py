"""A small GPT-2, trained from scratch by ``transformers``' Trainer on random tokens.

It runs on a GPU as it is. Without one:

    pytorch-memlab run examples/trainer.py --bf16
    pytorch-memlab run --dry-run examples/trainer.py --fp16 --checkpointing

It needs ``transformers`` and ``accelerate``; nothing is downloaded.
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class RandomTexts(Dataset[dict[str, torch.Tensor]]):
    """Texts of random tokens.

    Args:
        number: how many.
        length: tokens of each.
    """

    def __init__(self, number: int, length: int) -> None:
        self.texts = torch.randint(0, 500, (number, length))

    def __len__(self) -> int:
        """The number of texts."""
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One, which is what the model is to predict."""
        return {"input_ids": self.texts[index], "labels": self.texts[index]}


def train(
    fp16: bool = False, bf16: bool = False, checkpointing: bool = False, accumulate: int = 2
) -> None:
    """Train two steps, then evaluate.

    Args:
        fp16: autocast to float16, with scaled gradients.
        bf16: autocast to bfloat16.
        checkpointing: keep the inputs of layers only, and compute the rest again in backward.
        accumulate: batches whose gradients make up one step.
    """
    config = GPT2Config(
        vocab_size=500, n_positions=64, n_embd=64, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    texts = RandomTexts(number=8 * accumulate, length=32)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=accumulate,
            gradient_checkpointing=checkpointing,
            fp16=fp16,
            bf16=bf16,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=texts, eval_dataset=texts)
        trainer.train()
        print(f"loss {trainer.evaluate()['eval_loss']:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train GPT-2 with transformers' Trainer.")
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--fp16", action="store_true", help="autocast to float16")
    precision.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--checkpointing", action="store_true", help="activation checkpointing")
    parser.add_argument("--accumulate", type=int, default=2, help="batches of one step")
    train(**vars(parser.parse_args()))
