"""Launches on several streams: what an emitted module has where two of its launches are independent.

A configuration names the launches that are not on the caller's stream (the option `streams`). That counts while a CUDA
graph is captured, by whomever: the graph gets a branch for each stream. Otherwise launches stay on the caller's stream,
as events would cost the host more than small launches take.

What waits for what does not depend on the configuration: `AFTER` is made from what the launches load and store, so any
choice of streams is safe. A launch on a stream of its own waits for those in `AFTER` by events; the first of a stream
for the caller's stream, where buffers were made and inputs were written. In the end the caller's stream waits for all,
before any buffer is let go of: so the allocator, which knows buffers by the caller's stream alone, gives their memory
only to what comes after. A library's products have a workspace for each stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism.backends.source import Writer
from prism.backends.tile import TileModule
from prism.backends.triton.options.printed import Printed
from prism.cost.streams import STREAMS
from prism.sgraph.config import Config
from prism.sgraph.launches import apart, waits
from prism.sgraph.nodes import SGraph

ON_STREAMS = '''
_SIDES = {}


def _side(main, n):
    """The n-th stream beside one: always the same, as libraries keep a workspace for each."""
    while (main, n) not in _SIDES:
        side = torch.cuda.Stream(main.device)
        if side != main and side not in [known for (other, _), known in _SIDES.items() if other == main]:
            _SIDES[main, n] = side
    return _SIDES[main, n]


def _on_streams(launches):
    """`launches`, each on the stream that the configuration gives it, after those in AFTER, while a graph is captured.

    The graph has a branch for each stream then. Otherwise all are launched on the current stream, in order.
    """

    def branched(*tensors, config):
        streams = config.get("streams", {})
        found = launches(*tensors, config=config)
        if not streams or not tensors[0].is_cuda or not torch.cuda.is_current_stream_capturing():
            yield from found
            return
        main = torch.cuda.current_stream(tensors[0].device)
        sides = {n: _side(main, n) for n in sorted(set(streams.values()))}
        fork, forked, done = None, [], {}
        for launch in found:
            name = launch[0].__name__
            own = sides.get(streams.get(name), main)
            # All buffers are there now.
            fork = main.record_event() if fork is None else fork
            if own is not main and own not in forked:
                own.wait_event(fork)
                forked.append(own)
            for other in AFTER[name]:
                # What hangs on weights alone was made at an earlier call, and is no launch of this one.
                stream, event = done.get(other, (own, None))
                if stream is not own:
                    own.wait_event(event)
            with torch.cuda.stream(own):
                yield launch
            done[name] = own, own.record_event()
        # Before anything else gets the memory of buffers.
        for side in forked:
            main.wait_stream(side)

    return branched
'''
"""What such a module has besides."""

_FOLDED = """
            for other in AFTER[name]:
"""
_WITH_FOLDS = """
            own_and_folded = [name, *(c for c, split in FOLDS.items() if split == name and c in folded)]
            needed = {FOLDS[n] if n in folded else n for part in own_and_folded for n in AFTER[part]}
            for other in sorted(needed - {name}):
"""


class PrintedStreams(Printed):
    """Where two launches are independent: what waits for what, and the function around `launches`."""

    option = STREAMS
    refusal = "there is no launch {} that could have a stream"
    default = ""
    names = ("AFTER", "FOLDS", "_SIDES")

    def __init__(self, module: TileModule, sgraph: SGraph, configs: Sequence[Config]) -> None:
        super().__init__(module, sgraph, configs)
        self._after = waits(sgraph)
        self.launches = list(self._after) if apart(self._after) else []

    def decorate(self, writer: Writer) -> None:
        """The tables, and the function."""
        writer.line("# The launches that each one waits for: they store what it loads, or the other way round.")
        writer.line("AFTER = {")
        with writer.indented():
            for name, others in self._after.items():
                names = ", ".join(f'"{n}"' for n in others)
                writer.line(f'"{name}": ({names}{"," * (len(others) == 1)}),')
        writer.line("}")
        text = ON_STREAMS
        if self.module.folds:
            writer.line("# Second stages that their splits may do.")
            writer.line("FOLDS = {")
            with writer.indented():
                for fold in self.module.folds:
                    writer.line(f'"{fold.combine}": "{fold.split}",')
            writer.line("}")
            text = text.replace(_FOLDED, _WITH_FOLDS)
            text = text.replace("        found =", '        folded = config.get("folded", ())\n        found =')
        writer.paste(text)
        writer.blank(2)
        writer.line("@_on_streams")
