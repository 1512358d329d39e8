"""The examples' models run on a simulated GPU, with arithmetic and without, to the same bytes."""

from __future__ import annotations

import gc

import pytest
import torch.distributed as dist
from support.dry_run_comparison import Example, bytes_of, kept_by, lines_of_both_runs
from torch.distributed import fsdp


@pytest.fixture
def example(request):
    return Example(request.param)


def uses(name):
    return pytest.mark.parametrize("example", [name], ids=[name], indirect=True)


def state_of(model):
    return bytes_of([*model.parameters(), *model.buffers()])


@uses("resnet")
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_resnet(example, channels_last):
    train = example.names["train"]
    lines = lines_of_both_runs(
        lambda: train(batch=4, channels_last=channels_last), example.functions()
    )
    model = example.names["ResNet18"](10)
    assert kept_by(lines, "model = ResNet18") == state_of(model)
    assert kept_by(lines, "optimizer.step()") == bytes_of(model.parameters())


@uses("lstm_language_model")
def test_an_lstm_language_model(example):
    lines = lines_of_both_runs(example.names["train"], example.functions())
    model = example.names["LanguageModel"](128, 2)
    assert kept_by(lines, "optimizer.step()") == 2 * bytes_of(model.parameters())


@uses("diffusion")
def test_a_diffusion_model(example):
    lines = lines_of_both_runs(example.names["train"], example.functions())
    parameters = bytes_of(example.names["UNet"](32).parameters())
    assert kept_by(lines, "model = UNet") == parameters
    assert kept_by(lines, "average = copy.deepcopy") == parameters
    assert kept_by(lines, "optimizer.step()") == 2 * parameters
    assert kept_by(lines, "follow(average, model)") == 0


@uses("gan")
def test_a_gan(example):
    lines = lines_of_both_runs(example.names["train"], example.functions())
    generator, critic = example.names["make_generator"](16), example.names["make_critic"](16)
    assert kept_by(lines, "generator, critic =") == state_of(generator) + state_of(critic)
    assert kept_by(lines, "optimizers[0].step()") == 2 * bytes_of(generator.parameters())
    assert kept_by(lines, "optimizers[1].step()") == 2 * bytes_of(critic.parameters())


@pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no fully_shard")
@pytest.mark.filterwarnings("ignore:one rank of")
def test_one_rank_of_a_sharded_language_model(monkeypatch):
    from torch.distributed.tensor import _random

    example = Example("fully_sharded")

    def program():
        monkeypatch.setattr(_random, "_rng_tracker", None)  # the first in a process sends its seed
        dist.init_process_group("nccl", rank=0, world_size=8)
        try:
            example.names["train"]()
        finally:
            dist.destroy_process_group()
            while gc.collect():  # what cycles hold of the model would go at any time
                pass

    gc.disable()
    try:
        lines = lines_of_both_runs(program, [example.names["train"]])
    finally:
        gc.enable()
    model = example.names["LanguageModel"](256, 128, 4, 4)
    # The first dimension is cut into eight, which it is a multiple of in all parameters.
    shards = bytes_of(model.parameters()) / 8
    assert kept_by(lines, "model.to_empty") == shards
    assert kept_by(lines, "optimizer.step()") == 2 * shards
