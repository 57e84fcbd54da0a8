"""What is stated of a program's inputs: what is found under it and not without it, and what kernels say and check."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from quick import slow_but
from test_assumptions import STATED

import prism
from prism.api import SearchBudget
from prism.api.partitioned import search_regions
from prism.backends.cpu.emit import emit_module as emit_cpu
from prism.backends.protocol import load_function
from prism.backends.triton.emit import emit_module as emit_triton
from prism.checker import CertificateError, check, digest
from prism.cli.app import main
from prism.cost.device import device
from prism.egraph.derivation.derive import Deriver
from prism.egraph.rules import rule_files
from prism.egraph.worker import Worker
from prism.errors import ExitCode, UsageError
from prism.events import Argument, Recorder
from prism.instantiate.gate.draws import DRAWS, draw_inputs
from prism.instantiate.lock import program_hash
from prism.program.assumptions import read_assumptions, under
from prism.program.build import op, read
from prism.program.index import Axis
from prism.program.nodes import DType, Program, Tensor
from prism.program.region import Region, canonical, subprogram
from prism.program.stated import POSITIVE
from prism.program.verdict import Status
from prism.report.usage import example
from prism.sgraph.nodes import Pointwise, SGraph
from prism.sgraph.record import plain, sgraph_of
from prism.sgraph.show import key

ONES = torch.ones(64, 96)
SMALL = SearchBudget(max_kernels=1, max_sgraphs=1, max_rounds=1)
TEXTS = {p.name: p.read_bytes() for p in rule_files()}


def best(program: Program) -> prism.api.ProvedSGraph:
    with prism.search(program, target="cpu", budget=SMALL) as found:
        return next(found)


def operations(sgraph: SGraph) -> list[str]:
    return [s.op for k in sgraph.kernels for s in k.body if isinstance(s, Pointwise)]


SIMPLER: dict[str, tuple[Callable[..., torch.Tensor], str, list[str]]] = {
    "exp(log a)": (lambda a: torch.exp(torch.log(a)), "> 0", []),
    "exp(2 log a)": (lambda a: torch.exp(2.0 * torch.log(a)), "> 0", ["mul"]),
    "exp(-log(a)/2)": (lambda a: torch.exp(torch.log(a) * -0.5), "> 0", ["sqrt", "recip"]),
    "a^6/a^4": (lambda a: torch.pow(a, 6) / torch.pow(a, 4), "> 0", ["mul"]),
    "a^6/a^4 where not 0": (lambda a: torch.pow(a, 6) / torch.pow(a, 4), "!= 0", ["mul"]),
    "a/sqrt a": (lambda a: a / torch.sqrt(a), "in [0.5, 2]", ["sqrt"]),
    "|a| + relu a": (lambda a: torch.abs(a) + torch.relu(a), ">= 0", ["add"]),
    "clamp": (lambda a: torch.clamp(a, -0.1, 6.0) * 2.0, "in [-0.1, 6]", ["mul"]),
    "clamp of a product": (lambda a: torch.clamp(3.0 * a + 1.0, 1.0, 7.0), "in [0, 2]", ["mul", "add"]),
    "leaky relu": (lambda a: torch.nn.functional.leaky_relu(a) + 1.0, "> 0", ["add"]),
    "leaky relu of what is below": (lambda a: torch.where(a < 0.5, a, a * 0.1) + 1.0, "<= 0.4", ["add"]),
    "elu": (lambda a: torch.nn.functional.elu(a) + 1.0, "<= 0", ["exp"]),
    "exp of what is clipped": (lambda a: torch.exp(torch.clamp(a, max=0.0)), "<= 0", ["exp"]),
    "|a| of what is below": (lambda a: torch.abs(a) + a + torch.exp(a), "<= 0", ["exp"]),
    "safe division": (lambda a: torch.exp(a) / torch.where(a == 0, 1.0, a), "in [-3, -1]", ["exp", "recip", "mul"]),
    "clip of a probability": (lambda a: torch.log(torch.clamp(a, 1e-3, 1.0)), "in [0.01, 0.99]", ["log"]),
    "a^3 of a mask": (lambda a: a * a * a, "in {0, 1}", []),
}


# The same facts again: of logarithms, of what is positive or below, of a choice that is made already.
AGAIN = ("exp(2 log a)", "a^6/a^4", "clamp of a product", "leaky relu of what is below", "exp of what is clipped")


@pytest.mark.parametrize("name", slow_but([n for n in SIMPLER if n not in AGAIN], SIMPLER))
def test_the_search_simplifies_where_it_is_stated_and_only_there(name: str) -> None:
    f, stated, wanted = SIMPLER[name]
    example = ONES * read_assumptions({"a": stated})["a"].member
    found = best(prism.trace(f, (example,), assume={"a": stated}, name="f"))
    assert sorted(operations(found.sgraph)) == sorted(wanted)
    assert found.verdict.status is Status.PROVED
    assert any(c.startswith("a ") for c in found.verdict.assumptions)
    assert found.opinion is not None
    assert found.opinion.outcome == "agree"
    without = best(prism.trace(f, (example,), name="f"))
    assert len(operations(without.sgraph)) > len(wanted)
    assert not without.verdict.assumptions


def test_roots_of_fourth_powers_need_no_statement() -> None:
    assert operations(best(prism.trace(lambda a: torch.sqrt(torch.pow(a, 4)), (ONES,), name="f")).sgraph) == ["mul"]


def doubled_log(stated: bool = True) -> Program:
    program = prism.trace(lambda x: torch.exp(torch.log(x)) * 2.0, (torch.ones(8),), name="f")
    return replace(program, inputs=(replace(program.inputs[0], stated=POSITIVE),)) if stated else program


def test_a_statement_is_part_of_what_a_program_and_an_sgraph_are() -> None:
    with_it, without = doubled_log(), doubled_log(stated=False)
    assert program_hash(with_it) != program_hash(without)
    assert canonical(with_it).key != canonical(without).key
    part = subprogram(with_it, "part", with_it.outputs)
    assert part.inputs[0].stated == canonical(part).program.inputs[0].stated == POSITIVE
    sgraph = best(with_it).sgraph
    bare = replace(sgraph, inputs=(replace(sgraph.inputs[0], stated=None),))
    assert key(sgraph) != key(bare)
    assert sgraph_of(json.loads(json.dumps(plain(sgraph)))) == sgraph


def test_regions_name_what_is_stated_of_the_whole() -> None:
    def f(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.log(first) + torch.relu(second)).sum(-1, keepdim=True) + torch.exp(torch.log(second))

    program = prism.trace(f, (ONES, ONES), assume=["second > 0"], name="f")
    cut = next(d.name for d in program.definitions if d.expr.children and "sum" in str(d.expr))
    parts = [subprogram(program, "p0", [cut]), subprogram(program, "p1", program.outputs, given=[cut])]
    regions = [Region(p, tuple(d.name for d in p.definitions)) for p in parts]
    with Worker() as worker:
        found = search_regions(program, regions, device("sm_90"), SMALL, [worker], Recorder())
    picks = [r.result.proved[0] for r in found.regions]
    composed = found.compose([p.sgraph for p in picks])
    whole = found.whole(picks, composed)
    assert whole.verdict.assumptions == ("second > 0",)
    assert {t.name: str(t.stated) for t in composed.sgraph.inputs if t.stated} == {"second": "> 0"}


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT32])
@pytest.mark.parametrize("text", STATED)
def test_what_is_drawn_is_as_stated(text: str, dtype: DType) -> None:
    program = Program("f", (Tensor("x", (3, 40), dtype),), (), ())
    stated = under(program, {"x": text})
    held = stated.inputs[0].stated
    assert held is not None
    for kind in DRAWS:
        drawn = draw_inputs(stated, kind, {}, 0)["x"].double().numpy()
        assert held.holds(drawn).all(), kind
        other = draw_inputs(program, kind, {}, 0)["x"].double().numpy()
        assert np.array_equal(drawn[held.holds(other)], other[held.holds(other)]), "what is as stated stays"


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64"])
@pytest.mark.parametrize("text", STATED)
def test_an_example_of_a_call_is_as_stated(text: str, dtype: str) -> None:
    held = under(Program("f", (Tensor("x", (3, 40), DType(dtype)),), (), ()), {"x": text}).inputs[0].stated
    assert held is not None
    made = eval(example(Argument("x", dtype, (3, 40), held.stretch, held.truth), ""), {"torch": torch})
    assert made.shape == (3, 40)
    assert held.holds(made.double().numpy()).all(), made
    if dtype.startswith("f") and held.low < held.high:
        assert made.unique().numel() > 1


def scaled(stated: str) -> SGraph:
    x = torch.ones(4, 6) * (0.5 if "1)" in stated else 1.0)
    return best(prism.trace(lambda x: torch.relu(x) * 2.0 + 1.0, (x,), assume={"x": stated}, name="f")).sgraph


@pytest.mark.parametrize("text", ["> 0", "in [0.25, 1)", "!= 0", "in {0, 1}", "finite"])
def test_the_function_refuses_what_is_not_as_stated_on_request(text: str) -> None:
    sgraph = scaled(text)
    source = emit_cpu(sgraph, formula="f", configs={"cpu": []})
    assert f"x: float32[4, 6], stated to be {text}." in source.text
    f = load_function(source)
    held = f.__globals__["_stated"]
    (test,) = (line for line in source.text.splitlines() if line.lstrip().startswith('_stated("x"'))
    right = torch.ones(4, 6) * (0.5 if "1)" in text else 1.0)
    wrong = right.clone()
    wrong[2, 3] = {"> 0": -2.0, "in [0.25, 1)": 1.0, "!= 0": 0.0, "in {0, 1}": 0.5, "finite": torch.inf}[text]
    forms: list[Callable[[torch.Tensor], Any]] = [torch.Tensor.clone, torch.Tensor.numpy, torch.Tensor.bfloat16]
    for convert in forms:
        eval(test.strip(), {"_stated": held, "x": convert(right)})  # the very line of the module
        with pytest.raises(ValueError, match=r"x\[2, 3\] is") as refused:
            eval(test.strip(), {"_stated": held, "x": convert(wrong)})
        assert f"x is stated to be {text}" in str(refused.value)
    bits = wrong.bfloat16().view(torch.int16).numpy().view(np.uint16)
    with pytest.raises(ValueError, match=r"x\[2, 3\] is"):
        eval(test.strip(), {"_stated": held, "x": bits})


def test_both_backends_ask_only_where_something_is_stated() -> None:
    sgraph = scaled("> 0")
    bare = replace(sgraph, inputs=(replace(sgraph.inputs[0], stated=None),))
    for emit in (emit_cpu, emit_triton):
        asks, asks_not = (emit(g, formula="f", configs={"cpu": []}).text for g in (sgraph, bare))
        assert "check_assumptions=False" in asks
        assert '_stated("x", x, "> 0", lambda x: (x > 0.0) & (x < float("inf")))' in asks
        assert "stated" not in asks_not
        assert "check_assumptions" not in asks_not


@pytest.mark.parametrize(
    ("given", "what"),
    [(["z > 0"], "no input"), (["a > 0", "a < 0"], "no number"), (["a > 7"], "an example of a is not > 7")],
)
def test_trace_refuses(given: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        prism.trace(lambda a: torch.log(a), (ONES,), assume=given)


def test_statements_add_up() -> None:
    program = prism.trace(lambda a: torch.log(a), (ONES,), assume=["a >= 0"])
    with prism.search(program, assume=["a != 0"]) as found:
        assert "a > 0" in next(found).verdict.assumptions
    with pytest.raises(UsageError, match="no number"):
        prism.search(program, assume=["a < 0"])


# Certificates.


def derived(facts: dict[str, tuple[str, ...]]) -> Any:
    i = Axis("i", 4)
    x = read("x", i)
    return Deriver().derive(["y"], [op("exp", op("log", x))], [x], facts)


def test_a_derivation_says_what_it_takes_for_granted() -> None:
    found = derived({"x": ("positive",), "unread": ("positive",)})
    assert found.reason == ""
    body = json.loads(found.certificate)
    assert body["stated"] == {"x": ["positive"]}
    assert check(found.certificate, TEXTS).terms.stated == {"x": ("positive",)}
    assert derived({}).reason
    assert derived({"x": ("nonneg",)}).reason


@pytest.mark.parametrize(
    ("stated", "what"),
    [
        (None, "does not hold"),
        ({"x": ["nonneg"]}, "does not hold"),
        ({"x": ["happy"]}, "none of"),
        ({"x": "p"}, "nothing"),
        ({"x": [["lower", 0.0]]}, "does not hold"),
        ({"x": [["lower", "1"]]}, "no bound"),
    ],
)
def test_the_checker_refuses_other_statements(stated: Any, what: str) -> None:
    body = json.loads(derived({"x": ("positive",)}).certificate)
    if stated is None:
        del body["stated"]
    else:
        body["stated"] = stated
    body["sha256"] = digest(body)
    with pytest.raises(CertificateError, match=what):
        check(json.dumps(body).encode(), TEXTS)


def test_the_checker_refuses_statements_of_what_is_not_read() -> None:
    body = json.loads(derived({"x": ("positive",)}).certificate)
    body["stated"]["z"] = ["positive"]
    body["sha256"] = digest(body)
    with pytest.raises(CertificateError, match="does not read"):
        check(json.dumps(body).encode(), TEXTS)


# The whole way.


def model(path: Path) -> str:
    """y = exp(log x) * sigmoid z."""
    names = {"log": ("Log", ["x"]), "exp": ("Exp", ["log"]), "gate": ("Sigmoid", ["z"]), "y": ("Mul", ["exp", "gate"])}
    nodes = [helper.make_node(kind, given, [name]) for name, (kind, given) in names.items()]
    ends = [helper.make_tensor_value_info(t, TensorProto.FLOAT, [64, 96]) for t in ("x", "z", "y")]
    graph = helper.make_graph(nodes, "g", ends[:2], ends[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return str(path)


def test_the_command_optimises_under_statements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small_gate: None
) -> None:
    given, out = model(tmp_path / "m.onnx"), tmp_path / "out"
    line = ["optimize", given, "--target", "sm_90", "--trials", "1", "--out", str(out), "--max-kernels", "1"]
    assert main([*line, "--assume", "w > 0"]) == ExitCode.USAGE
    assert main([*line, "--assume", "x > 0"]) == ExitCode.DONE
    capsys.readouterr()
    text = (out / "m.py").read_text()
    assert "\n- x > 0\n" in text
    assert "x: float32[64, 96], stated to be > 0." in text
    proof = json.loads((out / "proof.json").read_text())
    assert proof["stated"] == {"x": "> 0"}
    assert "log(" not in proof["sgraph"]
    assert main(["verify", str(out), "--model", given]) == ExitCode.DONE
    assert "for inputs of which x > 0" in " ".join(capsys.readouterr().out.split())
    # A proof that keeps silent about what its certificate takes for granted is found out.
    silent = tmp_path / "silent"
    shutil.copytree(out, silent)
    del proof["stated"]
    (silent / "proof.json").write_text(json.dumps(proof))
    said = [str(m) for m in prism.verify(silent).mismatches]
    assert any("takes x to be positive" in m for m in said), said
