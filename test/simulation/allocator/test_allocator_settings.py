import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.errors import AllocatorSettingsError
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings

MB = 2**20


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {}),
        ("  ", {}),
        ("max_split_size_mb:20", {"max_split_size": 20 * MB}),
        (" max_split_size_mb : 32 ,", {"max_split_size": 32 * MB}),
        ("max_split_size_mb:40,max_split_size_mb:30", {"max_split_size": 30 * MB}),
        ("max_split_size_mb:18446744073709551615", {"max_split_size": 2**64 - MB}),
        ("garbage_collection_threshold:0.6", {"garbage_collection_threshold": 0.6}),
        ("expandable_segments:True", {"expandable_segments": True}),
        ("expandable_segments:False", {}),
        (
            "large_segment_size_mb:11",
            {"large_segment_size": 11 * MB, "max_non_split_rounding_size": 11 * MB},
        ),
        (
            "max_split_size_mb:12,large_segment_size_mb:12,max_non_split_rounding_mb:40",
            {
                "max_split_size": 12 * MB,
                "large_segment_size": 12 * MB,
                "max_non_split_rounding_size": 40 * MB,
            },
        ),
        ("per_process_memory_fraction:0.5", {"per_process_memory_fraction": 0.5}),
        ("throw_on_cudamalloc_oom:True", {"throw_on_cudamalloc_oom": True}),
        (
            (
                "backend:native,pinned_use_cuda_host_register:True,pinned_num_register_threads:8,"
                "pinned_use_background_threads:True,pinned_reserve_segment_size_mb:1024,"
                "pinned_max_round_threshold_mb:0,pinned_max_cached_size_mb:64,"
                "pinned_free_catch_all:False,release_lock_on_cudamalloc:True,"
                "graph_capture_record_stream_reuse:True"
            ),
            {},
        ),
        (
            (
                "expandable_segments:True,expandable_segments_reserve:40G,"
                "expandable_segments_reserve_by_class:[weights:0.5,cache:20G]"
            ),
            {"expandable_segments": True},
        ),
        # What these give is what PyTorch 2.13's own parser gave.
        ("roundup_power2_divisions:4", {"roundup_power2_divisions": (4,) * 16}),
        (
            "roundup_power2_divisions:[64:8,256:4,>:1]",
            {"roundup_power2_divisions": (8,) * 7 + (0, 4) + (1,) * 7},
        ),
        (
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],max_split_size_mb:64",
            {
                "roundup_power2_divisions": (1,) * 9 + (2, 4) + (8,) * 5,
                "max_split_size": 64 * MB,
            },
        ),
        (
            "roundup_power2_divisions:[256:4,64:8]",
            {"roundup_power2_divisions": (4,) * 6 + (8, 4, 4) + (0,) * 7},
        ),
        ("roundup_power2_divisions:[>:4]", {"roundup_power2_divisions": (0,) + (4,) * 15}),
        ("roundup_power2_divisions:[65536:4]", {"roundup_power2_divisions": (4,) * 16}),
        ("roundup_power2_divisions:[]", {}),
    ],
)
def test_a_string_sets_what_pytorch_sets(text, fields):
    assert AllocatorSettings.parse(text) == AllocatorSettings(**fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_split_sise_mb:30",
            "unknown allocator setting 'max_split_sise_mb'; did you mean max_split_size_mb",
        ),
        ("expandable_segment:True", "did you mean expandable_segments"),
        ("zzz:1", "unknown allocator setting 'zzz'; known are large_segment_size_mb, max_split"),
        ("max_split_size_mb:30,,backend:native", "unknown allocator setting ''"),
        (
            "max_split_size_mb",
            "max_split_size_mb needs a value, as in 'max_split_size_mb:<number>'",
        ),
        ("expandable_segments:", "needs a value, as in 'expandable_segments:True'"),
        ("backend:", "backend needs a value, as in 'backend:native'"),
        ("max_split_size_mb=30", "unknown allocator setting 'max_split_size_mb=30'"),
        ("max_split_size_mb:19", "max_split_size_mb must be 20 or more, not 19"),
        (
            "large_segment_size_mb:40,max_split_size_mb:39",
            "max_split_size_mb must be 40 or more, not 39",
        ),
        ("max_non_split_rounding_mb:19", "max_non_split_rounding_mb must be 20 or more, not 19"),
        ("large_segment_size_mb:10", "large_segment_size_mb must be 11 or more, not 10"),
        ("max_split_size_mb:20abc", "max_split_size_mb must be a whole number, not '20abc'"),
        ("max_split_size_mb:-1", "max_split_size_mb must be a whole number, not '-1'"),
        ("max_split_size_mb:٣٠", "must be a whole number"),
        ("expandable_segments:true", "expandable_segments must be True or False, not 'true'"),
        (
            "garbage_collection_threshold:1.0",
            r"garbage_collection_threshold must be a number in \(0.0, 1.0\), not '1.0'",
        ),
        ("garbage_collection_threshold:half", "must be a number"),
        ("garbage_collection_threshold:nan", "must be a number"),
        ("per_process_memory_fraction:1.5", r"must be a number in \[0.0, 1.0\], not '1.5'"),
        ("backend:cudaMallocAsync", "backend must be native, the one simulated"),
        ("pinned_num_register_threads:3", "must be a power of two, not 3"),
        ("pinned_num_register_threads:256", "must be 128 or less, not 256"),
        ("pinned_reserve_segment_size_mb:0", "must be 1 or more, not 0"),
        ("roundup_power2_divisions:0", "roundup_power2_divisions must be a power of two, not 0"),
        ("roundup_power2_divisions:[64:3]", "must be a power of two or 0, not 3"),
        ("roundup_power2_divisions:[48:4]", "a boundary of roundup_power2_divisions must be a"),
        ("roundup_power2_divisions:[64]", "must be a whole number, not ''"),
        ("roundup_power2_divisions:[64:4", "lacks the closing bracket"),
    ],
)
def test_a_bad_string_is_told_in_one_line(text, message):
    with pytest.raises(AllocatorSettingsError, match=message) as error:
        AllocatorSettings.parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("size", "rounded"),
    [
        (1, 512),
        (511, 512),
        (512, 512),
        (513, 1024),
        (MB, MB),
        (MB + 1, MB + 512),
        (10**7, 10000384),
    ],
)
def test_sizes_are_rounded_to_512_bytes(size, rounded):
    assert AllocatorSettings().round_size(size) == rounded


