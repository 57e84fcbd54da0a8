"""RMSNorm in helion's language, under the configuration that helion picks without tuning. Imported where it is there.

helion reads a kernel's globals, so its kernels stand in a module of their own.
"""

from __future__ import annotations

import helion  # type: ignore[import-not-found,unused-ignore]
import helion.language as hl  # type: ignore[import-not-found,unused-ignore]
import torch


@helion.kernel(autotune_effort="none", static_shapes=True)  # type: ignore[untyped-decorator,unused-ignore]
def rms_norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """x [m, k], g [k]; the sum of squares in float32."""
    m, _ = x.size()
    out = torch.empty_like(x)
    for rows in hl.tile(m):
        h = x[rows, :].to(torch.float32)
        inverse = torch.rsqrt(torch.mean(h * h, dim=-1) + 1e-6)
        out[rows, :] = (h * inverse[:, None] * g[:].to(torch.float32)).to(out.dtype)
    return out
