"""Training of GPT as Megatron-LM's functional tests do it, with its own models and optimizers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.distributed import barrier, init_process_group

_LAYERS, _WIDTH, _HEADS, _LENGTH = 12, 512, 8, 1024
_BATCH, _GLOBAL_BATCH = 4, 32
_VOCABULARY = 50_257
_STEPS = 4


class _CausalSoftmax(ModuleType):
    """Apex's kernel ``scaled_upper_triang_masked_softmax_cuda``, whose backward works in place."""

    @staticmethod
    def forward(inputs: torch.Tensor, _scale: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(inputs)

    @staticmethod
    def backward(gradient: torch.Tensor, *_args: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous().mul_(1)


class _MaskedSoftmax(ModuleType):
    @staticmethod
    def get_batch_per_block(*_sizes: int) -> int:
        return 4  # Apex, ``get_batch_per_block``: four warps, and a row of 1,024 for each


class _FusedAdam(torch.optim.Optimizer):
    """Adam of one kernel for many tensors: two moments, and the step in the group."""

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, settings)
        self.overflow = torch.zeros(1, dtype=torch.int32, device="cuda")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of all parameters."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                parameter.add_(parameter.grad, alpha=-1e-4)
        return loss


def _with_kernels() -> None:
    """Give Megatron the kernels of Apex and of Transformer Engine, which need a compiler."""
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer

    sys.modules["scaled_upper_triang_masked_softmax_cuda"] = _CausalSoftmax("causal")
    sys.modules["scaled_masked_softmax_cuda"] = _MaskedSoftmax("masked")
    optimizer.Adam = distrib_optimizer.Adam = _FusedAdam
    optimizer.USING_PYTORCH_OPTIMIZER = False


def _start(tensor: int, pipeline: int) -> None:
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    torch.cuda.set_device(0)
    init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor, pipeline, create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(1234)
    MoEAuxLossAutoScaler.set_loss_scale(torch.ones(1, device="cuda"))
    barrier()


def _model(tensor: int, pipeline: int, half: torch.dtype, kernels: bool, padded: int) -> Any:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=_LAYERS,
        hidden_size=_WIDTH,
        num_attention_heads=_HEADS,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        pipeline_dtype=half,
        params_dtype=half,
        fp16=half is torch.float16,
        bf16=half is torch.bfloat16,
        apply_query_key_layer_scaling=True,
        masked_softmax_fusion=kernels,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        deterministic_mode=True,
        batch_p2p_comm=True,
        deallocate_pipeline_outputs=True,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        padded,
        _LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
    )
    model.cuda()
    return config, Float16Module(config, model)


def _batches() -> Iterator[Any]:
    from megatron.core import parallel_state

    whole = (_BATCH, _LENGTH)
    is_first_tensor_rank = parallel_state.get_tensor_model_parallel_rank() == 0
    has_all = is_first_tensor_rank or parallel_state.get_pipeline_model_parallel_world_size() == 1
    device = "cpu" if is_first_tensor_rank else "cuda"
    while True:
        mask = torch.zeros(_BATCH, 1, _LENGTH, _LENGTH, dtype=torch.bool, device=device)
        tokens, labels, positions = (
            torch.zeros(whole, dtype=torch.int64, device=device) for _ in range(3)
        )
        weights = torch.ones(whole, device=device)
        if not has_all:
            yield None, labels, weights, mask, None
        else:
            yield tuple(part.cuda() for part in (tokens, labels, weights, mask, positions))


def _forward(batches: Iterator[Any], model: nn.Module) -> Any:
    tokens, labels, weights, mask, positions = next(batches)

    def loss_of(outputs: torch.Tensor) -> Any:
        losses, kept = outputs.view(-1).float(), weights.view(-1).float()
        loss = torch.sum(losses * kept)
        count = kept.sum().clone().detach().to(torch.int)
        report = torch.cat([loss.clone().detach().view(1), count.view(1)])
        return loss, count, {"lm loss": report}

    return model(tokens, positions, mask, labels=labels), loss_of


def train(
    tensor: int = 1,
    pipeline: int = 1,
    half: str = "bfloat16",
    kernels: bool = True,
    sharded: bool = False,
) -> Mapping[str, int]:
    """Steps of the last rank, which writes the log.

    Args:
        tensor: GPUs among which each product is split.
        pipeline: stages.
        half: dtype of the model.
        kernels: those of Apex and of Transformer Engine are installed.
        sharded: the optimizer is, and reductions and gathers overlap.

    Returns:
        The peak of the first step, the peak at the end, and the bytes after a step.
    """
    if kernels:
        _with_kernels()
    _start(tensor, pipeline)
    started = torch.zeros(1, dtype=torch.float64, device="cuda")
    dtype: torch.dtype = getattr(torch, half)
    multiple = 128 * tensor
    padded = -(-_VOCABULARY // multiple) * multiple
    model, optimizer = _prepared(tensor, pipeline, dtype, kernels, padded, sharded)
    first, after, total = 0, 0, None
    for step in range(_STEPS):
        loss = _step(model, optimizer, tensor * pipeline)
        total = (torch.zeros(1, device="cuda") if total is None else total) + loss
        after = torch.cuda.memory_allocated()
        total = torch.zeros(1, device="cuda")
        if step == 0:
            first = torch.cuda.max_memory_allocated()
            if sharded:
                model.enable_forward_pre_hook()
    del started
    return {"first": first, "after": after}


def _prepared(
    tensor: int, pipeline: int, half: torch.dtype, kernels: bool, padded: int, sharded: bool
) -> Any:
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config, module = _model(tensor, pipeline, half, kernels, padded)
    data = int(os.environ["WORLD_SIZE"]) // (tensor * pipeline)
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=half is torch.bfloat16,
        overlap_grad_reduce=sharded,
        overlap_param_gather=sharded,
        use_distributed_optimizer=sharded,
        check_for_nan_in_grad=True,
        bucket_size=max(40_000_000, 1_000_000 * data) if sharded else None,
    )
    with torch.cuda.stream(torch.cuda.Stream()):
        model = DistributedDataParallel(config, settings, module)
    rule = OptimizerConfig(
        lr=0.00015,
        min_lr=1e-5,
        weight_decay=1e-2,
        clip_grad=1.0,
        fp16=half is torch.float16,
        bf16=half is torch.bfloat16,
        params_dtype=half,
        use_distributed_optimizer=sharded,
        overlap_param_gather=sharded,
        log_num_zeros_in_grad=True,
    )
    optimizer = get_megatron_optimizer(rule, [model], use_gloo_process_groups=False)
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if sharded:
        config.no_sync_func = model.no_sync
        model.disable_forward_pre_hook(param_sync=False)
    return model.train(), optimizer


def _step(model: Any, optimizer: Any, ranks: int) -> torch.Tensor:
    from megatron.core.pipeline_parallel import get_forward_backward_func

    model.zero_grad_buffer()
    optimizer.zero_grad()
    data = int(os.environ["WORLD_SIZE"]) // ranks
    reports = get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=_batches(),
        model=[model],
        num_microbatches=_GLOBAL_BATCH // _BATCH // data,
        seq_length=_LENGTH,
        micro_batch_size=_BATCH,
        decoder_seq_length=_LENGTH,
        forward_only=False,
    )
    optimizer.step()
    whole = torch.vstack([report["lm loss"] for report in reports]).sum(dim=0)
    loss: torch.Tensor = whole[0] / whole[1]
    return loss
