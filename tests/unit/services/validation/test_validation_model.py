"""Verdicts: only a whole, readable, healthy set of evidence passes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from good_evidence import EXPECTED, as_evidence, drive, good, gpu, smi, smi_row
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.site import Evidence
from libs.contracts.validation import CheckResult, Suite, Verdict
from services.validation.catalogue import CATALOGUE, severity_of
from services.validation.model import (
    Applies,
    FindingKey,
    Severity,
    applicable,
    cleared_by,
    judge_run,
    raised_by,
    run_verdict,
)

SUITES = (Suite.OUT_OF_BAND, Suite.ON_NODE)


def verdict(outputs: dict[str, Any], suite: Suite, expected: dict[str, object] = EXPECTED) -> Verdict:
    checks = applicable(CATALOGUE, suite, expected)
    return run_verdict(checks, judge_run(checks, as_evidence(outputs), expected))


def results(outputs: dict[str, Any], suite: Suite, expected: dict[str, object] = EXPECTED) -> tuple[CheckResult, ...]:
    return judge_run(applicable(CATALOGUE, suite, expected), as_evidence(outputs), expected)


def summary(outputs: dict[str, Any], suite: Suite, check: str) -> CheckResult:
    return next(result for result in results(outputs, suite) if result.check == check and not result.component)


@pytest.mark.parametrize("suite", SUITES)
def test_a_machine_with_nothing_wrong_passes(suite: Suite) -> None:
    assert verdict(good(), suite) is Verdict.PASS


@pytest.mark.parametrize("suite", SUITES)
def test_no_evidence_is_inconclusive(suite: Suite) -> None:
    assert verdict({}, suite) is Verdict.INCONCLUSIVE


def test_an_empty_catalogue_proves_nothing() -> None:
    assert run_verdict((), judge_run((), as_evidence(good()), EXPECTED)) is Verdict.INCONCLUSIVE


def test_a_suite_without_checks_is_inconclusive() -> None:
    assert verdict(good(), Suite.CLUSTER) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("status", ["error", "timeout", "unsupported"])
def test_a_collector_that_did_not_run_never_passes_whatever_it_sent(suite: Suite, status: Any) -> None:
    for how in {check.how for check in CATALOGUE if check.suite is suite}:
        evidence = [
            Evidence(check=item.check, status=status if item.check == how else "ran", output=item.output)
            for item in as_evidence(good())
        ]
        checks = applicable(CATALOGUE, suite, EXPECTED)
        assert run_verdict(checks, judge_run(checks, evidence, EXPECTED)) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("suite", SUITES)
def test_evidence_that_was_sent_twice_is_inconclusive(suite: Suite) -> None:
    checks = applicable(CATALOGUE, suite, EXPECTED)
    evidence = as_evidence(good()) * 2
    assert run_verdict(checks, judge_run(checks, evidence, EXPECTED)) is Verdict.INCONCLUSIVE


# Not judged: where the file was written, an echo, the driver's chatter, and names that people read.
UNJUDGED = {"path", "stderr", "view"}
UNJUDGED_AT = {("redfish.system", "power_state"), ("redfish.drives", "model"), ("redfish.drives", "serial")}
NOTHING: tuple[Any, ...] = (
    None,
    "",
    " ",
    0,
    -1,
    "N/A",
    "[N/A]",
    "[Unknown Error]",
    "ERR!",
    "Unknown",
    "unknown",
    [],
    {},
)
MISSING = object()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every object, list and value inside."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*path, number))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    place = changed
    for step in path[:-1]:
        place = place[step]
    if new is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = new
    return changed


def mutants() -> Iterator[tuple[Suite, str, tuple[Any, ...], Any]]:
    for suite in SUITES:
        for how in sorted({check.how for check in CATALOGUE if check.suite is suite}):
            for path in places({how: good()[how]}):
                if path[-1] in UNJUDGED or (how, path[-1]) in UNJUDGED_AT:
                    continue
                original: Any = good()
                for step in path:
                    original = original[step]
                for nothing in (*NOTHING, MISSING):
                    # No empty slots is what a whole machine says; 0 is how a program says that it succeeded.
                    if path[-1] == "absent" and nothing in ([], MISSING):
                        continue
                    if type(nothing) is type(original) and nothing == original:
                        continue
                    yield suite, how, path, nothing


def test_any_evidence_replaced_by_nothing_never_passes() -> None:
    passing = [
        (how, path, nothing)
        for suite, how, path, nothing in mutants()
        if not (path[-1] == "absent" and how == "redfish.drives")
        and verdict(replaced(good(), path, nothing), suite) is Verdict.PASS
    ]
    assert passing == []


COLUMNS = ("index", "uuid", "serial", "name", "bus", "memory", "driver", "volatile")


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", ["", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "ERR!", "-1", "null"])
def test_any_value_of_nvidia_smi_replaced_by_nothing_never_passes(column: str, value: str) -> None:
    outputs = good()
    outputs["ssh.nvidia_smi"] = smi(smi_row(0, **{column: value}), *(smi_row(index) for index in range(1, 8)))
    assert verdict(outputs, Suite.ON_NODE) is not Verdict.PASS


@settings(deadline=None, max_examples=50)  # A busy computer is no fault of the code.
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_no_shape_of_nonsense_passes_or_breaks_a_judge(nonsense: Any) -> None:
    for suite in SUITES:
        for how in {check.how for check in CATALOGUE if check.suite is suite}:
            assert verdict({**good(), how: nonsense}, suite) is not Verdict.PASS


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key, value)
        for key in ("gpu_count", "gpu_model", "serial", "memory_gib", "drives")
        for value in ("", "N/A", -1, True, [], "8")
    ],
)
def test_a_promise_that_makes_no_sense_never_passes(key: str, value: object) -> None:
    assert verdict(good(), Suite.OUT_OF_BAND, {**EXPECTED, key: value}) is not Verdict.PASS


def test_without_a_promised_number_of_gpus_nothing_about_gpus_passes() -> None:
    expected = {key: value for key, value in EXPECTED.items() if key != "gpu_count"}
    assert all(verdict(good(), suite, expected) is Verdict.INCONCLUSIVE for suite in SUITES)


def test_a_machine_without_gpus_is_spared_the_gpu_checks_and_no_others() -> None:
    outputs = {how: output for how, output in good().items() if how not in ("redfish.gpus", "ssh.nvidia_smi")}
    expected = {**EXPECTED, "gpu_count": 0, "gpu_model": ""}
    assert all(verdict(outputs, suite, expected) is Verdict.PASS for suite in SUITES)
    for suite in SUITES:
        for how in outputs:
            if any(check.how == how and check.suite is suite for check in CATALOGUE):
                assert verdict({k: v for k, v in outputs.items() if k != how}, suite, expected) is Verdict.INCONCLUSIVE


def test_an_empty_slot_is_no_gpu_and_is_named() -> None:
    outputs = good()
    outputs["redfish.gpus"] = {"gpus": [gpu(n) for n in range(1, 8)], "absent": ["GPU_SXM_8"]}
    found = summary(outputs, Suite.OUT_OF_BAND, "gpu.count")
    assert (found.verdict, found.found) == (Verdict.FAIL, "7")
    assert "GPU_SXM_8" in found.message


def test_an_absent_entry_among_the_gpus_is_no_gpu() -> None:
    outputs = good()
    outputs["redfish.gpus"]["gpus"][7] = gpu(8, state="Absent", model=None, serial=None, health=None)
    assert summary(outputs, Suite.OUT_OF_BAND, "gpu.count").found == "7"


def test_two_views_of_the_same_cards_are_not_added_up() -> None:
    """Chassis list eight slots, one of them empty; processors show four of the cards: seven are present."""
    outputs = good()
    chassis = [gpu(n, slot=f"HGX_GPU_{n}", view="chassis") for n in range(1, 8)]
    chassis[4]["state"] = "UnavailableOffline"
    outputs["redfish.gpus"] = {
        "gpus": [*chassis, gpu(8, slot="HGX_GPU_8", view="chassis", state="Absent"), *(gpu(n) for n in range(1, 5))],
        "absent": [],
    }
    count = summary(outputs, Suite.OUT_OF_BAND, "gpu.count")
    assert (count.verdict, count.found, "HGX_GPU_8" in count.message) == (Verdict.FAIL, "7", True)
    sick = [r for r in results(outputs, Suite.OUT_OF_BAND) if r.check == "gpu.health" and r.verdict is Verdict.FAIL]
    assert [r.component for r in sick if r.component] == ["HGX_GPU_5"]


def test_more_gpus_than_promised_are_another_machine_than_promised() -> None:
    outputs = good()
    outputs["redfish.gpus"]["gpus"].append(gpu(9))
    assert verdict(outputs, Suite.OUT_OF_BAND) is Verdict.FAIL


def test_another_machine_behind_the_bmc_fails() -> None:
    outputs = good()
    outputs["redfish.system"]["serial"] = "1660223416845"
    assert summary(outputs, Suite.OUT_OF_BAND, "system.identity").verdict is Verdict.FAIL


def test_a_missing_drive_fails_and_a_sick_one_is_named() -> None:
    outputs = good()
    outputs["redfish.drives"]["drives"] = [drive(0, health="Critical")]
    assert summary(outputs, Suite.OUT_OF_BAND, "drive.count").verdict is Verdict.FAIL
    failing = [r for r in results(outputs, Suite.OUT_OF_BAND) if r.check == "drive.health" and r.component]
    assert [(r.component, r.verdict) for r in failing] == [("nvme0", Verdict.FAIL)]


@pytest.mark.parametrize(
    "said",
    [
        "Unable to determine the device handle for GPU 0000:BA:80.0: Unknown Error",
        "Unable to determine the device handle for GPU0000:65:00.0: Unknown Error",
    ],
)
def test_a_lost_gpu_fails_by_its_address_although_the_exit_code_is_0(said: str) -> None:
    for csv in (said, "\n".join((smi()["csv"].strip(), *(smi_row(i) for i in range(7)), said))):
        outputs = {**good(), "ssh.nvidia_smi": {"csv": csv, "stderr": "", "exit_code": 0}}
        found = summary(outputs, Suite.ON_NODE, "node.gpu_count")
        assert found.verdict is Verdict.FAIL
        assert said.split("GPU")[1].split(": ")[0].strip() in found.message


def test_a_broken_driver_says_nothing_about_any_gpu() -> None:
    outputs = {
        **good(),
        "ssh.nvidia_smi": {"csv": "Failed to initialize NVML: Unknown Error", "stderr": "", "exit_code": 255},
    }
    assert {r.verdict for r in results(outputs, Suite.ON_NODE) if "gpu" in r.check} == {Verdict.INCONCLUSIVE}


def test_no_devices_is_zero_gpus_and_fails_against_the_promise() -> None:
    outputs = {**good(), "ssh.nvidia_smi": {"csv": "No devices were found\n", "stderr": "", "exit_code": 0}}
    found = summary(outputs, Suite.ON_NODE, "node.gpu_count")
    assert (found.verdict, found.found, found.expected) == (Verdict.FAIL, "0", "8")


def test_one_missing_value_costs_its_own_gpu_and_no_other_column() -> None:
    outputs = good()
    outputs["ssh.nvidia_smi"] = smi(smi_row(0, volatile="[N/A]"), *(smi_row(index) for index in range(1, 8)))
    assert summary(outputs, Suite.ON_NODE, "node.gpu_ecc").verdict is Verdict.INCONCLUSIVE
    assert summary(outputs, Suite.ON_NODE, "node.gpu_count").verdict is Verdict.PASS
    assert summary(outputs, Suite.ON_NODE, "node.gpu_model").verdict is Verdict.PASS


def test_an_uncorrected_memory_error_fails_its_gpu() -> None:
    outputs = good()
    outputs["ssh.nvidia_smi"] = smi(smi_row(0, volatile="2"), *(smi_row(index) for index in range(1, 8)))
    failing = [r for r in results(outputs, Suite.ON_NODE) if r.verdict is Verdict.FAIL and r.component]
    assert [(r.check, r.component) for r in failing] == [("node.gpu_ecc", "00000000:1B:00.0")]


def test_the_memory_that_the_kernel_keeps_is_not_missing() -> None:
    outputs = good()
    outputs["ssh.cpu_memory"]["memory_kib"] = 2015 * 1024 * 1024
    assert verdict(outputs, Suite.ON_NODE) is Verdict.PASS
    outputs["ssh.cpu_memory"]["memory_kib"] = 1792 * 1024 * 1024
    assert verdict(outputs, Suite.ON_NODE) is Verdict.FAIL


def test_a_clock_that_is_far_off_fails() -> None:
    outputs = good()
    outputs["ssh.time"]["epoch_seconds"] += 31
    assert verdict(outputs, Suite.ON_NODE) is Verdict.FAIL


def result(check: str, component: str, found: Verdict) -> CheckResult:
    return CheckResult(check=check, component=component, verdict=found)


def test_a_finding_is_raised_for_the_component_that_fails_and_not_again_for_the_check() -> None:
    some = [result("gpu.health", "GPU_1", Verdict.PASS), result("gpu.health", "GPU_2", Verdict.FAIL)]
    some += [result("gpu.health", "", Verdict.FAIL), result("gpu.count", "", Verdict.FAIL)]
    assert set(raised_by(some)) == {FindingKey("gpu.health", "GPU_2"), FindingKey("gpu.count", "")}


def test_only_a_pass_of_the_same_check_and_component_clears() -> None:
    some = [result("gpu.health", "GPU_1", Verdict.PASS), result("gpu.health", "GPU_2", Verdict.INCONCLUSIVE)]
    some += [result("gpu.health", "", Verdict.INCONCLUSIVE)]
    assert cleared_by(some) == {FindingKey("gpu.health", "GPU_1")}


def test_what_is_inconclusive_neither_raises_nor_clears() -> None:
    some = [result("gpu.health", "", Verdict.INCONCLUSIVE)]
    assert raised_by(some) == {} and cleared_by(some) == frozenset()


def test_every_check_of_the_catalogue_has_an_id_of_its_own_and_says_what_it_proves() -> None:
    assert len({check.id for check in CATALOGUE}) == len(CATALOGUE)
    assert all(check.proves and check.how and check.limit_seconds > 0 for check in CATALOGUE)
    assert any(check.applies is Applies.GPU_MACHINES for check in CATALOGUE)


def test_a_check_that_nobody_knows_any_more_is_critical() -> None:
    assert severity_of("gone.check") is Severity.CRITICAL
