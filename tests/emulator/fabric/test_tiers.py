import pytest

from emulator.fabric.tiers import Tier, tier_bytes_per_s, tier_hops, tiers_between
from emulator.specs.trn3_nl72x2 import TRN3_NL72X2


def test_four_chips_of_a_tray_then_the_rack_then_the_other_rack() -> None:
    tiers = tiers_between(TRN3_NL72X2, 144)

    assert tiers[0, [0, 1, 3, 4, 71, 72, 143]].tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert tiers[72, [71, 72, 73, 76]].tolist() == [3, 0, 1, 2]


def test_every_chip_sees_itself_three_neighbours_68_in_the_rack_and_72_across() -> None:
    tiers = tiers_between(TRN3_NL72X2, 144)

    for chip in range(144):
        counts = [int((tiers[chip] == tier).sum()) for tier in Tier]
        assert counts == [1, 3, 68, 72]
    assert (tiers == tiers.T).all()


def test_each_tier_has_its_lanes_and_hops() -> None:
    linked = [Tier.TRAY, Tier.BACKPLANE, Tier.CROSS_RACK]

    assert [tier_bytes_per_s(TRN3_NL72X2, tier) for tier in linked] == [512e9, 512e9, 128e9]
    assert [tier_hops(TRN3_NL72X2, tier) for tier in Tier] == [0, 1, 3, 4]
    with pytest.raises(ValueError, match="no link to itself"):
        tier_bytes_per_s(TRN3_NL72X2, Tier.SELF)
