"""Larger processes than can be walked whole: drawn at random and taken through random courses, all promises checked."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libs.saga import saga, step
from libs.saga.dsl import Saga, Step
from libs.saga.state import SagaState
from libs.testing.saga_promises import Promises, World, ids_of
from tests.unit.libs.saga import small

# The same courses every time, so that a red build can be repeated; SLIPWAY_FRESH_COURSES=1 draws new ones.
settings.register_profile(
    "courses",
    max_examples=40,
    stateful_step_count=60,
    deadline=None,
    derandomize=not os.environ.get("SLIPWAY_FRESH_COURSES"),
    suppress_health_check=list(HealthCheck),
)


@st.composite
def _step(draw: st.DrawFn, number: int, each: bool) -> Step:
    common: dict[str, Any] = {"name": f"s{number}", "retries": draw(st.integers(0, 2)), "answers": draw(st.booleans())}
    if not each:
        undo = draw(st.sampled_from([None, small.once, small.nothing]))
        build = draw(st.sampled_from([small.once, small.once, small.nothing]))
        return step(build, undo=undo, check=draw(st.sampled_from([None, small.only_good])), **common)
    undo = draw(st.sampled_from([None, small.give_back, small.nothing]))
    on_failure = draw(st.sampled_from(["fail", small.swaps(3)]))
    build = draw(st.sampled_from([small.take, small.work, small.work_on_first]))
    return step(build, each="machines", undo=undo, on_failure=on_failure, **common)


@st.composite
def sagas(draw: st.DrawFn) -> Saga:
    """Up to seven steps of every sort; from some step on, perhaps, there is no way back."""
    shape = draw(st.lists(st.booleans(), min_size=2, max_size=7))
    steps = [draw(_step(number, each)) for number, each in enumerate(shape)]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(steps) - 1))
        steps[at] = step(small.once, name="no way back", pivot=True, retries=draw(st.integers(0, 1)))
    return saga("random", *steps)


class Courses(RuleBasedStateMachine):
    """One saga and everything that may happen to it."""

    @initialize(drawn=sagas(), count=st.integers(0, 4))
    def begin(self, drawn: Saga, count: int) -> None:
        world = World(
            drawn, {"machines": [{"id": f"m{n}"} for n in range(1, count + 1)]}, small.answers, max_resumes=99
        )
        self.promises = Promises(world)
        run, self.ghost = self.promises.start()
        self.ids: frozenset[str] = frozenset()
        self._keep(run)

    def _keep(self, run: Any) -> None:
        sent = ids_of(run, commands_only=True)
        self.promises.must(not sent & self.ids, "no course sends one id twice")
        self.ids |= ids_of(run)
        self.kept = run.state.model_dump_json()

    @property
    def state(self) -> SagaState:
        return SagaState.model_validate_json(self.kept)

    def _happens(self, data: st.DataObject, *, kinds: tuple[str, ...]) -> None:
        state = self.state
        inputs = [each for each in self.promises.inputs(state) if each.name.startswith(kinds)]
        if not inputs:
            return
        taken = self.promises.take(self.kept, state, self.ghost, data.draw(st.sampled_from(inputs)))
        if taken is not None:
            run, self.ghost = taken
            self._keep(run)

    @rule(data=st.data())
    def something_is_answered(self, data: st.DataObject) -> None:
        self._happens(data, kinds=("ok", "refused", "failed"))

    @rule(data=st.data())
    def something_goes_well(self, data: st.DataObject) -> None:
        self._happens(data, kinds=("ok",))

    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        self._happens(data, kinds=("time",))

    @precondition(lambda self: len(self.ids) > 8)
    @rule(data=st.data())
    def somebody_cancels(self, data: st.DataObject) -> None:
        self._happens(data, kinds=("cancel",))

    @rule(data=st.data())
    def a_human_says_go_on(self, data: st.DataObject) -> None:
        self._happens(data, kinds=("resume",))

    @invariant()
    def what_is_late_is_ignored_and_the_state_is_sound(self) -> None:
        if not hasattr(self, "kept"):
            return
        state = self.state
        self.promises.check_state(state, self.ghost, self.ids)
        self.promises.check_ignored(state, self.ids)


TestCourses = Courses.TestCase
TestCourses.settings = settings.get_profile("courses")
