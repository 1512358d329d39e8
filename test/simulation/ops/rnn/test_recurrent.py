"""Recurrent networks on a simulated GPU: cuDNN's, PyTorch's own, their cells and their memory."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from support.dry_run_comparison import allocator_events, events_of
from torch import nn

from pytorch_memlab import simulate

DOUBLE, HALF, BFLOAT = torch.float64, torch.float16, torch.bfloat16
LENGTHS = torch.tensor([7, 5, 2, 1])

NETWORKS = {
    "lstm": lambda: nn.LSTM(5, 6),
    "deep and both ways": lambda: nn.LSTM(5, 6, 2, bidirectional=True),
    "without biases": lambda: nn.LSTM(5, 6, 2, bidirectional=True, bias=False),
    "projected": lambda: nn.LSTM(5, 6, 2, bidirectional=True, proj_size=3),
    "projected without biases": lambda: nn.LSTM(5, 6, 2, proj_size=3, bias=False),
    "gru": lambda: nn.GRU(5, 6, 3),
    "gru, batch first": lambda: nn.GRU(5, 6, 2, batch_first=True, bidirectional=True),
    "relu": lambda: nn.RNN(5, 6, 2, nonlinearity="relu"),
    "tanh": lambda: nn.RNN(5, 6, 2, bidirectional=True),
}


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def run(network, tensor, packed):
    """Outputs, states and, in the parameters, gradients of all that a network returns."""
    given = tensor
    if packed:
        given = nn.utils.rnn.pack_padded_sequence(tensor, LENGTHS, network.batch_first)
    output, states = network(given)
    output = output.data if packed else output
    states = states if isinstance(states, tuple) else (states,)
    loss = sum((index + one.sin()).pow(2).sum() for index, one in enumerate((output, *states)))
    loss.backward()
    return output, *states


BY_PYTORCH = ("deep and both ways", "projected without biases", "gru, batch first", "relu")
CASES = [
    *((name, False, True) for name in NETWORKS),
    *((name, True, True) for name in ("deep and both ways", "projected", "gru, batch first")),
    *((name, False, False) for name in BY_PYTORCH),
    *((name, True, False) for name in BY_PYTORCH),
]


@pytest.mark.parametrize(("name", "packed", "enabled"), CASES)
def test_values_and_gradients_are_those_of_a_cpu(name, packed, enabled):
    torch.manual_seed(0)
    network = NETWORKS[name]().double()
    tensor = torch.randn(4, 7, 5, dtype=DOUBLE)
    if not network.batch_first:
        tensor = tensor.transpose(0, 1).contiguous()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    tensor.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run(network, tensor, packed)
    with simulate("1GiB"), torch.backends.cudnn.flags(enabled=enabled):
        other = NETWORKS[name]().double()
        other.load_state_dict(state)
        other = other.cuda()
        leaf = tensor.detach().cuda().requires_grad_()
        found = run(other, leaf, packed)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one.detach().cpu(), two.detach())
        torch.testing.assert_close(leaf.grad.cpu(), tensor.grad)
        for one, two in zip(other.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(one.grad.cpu(), two.grad)


@pytest.mark.parametrize("make", [nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_compute_what_a_cpu_computes(make, bias):
    torch.manual_seed(0)
    cell = make(5, 6, bias=bias).double()
    tensor = torch.randn(4, 5, dtype=DOUBLE, requires_grad=True)
    state = {name: value.clone() for name, value in cell.state_dict().items()}

    def steps(cell, tensor):
        states = None
        for _ in range(3):
            states = cell(tensor, states)
        hidden = states[0] if isinstance(states, tuple) else states
        hidden.sin().sum().backward()
        return hidden

    expected = steps(cell, tensor)
    with simulate("1GiB"):
        other = make(5, 6, bias=bias).double()
        other.load_state_dict(state)
        other = other.cuda()
        leaf = tensor.detach().cuda().requires_grad_()
        found = steps(other, leaf)
        assert type(found.grad_fn).__name__.startswith("ThnnFused")
        torch.testing.assert_close(found.detach().cpu(), expected.detach())
        torch.testing.assert_close(leaf.grad.cpu(), tensor.grad)
        for one, two in zip(other.parameters(), cell.parameters(), strict=True):
            torch.testing.assert_close(one.grad.cpu(), two.grad)


@pytest.mark.parametrize("make", [nn.LSTMCell, nn.GRUCell])
def test_cells_without_biases_allocate_in_a_dry_run_what_they_allocate_computed(make):
    def step():
        cell = make(5, 6, bias=False).cuda()
        states = cell(torch.randn(4, 5, device="cuda"))
        (states[0] if isinstance(states, tuple) else states).sum().backward()

    found = []
    for compute in (True, False):
        with simulate("1GiB", compute=compute), allocator_events() as events:
            step()
        found.append([(event[0], event[1]) for event in events])
    assert found[0]
    assert found[0] == found[1]


def test_dropout_between_layers_is_the_same_in_both_passes():
    with simulate("1GiB"):
        torch.manual_seed(0)
        network = nn.GRU(3, 4, 2, dropout=0.5).double().cuda()
        tensor = torch.randn(2, 3, 3, dtype=DOUBLE, device="cuda", requires_grad=True)

        def seeded(tensor):
            torch.manual_seed(1)
            return network(tensor)[0]

        assert torch.equal(seeded(tensor), seeded(tensor))
        assert not torch.equal(network(tensor)[0], network(tensor)[0])
        assert torch.autograd.gradcheck(seeded, tensor)
        network.eval()
        assert torch.equal(network(tensor)[0], network(tensor)[0])


def test_weights_are_views_of_one_buffer():
    with simulate("1GiB"):
        before = torch.cuda.memory_allocated()
        network = nn.LSTM(32, 64, 2, bidirectional=True).cuda()
        numel = sum(weight.numel() for weight in network.parameters())
        assert torch.cuda.memory_allocated() - before == numel * 4
        assert len({weight.untyped_storage()._cdata for weight in network.parameters()}) == 1


def test_without_biases_cudnn_has_some_all_the_same():
    with simulate("1GiB"):
        network = nn.GRU(128, 128, bias=False).cuda()
        numel = sum(weight.numel() for weight in network.parameters()) + 2 * 3 * 128
        assert torch.cuda.memory_allocated() == numel * 4
        network(torch.randn(2, 3, 128, device="cuda"))[0].sum().backward()
        assert len({weight.grad.data_ptr() for weight in network.parameters()}) == 2


def test_weights_elsewhere_are_compacted_at_each_call():
    with simulate("1GiB"):
        network = nn.LSTM(128, 128).cuda()
        network.weight_hh_l0.data = network.weight_hh_l0.data.clone()
        tensor = torch.randn(2, 3, 128, device="cuda")
        with pytest.warns(UserWarning, match="not part of single contiguous chunk"):
            network(tensor)
        before = torch.cuda.memory_allocated()
        with pytest.warns(UserWarning, match="flatten_parameters"):
            result = network(tensor)[0]
        taken = torch.cuda.memory_allocated() - before
        buffer = sum(weight.nbytes for weight in network.parameters())
        states = 2 * 3 * 128 * 4
        reserve = 2 * 3 * 128 * 5 * 4
        assert taken == buffer + result.nbytes + states + reserve
        network.flatten_parameters()
        network(tensor)


@pytest.mark.parametrize("bias", [True, False])
def test_the_buffer_of_a_call_holds_the_weights_and_then_the_biases(bias):
    with simulate("1GiB"):
        network = nn.GRU(5, 6, bias=bias).cuda()
        weights = [weight.detach().clone() for weight in network.parameters()]
        tensor, state = torch.randn(7, 4, 5, device="cuda"), torch.zeros(1, 4, 6, device="cuda")
        more = (3, 6, 0, 1, False, 0.0, False, False, [], None)
        with pytest.warns(UserWarning, match="not part of single contiguous chunk"):
            *_, buffer = torch._cudnn_rnn(tensor, weights, len(weights), None, state, None, *more)
        expected = [value for weight in weights for value in weight.flatten().tolist()]
        assert buffer.tolist() == expected + [0.0] * (0 if bias else 2 * 3 * 6)


def test_what_a_training_forward_keeps():
    steps, batch, units = 32, 16, 256
    with simulate("1GiB") as machine:
        network = nn.LSTM(units, units, 2).cuda()
        tensor = torch.randn(steps, batch, units, device="cuda")
        before = torch.cuda.memory_allocated()
        output, (hidden, cell) = network(tensor)
        taken = torch.cuda.memory_allocated() - before
        reserve = steps * batch * units * (2 * 5 + 1) * 4
        zeros = 2 * 2 * batch * units * 4
        assert taken == output.nbytes + hidden.nbytes + cell.nbytes + zeros + reserve
        found = machine.approximations[0].estimated["aten._cudnn_rnn.default"]
        matrices = 2 * 2 * 4 * units * units
        assert (found.calls, found.nbytes) == (1, matrices * 4)


def test_nothing_is_reserved_in_evaluation_and_no_gradient_goes_back():
    with simulate("1GiB"):
        network = nn.LSTM(128, 128).cuda().eval()
        tensor = torch.randn(8, 4, 128, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        output, (hidden, cell) = network(tensor)
        states = 2 * 4 * 128 * 4
        taken = torch.cuda.memory_allocated() - before
        assert taken == output.nbytes + hidden.nbytes + cell.nbytes + states
        with pytest.raises(RuntimeError, match="can only be called in training mode"):
            output.sum().backward()


def test_the_state_of_dropout_is_made_once():
    with simulate("h100"):
        network = nn.LSTM(128, 128, 2, dropout=0.5).cuda()
        tensor = torch.randn(8, 4, 128, device="cuda")
        before = torch.cuda.memory_allocated()
        network(tensor)
        first = torch.cuda.memory_allocated() - before
        network(tensor)
        assert torch.cuda.memory_allocated() - before == first
        assert first == 132 * 1024 * 48


def test_states_that_are_not_contiguous_are_refused():
    with simulate("1GiB"):
        network = nn.GRU(4, 6, 2).cuda()
        states = torch.zeros(3, 2, 6, device="cuda").transpose(0, 1)
        with pytest.raises(RuntimeError, match="hx is not contiguous"):
            network(torch.randn(5, 3, 4, device="cuda"), states)


@pytest.mark.parametrize("dtype", [HALF, BFLOAT])
def test_autocast_casts_all_weights_into_one_buffer_of_float16(dtype):
    with simulate("1GiB"):
        network = nn.LSTM(128, 128).cuda()
        tensor = torch.randn(8, 4, 128, device="cuda")
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", dtype=dtype):
            output, (hidden, cell) = network(tensor)
        assert output.dtype == HALF
        taken = torch.cuda.memory_allocated() - before
        weights = sum(weight.numel() for weight in network.parameters())
        reserve = 8 * 4 * 128 * 5
        numel = weights + tensor.numel() + output.numel() + 2 * hidden.numel() + 2 * cell.numel()
        assert taken == 2 * (numel + reserve)
        output.float().sum().backward()
        assert {weight.grad.dtype for weight in network.parameters()} == {torch.float32}


def test_bfloat16_is_cudnns_on_gpus_that_have_it():
    version = tuple(int(number) for number in torch.__version__.split(".")[:2])
    for gpu, is_cudnns in (("h100", version >= (2, 10)), ("t4", False)):
        with simulate(gpu):
            network = nn.LSTM(8, 8).bfloat16().cuda()
            tensor = torch.randn(3, 2, 8, device="cuda", dtype=BFLOAT)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                node = type(network(tensor)[0].grad_fn).__name__
            assert (node == "CudnnRnnBackward0") is is_cudnns


def test_the_hosts_own_networks_are_left_alone():
    with simulate("1GiB"):
        output = nn.LSTM(4, 6)(torch.randn(3, 2, 4))[0]
        assert type(output.grad_fn).__name__ != "CudnnRnnBackward0"


def training(dtype=None, amp=None, mode=nullcontext, **options):
    def program():
        network = nn.LSTM(32, 64, 2, batch_first=True, dropout=0.1, **options).cuda()
        tensor = torch.randn(4, 9, 32, device="cuda", dtype=dtype, requires_grad=True)
        with torch.autocast("cuda", amp, enabled=amp is not None), mode():
            output = network.to(dtype)(tensor)[0]
        if output.requires_grad:
            output.float().sum().backward()

    return program


def cells():
    lstm, gru = nn.LSTMCell(32, 64).cuda(), nn.GRUCell(64, 64).cuda()
    states = None
    hidden = torch.zeros(4, 64, device="cuda")
    for _ in range(2):
        states = lstm(torch.randn(4, 32, device="cuda"), states)
        hidden = gru(states[0], hidden)
    hidden.sum().backward()


def without_cudnn():
    with torch.backends.cudnn.flags(enabled=False):
        training(bidirectional=True)()


@pytest.mark.parametrize(
    "program",
    [
        training(),
        training(bidirectional=True, bias=False),
        training(proj_size=16),
        training(dtype=HALF),
        training(amp=HALF),
        training(amp=BFLOAT, bias=False),
        training(mode=torch.no_grad),
        training(mode=torch.inference_mode),
        training(amp=HALF, mode=torch.inference_mode),
        cells,
        without_cudnn,
    ],
)
def test_the_allocator_sees_the_same_without_arithmetic(program):
    computed = events_of(program, compute=True)
    assert len(computed) > 20
    assert events_of(program, compute=False) == computed


@pytest.mark.parametrize("program", [training(), cells, without_cudnn])
def test_every_op_of_theirs_is_in_the_table(program):
    with simulate("1GiB", strict=True):
        program()


def test_gates_are_made_before_the_states_of_a_cell():
    with simulate("1GiB"):
        gates = torch.randn(64, 4 * 128, device="cuda")
        cell = torch.randn(64, 128, device="cuda")
        with allocator_events() as events:
            torch.ops.aten._thnn_fused_lstm_cell(gates, gates, cell)
        taken = [event[1] for event in events if event[0] == "malloc"]
        assert taken == [gates.nbytes, cell.nbytes, cell.nbytes]


def test_cudnns_switches_are_readable_and_settable():
    before = torch.backends.cudnn.benchmark
    with simulate("1GiB"):
        assert torch.backends.cudnn.is_available()
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=3):
            assert torch.backends.cudnn.benchmark
            assert torch._C._cuda_get_cudnn_benchmark_limit() == 3
        assert torch._C._cuda_get_cudnn_benchmark_limit() == 10
        torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic
    assert torch.backends.cudnn.benchmark == before
