"""What a replica's next process has to publish, held against an engine's order of versions."""

from hypothesis import given
from hypothesis import strategies as st

from serving.server.replicas.published_weights import KEPT_MAX, Publication, PublishedWeights


class Process:
    """An engine's versions as `model_versions` numbers them, by the directories that it serves."""

    def __init__(self) -> None:
        self.order = [(1, "command line")]
        self._number = 1

    def publish(self, weights_dir: str) -> int:
        if self.order[-1][1] != weights_dir:
            self._number += 1
            self.order.append((self._number, weights_dir))
        return self.order[-1][0]

    def roll_back(self) -> int:
        self.order.pop()
        return self.order[-1][0]


@given(st.lists(st.sampled_from(["publish a", "publish b", "publish c", "roll back", "restart"])))
def test_a_next_process_serves_what_the_last_one_did(events: list[str]) -> None:
    process, published = Process(), PublishedWeights()
    for event in events:
        if event == "restart":
            served = process.order[-1][1]
            process = Process()
            published.repeated([process.publish(each.weights_dir) for each in published.order])
            assert process.order[-1][1] == served
        elif event == "roll back":
            if len(process.order) > 1 and published.order:
                published.roll_back(process.roll_back())
        else:
            weights_dir = event.split()[1]
            version = process.publish(weights_dir)
            published.publish(Publication(weights_dir=weights_dir, note="", version=version))
        served = published.order[-1].weights_dir if published.order else "command line"
        assert process.order[-1][1] == served
        assert len(published.order) <= KEPT_MAX
