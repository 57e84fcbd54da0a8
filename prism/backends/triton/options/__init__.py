"""The options of launches as Triton modules have them, each in a file of its own."""

from __future__ import annotations

from prism.backends.triton.options.dependent import PrintedDependent
from prism.backends.triton.options.descriptors import PrintedDescriptors
from prism.backends.triton.options.folded import PrintedFolded
from prism.backends.triton.options.library import PrintedLibrary
from prism.backends.triton.options.persistent import PrintedFlattened, PrintedPersistent
from prism.backends.triton.options.printed import Printed
from prism.backends.triton.options.streams import PrintedStreams

PRINTED: tuple[type[Printed], ...] = (
    PrintedLibrary,
    PrintedFolded,
    PrintedDescriptors,
    PrintedDependent,
    PrintedFlattened,
    PrintedPersistent,
    PrintedStreams,
)
"""All of them, in the order in which the host reads them."""
