"""Multi-token prediction: drafts' logits are transformers' own layer's, whatever the partition."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from emulator.chip.commands import RepeatStep, SendExperts, TakeExperts
from emulator.chip.effects import ExpertWeights
from emulator.compute.checkpoint import check_drafts
from emulator.errors import CheckpointError
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankStep, Scheduled
from tests.emulator.chip.draft_layer_checkpoint import DraftReference, make_draft_checkpoint
from tests.emulator.chip.family_checkpoints import make_family_checkpoint
from tests.emulator.chip.in_process import GREEDY, InProcessChips, serve
from tests.emulator.chip.served_drafts import RANDOM, cut, draft_texts

LARGEST_DIFFERENCE = 1e-4
PROMPTS = {
    f"prompt-{n}": np.random.default_rng(n).integers(0, 256, 30 + 17 * n).tolist() for n in range(5)
}
TOKENS = 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("drafts") / "own-ends"
    make_draft_checkpoint(directory)
    return directory


@pytest.mark.parametrize(
    ("own_ends", "changes"),
    [(True, {}), (False, {}), (True, {"n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-2})],
)
@pytest.mark.parametrize(("chips", "tp"), [(1, 1), (4, 2)])
@pytest.mark.long
def test_logits_of_drafts_are_transformers_within_a_ten_thousandth_of_the_largest(
    own_ends: bool, changes: dict[str, object], chips: int, tp: int, tmp_path: Path
) -> None:
    make_draft_checkpoint(tmp_path, changes, own_ends=own_ends)
    prompt = PROMPTS["prompt-3"]
    machine = InProcessChips(tmp_path, chips=chips, tp=tp, draft_tokens=3)

    text, drafts = draft_texts(machine, {"r": prompt}, new_tokens=1, chunk_tokens=40)

    tokens = [*prompt, *text["r"]]
    (guesses,) = drafts["r"].values()
    expected = DraftReference(tmp_path).logits(tokens, guesses[:-1])
    assert expected[-3:].argmax(axis=1).tolist() == guesses
    found = np.empty_like(expected)
    for positions, scores in machine.chips[0].drafts:
        found[positions] = scores
    assert len(expected) == len(tokens) + 1
    differences = np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)
    print(f"{chips} chips, tp {tp}: largest relative difference {differences.max():.1e}")
    assert differences.max() <= LARGEST_DIFFERENCE


class TestTexts:
    @pytest.fixture(scope="class")
    def agreeing(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        directory = tmp_path_factory.mktemp("drafts") / "agreeing"
        make_draft_checkpoint(directory, own_ends=False, agrees=True)
        return directory

    @pytest.mark.long
    @pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
    @pytest.mark.parametrize(("chips", "tp"), [(1, 1), (4, 2)])
    def test_texts_are_those_without_drafts_in_fewer_steps(
        self, chips: int, tp: int, sampling: SamplingSpec, agreeing: Path
    ) -> None:
        plain = InProcessChips(agreeing, chips=chips, tp=tp)
        expected = serve(plain, PROMPTS, new_tokens=TOKENS, sampling=sampling)

        machine = InProcessChips(agreeing, chips=chips, tp=tp, draft_tokens=3)
        texts, drafts = draft_texts(
            machine, PROMPTS, new_tokens=TOKENS, chunk_tokens=35, sampling=sampling
        )

        assert cut(texts, TOKENS) == expected
        steps = [len(of_request) for of_request in drafts.values()]
        print(f"{steps} steps for {TOKENS} tokens")
        assert max(steps) < TOKENS
        assert min(steps) > TOKENS / 4, "drafts that are always right show nothing of wrong ones"

    @pytest.mark.long
    def test_wrong_drafts_change_no_text(self, checkpoint: Path) -> None:
        expected = serve(InProcessChips(checkpoint, chips=2), PROMPTS, new_tokens=TOKENS)

        machine = InProcessChips(checkpoint, chips=2, draft_tokens=2)
        texts, drafts = draft_texts(machine, PROMPTS, new_tokens=TOKENS)

        assert cut(texts, TOKENS) == expected
        assert {
            len(guesses) for of_request in drafts.values() for guesses in of_request.values()
        } == {2}

    @pytest.mark.long
    def test_drafts_are_the_same_on_every_partition(self, checkpoint: Path) -> None:
        found = [
            draft_texts(
                InProcessChips(checkpoint, chips=chips, tp=tp, draft_tokens=2),
                PROMPTS,
                new_tokens=6,
                chunk_tokens=chunk_tokens,
            )
            for chips, tp, chunk_tokens in ((1, 1, 1000), (4, 1, 1000), (4, 2, 37))
        ]

        assert found[1] == found[0]
        assert found[2] == found[0]

    @pytest.mark.long
    @pytest.mark.parametrize("rounds", [3, 12, 14, 15, 17])
    def test_a_step_that_breaks_off_anywhere_is_repeated_with_the_same_outcome(
        self, rounds: int, checkpoint: Path
    ) -> None:
        prompt, new = PROMPTS["prompt-0"], [_request("r", PROMPTS["prompt-0"])]
        scheduled = [Scheduled(request_id="r", first_position=0, new_tokens=len(prompt))]
        step = RankStep(rank=0, new=new, scheduled=scheduled, finished=[])
        whole = InProcessChips(checkpoint, chips=2, tp=2, draft_tokens=3).step([step])[0]

        machine = InProcessChips(checkpoint, chips=2, tp=2, draft_tokens=3)
        broken = machine.drive(machine.begin([step]), rounds=rounds)
        assert not broken.outputs
        again = machine.drive({0: RepeatStep(), 1: RepeatStep()}).outputs[0]

        assert again.drafts == whole.drafts
        assert again.token_ids.tolist() == whole.token_ids.tolist()
        assert len(whole.drafts["r"]) == 3

    @pytest.mark.long
    def test_requests_get_no_guess_beyond_their_blocks_nor_with_log_probabilities(
        self, checkpoint: Path
    ) -> None:
        machine = InProcessChips(checkpoint, chips=1, draft_tokens=4, block_tokens=16)
        prompt = list(range(30))
        asked = SamplingSpec(temperature=0.0, logprobs=1)
        new = [
            _request("short", prompt, blocks=[1, 2]),
            _request("long", prompt, blocks=[3, 4, 5]),
            _request("asked", prompt, blocks=[6, 7, 8], sampling=asked),
        ]
        scheduled = [
            Scheduled(request_id=each.request_id, first_position=0, new_tokens=30) for each in new
        ]
        step = RankStep(rank=0, new=new, scheduled=scheduled, finished=[])

        drafts = machine.step([step])[0].drafts

        # Passes are at positions 29, 30 and 31, the last of two blocks.
        assert {name: len(guesses) for name, guesses in drafts.items()} == {"short": 3, "long": 4}
        assert drafts["short"] == drafts["long"][:3]

    @pytest.mark.long
    def test_loads_are_of_the_model_s_layers_alone(self, checkpoint: Path) -> None:
        prompt, new = PROMPTS["prompt-0"], [_request("r", PROMPTS["prompt-0"])]
        scheduled = [Scheduled(request_id="r", first_position=0, new_tokens=len(prompt))]
        step = RankStep(rank=0, new=new, scheduled=scheduled, finished=[])
        results = []
        for draft_tokens in (0, 3):
            machine = InProcessChips(checkpoint, chips=2, draft_tokens=draft_tokens)
            lockstep = machine.drive(machine.begin([step]))
            results.append(lockstep.result(lockstep.outputs))

        plain, drafting = results
        assert plain.loads is not None
        assert drafting.loads is not None
        assert (drafting.loads.pairs == plain.loads.pairs).all()
        assert plain.expert_pairs is not None
        assert (drafting.expert_pairs == plain.expert_pairs).all()

    def test_experts_of_the_layer_that_drafts_move_with_the_last_layer_s(
        self, checkpoint: Path
    ) -> None:
        machine = InProcessChips(checkpoint, chips=2, draft_tokens=1)
        first, second = (chip._experts(2).gate_up.copy() for chip in machine.chips)
        sent = machine.chips[0].handle(SendExperts(layer=1, slots=[0, 3]))
        assert isinstance(sent, ExpertWeights)
        machine.chips[1].handle(
            TakeExperts(
                layer=1, slots=[5, 2], gate_up=sent.gate_up, down=sent.down, biases=sent.biases
            )
        )

        for place in (1, 2):
            source, target = (chip._experts(place) for chip in machine.chips)
            assert (target.gate_up[[5, 2]] == source.gate_up[[0, 3]]).all()
            assert (target.down[[5, 2]] == source.down[[0, 3]]).all()
        assert (machine.chips[1]._experts(2).gate_up[0] == second[0]).all()
        assert (machine.chips[0]._experts(2).gate_up == first).all()


def _request(
    name: str,
    prompt: list[int],
    *,
    blocks: list[int] | None = None,
    sampling: SamplingSpec = GREEDY,
) -> NewRequest:
    return NewRequest(
        request_id=name,
        token_ids=prompt,
        prompt_tokens=len(prompt),
        sampling=sampling,
        block_ids=blocks or list(range(1, 9)),
    )


@pytest.mark.long
def test_of_several_layers_that_draft_the_first_does_and_no_other_is_read(
    checkpoint: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "several"
    shutil.copytree(checkpoint, directory)
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"num_nextn_predict_layers": 3}), encoding="utf-8")
    check_drafts(directory)  # its further layers are not even there

    expected, found = (
        draft_texts(InProcessChips(each, chips=2, draft_tokens=6), PROMPTS, new_tokens=TOKENS)
        for each in (checkpoint, directory)
    )

    assert found == expected
    assert any(len(guesses) == 6 for drafts in found[1].values() for guesses in drafts.values())
    assert found[0] == serve(InProcessChips(directory, chips=1), PROMPTS, new_tokens=TOKENS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama-plain", "LlamaForCausalLM with num_nextn_predict_layers=0"),
        ("deepseek-plain", "DeepseekV3ForCausalLM with num_nextn_predict_layers=0"),
    ],
)
def test_a_checkpoint_without_such_a_layer_is_refused_in_one_line(
    name: str, text: str, tmp_path: Path
) -> None:
    make_family_checkpoint(tmp_path, name)

    with pytest.raises(CheckpointError, match=text):
        check_drafts(tmp_path)


def test_a_missing_tensor_of_the_layer_that_drafts_is_named(
    checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(checkpoint, tmp_path / "cut")
    file = tmp_path / "cut" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.3.eh_proj.weight"]
    save_file(tensors, file, {"format": "pt"})

    check_drafts(checkpoint)
    with pytest.raises(CheckpointError, match=r"tensor model\.layers\.3\.eh_proj\.weight is miss"):
        check_drafts(tmp_path / "cut")