@pytest.mark.parametrize(
    ("divisions", "size", "rounded"),
    [
        (4, 1200, 1536),  # at most 512 bytes a step: to 512 bytes as ever
        (4, 2049, 2560),
        (4, 2560, 2560),
        (4, 4096, 4096),
        (4, 5 * MB + 1, 6 * MB),
        (4, 7 * MB + 1, 8 * MB),
        (8, 5 * MB + 1, 5 * MB + MB // 2),
        (1, 5 * MB + 1, 5 * MB + 512),
        (16, 100, 512),
    ],
)
def test_sizes_are_rounded_to_steps_between_powers_of_two(divisions, size, rounded):
    settings = AllocatorSettings.parse(f"roundup_power2_divisions:{divisions}")
    assert settings.round_size(size) == rounded


def test_each_interval_has_its_own_steps():
    settings = AllocatorSettings.parse("roundup_power2_divisions:[64:8,128:4,>:1]")
    assert settings.round_size(3 * MB + 1) == 3 * MB + MB // 4
    assert settings.round_size(65 * MB) == 72 * MB
    assert settings.round_size(129 * MB) == 160 * MB
    assert settings.round_size(257 * MB + 1) == 257 * MB + 512


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MB),
        (MB, 2 * MB),
        (MB + 512, 20 * MB),
        (10 * MB - 512, 20 * MB),
        (10 * MB, 10 * MB),
        (10 * MB + 512, 12 * MB),
        (101 * MB, 102 * MB),
    ],
)
def test_segments_have_a_size_by_that_of_the_block(size, segment):
    assert AllocatorSettings().segment_size(size) == segment


def test_the_size_of_large_segments_can_be_set():
    settings = AllocatorSettings.parse("large_segment_size_mb:32")
    assert settings.segment_size(2 * MB) == 32 * MB
    assert settings.segment_size(12 * MB) == 12 * MB


def test_a_limit_of_splits_that_is_lowered_too_late_fails_as_cuda_would():
    """PyTorch gives a part of a split segment to cudaFree then."""
    with simulate("512MiB"):
        kept = torch.empty(200 * MB, dtype=torch.uint8, device="cuda")
        del kept
        kept = torch.empty(50 * MB, dtype=torch.uint8, device="cuda")
        torch.cuda.memory._set_allocator_settings("max_split_size_mb:30")
        before = torch.cuda.memory_stats()
        with pytest.raises(RuntimeError, match=r"^CUDA error: invalid argument\. max_split_size"):
            torch.empty(400 * MB, dtype=torch.uint8, device="cuda")
        after = torch.cuda.memory_stats()
        assert {
            name: (value, after[name]) for name, value in before.items() if after[name] != value
        } == {}
        del kept
        assert torch.cuda.memory_allocated() == 0
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0


def test_a_setting_that_pytorch_refuses_is_a_runtime_error():
    with simulate("512MiB"), pytest.raises(RuntimeError, match="unknown allocator setting 'foo'"):
        torch.cuda.memory._set_allocator_settings("foo:1,bar:2")
