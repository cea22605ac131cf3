"""Refuse replaced words in new text: part of `make check`.

A word that a reader of this field does not know was replaced by the field's own. The table says
what was replaced by what. `.ci/words.json` has how often each still stands in the repository: more
than that fails, fewer passes, and `python .ci/words.py --write` notes the fewer. A count only
falls; a word without an entry there may not stand anywhere but where `KEPT` lets it.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTS = Path(__file__).with_suffix(".json")
SHOWN_PLACES = 20

# What is replaced (a regular expression), and by what: only what is matched without false alarms.
REPLACED: Mapping[str, str] = {
    r"\b[Hh]ouse\b": "codebase",
    r"\b[Rr]ooms\b|\b(?:a new|one) room\b": "packages",
    r"\b(?:import|lower|higher|the|one) floors?\b|\bfloors of\b": "layers",
    r"front_door|FrontDoor|\bfront doors?\b": "gateway, AdmissionController, HTTP or gRPC server",
    r"\b[Dd]oors?\b": "gateway, server, surface",
    r"[a-z]Doors?\b|\bDoor[A-Z]\w*|[a-z]_doors?\b|\bdoors?_[a-z]": "gateway, server, surface",
    r"\b[Tt]ickets?\b": "permit",
    r"HardwareReport|[Hh]ardware_?[Ll]ook|hardware_report": "MachineSnapshot",
    r"[a-z]Looks?\b|[a-z]_looks?\b(?!_seconds)": "snapshot",
    r"SharedLook|shared_look": "SingleFlight",
    r"HardwareWatch|hardware_watch": "SnapshotPoller",
    r"HardwareTold|\buntold\b": "event, subscriber, dropped events",
    r"\b[Dd]eeds?\b|\bForesight\b": "action, DryRunResult",
    r"MadeUpTokens|made_up_tokens": "SyntheticTokens, synthetic_tokens",
    r"BusiestExperts|busiest_experts": "PeakExpertLoad",
    r"\b[Ss]ettlement\b": "recovery_plan",
    r"[Rr]elief|relieved_ns|\bclass Thing\b": "what_if, Resource",
    r"StepWish|step_wish": "WakeRequest",
    r"RestCalls|EngineRest|rest\.proto|rest_pb2": "SleepService, EngineSleepState, sleep.proto",
    r"shown_key|ShownKey": "request_credential",
    r"\bSpend\b": "charge",
    r"\bKeeper\b|\bclass Inside\b": "AdmissionSink, AdmissionState",
    r"KeyBooks|key_books|ArrivalBooks|LeaseBooks": "RateLimiter, ConnectionRegistry, LeaseLedger",
    r"\bSpoke\b|\bEntrance\b|actors[./]entrance": "ChannelClient, ChipServer",
    r"worker_nursery|WorkerNursery": "fork_server",
    r"parent_watch|ParentWatch": "parent_death_watchdog",
    r"slow_heads|unreadable_request": "slow_header_guard, malformed_request",
    r"first_bytes|shared_port|SharedPort": "two ports",
    r"\b[Ss]plic(?:e|es|ed|ing)\b": "goes with the shared port",
    r"server_end\b|engine_end\b|graceful_end|GracefulEnd": "shutdown, graceful_shutdown",
    r"rank_evacuation": "request_migration",
    r"response_weights": "response_model_version",
    r"counted_work|CountedWork": "op_counters",
    r"placement_pages": "paginated_placement",
    r"morning_weights": "publish_candidate",
    r"lent_groups|LentGroups|chips_lent": "leased_groups, chips_leased",
    r"handover_tries": "retry_backoff",
    r"past_the_doors": "disallowed_flags",
    r"kv_room|KvRoom": "kv_capacity",
    r"shortest_ways": "shortest_paths",
    r"[Yy]ardstick": "efficiency",
    r"loadgen[./]attack": "loadgen.dispatch",
    r"\bAlarm\b|\bSpectator\b|client_doubts": "Timer, ProgressObserver, data_quality_warnings",
    r"class_words|kept_command": "traffic_class_spec, recorded_command",
    r"seen_server|SeenServer": "live_server (it serves; it records no HTTP)",
    r"--reading\b": "--assumption",
    r"--reserve\b": "--interactive-headroom",
    r"--calibration[ =]ceiling|[\"'`]ceiling[\"'`]": "roofline",
    r"_look_seconds|hardware_age_seconds": "*_snapshot_duration_seconds, *_snapshot_age_seconds",
    r"ultraserve_blocks_waiting": "ultraserve_rollout_blocks_pending",
    r"Site draws": "Facility power",
}

# History, licences, what programs write, and the words' own table.
PASSED_OVER = re.compile(
    r"^(?:CHANGELOG\.md|DECISIONS\.md|LICENSE|\.ci/words\.(?:py|json)|tests/contracts/test_words\.py"
    r"|serving/(?:server/)?console/page/.*|.*package-lock\.json|.*_pb2(?:_grpc)?\.pyi?"
    r"|deploy/grafana/generated/.*|tests/.*/golden/.*)$"
)

_FORMER = {
    "lent_groups|LentGroups|chips_lent": "the old name of ultraserve_chips_leased",
    "ultraserve_blocks_waiting": "the old name of ultraserve_rollout_blocks_pending",
    "_look_seconds|hardware_age_seconds": "old names of the snapshot's age and duration",
    "HardwareReport|[Hh]ardware_?[Ll]ook|hardware_report": "the same",
}
"""Names that a metric has for one release more."""

_MESSAGE = {
    "HardwareReport|[Hh]ardware_?[Ll]ook|hardware_report": "a message's name on the wire stays",
}
_FIELD = {"lent_groups|LentGroups|chips_lent": "a field's name on the wire stays"}
_DOOR = {r"\b[Dd]oors?\b": "a field's name and an event's word on the wire stay"}
_OLD_CALL = {r"[Rr]elief|relieved_ns|\bclass Thing\b": "GetWhatIf's old name, for one release"}

# Files in which a word may stand, and why. An old spelling of a flag or a metric that is read for
# one release has its place here.
KEPT: Mapping[str, Mapping[str, str]] = {
    "loadgen/prompts/prompt_text.py": {
        r"\b[Hh]ouse\b": "a word of generated prompts",
        r"\b[Tt]ickets?\b": "a word of generated prompts",
        r"\b[Dd]oors?\b": "a word of generated prompts",
    },
    **{
        path: {
            r"--reserve\b": "the old flag, which works for one release",
            r"--reading\b": "the same",
        }
        for path in (
            "serving/commands/renamed_flags.py",
            "tests/serving/commands/test_renamed_flags.py",
        )
    },
    **{
        path: {r"--calibration[ =]ceiling|[\"'`]ceiling[\"'`]": "the old name, for one release"}
        for path in ("emulator/specs/shipped_fits.py", "tests/emulator/specs/test_shipped_fits.py")
    },
    "serving/telemetry/families/engine.py": _FORMER,
    "serving/telemetry/families/partition.py": _FORMER,
    "deploy/guides/metrics.md": _FORMER,
    "protos/README.md": _MESSAGE,
    "protos/ultraserve/v1/hardware.proto": _MESSAGE,
    "protos/ultraserve/v1/control.proto": _MESSAGE | _DOOR | _OLD_CALL,
    "protos/ultraserve/v1/recording.proto": _OLD_CALL,
    "tests/serving/server/control/test_control_messages.py": _MESSAGE,
    "protos/ultraserve/v1/watch.proto": _FIELD,
    "serving/wire/control_call.py": _OLD_CALL,
    "serving/wire/telemetry.py": _FIELD | _DOOR,
    "deploy/console/src/wire/report.ts": _FIELD | _DOOR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a replaced word stands; `path` is relative to the root."""

    path: str
    line: int
    text: str


