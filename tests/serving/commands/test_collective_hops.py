import pytest

from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from serving.commands.collective_claims import hop_text

FAST = system_by_name("trn3-nl72x2")  # hops of 1,000 ns, assumed


def times(system: SystemSpec) -> float:
    """8 us over 1 us and two hops."""
    return 8_000.0 / (1_000.0 + 2 * system.hop_ns.value)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (4.0, "4 times comes true while a hop takes at most 500 ns, 1,000 ns (assumed) here"),
        (
            9.0,
            "9 times comes true at no hop latency: hops that take no time, 1,000 ns (assumed) "
            "here, would give 8.00",
        ),
        (0.1, "0.1 times comes true at any hop up to 10,000 ns"),
    ],
)
def test_the_hop_at_which_a_claim_comes_true(claim: float, words: str) -> None:
    assert hop_text(claim, FAST, times).startswith(words)
