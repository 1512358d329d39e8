"""The process group of one simulated rank.

Note [One rank for many]
A process group has the size that the program asks for, and one process. The other ranks are assumed
to hold what this one holds. So a broadcast changes nothing, a sum is a multiplication by the number
of ranks, and a gather repeats. A receive comes from the rank that sends, if that runs too: see Note
[Ranks side by side]. Otherwise it is what this rank sends of the same shape, as in a ring. What
only another rank can know has no value in a dry run, and is refused where tensors have values. Of
the parts of a DTensor, which each rank makes of the whole one, it takes its own. NCCL's
buffers come from the driver and are not counted; a warning says so. What the classes for NCCL in
`nccl` take is PyTorch's own.

``FakeProcessGroup`` of PyTorch is no replacement. It leaves sums as they were, so that the mean of
gradients, which ``DistributedDataParallel`` makes of a sum, is a fraction of them.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ...._common.frames.program_lines import is_of_program
from ...hardware.nccl_memory import Communicator
from ...machine import active
from ...machine.expert_routing import ExpertGroup, ExpertRouting
from ...machine.op_arguments import tensors_in
from ...machine.simulated_gpu import SimulatedGPU
from .exchanged_values import (
    Tensors,
    copy_into,
    in_flight,
    is_sent,
    kind_of,
    leave_unknown,
    packed,
    unpack,
    unversioned,
)
from .peers import peers
from .stores import HashStore
from .works import Receipt, Receipts, Received, finished_work

_ProcessGroup: Any = dist.ProcessGroup  # what its stubs say differs between versions of PyTorch


class SimulatedGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group of one process that stands for any number of them."""

    # Its methods have the names, arguments and results of ``torch.distributed.ProcessGroup``, whose
    # C++ calls them too (``DistributedDataParallel``). Newer versions of PyTorch know some of them
    # by a second name. It is its own backend.

    class Options:
        """Options that programs set and read; nothing depends on them."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace()
            self.global_ranks_in_group: list[int] = []
            self.group_name = ""
            self._timeout = vars(dist.distributed_c10d)["default_pg_nccl_timeout"]

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        options: Any = None,
        device: torch.device | None = None,
        timeout: Any = None,
        enable_reconfigure: bool = False,
    ) -> None:
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._name: str | None = None
        self._options = options or self.Options()
        self._coalesced: list[Receipt] | None = None
        self._key = object()
        # The communicators of NCCL that it has made, by GPU: whether one ran a collective, and the
        # other ranks that it is connected to for send and recv.
        self._has_collectives: dict[int, bool] = {}
        self._connected: dict[int, set[int]] = {}
        # What this rank has sent last, of each shape and dtype.
        self._sent: dict[tuple[Any, ...], weakref.ref[torch.Tensor]] = {}
        if device is not None:
            self.eager_connect_single_device(device)
        if size > 1 and not dist.is_initialized():
            _say_that_the_others_are_not_there(size)
            _let_tokens_choose_evenly()

    def getBackendName(self) -> str:  # noqa: N802 - C++ calls it
        """NCCL's also for Gloo: C++ would look in that for an object of Gloo's."""
        return "nccl"

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    @property
    def options(self) -> Any:
        """The options that the program gave."""
        return self._options

    @property
    def group_name(self) -> str:
        """The name by which functional collectives find it."""
        return self._name or dist.distributed_c10d._world.pg_names[self]

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def _device_types(self) -> list[torch.device]:
        """Of which devices it takes tensors; objects travel in tensors of the first."""
        config = dist.distributed_c10d._world.pg_backend_config.get(self)
        pairs = (config or "cuda:nccl").split(",")
        return [torch.device(pair.partition(":")[0]) for pair in pairs]

    def _get_backend(self, device: torch.device) -> SimulatedGroup:
        return self

    @property
    def supports_splitting(self) -> bool:
        """True if groups can be made of this one; older versions of PyTorch do it otherwise."""
        return hasattr(_ProcessGroup, "split_group")

    def eager_connect_single_device(self, device: torch.device) -> None:
        """A communicator of one device is made at once: its memory is not PyTorch's."""
        self.bound_device_id = device

    def comm_split_count(self) -> int:
        return 0

    def split_group(
        self,
        ranks: list[int],
        timeout: Any = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        **_options: Any,
    ) -> SimulatedGroup | None:
        """The group of some of this one's ranks, None if this process is none of them."""
        if self._rank not in ranks:
            return None
        part = type(self)(None, ranks.index(self._rank), len(ranks), opts, self.bound_device_id)
        part._name = group_name
        part._set_group_desc(group_desc or "undefined")
        return part

    def get_group_store(self) -> Any:
        return HashStore()

    def _do_nothing(self, *_args: Any, **_options: Any) -> None:
        """Nothing runs that waits, that could be ended or that others have to arrive at."""

    _set_default_timeout = _add_ephemeral_timeout = set_timeout = _do_nothing
    monitored_barrier = _set_sequence_number_for_group = _do_nothing

    def abort(self, *_args: Any, **_options: Any) -> None:
        """Its communicators end, with their buffers."""
        machine = active.machine
        if machine is not None:
            for gpu in machine.gpus:
                if gpu.index in self._has_collectives:
                    gpu.set_communicator(self._key, None)
        self._has_collectives.clear()
        self._connected.clear()

    def shutdown(self, *args: Any, **options: Any) -> None:
        """End it as ``abort`` does: nothing runs that could be waited for."""
        self.abort(*args, **options)

    def _shutdown(self, *args: Any, **options: Any) -> None:
        self.abort(*args, **options)

    def barrier(self, *_args: Any, **_options: Any) -> Any:
        """All ranks are here."""
        return finished_work([])

    def _start_coalescing(self, *_device: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, *_device: Any) -> Any:
        """One work for all calls since the start."""
        receipts, self._coalesced = self._coalesced or [], None
        return Receipts(receipts) if receipts else finished_work([])

    def _connect(self, tensor: torch.Tensor, *peers: int) -> None:
        """Make the communicator of the GPU that holds a tensor, with its buffers."""
        gpu = active.gpu_of(tensor) or _gpu_of_call()
        if gpu is None:
            return
        has_collectives = self._has_collectives.setdefault(gpu.index, False)
        connected = self._connected.setdefault(gpu.index, set())
        if peers and connected.issuperset(peers):
            return
        if has_collectives and not peers:
            return
        connected.update(set(peers) - {self._rank})
        self._has_collectives[gpu.index] = has_collectives or not peers
        per_node = os.environ.get("LOCAL_WORLD_SIZE", "")
        communicator = Communicator(
            self._size,
            self._has_collectives[gpu.index],
            len(connected),
            int(per_node) if per_node.isdecimal() else 8,
        )
        gpu.set_communicator(self._key, communicator)

    def _others(self, root: int) -> Iterable[int]:
        """The ranks that this one exchanges tensors with in a gather or scatter of a root."""
        return range(self._size) if root == self._rank else (root,)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        """All ranks get the sum, or what ``opts`` wants."""
        self._connect(tensors[0])
        self._reduce(tensors, opts)
        return finished_work(tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        """The root gets the sum, or what ``opts`` wants."""
        self._connect(tensors[0])
        if opts.rootRank == self._rank:
            self._reduce(tensors, opts)
        return finished_work(tensors)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:
        """All ranks get the root's, which are this one's."""
        self._connect(tensors[0])
        if opts is None or opts.rootRank != self._rank:
            in_flight.fill(tensors)
        return finished_work(tensors)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        self._connect(inputs[0])
        for output, tensor in zip(outputs, inputs, strict=True):
            if not in_flight.fill(output):
                copy_into(output, [tensor] * self._size)
        return finished_work(outputs)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """All ranks get all inputs, each in one tensor."""
        self._connect(inputs[0])
        for output, tensor in zip(outputs, inputs, strict=True):
            copy_into(output.view(self._size, -1).unbind(), [tensor.reshape(-1)] * self._size)
        return finished_work(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> Any:
        """The same with one input."""
        return self.all_gather_single_coalesced([output], [tensor])

    _allgather_base = all_gather_single

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Any:
        """The root gets all inputs."""
        self._connect(inputs[0], *self._others(opts.rootRank))
        if opts.rootRank == self._rank:
            copy_into(outputs[0], [inputs[0]] * self._size)
        return finished_work(outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Any:
        """Each rank gets one of the root's tensors, if the root runs beside it."""
        self._connect(outputs[0], *self._others(opts.rootRank))
        (output,), root = outputs, opts.rootRank
        if root == self._rank:
            copy_into(outputs, [inputs[0][self._rank]])
            for rank, tensor in enumerate(inputs[0]):
                if rank != root:
                    self._send_beside(tensor, rank, "scatter")
        elif not in_flight.fill(outputs):
            fill = self._from_beside(output, root, "scatter")
            if fill is not None:
                fill()
            elif in_flight.parts is not None:
                copy_into(outputs, [in_flight.parts[self._rank]])
            else:
                leave_unknown(output, f"scatter from rank {self._global(root)}")
        return finished_work(outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Any:
        """Each rank gets its part of the sum, or of what ``opts`` wants."""
        self._connect(outputs[0])
        copy_into(outputs, [tensors[self._rank] for tensors in inputs])
        self._reduce(outputs, opts)
        return finished_work(outputs)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        """The same with the parts of each input in one tensor."""
        self._connect(outputs[0])
        for output, tensor in zip(outputs, inputs, strict=True):
            copy_into([output.view(-1)], [tensor.reshape(self._size, -1)[self._rank]])
        self._reduce(outputs, opts)
        return finished_work(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> Any:
        """The same with one input."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Each rank gets what the others have for it."""
        self._connect(outputs[0], *range(self._size))
        copy_into(outputs, [inputs[self._rank]] * self._size)
        return finished_work(outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: list[int] | None = None,
        input_sizes: list[int] | None = None,
        opts: Any = None,
    ) -> Any:
        """The same with one tensor of all parts, which are equal unless sizes say otherwise."""
        values = active.values()
        if values is not None and values.routing is not None and (output_sizes or input_sizes):
            routing = values.routing
            if routing.is_default and routing.choices and routing.exchanging is None:
                _warn_at_program(
                    "tokens choose their experts evenly, as their scores are not known:"
                    " pytorch-memlab fit --expert-load 1.0,2.5 shows what a rank needs whose"
                    " experts get more"
                )
            routing.exchanging = ExpertGroup(self._rank, self._size)
        outputs = output.split(output_sizes or len(output) // self._size)
        inputs = tensor.split(input_sizes or len(tensor) // self._size)
        return self.alltoall(list(outputs), list(inputs))

    alltoall_base = all_to_all_single

    def send(self, tensors: Tensors, to: int, tag: int = 0) -> Any:
        """The other rank receives it, if it runs."""
        self._connect(tensors[0], to)
        for tensor in tensors:
            self._sent[kind_of(tensor)] = weakref.ref(tensor)
            self._send_beside(tensor, to, tag)
        return finished_work(tensors)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        """The values that another rank sends are there after ``wait()``."""
        self._connect(tensors[0], source)
        if in_flight.fill(tensors):
            return finished_work(tensors)
        receipt = Receipt([self._receiving(tensor, source, tag) for tensor in tensors])
        if self._coalesced is not None:
            self._coalesced.append(receipt)
        return receipt

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        """The same of any rank: it was the next one."""
        source = (self._rank + 1) % self._size
        self.recv(tensors, source, tag).wait()
        return Received(source)

    def _receiving(self, tensor: torch.Tensor, source: int, tag: int) -> Callable[[], None]:
        """A function that fills a tensor with what another rank sends."""
        fill = self._from_beside(tensor, source, tag)
        return fill or functools.partial(self._take_own, tensor, self._global(source))

    def _send_beside(self, tensor: torch.Tensor, to: int, tag: int | str) -> None:
        """Send a tensor to a rank that runs beside this one, if it can have the values."""
        others, rank = peers(), self._global(to)
        is_there = others is not None and rank in others.beside
        if is_there and in_flight.objects is None and is_sent(tensor):
            assert others is not None
            others.send(self._channel(self._global(self._rank), rank, tag), packed(tensor))

    def _from_beside(
        self, tensor: torch.Tensor, source: int, tag: int | str
    ) -> Callable[[], None] | None:
        """A function that waits for a tensor of a rank beside this one; None for other ranks."""
        others, rank = peers(), self._global(source)
        if others is None or rank not in others.beside:
            return None
        if not is_sent(tensor):
            return functools.partial(leave_unknown, tensor, "")
        channel = self._channel(rank, self._global(self._rank), tag)
        number = others.claim(channel)
        call = f"{'recv' if isinstance(tag, int) else tag} from rank {rank}"
        return lambda: unpack(others.receive(channel, number, rank, call), tensor, call)

    def _take_own(self, tensor: torch.Tensor, rank: int) -> None:
        """The other rank is taken to send what this one sends of the same shape."""
        reference = self._sent.get(kind_of(tensor))
        sent = None if reference is None else reference()
        if sent is None:
            leave_unknown(tensor, f"recv from rank {rank}")
        elif sent is not tensor:
            copy_into([tensor], [sent])

    def _global(self, rank: int) -> int:
        """The number that a rank of this group has among all."""
        number: int = dist.get_global_rank(self, rank)
        return number

    def _channel(self, source: int, to: int, tag: int | str) -> str:
        return f"{self.group_name}/{source}>{to}/{tag}"

    def _has_hooks(self) -> bool:
        return False  # nothing waits for collectives to end

    def _reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> None:
        """Of equal tensors the mean, the least and the greatest are what they were."""
        # So are sums and products of truth values: NCCL takes the greatest and the least.
        operation = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        with torch.no_grad():
            for tensor in tensors:
                if tensor.dtype == torch.bool:
                    continue
                if operation == dist.ReduceOp.SUM:
                    unversioned(tensor).mul_(self._size)
                elif operation == dist.ReduceOp.PRODUCT:
                    unversioned(tensor).pow_(self._size)


def _gpu_of_call() -> SimulatedGPU | None:
    """The GPU of the tensors that the program gives to the call that runs; None without any."""
    # Functional collectives (``_c10d_functional``) give the group what C++ has made in the call:
    # the result, of which it is not yet known that a GPU holds it.
    machine = active.machine
    if machine is None or machine.thread.call is None:
        return None
    gpus = map(machine.gpu_of, tensors_in(*machine.thread.call))
    return next((gpu for gpu in gpus if gpu is not None), None)


def _say_that_the_others_are_not_there(size: int) -> None:
    _warn_at_program(
        f"one rank of {size} is simulated: the others are taken to hold what this one "
        "holds, and NCCL's own memory is no part of the allocator's: run and fit estimate it"
    )


def _warn_at_program(message: str) -> None:
    """Warn at the line of the program that is running."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and not is_of_program(frame.f_code.co_filename):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, stacklevel=depth)


def _let_tokens_choose_evenly() -> None:
    """Give the choices of experts values: those of all ranks decide what each one receives."""
    # Not where reading values that are not there is an error, or where a load is given.
    values = active.values()
    if values is not None and values.routing is None and not values.reads.strict:
        values.routing = ExpertRouting(is_default=True)
