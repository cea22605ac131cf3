"""Life cycle of chip processes and their channel, shared by serving and training fleets."""

from collections.abc import Callable, Mapping, Sequence

from emulator.actors.channel import Channel
from emulator.actors.ray_session import ChipProcess, HomeNode, RaySession
from emulator.chip.chip_share import ChipShare
from emulator.chip.commands import StopChip
from emulator.chip.effects import ChipReady
from emulator.chip.training_share import TrainingShare
from emulator.errors import ChannelError

START_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 20.0
"""Chips connect milliseconds after loading (assumed: enough for a busy host)."""


class ChipProcesses:
    """Chips as Ray actors with one channel, in Ray at `ray_address` or a private one; at `home`, or
    on all nodes.
    """

    def __init__(self, ray_address: str | None, home: HomeNode | None = None) -> None:
        self._ray = RaySession(ray_address, home=home)
        self._channel: Channel | None = None
        self._process_of: dict[int, ChipProcess] = {}

    @property
    def live(self) -> frozenset[int]:
        """Chips that are started and not removed."""
        return frozenset(self._process_of)

    @property
    def channel(self) -> Channel:
        """The channel to the chips."""
        assert self._channel is not None, "the chips are not started"
        return self._channel

    def open(self) -> None:
        """Start Ray and the channel."""
        self._ray.start()
        self._channel = Channel(self._ray.channel_host())

    def chips_here(self, chips: int) -> int:
        """Those of so many that will run on this host."""
        return sum(node.is_here for node in self._ray.place_chips(chips))

    def start(
        self, shares: Mapping[int, ChipShare | TrainingShare], *, chips: int
    ) -> Sequence[ChipReady]:
        """Start the chips of `shares`, in a partition of `chips`; returns their reports.

        Raises ChannelError when one does not start or connect in time.
        """
        nodes = self._ray.place_chips(chips)
        channel = self.channel
        for chip, share in shares.items():
            self._process_of[chip] = self._ray.start_chip(
                node=nodes[chip], chip=chip, address=channel.address, key=channel.key, share=share
            )
        self._wait_loaded(shares)
        channel.accept(shares.keys(), CONNECT_TIMEOUT_S)
        ready = []
        for _, message in channel.receive(shares.keys(), START_TIMEOUT_S):
            assert isinstance(message, ChipReady), message
            ready.append(message)
        return ready

    def _wait_loaded(self, chips: Mapping[int, object]) -> None:
        try:
            self._ray.wait_loaded([self._process_of[chip] for chip in chips], START_TIMEOUT_S)
        except Exception as error:
            last_line = str(error).strip().splitlines()[-1]
            raise ChannelError(f"a chip did not start: {last_line}") from error

    def kill(self, chip: int) -> None:
        """Kill the process of `chip`, which stays in `live` until removed."""
        self._ray.kill(self._process_of[chip])

    def remove(self, chip: int) -> None:
        """Kill `chip` if started, and forget it."""
        process = self._process_of.pop(chip, None)
        if process is not None:
            self._ray.kill(process)
            self.channel.forget(chip)

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call `lost` once, from another thread, with the name of a daemon that ended."""
        self._ray.watch(lost)

    def stop(self) -> None:
        """Stop the chips and Ray; idempotent, also with lost chips."""
        channel, self._channel = self._channel, None
        if channel is not None:
            for chip in self._process_of:
                try:
                    channel.send(chip, StopChip())
                except ChannelError:
                    continue
            channel.close()
        self._process_of = {}
        self._ray.stop()
