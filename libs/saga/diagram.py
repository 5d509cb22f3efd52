"""Draw a saga as a Mermaid flow chart: steps, limits, retries, swaps and the way back."""

from __future__ import annotations

from libs.saga.dsl import Saga, Step, Swap


def mermaid(saga: Saga) -> str:
    """The saga as a Mermaid flowchart, deterministic."""
    lines = ["flowchart TD", f'    start(["{saga.kind}"]) --> {saga.steps[0].name}']
    for step, following in zip(saga.steps, [*saga.steps[1:], None], strict=True):
        lines.append(f'    {step.name}["{_label(step)}"]')
        lines.append(f"    {step.name} --> {following.name if following else 'done([SUCCEEDED])'}")
        if isinstance(step.on_failure, Swap):
            lines.append(f"    {step.name} -. failed: swap the {saga.each[:-1]} .-> {_first_each(saga).name}")
        elif step.on_failure == "drop":
            lines.append(f"    {step.name} -. failed: leave it out .-> {step.name}")
    undone = [step for step in reversed(saga.steps) if step.undo is not None]
    for step, before in zip(undone, [*undone, None][1:], strict=True):
        lines.append(f'    undo_{step.name}[/"undo {step.name}"/]')
        lines.append(f"    undo_{step.name} --> {f'undo_{before.name}' if before else 'failed([FAILED or CANCELLED])'}")
    if undone:
        lines.append(f"    {saga.steps[-1].name} -. failure or cancel: backwards .-> undo_{undone[0].name}")
    return "\n".join(lines) + "\n"


def _first_each(saga: Saga) -> Step:
    return next(step for step in saga.steps if step.each)


def _label(step: Step) -> str:
    parts = [step.name]
    if step.each:
        parts.append(f"for each of {step.each}")
    parts.append(f"within {int(step.within.total_seconds())} s")
    if step.retries:
        parts.append(f"{step.retries} retries")
    if step.answers:
        parts.append("answers here")
    if step.pivot:
        parts.append("no way back from here")
    return "<br/>".join(parts)
