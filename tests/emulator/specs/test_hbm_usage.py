from emulator.specs.hbm_usage import HbmOwner, HbmUse, StackUsage

KV = HbmOwner(use=HbmUse.KV)
EXPERTS = HbmOwner(use=HbmUse.WEIGHTS, name="experts")


def test_an_owner_is_named_by_its_use_and_its_group() -> None:
    assert (str(KV), str(EXPERTS)) == ("kv", "weights/experts")


def test_a_stack_knows_what_is_free() -> None:
    stack = StackUsage(stack=0, capacity_bytes=100, owner_bytes={"kv": 1, "weights/experts": 50})

    assert (stack.held_bytes, stack.free_bytes) == (51, 49)
