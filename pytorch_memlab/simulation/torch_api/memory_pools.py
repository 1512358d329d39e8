"""Memory pools: the calls of C++ that name one, or the memory of one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from ..._common.frames.traceback_frames import without_frames
from ..._common.patching.patches import Patches
from ..._common.torch.storages import after_death
from ..allocator.blocks import PoolId
from ..allocator.checkpoints import (
    PoolState,
    checkpoint_state,
    live_allocations,
    set_checkpoint_state,
)
from ..dispatch.overwritten_outputs import mark_data, take_storage
from ..machine.machine import Machine
from ..machine.refused_calls import unsupported
from ..machine.simulated_gpu import Allocation, SimulatedGPU
from ..machine.torch_release import RELEASE

MARKS_CAPTURES_SINCE = (2, 13)
"""Release from which the allocator tells captures from ``use_mem_pool`` (``markCaptureBegin``),
and a capture that failed takes no more requests (``CUDAGraph::capture_end``)."""


class SimulatedMemPool:
    """``torch._C._MemPool``."""

    machine: Machine

    @without_frames
    def __init__(
        self,
        allocator: Any = None,
        is_user_created: bool = True,
        use_on_oom: bool = False,
        no_split: bool = False,
    ) -> None:
        if allocator is not None:
            raise unsupported("torch.cuda.MemPool(allocator=...)")
        self._gpu = gpu = self.machine.current_gpu()
        self._id = pool_id = self.machine.new_pool_id(is_user_created)
        private = gpu.allocator.private
        gpu.locked(private.use, pool_id)
        private.of_id(pool_id).splits = not no_split
        if use_on_oom:
            private.served_on_oom[pool_id] = None
        after_death(self, partial(_give_up, gpu, pool_id))

    @property
    def id(self) -> PoolId:
        return self._id

    @property
    def allocator(self) -> None:
        """None: that of PyTorch."""

    @property
    def device(self) -> int:
        return self._gpu.index

    @without_frames
    def use_count(self) -> int:
        return self._gpu.allocator.private.use_count(self._id)


class SimulatedMemPoolContext:
    """``torch._C._MemPoolContext`` of older releases, which ``use_mem_pool`` makes there."""

    _active: ClassVar[list[SimulatedMemPool]] = []

    def __init__(self, pool: SimulatedMemPool) -> None:
        self._active.append(pool)
        after_death(self, partial(self._active.remove, pool))

    @classmethod
    def active_pool(cls) -> SimulatedMemPool | None:
        """The innermost pool in use; None outside of all."""
        return cls._active[-1] if cls._active else None


def _give_up(gpu: SimulatedGPU, pool_id: PoolId) -> None:
    """Give up a MemPool, as its destructor does."""
    gpu.allocator.private.served_on_oom.pop(pool_id, None)
    gpu.locked(gpu.allocator.private.release, pool_id)
    gpu.locked(gpu.allocator.empty_cache, pool_id)


def begin_pool(gpu: SimulatedGPU, pool_id: PoolId, takes: Callable[[int], bool]) -> None:
    gpu.locked(gpu.allocator.private.begin, pool_id, takes)
    if RELEASE < MARKS_CAPTURES_SINCE:
        gpu.allocator.captures += 1


def end_pool(gpu: SimulatedGPU, pool_id: PoolId) -> None:
    gpu.locked(gpu.allocator.private.end, pool_id)
    if RELEASE < MARKS_CAPTURES_SINCE:
        gpu.allocator.captures -= 1


def mark_capture(gpu: SimulatedGPU, change: int) -> None:
    if RELEASE >= MARKS_CAPTURES_SINCE:
        gpu.allocator.captures += change


class PoolCalls:
    """The calls of C++ that name a pool, or the memory of one."""

    def __init__(self, machine: Machine, patches: Patches) -> None:
        self._machine = machine
        self._patches = patches
        self._has_taken = False

    def of_c(self) -> dict[str, Callable[..., Any]]:
        return {
            "_graph_pool_handle": lambda: self._machine.new_pool_id(True),
            "_cuda_isCurrentStreamCapturing": self._is_capturing,
            "_cuda_beginAllocateToPool": self._begin_all,
            "_cuda_beginAllocateCurrentThreadToPool": self._begin_thread,
            "_cuda_beginAllocateCurrentStreamToPool": self._begin_stream,
            "_cuda_endAllocateToPool": self._end,
            "_cuda_endAllocateCurrentStreamToPool": self._end,
            "_cuda_releasePool": self._release,
            "_cuda_getCheckpointState": self._checkpoint,
            "_cuda_setCheckpointPoolState": self._set_checkpoint,
            "_cuda_checkPoolLiveAllocations": self._has_live,
            "_construct_storage_from_data_pointer": self._storage_at,
            "_construct_CUDA_Tensor_From_Storage_And_Metadata": _tensor_over,
            "_has_Standard_Deleter": lambda key: self._owner(key) is not None,
            "_free_And_Remove_DeleterFn": self._free,
            "_tensors_data_ptrs_at_indices_equal": _are_at,
            "_set_storage_access_error_msg": self._take_storage,
            "_set_storage_data_ptr_access_error_msg": self._mark_data,
            "_cuda_get_conv_benchmark_empty_cache": lambda: True,
            "_cudnn_set_conv_benchmark_empty_cache": _set_nothing,
        }

    def _is_capturing(self) -> bool:
        return self._machine.current_capture(self._machine.thread.device) is not None

    def _begin_all(self, device: int, pool_id: Sequence[int]) -> None:
        self._begin(device, pool_id, lambda _stream: True)

    def _begin_thread(self, device: int, pool_id: Sequence[int]) -> None:
        thread = _cuda_thread()
        self._begin(device, pool_id, lambda _stream: _cuda_thread() == thread)

    def _begin_stream(self, device: int, pool_id: Sequence[int]) -> None:
        current = self._machine.current_stream(self._machine.gpu(device).index)
        self._begin(device, pool_id, lambda stream: stream == current)

    def _begin(self, device: int, pool_id: Sequence[int], takes: Callable[[int], bool]) -> None:
        machine = self._machine
        gpu = machine.gpu(device)
        begin_pool(gpu, pool_id_of(pool_id), takes)
        if machine.current_capture(gpu.index) is not None:
            machine.captures.pools.add(pool_id_of(pool_id))  # replays write there too

    def _end(self, device: int, pool_id: Sequence[int]) -> None:
        end_pool(self._machine.gpu(device), pool_id_of(pool_id))

    def _release(self, device: int, pool_id: Sequence[int]) -> None:
        gpu = self._machine.gpu(device)
        gpu.locked(gpu.allocator.private.release, pool_id_of(pool_id))

    def _checkpoint(self, device: int, pool_id: Sequence[int]) -> PoolState:
        gpu = self._machine.gpu(device)
        return gpu.locked(checkpoint_state, gpu.allocator, pool_id_of(pool_id))

    def _set_checkpoint(
        self,
        device: int,
        state: PoolState,
        stale_storages: Sequence[int],
        storages_to_add_deleters_to: Sequence[int] = (),
    ) -> None:
        """Set the state of a pool, and which storages free its blocks when they die."""
        gpu = self._machine.gpu(device)
        stale = dict.fromkeys(stale_storages)
        delta = gpu.locked(set_checkpoint_state, gpu.allocator, state)
        if len(stale) < len(set(delta.freed) - set(delta.allocated)):
            raise RuntimeError(
                "Any stale tensors which are being manually freed must be passed to set checkpoint"
            )
        for key in stale:
            owner = self._owner(key)
            if owner is None or owner.address not in delta.freed:
                raise RuntimeError(
                    "Unexpected deleter function on storage, could not swap function"
                )
            self._set_owner(key, is_owner=False)
        # Outputs that share a block name it more than once.
        allocations = self._machine.allocations.known
        keys = {allocations[key].address: key for key in storages_to_add_deleters_to}
        for address in keys.keys() & set(delta.allocated):
            if allocations[keys[address]].is_owner:
                raise RuntimeError(" Not expecting deleter function")
            self._set_owner(keys[address], is_owner=True)

    def _has_live(self, device: int, pool_id: Sequence[int], expected: set[int]) -> bool:
        gpu = self._machine.gpu(device)
        return gpu.locked(live_allocations, gpu.allocator, pool_id_of(pool_id)) == expected

    def _storage_at(self, address: int, device: Any, nbytes: int) -> torch.UntypedStorage:
        """A storage over memory of a pool, which does not free it when it dies."""
        machine = self._machine
        gpu = machine.find_gpu(device)
        if gpu is None:
            made: torch.UntypedStorage = _storage_on_cpu(address, device, nbytes)
            return made
        storage = None
        if machine.values is None:
            storage = machine.pool_memory[gpu.index].storage_at(address, nbytes)
        if storage is None:
            storage = torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
        machine.allocations.add(storage, Allocation(gpu, address, nbytes, is_owner=False))
        return storage

    def _owner(self, key: int) -> Allocation | None:
        label = self._machine.allocations.known.get(key)
        return label if label is not None and label.address and label.is_owner else None

    def _set_owner(self, key: int, *, is_owner: bool) -> None:
        allocations = self._machine.allocations.known
        label = allocations[key]
        allocations[key] = Allocation(label.gpu, label.address, label.nbytes, is_owner)

    def _free(self, key: int) -> None:
        owner = self._owner(key)
        if owner is None:
            raise RuntimeError("Expected standard deleter")
        self._set_owner(key, is_owner=False)
        owner.gpu.release(owner)

    def _mark_data(self, key: int, message: str) -> None:
        storage = torch.UntypedStorage._new_with_weak_ptr(key)
        if storage is not None:
            mark_data(self._machine, storage, message)

    def _take_storage(self, tensor: torch.Tensor, message: str) -> None:
        take_storage(self._machine, tensor, message)
        if self._has_taken:
            return
        self._has_taken = True
        check = self._machine.overwritten.check_tensor

        @self._patches.around(torch.Tensor, "untyped_storage")
        @without_frames
        def untyped_storage(of: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> Any:
            check(tensor, data=False)
            return of(tensor)


def _cuda_thread() -> tuple[int, bool]:
    """This thread; on CUDA the nodes of a backward pass run in threads of their own."""
    return threading.get_ident(), torch._C._current_autograd_node() is not None


def pool_id_of(pool_id: Sequence[int]) -> PoolId:
    first, second = pool_id
    return int(first), int(second)


def _tensor_over(metadata: dict[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
    made = torch.empty(0, dtype=metadata["dtype"], device=storage.device)
    layout = (metadata["storage_offset"], metadata["size"], metadata["stride"])
    return made.set_(storage, *layout)


def _set_nothing(*_: Any) -> None:
    """Set what changes no memory: the benchmarks of cuDNN."""


def _are_at(tensors: Sequence[Any], addresses: Sequence[int], indices: Sequence[int]) -> bool:
    return all(tensors[index].data_ptr() == addresses[index] for index in indices)


_storage_on_cpu: Callable[[int, Any, int], Any] = torch._C._construct_storage_from_data_pointer
