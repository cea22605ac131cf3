"""Roles of ranks that an operator asks for, until the scheduler has heard of them."""

from emulator.errors import ConfigError
from serving.engine.wake_request import WakeRequest
from serving.policy.rank_roles import RankRole, Roles, with_role
from serving.wire.control_call import RankWithRole, RolesReport, RolesRequest, SetRoleRequest

RoleQuestion = RolesRequest | SetRoleRequest


class AskedRoles:
    """Changes that go with the next report of a step; `wake` lets an idle scheduler make one."""

    def __init__(self, wake: WakeRequest) -> None:
        self._wake = wake
        self._changes: list[tuple[int, RankRole]] = []

    def take_changes(self) -> tuple[tuple[int, RankRole], ...]:
        """Those since last asked, in order."""
        changes, self._changes = tuple(self._changes), []
        return changes

    def answer(self, request: RoleQuestion, heard: Roles) -> RolesReport:
        """The roles that the scheduler will have, of which it said `heard`; takes a change.

        Raises ConfigError for one that leaves no rank to prefill or decode, and where roles do not
        change.
        """
        if isinstance(request, SetRoleRequest) and request.all_ranks:
            expected = "--rank, as this is no replica of a service with --replica-roles"
            raise ConfigError("rank", "(none)", expected)
        if not heard:
            raise ConfigError("prefill_ranks", 0, "a server with --prefill-ranks, for roles")
        roles = heard
        for rank, role in self._changes:
            roles = with_role(roles, rank, role)
        if isinstance(request, SetRoleRequest):
            roles = with_role(roles, request.rank, request.role)
            self._changes.append((request.rank, request.role))
            self._wake.make()
        ranks = (RankWithRole(rank=rank, role=role) for rank, role in enumerate(roles))
        return RolesReport(ranks=tuple(ranks))
