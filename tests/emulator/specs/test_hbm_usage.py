from emulator.specs.hbm_usage import HbmOwner, HbmUse, HeldBytes, StackUsage

KV = HbmOwner(use=HbmUse.KV)
EXPERTS = HbmOwner(use=HbmUse.WEIGHTS, name="experts")


def test_an_owner_is_named_by_its_use_and_its_group() -> None:
    assert (str(KV), str(EXPERTS)) == ("kv", "weights/experts")


def test_a_stack_knows_what_is_free_and_what_each_owner_holds_on_all_cores() -> None:
    stack = StackUsage(
        stack=0,
        capacity_bytes=100,
        held=(
            HeldBytes(owner=EXPERTS, core=0, held_bytes=20),
            HeldBytes(owner=KV, core=0, held_bytes=1),
            HeldBytes(owner=EXPERTS, core=1, held_bytes=30),
        ),
    )

    assert stack.free_bytes == 49
    assert list(stack.bytes_by_owner().items()) == [(KV, 1), (EXPERTS, 50)]
