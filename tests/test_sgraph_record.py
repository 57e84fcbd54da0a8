"""sGraphs as files: what is written is read back as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sgraph_samples as samples
from sgraph_samples import BF16

from prism.errors import IllegalIRError
from prism.program.nodes import DType
from prism.sgraph.record import read, written


@pytest.mark.parametrize("operands", [None, DType.FLOAT16, DType.BFLOAT16])
def test_the_type_of_operands_is_read_back(operands: DType | None) -> None:
    """Products in 16 bits: `prism verify` took what was written for no sGraph."""
    g = samples.matmul(BF16).sgraph
    g = replace(g, kernels=tuple(replace(k, operands=operands) for k in g.kernels))
    assert read(written(g).encode()) == g


def test_a_name_that_no_field_has_is_refused() -> None:
    text = written(samples.matmul(BF16).sgraph)
    assert '"operands": null' in text
    with pytest.raises(IllegalIRError, match="operands of a Kernel"):
        read(text.replace('"operands": null', '"operands": "float33"').encode())
