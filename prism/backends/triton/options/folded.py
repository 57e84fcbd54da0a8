"""The end of a split's kernel whose last program of each tile combines the parts, and what the host needs for it.

All threads of a program store their share of the partial results; then, after a barrier, one thread of it adds 1 to the
tile's count of arrivals, releasing what its program stored and acquiring what the others' did before they came. Triton
has the result broadcast behind another barrier, so all threads of the last program read what all programs stored. It
sets the count back to 0, so that the next launch finds it as this one did. The order of stores, barrier and atomic is
that of the classic reduction in which the last block finishes. Triton puts a barrier before an atomic that releases
only since July 2026 (triton-lang/triton#10816), before that where shared memory happens to need one, so it is written
here.

On AMD's GPUs that is not enough: what Triton 3.7 makes of it for gfx942 waits at the barrier without waiting for
stores, and the release is of one wave's stores. So there the module refuses to fold.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prism.backends.host import Signature
from prism.backends.source import HOST, Writer, fresh, programs_of
from prism.backends.tile import TileFold, TileLaunch, TileModule
from prism.backends.tile_rewrite import names_beside
from prism.backends.triton.emit_kernel import KernelEmitter, Tail
from prism.backends.triton.options.printed import Call, Printed
from prism.sgraph.folding import FOLDED
from prism.sgraph.nodes import SGraph

ARRIVALS = '''
_ARRIVALS = {}


def _arrivals(count, device):
    """`count` zeros, in which the programs of a tile count their arrivals; every launch leaves them zero.

    So the launches of a stream share them. A graph may run beside any stream: it has its own, see GraphArrivals, or
    zeros that it sets itself whenever it is replayed.
    """
    cuda = device.type == "cuda"
    if cuda and torch.version.hip:
        raise RuntimeError("a configuration with folded launches is for NVIDIA's GPUs: choose one without")
    stream = torch.cuda.current_stream(device).cuda_stream if cuda else 0
    capturing = cuda and torch.cuda.is_current_stream_capturing()
    held = _ARRIVALS.get((stream, capturing, device))
    if held is None or held.numel() < count:
        held = torch.zeros(count, dtype=torch.int32, device=device)
        if not capturing:
            _ARRIVALS[stream, capturing, device] = held
    return held


class GraphArrivals:
    """Around the capture of a graph on a stream that its launches have run on: what they count in is the graph's now.

    Keep it as long as the graph. Without it the graph sets a count to zero before each such launch, one node more.
    """

    def __init__(self, stream):
        self.key = (stream.cuda_stream, True, stream.device)

    def __enter__(self):
        self.held = _ARRIVALS.pop((self.key[0], False, self.key[2]), None)
        if self.held is not None:
            _ARRIVALS[self.key] = self.held
        return self

    def __exit__(self, *_):
        _ARRIVALS.pop(self.key, None)
'''


def _tail(fold: TileFold, launches: dict[str, TileLaunch], pointers: dict[str, str], taken: set[str]) -> Tail:
    split, combine = launches[fold.split], launches[fold.combine]
    function = fresh(f"{combine.name}_tile", taken)
    sizes = dict(fold.sizes)
    tensors = {t.name: t for t in (*split.tensors, *combine.tensors)}
    constants = {c.name: c for c in split.constants}
    for c in combine.constants:
        if c.name not in sizes:
            constants.setdefault(c.name, c)
    names = names_beside(split.programs[0])
    names.taken |= {*constants, *combine.lengths, *(pointers[t] for t in tensors)}
    return Tail(
        fold,
        split.programs[0],
        function,
        (
            *(pointers[t.name] for t in combine.tensors),
            *combine.lengths,
            *(str(sizes.get(c.name, c.name)) for c in combine.constants),
        ),
        tuple(tensors.values()),
        tuple(sorted({*split.lengths, *combine.lengths})),
        tuple(constants.values()),
        names.fresh("arrivals_ptr"),
        names.fresh("COMBINE"),
    )


class PrintedFolded(Printed):
    """A choice between the second stage's own kernel and the end of its split's."""

    option = FOLDED
    refusal = "the launch {} cannot be folded into a split"
    source = ARRIVALS
    names = ("GraphArrivals",)
    captured = "GraphArrivals(side) as graph.arrivals, torch.cuda.graph(graph, stream=side)"

    def possible(self, module: TileModule, sgraph: SGraph) -> Collection[str]:
        """Second stages that their splits may do."""
        return [fold.combine for fold in module.folds]

    def named(self, signature: Signature, taken: set[str]) -> None:
        """Name the second stages as functions, and what their splits' kernels get for it."""
        super().named(signature, taken)
        launches = {x.name: x for x in self.module.launches}
        self._tails = {f.split: _tail(f, launches, self.tensors.pointer, taken) for f in self.module.folds}
        self._functions = {t.fold.combine: t.function for t in self._tails.values()}

    def kernel(self, launch: TileLaunch, emitter: KernelEmitter) -> None:
        """The split's goes on with the tile's second stage, which is a function."""
        emitter.tail = self._tails.get(launch.name)
        if launch.name in self._functions:
            emitter.name, emitter.called = self._functions[launch.name], True

    def wrap(self, launch: TileLaunch, writer: Writer, stages: str, parameters: Sequence[str]) -> None:
        """The second stage as a kernel of its own, which calls the function at its program's place."""
        if launch.name not in self._functions:
            return
        arguments = [*(self.tensors.pointer[t.name] for t in launch.tensors), *launch.lengths]
        constants = [c.name for c in launch.constants]
        writer.blank(2)
        writer.line("@triton.jit")
        writer.call(f"def {launch.name}", [*arguments, *(f"{c}: tl.constexpr" for c in constants)], ":")
        with writer.indented():
            writer.call(self._functions[launch.name], ["tl.program_id(0)", *arguments, *constants])

    def begin(self, writer: Writer, device: str) -> None:
        """What the programs of each split count in: of its own, as splits may run beside each other."""
        counts = [
            f'{programs_of(t.program.grid[:-1], HOST)} if "{t.fold.combine}" in folded else 0'
            for t in self._tails.values()
        ]
        if len(counts) == 1:
            writer.line("arrived = None")
            with writer.block("if folded:"):
                writer.assign("arrived", f"_arrivals({counts[0]}, {device})")
            return
        writer.line(f"arrived = [None] * {len(counts)}")
        with writer.block("if folded:"):
            # By fours: kernels are compiled for pointers that are multiples of 16 bytes.
            writer.line("arrived = [")
            with writer.indented():
                for count in counts:
                    writer.line(f"-(-({count}) // 4) * 4,")
            writer.line("]")
            writer.line(f"arrived = _arrivals(sum(arrived), {device})[: sum(arrived)].split(arrived)")

    def instead(self, launch: str) -> Sequence[str] | None:
        """Nothing: the split has done it."""
        return [] if launch in self._functions else None

    def call(self, call: Call, writer: Writer) -> None:
        """The split's, with what its second stage takes."""
        tail = call.tail = self._tails.get(call.launch.name)
        if tail is None:
            return
        call.tensors, call.lengths, call.constants = tail.tensors, tail.lengths, tail.constants
        place = list(self._tails).index(call.launch.name)
        call.pointers.append("arrived" if len(self._tails) == 1 else f"arrived[{place}]")
        call.keywords.append(f'{tail.flag}="{tail.fold.combine}" in folded')
