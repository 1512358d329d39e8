"""``torch.autocast("cuda")`` on simulated GPUs: CUDA's lists, the weight cache, their memory."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from support.computed_or_dry import computed_or_dry
from torch import nn

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.autocast.autocast import LISTS, casts_serve_training

HALF, BFLOAT, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
KiB = 1024
serves_training = pytest.mark.skipif(
    not casts_serve_training(), reason="this torch caches casts that training cannot use"
)


@pytest.fixture(autouse=True)
def simulated():
    clear = torch.clear_autocast_cache
    with simulate("24GiB"):
        yield
    assert torch.clear_autocast_cache is clear
    assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.AutocastCUDA)
    with torch.autocast("cuda", enabled=False):
        torch.set_autocast_enabled("cuda", True)
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == SINGLE
        assert torch.ones(2, dtype=HALF).exp().dtype == HALF


def on_gpu(*size, dtype=SINGLE, **options):
    return torch.rand(size, device="cuda", dtype=dtype, **options)


LOWER = {
    "matmul": lambda a, b: a @ b,
    "mm": torch.mm,
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "linear": F.linear,
    "linear with bias": lambda a, b: F.linear(a, b, b[0]),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "addmv": lambda a, b: torch.addmv(a[0], a, b[0]),
    "addr": lambda a, b: torch.addr(a, a[0], b[0]),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "baddbmm": lambda a, b: torch.baddbmm(a[None], a[None], b[None]),
    "multi_dot": lambda a, b: torch.linalg.multi_dot([a, b, a]),
    "chain_matmul": lambda a, b: torch.linalg.multi_dot([a, b]),
    "vecdot": torch.linalg.vecdot,
    "conv1d": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "conv2d": lambda a, b: F.conv2d(a[None, None], b[None, None, :3, :3]),
    "conv_transpose2d": lambda a, b: F.conv_transpose2d(a[None, None], b[None, None, :3, :3]),
    "prelu": lambda a, b: F.prelu(a, b[0, :1]),
    "attention": lambda a, b: F.scaled_dot_product_attention(*[a[None, None]] * 2, b[None, None]),
    "gru_cell": lambda a, b: torch.gru_cell(a, b, torch.cat([a] * 3), torch.cat([b] * 3)),
    "lstm_cell": lambda a, b: torch.lstm_cell(a, (b, b), torch.cat([a] * 4), torch.cat([b] * 4))[0],
}

FULL = {
    "exp": lambda a: a.exp(),
    "log": lambda a: a.log(),
    "acos": lambda a: a.acos(),
    "rsqrt": lambda a: a.rsqrt(),
    "reciprocal": lambda a: a.reciprocal(),
    "pow by a number": lambda a: a**2,
    "pow of a number": lambda a: 2**a,
    "pow": lambda a: a**a,
    "softplus": F.softplus,
    "layer_norm": lambda a: F.layer_norm(a, (8,)),
    "rms_norm": lambda a: F.rms_norm(a, (8,)),
    "group_norm": lambda a: F.group_norm(a, 2),
    "cosine_similarity": lambda a: F.cosine_similarity(a, a),
    "cross_entropy": lambda a: F.cross_entropy(a, torch.zeros(8, dtype=torch.int64, device="cuda")),
    "mse_loss": lambda a: F.mse_loss(a, a),
    "with_logits": lambda a: F.binary_cross_entropy_with_logits(a, a),
    "logsumexp": lambda a: a.logsumexp(0),
    "cdist": lambda a: torch.cdist(a, a),
    "upsampling": lambda a: F.interpolate(a[None, None], scale_factor=2, mode="bilinear"),
    "softmax": lambda a: a.softmax(-1),
    "log_softmax": lambda a: a.log_softmax(-1),
    "sum": lambda a: a.sum(),
    "sum over a dim": lambda a: a.sum(0),
    "prod": lambda a: a.prod(),
    "cumsum": lambda a: a.cumsum(0),
    "norm": lambda a: a.norm(),
    "norm over a dim": lambda a: torch.norm(a, dim=0),
    "vector_norm": torch.linalg.vector_norm,
}

UNTOUCHED = {
    "add": lambda a: a + 1,
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "sqrt": torch.sqrt,
    "mean": torch.mean,
    "max": torch.max,
    "sum that names a dtype": lambda a: a.sum(dtype=HALF),
    "softmax that names a dtype": lambda a: a.softmax(-1, dtype=HALF),
}


@pytest.mark.parametrize("name", LOWER)
@pytest.mark.parametrize("dtype", [HALF, BFLOAT])
def test_lower_precision_list(name, dtype):
    a, b = on_gpu(8, 8), on_gpu(8, 8)
    assert LOWER[name](a, b).dtype == SINGLE
    with torch.autocast("cuda", dtype):
        assert LOWER[name](a, b).dtype == dtype
        with torch.autocast("cuda", enabled=False):
            assert LOWER[name](a, b).dtype == SINGLE


@pytest.mark.parametrize("name", FULL)
def test_fp32_lists(name):
    half = on_gpu(8, 8, dtype=HALF)
    with torch.autocast("cuda"):
        assert FULL[name](half).dtype == SINGLE


@pytest.mark.parametrize("name", UNTOUCHED)
def test_all_else_keeps_its_dtype(name):
    with torch.autocast("cuda"):
        assert UNTOUCHED[name](on_gpu(8, 8, dtype=HALF)).dtype == HALF


@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_run_in_lower_precision_as_with_cudnn(network):
    layer = network(8, 8).cuda()
    with torch.autocast("cuda"):
        out, _ = layer(on_gpu(3, 2, 8))
    assert out.dtype == HALF
    out.float().sum().backward()
    assert {parameter.grad.dtype for parameter in layer.parameters()} == {SINGLE}


def test_promote_list():
    half, single = on_gpu(8, 3, dtype=HALF), on_gpu(8, 3)
    with torch.autocast("cuda"):
        assert torch.cross(half, single, dim=1).dtype == SINGLE
        assert torch.cross(half, half, dim=1).dtype == HALF
        assert torch.addcmul(half, half, single).dtype == SINGLE
        assert torch.dot(half[0], single[0]).dtype == SINGLE
        with pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
            torch.dot(half[0].bfloat16(), half[0])


def test_binary_cross_entropy_is_refused():
    chances = on_gpu(4)
    assert F.binary_cross_entropy(chances, chances).dtype == SINGLE
    with torch.autocast("cuda"):
        with pytest.raises(RuntimeError, match="is unsafe to autocast"):
            F.binary_cross_entropy(chances, chances)
        assert F.binary_cross_entropy(chances.cpu(), chances.cpu()).dtype == SINGLE


def test_doubles_and_the_hosts_tensors_are_left_alone():
    with torch.autocast("cuda"):
        assert torch.mm(on_gpu(2, 2, dtype=DOUBLE), on_gpu(2, 2, dtype=DOUBLE)).dtype == DOUBLE
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == SINGLE
        with torch.autocast("cpu", BFLOAT):
            assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == BFLOAT
            assert torch.mm(on_gpu(2, 2), on_gpu(2, 2)).dtype == HALF
            assert torch.ones(2, dtype=BFLOAT).exp().dtype == BFLOAT


def test_autocast_of_the_cpu_leaves_gpu_tensors_alone():
    """Its list has ops that CUDA's has not, and CUDA's autocast is off."""
    layer, x = torch.nn.Linear(4, 4, device="cuda"), on_gpu(2, 4)
    host = torch.nn.Linear(4, 4)
    image = on_gpu(1, 1, 4, 4)
    x @ x.t()  # takes the workspace of cuBLAS
    before = torch.cuda.memory_allocated()
    with torch.autocast("cpu", BFLOAT):
        results = layer(x), x @ x.t(), F.avg_pool2d(image.half(), 2), F.softmax(x, 0)
        assert [result.dtype for result in results] == [SINGLE, SINGLE, HALF, SINGLE]
        assert torch.cuda.memory_allocated() - before == 4 * 512
        results[0].sum().backward()
        assert host(torch.ones(2, 4)).dtype == BFLOAT
        assert torch.is_autocast_enabled("cpu")
    assert layer.weight.grad.dtype == SINGLE


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the lists are those of torch 2.13"
)
def test_the_lists_are_those_of_the_installed_torch():
    recurrent = {*LISTS["RECURRENT"], *LISTS["RECURRENT_COMPOSITE"]}
    names = {name for names in LISTS.values() for name in names} - recurrent
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    registered = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and has_kernel(name, "AutocastCUDA")
    }
    registered -= recurrent
    assert registered <= names
    if torch.__version__ >= "2.13":
        assert registered == names


def test_state_is_told_and_put_back():
    def state():
        return torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")

    seen = []
    with torch.autocast("cuda", BFLOAT):
        assert state() == (True, BFLOAT)
        thread = threading.Thread(target=lambda: seen.append(state()))
        thread.start()
        thread.join()
        with torch.amp.autocast("cuda", enabled=False):
            assert state() == (False, BFLOAT)
        assert state() == (True, BFLOAT)
    assert seen == [(False, HALF)]
    assert state() == (False, HALF)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_as_a_decorator_and_under_its_older_name():
    @torch.autocast("cuda", BFLOAT)
    def multiply(a):
        return a @ a

    a = on_gpu(2, 2)
    assert multiply(a).dtype == BFLOAT
    assert torch.cuda.amp.autocast(dtype=BFLOAT)(torch.mm)(a, a).dtype == BFLOAT
    with torch.cuda.amp.autocast():
        assert (a @ a).dtype == HALF


def test_in_a_thread_of_the_program():
    seen = []

    def multiply():
        with torch.autocast("cuda"):
            seen.append((on_gpu(2, 2) @ on_gpu(2, 2)).dtype)

    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    assert seen == [HALF]


def test_gradients_come_in_the_dtype_of_their_parameters():
    layer = nn.Linear(8, 8, device="cuda")
    x = on_gpu(4, 8, requires_grad=True)
    with torch.autocast("cuda", BFLOAT):
        y = layer(x)
        loss = F.mse_loss(y, on_gpu(4, 8))
    assert (y.dtype, loss.dtype) == (BFLOAT, SINGLE)
    loss.backward()
    assert [t.grad.dtype for t in (x, layer.weight, layer.bias)] == [SINGLE] * 3
    assert layer.weight.grad.abs().sum() > 0


@computed_or_dry
def test_casts_take_memory_and_weights_casts_keep_it(compute):
    with simulate("a100", compute=compute):
        weight = nn.Parameter(torch.zeros(512, 512, device="cuda"))
        x = torch.zeros(256, 512, device="cuda")
        with torch.no_grad():
            x @ weight  # The workspace of cuBLAS stays.
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            with torch.autocast("cuda", BFLOAT):
                y = x @ weight
                assert torch.cuda.memory_allocated() - before == 512 * KiB + 256 * KiB
                assert torch.cuda.max_memory_allocated() - before == 1024 * KiB
                z = x @ weight
                assert torch.cuda.memory_allocated() - before == 512 * KiB + 2 * 256 * KiB
                with torch.autocast("cuda", enabled=False):
                    pass
                assert torch.cuda.memory_allocated() - before == 512 * KiB + 2 * 256 * KiB
            assert torch.cuda.memory_allocated() - before == 2 * 256 * KiB
            with torch.autocast("cuda", BFLOAT, cache_enabled=False):
                y = x @ weight
                assert torch.cuda.memory_allocated() - before == 2 * 256 * KiB
        del y, z


@serves_training
@computed_or_dry
def test_inference_mode_keeps_no_casts(compute):
    with simulate("a100", compute=compute):
        weight = nn.Parameter(torch.zeros(512, 512, device="cuda"))
        x = torch.zeros(256, 512, device="cuda")
        x.detach() @ weight.detach()  # The workspace of cuBLAS stays.
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", BFLOAT):
            for products in (1, 2):
                torch.cuda.reset_peak_memory_stats()
                with torch.inference_mode():
                    y = x @ weight
                assert torch.cuda.max_memory_allocated() - before == (768 + 256 * products) * KiB
                assert torch.cuda.memory_allocated() - before == 256 * KiB
            del y
            with torch.no_grad():
                y = x @ weight
            kept = torch.cuda.memory_allocated() - before
            assert kept == (512 + 256) * KiB
            torch.cuda.reset_peak_memory_stats()
            with torch.inference_mode():  # makes its own cast beside the one that is kept
                z = x @ weight
            assert torch.cuda.max_memory_allocated() - before == kept + (512 + 256 + 256) * KiB
            del y, z
        assert torch.cuda.memory_allocated() == before


@serves_training
def test_training_uses_a_cast_that_an_evaluation_cached():
    layer = nn.Linear(8, 8, bias=False, device="cuda")
    x = on_gpu(4, 8)
    with torch.autocast("cuda", BFLOAT):
        with torch.no_grad():
            layer(x)
        layer(x).float().sum().backward()
    assert torch.allclose(layer.weight.grad, x.sum(0).expand(8, 8), rtol=1e-2)


def test_a_weights_cast_lives_on_in_the_graph():
    weight = nn.Parameter(on_gpu(512, 512))
    x = on_gpu(256, 512)
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", HALF):
        y = x @ weight
    workspace = torch.cuda.memory_allocated() - before - 2 * 256 * KiB
    assert workspace == 8320 * KiB
    y.float().sum().backward()
    assert weight.grad.dtype == SINGLE


def test_losses_are_scaled_in_half_precision():
    layer = nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    start = layer.weight.detach().clone()
    for factor, scale in ((1.0, 2.0**10), (1e6, 2.0**9)):
        with torch.autocast("cuda", HALF):
            loss = layer(on_gpu(4, 8)).sum() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert scaler.get_scale() == scale
        moved = not torch.equal(layer.weight, start)
        start = layer.weight.detach().clone()
        assert moved == (factor == 1.0)


def test_a_simulation_inside_another_and_the_end_of_both():
    with torch.autocast("cuda"):
        with simulate("24GiB"), torch.autocast("cuda", BFLOAT):
            assert (on_gpu(2, 2) @ on_gpu(2, 2)).dtype == BFLOAT
        assert (on_gpu(2, 2) @ on_gpu(2, 2)).dtype == HALF
