"""The executor of the fast engine: it holds steps until their emulated end, and makes no tokens."""

import os

from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.outputs import ModelRunnerOutput

from serving.plugin.executor import UltraServeExecutor
from serving.plugin.fast_decision import FastDecision
from serving.plugin.front_requests import check_front_requests
from serving.plugin.merge import LockstepOutput
from serving.process.front_program import REQUESTS_VARIABLE, has_front


class FastExecutor(UltraServeExecutor):
    """`UltraServeExecutor` of a `FastScheduler`, which draws the tokens itself."""

    def _init_executor(self) -> None:
        super()._init_executor()
        if has_front(os.environ):
            check_front_requests(self.model_config, int(os.environ[REQUESTS_VARIABLE]))

    def _run(self, output: LockstepOutput, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        assert isinstance(output, FastDecision)
        assert grammar is None, "no request has a grammar"
        done = self.live_engine().begin_work(output.batch, continues=output.continues)
        return self._outcome((), done)
