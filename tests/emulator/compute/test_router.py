import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.architecture import RouterScore, Routing
from emulator.compute.layer_kernel import add_parts, add_weighted
from emulator.compute.router import Router
from emulator.compute.weights import RouterWeights

# Each expert's logit is one element of the hidden state.
IDENTITY = np.eye(4, dtype=np.float32)

PLAIN = RouterWeights(matrix=IDENTITY)
AMONG_ALL, AMONG_CHOSEN = Routing(normalise=False), Routing(normalise=True)


def route(
    hidden: np.ndarray, router: RouterWeights, *, experts_per_token: int, routing: Routing
) -> tuple[np.ndarray, np.ndarray]:
    return Router(router, experts_per_token=experts_per_token, routing=routing).route(hidden)


def routed_slowly(
    logits: np.ndarray, k: int, *, normalise: bool
) -> tuple[list[list[int]], list[list[float]]]:
    """The obvious reference: softmax, the k largest, one token at a time."""
    chosen, weights = [], []
    for row in logits.astype(np.float64):
        probabilities = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        best = sorted(sorted(range(len(row)), key=lambda expert: -row[expert])[:k])
        total = sum(probabilities[best]) if normalise else 1.0
        chosen.append(best)
        weights.append([probabilities[expert] / total for expert in best])
    return chosen, weights


class TestRoute:
    def test_a_token_by_hand(self) -> None:
        # Probabilities 1/8, 4/8, 1/8, 2/8: experts 1 and 3, in the order of their ids.
        hidden = np.array([[0, math.log(4), 0, math.log(2)]], dtype=np.float32)

        chosen, weights = route(hidden, PLAIN, experts_per_token=2, routing=AMONG_ALL)
        assert chosen.tolist() == [[1, 3]]
        np.testing.assert_allclose(weights, [[4 / 8, 2 / 8]], rtol=1e-6)

        chosen, weights = route(hidden, PLAIN, experts_per_token=2, routing=AMONG_CHOSEN)
        assert chosen.tolist() == [[1, 3]]
        np.testing.assert_allclose(weights, [[2 / 3, 1 / 3]], rtol=1e-6)

    @pytest.mark.parametrize("normalise", [True, False])
    @given(
        tokens=st.integers(1, 9),
        experts=st.integers(1, 40),
        data=st.data(),
    )
    def test_it_is_the_reference_and_no_token_minds_the_others(
        self, normalise: bool, tokens: int, experts: int, data: st.DataObject
    ) -> None:
        k = data.draw(st.integers(1, experts))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        hidden = rng.standard_normal((tokens, 12)).astype(np.float32)
        weight = (3 * rng.standard_normal((12, experts))).astype(np.float32)
        router, routing = RouterWeights(matrix=weight), Routing(normalise=normalise)

        chosen, weights = route(hidden, router, experts_per_token=k, routing=routing)

        expected, expected_weights = routed_slowly(hidden @ weight, k, normalise=normalise)
        assert chosen.tolist() == expected
        np.testing.assert_allclose(weights, expected_weights, rtol=2e-5, atol=1e-12)
        for token in range(tokens):
            one = slice(token, token + 1)
            alone = route(hidden[one], router, experts_per_token=k, routing=routing)
            assert (chosen[one] == alone[0]).all()
            assert (weights[one] == alone[1]).all()

    def test_scores_beyond_the_range_of_exp_are_still_weighed(self) -> None:
        hidden = np.array([[500.0, 499.0, -500.0, 0.0]], dtype=np.float32)

        chosen, weights = route(hidden, PLAIN, experts_per_token=2, routing=AMONG_ALL)

        assert chosen.tolist() == [[0, 1]]
        e = math.e
        np.testing.assert_allclose(weights, [[e / (e + 1), 1 / (e + 1)]], rtol=1e-6)


