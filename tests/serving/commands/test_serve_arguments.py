"""What the flags of `ultraserve serve` mean, and what cannot be meant."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ConfigError, NeuronError
from serving.commands.serve_arguments import resolve_arguments
from serving.errors import UnsupportedFlag
from serving.settings import Settings
from tests.serving.commands.serve_flags import parse, resolved

LNC2 = Settings(lnc=2)  # what the chip's default makes of `Settings()`
QWEN = "qwen3-30b-a3b"


def with_lnc2(**changes: object) -> Settings:
    return Settings(**({"lnc": 2} | changes))  # type: ignore[arg-type]


def test_without_flags_four_chips_serve_the_bundled_model() -> None:
    assert resolved() == (LNC2, SMALL_MOE_DIR)


@pytest.mark.parametrize(
    ("arguments", "settings", "weights"),
    [
        (["--model", QWEN], with_lnc2(model=QWEN), SMALL_MOE_DIR),
        ([QWEN], with_lnc2(model=QWEN), SMALL_MOE_DIR),
        ([QWEN, "--model", QWEN], with_lnc2(model=QWEN), SMALL_MOE_DIR),
        ([str(SMALL_MOE_DIR)], LNC2, SMALL_MOE_DIR),
        (["--model", "."], LNC2, Path()),
        (["--model", QWEN, "--weights", "."], with_lnc2(model=QWEN), Path()),
        (["--weights", "."], LNC2, Path()),
        (["--weights", "none"], with_lnc2(computes=False), SMALL_MOE_DIR),
        (["--model", ".", "--weights", "none"], with_lnc2(computes=False), Path()),
        (
            ["--model", QWEN, "--weights", "none", "--routing", "zipf:1.2"],
            with_lnc2(model=QWEN, computes=False, routing="zipf:1.2"),
            SMALL_MOE_DIR,
        ),
    ],
)
def test_a_model_sets_time_and_weights_make_the_tokens(
    arguments: list[str], settings: Settings, weights: Path
) -> None:
    assert resolved(*arguments) == (settings, weights)


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        ("--chips 8", {"chips": 8}),
        ("--ultraserver b", {"ultraserver": "b"}),
        ("--chips 8 --tp 2", {"chips": 8, "tp": 2}),
        ("--chips 8 --tp 2 --dp 4", {"chips": 8, "tp": 2}),
        ("--tp 2", {"chips": 4, "tp": 2}),
        ("--tp 8", {"chips": 8, "tp": 8}),
        ("--dp 6", {"chips": 6}),
        ("--tp 2 --dp 6", {"chips": 12, "tp": 2}),
        ("--chips 16 --ep 8", {"chips": 16, "ep": 8}),
        ("--chips 4 --spares 2", {"spares": 2}),
        ("--lnc 1", {"lnc": 1}),
        ("--lnc 8", {"lnc": 8}),
        ("--system other-rack", None),
        ("--hang-timeout 2.5", {"hang_timeout_s": 2.5}),
        ("--ray-address 10.0.0.1:6379", {"ray_address": "10.0.0.1:6379"}),
        (
            "--ray-address 10.0.0.1:6379 --ray-node 1",
            {"ray_address": "10.0.0.1:6379", "ray_node": 1},
        ),
        ("--prefill-policy none", {"prefill_policy": "none"}),
        ("--clock dilated:3 --pue 1.2", {"clock": "dilated:3", "pue": 1.2}),
    ],
)
def test_each_flag_sets_what_it_names(arguments: str, changes: dict[str, object] | None) -> None:
    if changes is None:
        with pytest.raises(ConfigError, match=r"^system=other-rack: expected "):
            resolved(*arguments.split())
        return
    assert resolved(*arguments.split())[0] == with_lnc2(**changes)


@pytest.mark.parametrize(
    ("vllm", "ours"),
    [
        ("--tensor-parallel-size 2 --data-parallel-size 3", "--tp 2 --dp 3"),
        ("-tp 2 -dp 3 -ep", "--tp 2 --dp 3"),
        ("--attention-dp-size 3 --ep-degree 3", "--dp 3 --ep 3"),
        ("--tensor_parallel_size 2 --data_parallel_size=3", "--tp 2 --dp 3"),
        ("--enable-expert-parallel", ""),
        ("--enable_eplb", "--enable-eplb"),
        (
            '--enable-eplb --eplb_config={"window_size":9}',
            '--enable-eplb --eplb-config {"window_size":9}',
        ),
        ('--enable-eplb --eplb-config {"step_interval":7}', "--eplb 7"),
    ],
)
def test_the_spellings_of_vllm_and_of_the_vendor_mean_the_same(vllm: str, ours: str) -> None:
    args = parse(*vllm.split())

    assert resolve_arguments(args, {}) == resolved(*ours.split())
    assert args.unknown == []


@pytest.mark.long
@given(tp=st.integers(1, 12), dp=st.integers(1, 12), say_chips=st.booleans())
def test_chips_are_tp_times_dp_however_they_are_said(tp: int, dp: int, say_chips: bool) -> None:
    flags = ["--tp", str(tp), "--chips", str(tp * dp)]
    if not say_chips:
        flags[2:] = ["--dp", str(dp)]
    settings, _ = resolved(*flags)

    assert (settings.chips, settings.tp, settings.ranks) == (tp * dp, tp, dp)


@pytest.mark.parametrize(
    ("arguments", "eplb"),
    [
        ([], None),
        (["--enable-eplb"], {}),
        (["--eplb", "500"], {"step_interval": 500}),
        (["--eplb", "500", "--enable-eplb"], {"step_interval": 500}),
        (
            ["--eplb", "500", "--eplb-config", '{"window_size": 100, "use_async": false}'],
            {"step_interval": 500, "window_size": 100, "use_async": False},
        ),
        (["--eplb", "5", "--eplb-config", '{"step_interval": 5}'], {"step_interval": 5}),
        (
            ["--enable-eplb", "--eplb-config", '{"num_redundant_experts": 16}'],
            {"num_redundant_experts": 16},
        ),
    ],
)
def test_expert_balancing_is_asked_for_in_our_words_or_in_vllm_s(
    arguments: list[str], eplb: dict[str, object] | None
) -> None:
    assert resolved(*arguments)[0].eplb == eplb


@pytest.mark.parametrize("text", ["{", "[1]", "3", "null"])
def test_an_eplb_config_that_is_no_object_is_refused_by_the_parser(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse("--enable-eplb", "--eplb-config", text)

    assert "argument --eplb-config: not " in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--eplb-config.window_size", "--eplb_config.window_size=5"])
def test_vllm_s_dotted_eplb_config_is_refused_and_not_lost(flag: str) -> None:
    with pytest.raises(UnsupportedFlag) as raised:
        resolved("--enable-eplb", flag, "5")

    assert str(raised.value) == f"{flag.partition('=')[0]}: give --eplb-config one JSON object"


CONTRADICTIONS = [
    ("--model missing", "model=missing: expected a checkpoint directory or one of "),
    ("missing", "model=missing: expected a checkpoint directory or one of "),
    (f"{QWEN} --model .", f"model=.: expected one model, not also {QWEN}"),
    ("--model . --weights .", "model=.: expected a catalog name when --weights is given"),
    ("--chips 4 -dp 8", "dp=8: expected chips = tp x dp, so 4 on 4 chips with tp 1"),
    ("--chips 8 --tp 2 --dp 8", "dp=8: expected chips = tp x dp, so 4 on 8 chips with tp 2"),
    ("--chips 0", "chips=0: expected a whole number of at least 1"),
    ("--tp 0", "tp=0: expected a whole number of at least 1"),
    ("--tp 0 --dp 4", "tp=0: expected a whole number of at least 1"),
    ("--dp 0", "dp=0: expected a whole number of at least 1"),
    ("--ep 0", "ep=0: expected a whole number of at least 1"),
    ("--spares -1", "spares=-1: expected a whole number of at least 0"),
    (
        "--clock real --expect-concurrency 8",
        "expect_concurrency=8: expected none beside a clock other than auto",
    ),
    ("--expect-concurrency 0", "expect_concurrency=0: expected a whole number of at least 1"),
    ("--clock soon", "clock=soon: expected real, auto, virtual or dilated:K"),
    ("--clock virtual", "clock=virtual: expected real, auto or dilated:K behind a socket"),
    ("--pue 0.5", "pue=0.5: expected a number of at least 1"),
    ("--hang-timeout 0", "hang_timeout_s=0.0: expected seconds above 0"),
    (
        '--eplb 5 --eplb-config {"step_interval":6}',
        "eplb=5: expected the step_interval of --eplb-config, 6",
    ),
    (
        '--eplb-config {"step_interval":6}',
        'eplb_config={"step_interval": 6}: expected --eplb S or --enable-eplb with it',
    ),
]


@pytest.mark.parametrize(("arguments", "message"), CONTRADICTIONS)
def test_what_cannot_be_meant_is_one_line(arguments: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolved(*arguments.split())

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


# On this chip LNC 2 makes 4 logical cores, LNC 1 makes 8, LNC 8 one.
@pytest.mark.parametrize(
    ("environment", "arguments", "changes"),
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, "", {"lnc": 1}),
        ({"NEURON_RT_VIRTUAL_CORE_SIZE": "8"}, "", {"lnc": 8}),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, "--lnc 1", {"lnc": 1}),
        ({"NEURON_RT_NUM_CORES": "24"}, "", {"chips": 6}),
        ({"NEURON_RT_NUM_CORES": "24"}, "--chips 6 --tp 2", {"chips": 6, "tp": 2}),
        (
            {"NEURON_RT_NUM_CORES": "24", "NEURON_LOGICAL_NC_CONFIG": "1"},
            "",
            {"chips": 3, "lnc": 1},
        ),
        ({"NEURON_RT_NUM_CORES": "0"}, "", {}),
        (
            {"NEURON_RT_VISIBLE_CORES": "8-15"},
            "",
            {"chips": 2, "first_chip": 2, "exclusive_cores": True},
        ),
        ({"NEURON_RT_VISIBLE_CORES": ""}, "", {}),
        ({"NEURON_SOMETHING_ELSE": "7"}, "", {}),
    ],
)
def test_the_neuron_runtime_s_variables_are_honoured(
    environment: dict[str, str], arguments: str, changes: dict[str, object]
) -> None:
    assert resolved(*arguments.split(), environment=environment)[0] == with_lnc2(**changes)


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        (
            {"NEURON_LOGICAL_NC_CONFIG": "1"},
            "--lnc 2",
            "NRT_INVALID (2): lnc=1: expected 2: --lnc says 2, NEURON_LOGICAL_NC_CONFIG or "
            "NEURON_RT_VIRTUAL_CORE_SIZE says 1",
        ),
        ({}, "--lnc 4", "NCC_EARG001: lnc=4: expected a logical core of 1, 2, 8 physical cores"),
        (
            {"NEURON_RT_NUM_CORES": "24"},
            "--chips 4",
            "chips=4: expected 6, the chips of NEURON_RT_NUM_CORES=24 at LNC=2",
        ),
        (
            {"NEURON_RT_VISIBLE_CORES": "2-5"},
            "",
            "NEURON_RT_VISIBLE_CORES=2-5: expected whole chips of 4 logical cores at LNC=2",
        ),
        (
            {"NEURON_RT_NUM_CORES": "577"},
            "",
            "NRT_LOAD_NOT_ENOUGH_NC (9): NEURON_RT_NUM_CORES=577: expected at most the 576",
        ),
        ({"NEURON_RT_NUM_CORES": "many"}, "", "NRT_INVALID (2): NEURON_RT_NUM_CORES=many"),
    ],
)
def test_variables_that_contradict_flags_or_the_chip_are_one_line(
    environment: dict[str, str], arguments: str, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        resolved(*arguments.split(), environment=environment)

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_the_environment_is_the_process_s_own_when_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "8")

    assert resolve_arguments(parse())[0].chips == 2


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A checkpoint directory that says that it was compiled for LNC 1."""
    config = {"neuron_config": {"logical_nc_config": 1}}
    (tmp_path / "neuron_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_compiled_model_sets_the_lnc_and_disagrees_with_another(compiled: Path) -> None:
    assert resolved("--model", str(compiled))[0].lnc == 1
    assert resolved("--model", QWEN, "--weights", str(compiled))[0].lnc == 1

    with pytest.raises(NeuronError, match=r"the compiled model's logical_nc_config says 1"):
        resolved("--model", str(compiled), "--lnc", "2")


@pytest.mark.parametrize(
    ("text", "message"), [("{", r"neuron_config\.json=.*: expected JSON$"), ("[]", "")]
)
def test_a_compiled_model_s_config_that_cannot_be_read_is_one_line(
    text: str, message: str, compiled: Path
) -> None:
    (compiled / "neuron_config.json").write_text(text)
    if not message:
        assert resolved("--model", str(compiled))[0].lnc == 2
        return
    with pytest.raises(ConfigError, match=message):
        resolved("--model", str(compiled))


def test_vllm_s_own_flags_go_through_in_their_order_without_the_model() -> None:
    args = parse(QWEN, "--chips", "2", "--max-num-seqs", "8", "--enforce-eager")
    resolve_arguments(args, {})

    assert args.unknown == ["--max-num-seqs", "8", "--enforce-eager"]


@pytest.mark.parametrize("short", ["--chip", "--mod", "--data-parallel", "--eplb-conf"])
def test_a_flag_of_vllm_s_is_never_taken_for_the_beginning_of_ours(short: str) -> None:
    args = parse(short, "2")
    resolve_arguments(args, {})

    assert args.unknown == [short, "2"]
