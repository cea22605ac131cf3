"""neuron-top's memory details as a tree: device, cores, categories, and this host. Only visible
labels are written; a closed branch is updated when it opens.
"""

from collections.abc import Iterable
from typing import Final

from rich.text import Text
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from serving.telemetry.neuron_tools.shown_numbers import memory
from serving.telemetry.neuron_tools.top_figures import CATEGORY_WORDS, TopChip, TopFigures

Key = tuple[str, ...]
"""("device",), ("device", chip), ("device", chip, core), ... or ("host", ...)."""

_WIDTH: Final = 34
_HOST: Final = {"used": "in use", "server": "of it the server"}


class MemoryTree(Tree[Key]):
    """A parent's figure is the sum of its children's."""

    def __init__(self) -> None:
        super().__init__("Memory", ("root",))
        self.show_root = False
        self._figures: TopFigures | None = None
        self._branches: dict[Key, TreeNode[Key]] = {}
        self._labels: dict[Key, str] = {}

    def show(self, figures: TopFigures) -> None:
        """Show the memory of a snapshot."""
        known = self._figures
        self._figures = figures
        chips = [chip.chip for chip in figures.chips]
        if known is None or chips != [chip.chip for chip in known.chips]:
            self.clear()
            self._branches, self._labels = {}, {}
            device = self._branch(self.root, ("device",))
            host = self._branch(self.root, ("host",))
            for chip in chips:
                self._branch(device, ("device", str(chip)))
            for name in _HOST:
                self._branch(host, ("host", name), leaf=True)
            device.expand()
            host.expand()
        self._write(self._branches)

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Key]) -> None:
        """Make the children of a chip or a core when it opens."""
        self._grow(event.node)
        self._write([child.data for child in event.node.children if child.data is not None])

    def toggle_all(self) -> None:
        """Open everything, or close it when open."""
        device = self._branches.get(("device",))
        if device is None:
            return
        if any(chip.is_expanded for chip in device.children):
            for chip in device.children:
                chip.collapse_all()
            return
        for chip in device.children:
            self._grow(chip)
            for core in chip.children:
                self._grow(core)
            chip.expand_all()
        self._write(self._branches)

    def _branch(self, parent: TreeNode[Key], key: Key, *, leaf: bool = False) -> TreeNode[Key]:
        node = parent.add_leaf("", key) if leaf else parent.add("", key)
        self._branches[key] = node
        return node

    def _grow(self, node: TreeNode[Key]) -> None:
        key = node.data
        if key is None or node.children or self._figures is None or key[0] != "device":
            return
        if len(key) == 2:
            for core in self._chip(key).cores:
                self._branch(node, (*key, str(core)))
        elif len(key) == 3:
            for name in CATEGORY_WORDS:
                self._branch(node, (*key, name), leaf=True)

    def _write(self, keys: Iterable[Key]) -> None:
        if self._figures is None:
            return
        for key in list(keys):
            node = self._branches[key]
            parent = node.parent
            if parent is None or parent is self.root or parent.is_expanded:
                name, count = self._entry(key)
                shown = "-" if count is None else memory(count)
                label = f"{name:<{_WIDTH - 4 * len(key)}}{shown:>12}"
                if self._labels.get(key) != label:
                    node.set_label(Text(label))
                    self._labels[key] = label

    def _chip(self, key: Key) -> TopChip:
        assert self._figures is not None
        return self._figures.chips[int(key[1])]

    def _entry(self, key: Key) -> tuple[str, int | None]:
        """A node's words and bytes; None where unknown."""
        figures = self._figures
        assert figures is not None
        if key[0] == "host":
            host = figures.host
            used = host.memory_used_bytes if host else None
            server = host.server_memory_bytes if host else None
            if len(key) == 1:
                return "This host (real)", used
            return _HOST[key[1]], {"used": used, "server": server}[key[1]]
        if len(key) == 1:
            return "Device memory", sum(figures.device_bytes.values())
        chip = self._chip(key)
        if len(key) == 2:
            return f"ND {chip.chip} ({chip.doing})", chip.hbm_used_bytes
        held = chip.cores[int(key[2])]
        if len(key) == 3:
            return f"NC {key[2]}", sum(held.values())
        return CATEGORY_WORDS[key[3]], held[key[3]]