def listed(root: Path) -> list[str]:
    """Return every file that git knows or would add, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [name for name in names.split("\0") if name and not PASSED_OVER.match(name)]


def lines_of(root: Path, name: str) -> list[str]:
    """Return the lines of a text file, its path first as a line of number 0; else only that."""
    path = root / name
    if not path.is_file():  # a deleted file is still listed
        return []
    try:
        return [name, *path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError:
        return [name]


def found(root: Path, names: Iterable[str]) -> dict[str, list[Place]]:
    """Return the places of every replaced word, one for each time; paths count as text."""
    patterns = {word: re.compile(word) for word in REPLACED}
    anything = re.compile("|".join(f"(?:{word})" for word in REPLACED))
    places: dict[str, list[Place]] = {word: [] for word in REPLACED}
    for name in names:
        for number, line in enumerate(lines_of(root, name)):
            if not anything.search(line):
                continue
            for word, pattern in patterns.items():
                if word in KEPT.get(name, {}):
                    continue
                place = Place(path=name, line=number, text=line.strip()[:100])
                places[word] += [place] * len(pattern.findall(line))
    return places


def refusals(places: Mapping[str, list[Place]], allowed: Mapping[str, int]) -> list[str]:
    """Return lines that name each word that stands more often than it may, with its places."""
    lines = []
    for word, where in places.items():
        limit = allowed.get(word, 0)
        if len(where) <= limit:
            continue
        lines.append(f"{word}: {len(where)} times, {limit} allowed; say {REPLACED[word]}")
        lines += [f"  {each.path}:{each.line}: {each.text}" for each in where[:SHOWN_PLACES]]
    return lines


def lowered(places: Mapping[str, list[Place]], allowed: Mapping[str, int]) -> dict[str, int]:
    """Return the counts as they may be from now on: never more than before, zeros left out."""
    counts = {word: min(len(where), allowed.get(word, 0)) for word, where in places.items()}
    return {word: count for word, count in counts.items() if count}


def main(words: list[str]) -> int:
    """Check, or with `--write` note the counts that have fallen; 1 when a word was added."""
    allowed: dict[str, int] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    places = found(ROOT, listed(ROOT))
    added = refusals(places, allowed)
    print("\n".join(added), end="\n" if added else "", file=sys.stderr)
    if words == ["--write"]:
        COUNTS.write_text(json.dumps(lowered(places, allowed), indent=2) + "\n")
    return 1 if added else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
