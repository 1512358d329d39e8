"""Peak holders by category and by module: every sum is the peak."""

from __future__ import annotations

import pytest

from pytorch_memlab.errors import UsageError
from pytorch_memlab.history.holders import ModuleNode, PeakHolders, Share, peak_holders
from pytorch_memlab.history.model import Category, Frame, UsedBlock
from pytorch_memlab.history.peak import Peak
from pytorch_memlab.history.snapshot import history_of
from pytorch_memlab.reporter.memory_snapshot import CATEGORIES


def holders_of(*blocks):
    active = sum(block.size for block in blocks)
    return PeakHolders(Peak(0, active, active, 0, 1, blocks), [()])


def block(address, size, module, category=Category.UNKNOWN):
    return UsedBlock(address, size, size, 0, 0, category, module)


HOLDERS = holders_of(
    block(0, 512, "GPT.blocks.3.attn", Category.SAVED),
    block(512, 1024, "GPT.blocks.3.attn", Category.TEMPORARIES),
    block(2048, 2048, "GPT.blocks.10", Category.SAVED),
    block(4096, 4096, ""),
    block(8192, 8192, "GPT", Category.PARAMETERS),
)


def test_the_shares_of_categories_and_modules_add_up_to_the_peak():
    assert HOLDERS.by_category() == [
        Share("parameters", 8192, 1),
        Share("unknown", 4096, 1),
        Share("activations saved for backward", 2560, 2),
        Share("temporaries", 1024, 1),
    ]
    assert HOLDERS.by_module() == [
        Share("GPT", 8192, 1),
        Share("", 4096, 1),
        Share("GPT.blocks.10", 2048, 1),
        Share("GPT.blocks.3.attn", 1536, 2),
    ]


def test_each_line_has_its_categories_and_modules():
    first, second = Frame("/a/train.py", 3, "main"), Frame("/a/train.py", 4, "main")
    blocks = (
        UsedBlock(0, 512, 512, 1, 0, Category.SAVED, "GPT.0"),
        UsedBlock(512, 1024, 1024, 1, 0, Category.SAVED, "GPT.1"),
        UsedBlock(2048, 2048, 2048, 1, 0, Category.TEMPORARIES, "GPT.1"),
        UsedBlock(4096, 1024, 1024, 2),
        UsedBlock(8192, 512, 512, None),
    )
    holders = PeakHolders(Peak(0, 5120, 5120, 0, 1, blocks), [(), (first,), (second,)])
    details = holders.line_details()
    assert [one.holder for one in details] == holders.by_line()
    assert [(one.categories, one.modules) for one in details] == [
        (
            (Share("temporaries", 2048, 1), Share("activations saved for backward", 1536, 2)),
            (Share("GPT.1", 3072, 2), Share("GPT.0", 512, 1)),
        ),
        ((Share("unknown", 1024, 1),), (Share("", 1024, 1),)),
        ((Share("unknown", 512, 1),), (Share("", 512, 1),)),
    ]


def test_the_tree_of_modules_nests_their_bytes():
    attn = ModuleNode("attn", "GPT.blocks.3.attn", 1536, 1536)
    third = ModuleNode("3", "GPT.blocks.3", 0, 1536, (attn,))
    tenth = ModuleNode("10", "GPT.blocks.10", 2048, 2048)
    blocks = ModuleNode("blocks", "GPT.blocks", 0, 3584, (tenth, third))
    gpt = ModuleNode("GPT", "GPT", 8192, 11776, (blocks,))
    assert HOLDERS.module_tree() == ModuleNode("", "", 4096, 15872, (gpt,))


def test_a_tree_is_at_most_64_deep_and_its_last_module_has_the_rest_of_the_path():
    path = ".".join("ab" * 50_000)
    tree = holders_of(block(0, 512, path), block(512, 512, path[:-2])).module_tree()
    nodes, (node,) = [], tree.children
    while node.children:
        nodes.append(node)
        node = node.children[0]
    assert len(nodes) == 63
    assert sum(len(each.path) for each in nodes) == sum(2 * depth - 1 for depth in range(1, 64))
    assert {each.path for each in nodes[-1].children} == {path, path[:-2]}
    assert nodes[-1].total == tree.total == 1024


def test_the_tree_without_a_block_is_its_root():
    assert holders_of().module_tree() == ModuleNode("", "", 0, 0)


def test_a_snapshot_says_category_module_and_forward_line_itself():
    """On events and on blocks; a name that no category has is unknown."""
    frames = [{"filename": "/a/b.py", "line": 3, "name": "f"}]
    known = {"module": "Net.fc", "category": "gradients", "forward_frames": frames}
    event = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, **known}
    old = {"size": 512, "requested_size": 7, "state": "active_allocated", "frames": frames}
    segment = {
        "device": 0,
        "address": 0,
        "total_size": 1024,
        "blocks": [
            {**old, "category": "wings", "module": "Net"},
            {**old, **known, "requested_size": 512},
        ],
    }
    history = history_of({"segments": [segment], "device_traces": [[event]]})
    assert [(one.category, one.module) for one in history.devices[0].events] == [
        (Category.GRADIENTS, "Net.fc")
    ]
    assert history.devices[0].segments[0].blocks == (
        UsedBlock(0, 512, 7, 1, 0, Category.UNKNOWN, "Net"),
        UsedBlock(512, 512, 512, 1, 1, Category.GRADIENTS, "Net.fc"),
    )
    shares = peak_holders(history).by_category()
    assert [(share.name, share.size) for share in shares] == [("gradients", 512), ("unknown", 512)]


def test_a_category_is_its_name_and_the_reporter_says_the_same():
    assert f"{Category.SAVED}" == str(Category.SAVED) == Category.SAVED == CATEGORIES[4]
    assert set(CATEGORIES) <= {category.value for category in Category}


@pytest.mark.parametrize("by", ["line", "function", "module", "category", "stack"])
def test_a_dataframe_for_each_way_to_add_up(by):
    frame = HOLDERS.to_dataframe(by)
    assert frame["size"].sum() == HOLDERS.peak.active
    rows = getattr(HOLDERS, f"by_{by}")()
    assert [tuple(row) for row in frame.values[:, :1]] == [
        (row[0] if by == "stack" else getattr(row, frame.columns[0]),) for row in rows
    ]


def test_a_wrong_way_is_told():
    with pytest.raises(
        UsageError, match=r"^by is line, function, module, category or stack, not 'lines'$"
    ):
        HOLDERS.to_dataframe("lines")


def test_holders_tell_what_they_are():
    assert repr(HOLDERS) == (
        "<PeakHolders of cuda:0: 15.5 KiB in 5 blocks; most by no Python frame (15.5 KiB) "
        "and as parameters (8.0 KiB)>"
    )
    assert repr(holders_of()) == "<PeakHolders of cuda:0: 0 B in 0 blocks>"
    hostile = PeakHolders(HOLDERS.peak, [(Frame("/<b>.py", 3, "<script>"),)])
    assert "<script>" not in hostile._repr_html_()
    assert "&lt;script&gt;" in hostile._repr_html_()
