"""The protocol of schedule rules: they are found, get the target, and have order and names."""

import pytest

pytest.importorskip("tvm")

from needle_runtime.target.kind import CPU, GPU
from needle_tvm._tvm.names import Schedule, te, topi
from needle_tvm.kernels import cpu, gpu, rule
from needle_tvm.kernels.blocks import blocks_of
from needle_tvm.target.info import target_info
from needle_tvm.target.spec import resolve


@pytest.fixture
def rules(monkeypatch):
    """The existing rules, to which a test may add its own."""
    rule.rules(CPU)
    monkeypatch.setattr(rule, "_RULES", dict(rule._RULES))


def doubled(n=64):
    x = te.placeholder((n,), "float32", "x")
    return te.create_prim_func([x, topi.add(x, x)])


@pytest.mark.parametrize("kind", [CPU, GPU])
def test_a_rule_gets_the_target_and_its_own_choice_comes_first(rules, kind):
    target = resolve("cpu", 2).to_tvm() if kind == CPU else resolve("cuda:sm_80").to_tvm()
    given = []

    @rule.rule(kind, order=1, knobs=lambda function, target: (4, 8))
    def first(function, target, parts=2):
        given.append((target_info(target).kind, parts))
        sch = Schedule(function)
        outer, inner = sch.split(sch.get_loops(blocks_of(sch)[0])[0], [None, parts])
        if kind == GPU:
            sch.bind(outer, "blockIdx.x")
            sch.bind(inner, "threadIdx.x")
        else:
            assert target_info(target).vectors.number
        return sch

    side = cpu if kind == CPU else gpu
    assert rule.rules(kind)[0].name == "first" and "first" in side.names()
    side.schedule_function(doubled(), target)
    assert given == [(kind, 2)]
    side.schedule_function(doubled(), target, without=["first"])
    assert len(given) == 1


def test_a_search_on_a_cpu_is_given_a_rules_choice_and_then_its_knobs(rules):
    """A rule that does not fit takes nothing from the others."""
    target = resolve("cpu", 2).to_tvm()

    @rule.rule(CPU, order=1)
    def never(function, target):
        return None

    assert len(list(cpu.variants(doubled(), target))) == 1

    @rule.rule(CPU, order=2, knobs=lambda function, target: (1, 2))
    def always(function, target, knobs=None):
        return None if knobs == 2 else Schedule(function)

    assert len(list(cpu.variants(doubled(), target))) == 2  # one of the knobs does not fit


def test_two_rules_of_one_name_are_refused(rules):
    with pytest.raises(
        ValueError, match=r"'tiled' of cuda exists already .needle_tvm\.kernels\.dense\.gpu\.tiles"
    ):

        @rule.rule(GPU, order=1)
        def tiled(function, target):
            return None

    with pytest.raises(ValueError, match="'dense' of llvm"):
        rule.annotated("elsewhere.dense")(lambda sch, block, target, knobs: None)
