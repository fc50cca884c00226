# SPDX-License-Identifier: Apache-2.0
"""Pictures of one shared-memory instruction: which lane's word lies in which bank, wavefront by wavefront.

A row is a wavefront, a column a bank, and a cell the lane whose word that bank delivers; "+" marks a word that several
lanes share. Rows beyond a group's first are conflicts. The hardware's own order is not known: words of one bank are
shown in the order of the lanes that read them. The number of rows is measured; their order is a choice.

Worked picture: 4-byte loads with a stride of two words: lanes 0 and 16 both want bank 0, so two rows on the even banks.
"""

from collections.abc import Sequence
from html import escape

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from pysim.cachemodel.shared_memory.banks import LANES, SharedMemory, Wavefronts, instruction

_DIGITS = "0123456789abcdefghijklmnopqrstuv"  # a lane in one character, where columns are scarce


class Group(msgspec.Struct, frozen=True):
    """Lanes `first` to `last`, served together: per wavefront, the lanes that each bank's word goes to."""

    first: int
    last: int
    waves: tuple[dict[int, tuple[int, ...]], ...]


class Picture(msgspec.Struct, frozen=True):
    """One instruction, ready to be drawn."""

    title: str
    banks: int
    wavefronts: Wavefronts
    groups: tuple[Group, ...]

    @property
    def heading(self) -> str:
        """What the instruction costs, in words."""
        count, least, conflicts = self.wavefronts.total, self.wavefronts.minimum, self.wavefronts.conflicts
        extra = f"{conflicts} conflict{'s' * (conflicts != 1)}" if conflicts else "no conflict"
        return f"{self.title}: {count} wavefront{'s' * (count != 1)}, minimum {least}, {extra}"


def picture(
    memory: SharedMemory,
    addresses: ArrayLike,
    width: int = 16,
    store: bool = False,
    active: ArrayLike | None = None,
    title: str = "",
) -> Picture:
    """The picture of one instruction; arguments and errors are those of `SharedMemory.wavefronts`."""
    cost = memory.wavefronts(addresses, width, store, active)
    size = LANES // len(cost.per_group)
    lanes = np.asarray(addresses).tolist()
    mask = [True] * LANES if active is None else np.asarray(active).astype(bool).tolist()
    words = max(1, width // memory.bank_bytes)
    groups = []
    for start in range(0, LANES, size):
        banks: dict[int, dict[int, list[int]]] = {}
        for lane in range(start, start + size):
            for part in range(words if mask[lane] else 0):
                word = lanes[lane] // memory.bank_bytes + part
                banks.setdefault(word % memory.banks, {}).setdefault(word, []).append(lane)
        groups.append(Group(start, start + size - 1, _waves(banks)))
    title = " ".join(part for part in (instruction(width, store), title) if part)
    return Picture(title, memory.banks, cost, tuple(groups))


def _waves(banks: dict[int, dict[int, list[int]]]) -> tuple[dict[int, tuple[int, ...]], ...]:
    """Wavefront k delivers the k-th word of every bank."""
    depth = max((len(words) for words in banks.values()), default=0)
    ordered = {bank: [tuple(lanes) for lanes in words.values()] for bank, words in banks.items()}
    return tuple({bank: words[wave] for bank, words in sorted(ordered.items()) if wave < len(words)} for wave in range(depth))


def text(drawn: Picture, columns: int = 120) -> str:
    """The picture as plain text; lanes are decimal where `columns` allow, else one character from 0-9a-v."""
    decimal = 14 + 3 * drawn.banks <= columns
    if decimal:
        numbers = "".join(f"{bank:>2} " for bank in range(drawn.banks))
    else:
        numbers = "".join(f"{bank:<16}" for bank in range(0, drawn.banks, 8))
    lines = [drawn.heading, f"{'lanes':>6} {'wave':>5}  {numbers}".rstrip()]
    if not decimal:
        lines.insert(1, "lanes 10 to 31 are written a to v")
    for group in drawn.groups:
        for wave, row in enumerate(group.waves or ({},)):
            lanes = f"{group.first}-{group.last}" if wave == 0 else ""
            cells = "".join(_cell(row.get(bank, ()), decimal) for bank in range(drawn.banks))
            label = str(wave + 1) if group.waves else "none"
            lines.append(f"{lanes:>6} {label:>5}  {cells}".rstrip())
    return "\n".join(lines)


def _cell(lanes: tuple[int, ...], decimal: bool) -> str:
    size = 2 if decimal else 1
    if not lanes:
        return f"{'.':>{size}} "
    lane = str(lanes[0]) if decimal else _DIGITS[lanes[0]]
    return f"{lane:>{size}}" + ("+" if len(lanes) > 1 else " ")


_CELL, _ROW, _LEFT, _TOP, _GAP = 28, 22, 150, 58, 34  # pixels
_STYLE = """
text { font: 11px system-ui, 'DejaVu Sans', sans-serif; fill: #1f2933; text-anchor: middle }
text.left { text-anchor: start } text.right { text-anchor: end } text.small { font-size: 10px; fill: #52606d }
text.title { font-size: 15px; font-weight: 600; text-anchor: start } text.head { font-weight: 600; text-anchor: start }
rect.even { fill: #d3e5f7 } rect.odd { fill: #d5efdd } rect.conflict { fill: #f9cfa0 } rect.idle { fill: #f2f4f6 }
line { stroke: #9aa5b1 }
"""


def svg(title: str, drawn: Sequence[Picture]) -> str:
    """The pictures one below the other as one SVG document; point at a cell to read its lanes."""
    banks = max((one.banks for one in drawn), default=LANES)
    width, height, body = _LEFT + banks * _CELL + 20, _TOP, []
    for one in drawn:
        part, used = _panel(one, height)
        body += part
        height += used + _GAP
    legend = "first wavefront of a group (two tints tell groups apart)"
    size = f'width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}">',
            f"<style>{_STYLE}</style>",
            f'<rect {size} fill="#ffffff"/>',
            f'<text class="title" x="16" y="22">{escape(title)}</text>',
            '<rect class="even" x="16" y="36" width="14" height="10"/>',
            '<rect class="odd" x="32" y="36" width="14" height="10"/>',
            f'<text class="left small" x="52" y="45">{legend}</text>',
            '<rect class="conflict" x="366" y="36" width="14" height="10"/>',
            '<text class="left small" x="386" y="45">further wavefronts: conflicts</text>',
            '<text class="left small" x="560" y="45">a number is a lane; + marks a word that more lanes share</text>',
            *body,
            "</svg>",
            "",
        ]
    )