class TestCombine:
    def test_a_token_by_hand(self) -> None:
        rows = np.array([[[1, 2], [10, 20]], [[3, 4], [5, 6]]], dtype=np.float32)
        weights = np.array([[0.5, 0.25], [1.0, 2.0]], dtype=np.float32)

        residual = np.array([[1, 0], [0, 2]], dtype=np.float32)

        assert add_weighted(residual, rows, weights).tolist() == [[4.0, 6.0], [13.0, 18.0]]

    @given(st.integers(1, 9), st.integers(1, 10), st.integers(1, 40), st.integers(0, 2**32))
    def test_outputs_are_added_first_to_last_whatever_the_batch(
        self, tokens: int, k: int, hidden: int, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((tokens, k, hidden)).astype(np.float32)
        weights = rng.standard_normal((tokens, k)).astype(np.float32)

        total = rows[:, 0] * weights[:, 0, None]
        for choice in range(1, k):
            total = total + rows[:, choice] * weights[:, choice, None]

        residual = rng.standard_normal((tokens, hidden)).astype(np.float32)
        assert (add_weighted(residual, rows, weights) == residual + total).all()


class TestParts:
    def test_parts_are_added_first_to_last_then_to_the_residual_then_the_bias(self) -> None:
        rng = np.random.default_rng(0)
        parts = rng.standard_normal((5, 3, 37)).astype(np.float32)
        residual, bias = rng.standard_normal((3, 37)).astype(np.float32), parts[0, 0]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        none = np.zeros(0, dtype=np.float32)

        assert (add_parts(residual, parts, none) == residual + total).all()
        assert (add_parts(residual, parts, bias) == residual + total + bias).all()


class TestGroups:
    """DeepSeek's way: sigmoids, a bias for the choice alone, groups of experts."""

    ROUTING = Routing(score=RouterScore.SIGMOID, normalise=True, groups=2, groups_chosen=1, scale=3)

    def test_only_the_best_group_is_chosen_from_by_hand(self) -> None:
        # Sigmoids 0.9 and 0.1 against 0.6 and 0.5: 1.0 < 1.1, so the second group has both.
        scores = np.array([0.9, 0.1, 0.6, 0.5])
        hidden = np.log(scores / (1 - scores)).astype(np.float32)[None]

        chosen, weights = route(hidden, PLAIN, experts_per_token=2, routing=self.ROUTING)

        assert chosen.tolist() == [[2, 3]]
        np.testing.assert_allclose(weights, [[3 * 0.6 / 1.1, 3 * 0.5 / 1.1]], rtol=1e-6)

    def test_a_bias_decides_who_is_chosen_and_not_the_weights(self) -> None:
        scores = np.array([0.9, 0.1, 0.6, 0.5])
        hidden = np.log(scores / (1 - scores)).astype(np.float32)[None]
        bias = np.array([0, 0.2, 0, 0], dtype=np.float32)

        chosen, weights = route(
            hidden,
            RouterWeights(matrix=IDENTITY, choice_bias=bias),
            experts_per_token=2,
            routing=self.ROUTING,
        )

        assert chosen.tolist() == [[0, 1]]
        np.testing.assert_allclose(weights, [[3 * 0.9, 3 * 0.1]], rtol=1e-6)

    @pytest.mark.filterwarnings("error")
    def test_a_score_beyond_the_range_of_exp_is_none(self) -> None:
        hidden = np.array([[-500.0, 500.0, -500.0, -500.0]], dtype=np.float32)

        chosen, weights = route(hidden, PLAIN, experts_per_token=2, routing=self.ROUTING)

        assert chosen.tolist() == [[0, 1]]
        assert weights.tolist() == [[0.0, 3.0]]

    def test_a_routers_bias_is_in_its_logits(self) -> None:
        bias = np.log(np.array([1, 1, 1, 4], dtype=np.float32))
        hidden = np.log(np.array([[2, 1, 1, 1]], dtype=np.float32))
        routing = Routing(normalise=True)

        chosen, weights = route(
            hidden,
            RouterWeights(matrix=IDENTITY, bias=bias),
            experts_per_token=2,
            routing=routing,
        )

        assert chosen.tolist() == [[0, 3]]
        np.testing.assert_allclose(weights, [[2 / 6, 4 / 6]], rtol=1e-6)
