"""sGraphs as text, drawings and keys."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest
from sgraph_small import ALL, F32, attention, matmul, split_k, tile

from prism.program.index import Axis
from prism.sgraph.nodes import Grid, LoopRole, SGraph
from prism.sgraph.show import dot, key, text


def test_text_of_a_matmul() -> None:
    assert text(matmul()) == dedent(
        """\
        sgraph matmul(x[512, 1024] float16, w[1024, 768] float16) -> y[512, 768] float16
          kernel matmul
            grid m(T_m) n(T_n) | loop k(T_k)
            for tiles of k:
              a = x[m, k]
              b = w[k, n]
              p = sum_k a * b
              acc += p
            y[m, n] = acc
        """
    )


def test_text_of_attention() -> None:
    assert text(attention(prefix="_")) == dedent(
        """\
        sgraph attention(q[8, 1024, 64] float16, k[8, 1024, 64] float16, v[8, 1024, 64] float16) -> o[8, 1024, 64] float16
          kernel attention
            grid h(1) i(T_i) | loop j(T_j) | whole d e
            _q = q[h, i, d]
            for tiles of j:
              _k = k[h, j, d]
              _s = sum_d _q * _k
              _scaled = _s * 0.125
              _pi = @(i)
              _pj = @(j)
              _ok = _pj <= _pi
              _masked = where(_ok, _scaled, -inf)
              _top = max_j _masked
              _m max= _top
              _minus = -1 * _m
              _shifted = _masked + _minus
              _p = exp(_shifted)
              _row = sum_j _p
              _l += _row, rescaled by _m
              _v = v[h, j, e]
              _pv = sum_j _p * _v
              _o += _pv, rescaled by _m
            _inv = recip(_l)
            _out = _o * _inv
            o[h, i, e] = _out
        """  # noqa: E501
    )


def test_text_shows_splits_and_buffers() -> None:
    shown = text(split_k())
    assert "buffer partial[16, 256, S_k] float32" in shown
    assert "split k(S_k, T_k)" in shown
    assert "partial[m, n, k.part] = acc" in shown


@pytest.mark.parametrize("make", ALL)
def test_dot_is_balanced_and_draws_every_kernel_and_tensor(make: type[SGraph]) -> None:
    g = make()  # type: ignore[call-arg]
    drawn = dot(g)
    assert drawn.startswith("digraph")
    assert drawn.count("{") == drawn.count("}")
    for k in g.kernels:
        assert f'"cluster {k.name}"' in drawn
    for t in (*g.inputs, *g.buffers, *g.outputs):
        assert f'"tensor {t.name}"' in drawn
    defined = {
        line.split(" [label=")[0].strip() for line in drawn.splitlines() if "[label=" in line and "->" not in line
    }
    for line in drawn.splitlines():
        if "->" in line:
            source, target = line.strip().rstrip(";").split(" [style")[0].split(" -> ")
            assert source in defined
            assert target in defined


def test_key_does_not_depend_on_names_of_values() -> None:
    assert key(attention()) == key(attention(prefix="other_"))


def test_key_does_not_depend_on_names_of_kernels_symbols_and_axes() -> None:
    g = matmul()
    m, n, k = (a for a, _ in g.kernels[0].roles)
    roles = ((m, Grid(tile("A"))), (n, Grid(tile("B"))), (k, LoopRole(tile("C"))))
    renamed = replace(g, name="other", kernels=(replace(g.kernels[0], name="other", roles=roles),))
    assert key(renamed) == key(g)


def test_key_tells_structures_apart() -> None:
    keys = [key(make()) for make in ALL]
    keys += [key(matmul(m=256)), key(matmul(dtype=F32)), key(attention(causal=False))]
    g = matmul()
    m, n, k = (a for a, _ in g.kernels[0].roles)
    roles = ((n, Grid(tile("T_n"))), (m, Grid(tile("T_m"))), (k, LoopRole(tile("T_k"))))
    keys.append(key(replace(g, kernels=(replace(g.kernels[0], roles=roles),))))
    roles = ((m, Grid(1)), (n, Grid(tile("T_n"))), (k, LoopRole(tile("T_k"))))
    keys.append(key(replace(g, kernels=(replace(g.kernels[0], roles=roles),))))
    assert len(set(keys)) == len(keys)


def test_key_is_the_same_in_every_process() -> None:
    assert key(matmul()) == key(matmul())
    assert key(matmul(m=Axis("m", 512).extent)) == key(matmul())
    assert len(key(matmul())) == 64
