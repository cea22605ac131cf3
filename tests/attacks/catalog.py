"""All attacks by name, in running order."""

from typing import Final

from tests.attacks import (
    bodies,
    console,
    grpc_streams,
    heads,
    http2_frames,
    keyed_work,
    smuggling,
    tls,
)
from tests.attacks.attack import Attack

ATTACKS: Final[dict[str, Attack]] = {
    attack.name: attack
    for family in (
        heads,
        bodies,
        smuggling,
        grpc_streams,
        http2_frames,
        console,
        keyed_work,
        tls,
    )
    for attack in family.ATTACKS
}
