"""Liger's kernels, in Triton: they take what their formulas say; `make programs` has them."""

from __future__ import annotations

import pytest
import torch
from support.dry_run_comparison import lines_of_both_runs

pytest.importorskip("triton", reason="`make programs` has triton")
liger = pytest.importorskip("liger_kernel.transformers", reason="`make programs` has liger-kernel")

transformers = pytest.importorskip("transformers")

from pytorch_memlab import simulate  # noqa: E402

MIB = 1024**2
TOKENS, WIDTH, VOCABULARY = 1024, 64, 8192


def losses(fused):
    """The loss of a head, and its gradients; how many bytes above those of its inputs it took."""
    x = torch.randn(TOKENS, WIDTH, device="cuda", requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, device="cuda", requires_grad=True)
    target = torch.randint(0, VOCABULARY, (TOKENS,), device="cuda")
    x @ x.T  # cuBLAS' workspace
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    if fused:
        loss = liger.LigerFusedLinearCrossEntropyLoss()(weight, x, target)
    else:
        loss = torch.nn.functional.cross_entropy(x @ weight.T, target)
    loss.backward()
    return loss, x.grad, weight.grad, torch.cuda.max_memory_allocated() - before


def test_the_fused_loss_never_holds_all_scores():
    with simulate("h100", compute=False):
        *_, fused = losses(fused=True)
        *_, plain = losses(fused=False)
    scores = TOKENS * VOCABULARY * 4
    # Chunks have as many rows as make their scores about as large as the input.
    chunk = TOKENS // (VOCABULARY // WIDTH)
    gradients = 2 * VOCABULARY * WIDTH * 4 + TOKENS * WIDTH * 4
    assert plain >= 2 * scores
    assert fused < gradients + 3 * chunk * VOCABULARY * 4 + MIB < scores / 4


def test_the_fused_loss_is_the_loss():
    with simulate("h100"):
        torch.manual_seed(0)
        fused = losses(fused=True)
        torch.manual_seed(0)
        plain = losses(fused=False)
        for one, other in zip(fused[:3], plain[:3], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_and_activations_compute(dtype):
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    with simulate("h100"):
        x = torch.randn(8, 64, device="cuda", dtype=dtype)
        norm = liger.LigerRMSNorm(64).to("cuda", dtype)
        expected = torch.nn.functional.rms_norm(x, (64,), norm.weight, 1e-6)
        torch.testing.assert_close(norm(x), expected, rtol=2e-2, atol=2e-2)
        result = LigerSiLUMulFunction.apply(x.clone(), x.clone())
        torch.testing.assert_close(result, torch.nn.functional.silu(x) * x, rtol=2e-2, atol=2e-2)


def llama_step():
    config = transformers.LlamaConfig(
        vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).cuda().bfloat16()
    liger.apply_liger_kernel_to_llama(model=model)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 500, (2, 16), device="cuda")
    for _ in range(2):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_patched_llama_takes_the_same_in_a_dry_run():
    # Liger logs which backends it cannot import, and pytest keeps those records with their frames.
    with simulate("80GiB", compute=False):
        llama_step()
    lines_of_both_runs(llama_step, [llama_step])