def _panel(one: Picture, top: int) -> tuple[list[str], int]:
    """One instruction's lines of SVG from `top` down, and their height in pixels."""
    lines = [f'<text class="head" x="16" y="{top + 14}">{escape(one.heading)}</text>']
    y = top + 26
    lines.append(f'<text class="right small" x="{_LEFT - 10}" y="{y + 11}">bank</text>')
    centres = {bank: _LEFT + bank * _CELL + _CELL // 2 for bank in range(one.banks)}
    lines += [f'<text class="small" x="{x}" y="{y + 11}">{bank}</text>' for bank, x in centres.items()]
    y += 18
    for number, group in enumerate(one.groups):
        lines.append(f'<line x1="16" x2="{_LEFT + one.banks * _CELL}" y1="{y}" y2="{y}"/>')
        lines.append(f'<text class="left" x="16" y="{y + _ROW // 2 + 4}">lanes {group.first}-{group.last}</text>')
        for wave, row in enumerate(group.waves or ({},)):
            label = f"wave {wave + 1}" if group.waves else "inactive"
            lines.append(f'<text class="right small" x="{_LEFT - 10}" y="{y + _ROW // 2 + 4}">{label}</text>')
            tint = "conflict" if wave else ("even", "odd")[number % 2]
            lines += [_box(bank, y, tint, row.get(bank, ())) for bank in range(one.banks)]
            y += _ROW
    lines.append(f'<line x1="16" x2="{_LEFT + one.banks * _CELL}" y1="{y}" y2="{y}"/>')
    return lines, y - top


def _box(bank: int, y: int, tint: str, lanes: tuple[int, ...]) -> str:
    x = _LEFT + bank * _CELL
    box = f'<rect class="{tint if lanes else "idle"}" x="{x + 1}" y="{y + 1}" width="{_CELL - 2}" height="{_ROW - 2}"/>'
    if not lanes:
        return box
    label = f"{lanes[0]}{'+' * (len(lanes) > 1)}"
    who = f"bank {bank}: lane{'s' * (len(lanes) > 1)} {', '.join(map(str, lanes))}"
    return f'<g><title>{who}</title>{box}<text x="{x + _CELL // 2}" y="{y + _ROW // 2 + 4}">{label}</text></g>'
