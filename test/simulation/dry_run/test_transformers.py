"""Models of ``transformers`` from tiny configs, its Trainer and ``accelerate``, unmodified."""

from __future__ import annotations

import pytest
import torch
from support.dry_run_comparison import Example, bytes_of, kept_by, lines_of_both_runs

from pytorch_memlab import simulate

transformers = pytest.importorskip("transformers", reason="`make programs` has transformers")
accelerate = pytest.importorskip("accelerate", reason="`make programs` has accelerate")

TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=500, n_positions=64, n_embd=64, n_layer=2, n_head=4, eos_token_id=None
    )
    return transformers.GPT2LMHeadModel(config)


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=500, **TINY))


def llama():
    config = transformers.LlamaConfig(
        vocab_size=500, num_key_value_heads=2, eos_token_id=None, **TINY
    )
    return transformers.LlamaForCausalLM(config)


def t5():
    config = transformers.T5Config(
        vocab_size=500, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        eos_token_id=None, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def vit():
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=10, **TINY)
    return transformers.ViTForImageClassification(config)


def mixtral():
    config = transformers.MixtralConfig(
        vocab_size=500, num_key_value_heads=2, num_local_experts=4, eos_token_id=None, **TINY
    )
    return transformers.MixtralForCausalLM(config)


SEARCHES = ({}, {"do_sample": True, "top_k": 5}, {"num_beams": 3})
MODELS = (gpt2, bert, llama, t5, vit, mixtral)


def named(function):
    return function.__name__


def batch_for(model):
    if "pixel_values" in model.main_input_name:
        return {
            "pixel_values": torch.randn(4, 3, 32, 32, device="cuda"),
            "labels": torch.randint(0, 10, (4,), device="cuda"),
        }
    tokens = torch.randint(0, 500, (4, 16), device="cuda")
    return {"input_ids": tokens, "labels": tokens}


def training(make):
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = model(**batch_for(model)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def generation(make, **options):
    model = make().cuda().eval()
    tokens = torch.randint(1, 500, (2, 8), device="cuda")
    mask = torch.ones_like(tokens)
    longer = model.generate(
        tokens, attention_mask=mask, max_new_tokens=6, pad_token_id=0, **options
    )
    assert longer.shape[1] == (7 if model.config.is_encoder_decoder else 14)


@pytest.mark.parametrize("make", MODELS, ids=named)
def test_training(make):
    lines = lines_of_both_runs(lambda: training(make), [training])
    assert kept_by(lines, "optimizer.step()") == 2 * bytes_of(make().parameters())


@pytest.mark.parametrize("make", [gpt2, llama, t5, mixtral], ids=named)
@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_generation(make, options):
    lines_of_both_runs(lambda: generation(make, **options), [generation])


@pytest.fixture
def new_accelerators():
    """``accelerate`` keeps the first device that it sees for the whole process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(
    "options",
    [{}, {"fp16": True}, {"bf16": True, "checkpointing": True}, {"accumulate": 4}],
    ids=str,
)
def test_the_trainer(options, new_accelerators):
    example = Example("trainer")
    functions = [*example.functions(), transformers.Trainer.training_step]
    lines = lines_of_both_runs(lambda: example.names["train"](**options), functions)
    steps = lines[lines["function"] == "Trainer.training_step"]
    assert steps["hits"].iloc[0] == 2 * options.get("accumulate", 2)


def test_a_loop_with_accelerate(new_accelerators):
    example = Example("accelerate_loop")
    lines = lines_of_both_runs(example.names["train"], example.functions())
    parameters = 4 * (64 * 256 + 256 + 2 * 256 + 256 * 10 + 10)
    assert kept_by(lines, "accelerator.prepare") == parameters
    assert kept_by(lines, "optimizer.step()") == 2 * parameters


@pytest.mark.parametrize("sample", [False, True])
def test_the_cache_of_keys_and_values_grows_by_the_token(sample):
    example = Example("generate")
    lines_of_both_runs(lambda: example.names["generate"](sample=sample), example.functions())


def test_a_llama_step():
    example = Example("llama_step")
    lines = lines_of_both_runs(lambda: example.names["step"]("tiny", 1, 32), example.functions())
    assert len(lines) > 10


def test_a_saved_model_is_read_back(tmp_path):
    with simulate("24GiB", compute=False):
        gpt2().save_pretrained(tmp_path)
        read = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).cuda()
        weights = {id(weight): weight.nbytes for weight in read.parameters()}
        assert torch.cuda.memory_allocated() >= sum(weights.values()) > 500 * 64 * 4
    assert not (tmp_path / "model.safetensors").exists()
