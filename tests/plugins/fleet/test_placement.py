"""The choice of a machine, and the queue of those who wait for one."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.errors import InvalidArgument, LimitReached
from claude_code_mcp.plugins.fleet.machines import Machine
from claude_code_mcp.plugins.fleet.placement import MEMORY_OF_A_SESSION, Demand, FairQueue, NoMachine, choose, refusal

ORDINARY = Machine("m1", "one", "1.0", "2.1.325", frozenset({"linux"}), 4, 0, 8 << 30, False, ())
DEMAND = Demand(version="1.0")


@pytest.mark.parametrize(
    ("machine", "demand", "reason"),
    [
        (replace(ORDINARY, sessions=4), DEMAND, r"\b4\b.*\b4\b.*sessions"),
        (replace(ORDINARY, free_memory=10 << 20), DEMAND, "10 MB"),
        (replace(ORDINARY, draining=True), DEMAND, "drain"),
        (replace(ORDINARY, version="0.9"), DEMAND, r"\b0\.9\b.*\b1\.0\b"),
        (replace(ORDINARY, cli_version=""), DEMAND, "Claude Code"),
        (ORDINARY, replace(DEMAND, cli_version="2.1.300"), r"2\.1\.325\b.*2\.1\.300\b"),
        (ORDINARY, replace(DEMAND, labels=frozenset({"gpu", "linux"})), r"label\b.*\bgpu$"),
        (ORDINARY, replace(DEMAND, allowed_labels=frozenset({"team"})), "policy"),
        (ORDINARY, replace(DEMAND, machine="other"), r"\bother\b"),
        (replace(ORDINARY, capacity=0), DEMAND, "sessions"),
    ],
)
def test_a_machine_that_does_not_fit_is_refused_with_the_reason(machine: Machine, demand: Demand, reason: str) -> None:
    with pytest.raises(NoMachine) as refused:
        choose([machine], demand)
    assert list(refused.value.reasons) == ["one (m1)"]
    assert re.search(reason, refused.value.reasons["one (m1)"])
    assert refused.value.reasons["one (m1)"] in refused.value.message


@pytest.mark.parametrize("chosen", ["m1", "one"])
def test_a_machine_can_be_asked_for_by_id_and_by_name(chosen: str) -> None:
    other = replace(ORDINARY, id="m2", name="two", capacity=50)
    assert choose([other, ORDINARY], replace(DEMAND, machine=chosen)) is ORDINARY


def test_waiting_helps_only_where_a_machine_is_full() -> None:
    full, drained = replace(ORDINARY, sessions=4), replace(ORDINARY, id="m2", draining=True)
    with pytest.raises(NoMachine) as refused:
        choose([full, drained], DEMAND)
    assert refused.value.waiting_helps
    with pytest.raises(NoMachine) as refused:
        choose([drained], DEMAND)
    assert not refused.value.waiting_helps
    with pytest.raises(NoMachine) as refused:
        choose([], DEMAND)
    assert refused.value.reasons == {}


def test_a_machine_with_the_repository_comes_before_one_with_more_room() -> None:
    there = replace(ORDINARY, id="m2", sessions=3, repositories=("git@example.org:a.git",))
    assert choose([ORDINARY, there], replace(DEMAND, repository="git@example.org:a.git")) is there
    assert choose([ORDINARY, there], DEMAND) is ORDINARY


labels = st.frozensets(st.sampled_from(["gpu", "linux", "mac"]))
machines = st.builds(
    Machine,
    id=st.uuids().map(str),
    name=st.sampled_from(["a", "b"]),
    version=st.sampled_from(["1.0", "0.9"]),
    cli_version=st.sampled_from(["2.1.325", "2.1.300", ""]),
    labels=labels,
    capacity=st.integers(0, 4),
    sessions=st.integers(0, 5),
    free_memory=st.sampled_from([0, MEMORY_OF_A_SESSION - 1, MEMORY_OF_A_SESSION, 8 << 30]),
    draining=st.booleans(),
    repositories=st.lists(st.sampled_from(["r1", "r2"]), max_size=2).map(tuple),
)
demands = st.builds(
    Demand,
    version=st.just("1.0"),
    machine=st.sampled_from([None, None, "a"]),
    labels=labels,
    allowed_labels=st.none() | labels,
    repository=st.sampled_from([None, "r1"]),
    cli_version=st.sampled_from([None, "2.1.325"]),
)


@given(st.lists(machines, max_size=6), demands)
def test_the_choice_fits_and_every_refusal_has_a_reason(offered: list[Machine], demand: Demand) -> None:
    if all(refusal(machine, demand) for machine in offered):
        with pytest.raises(NoMachine) as refused:
            choose(offered, demand)
        assert len(refused.value.reasons) == len(offered)
        assert all(refused.value.reasons.values())
        return
    chosen = choose(offered, demand)
    assert chosen.free_slots > 0
    assert chosen.free_memory >= MEMORY_OF_A_SESSION
    assert not chosen.draining
    assert chosen.version == "1.0"
    assert chosen.cli_version == (demand.cli_version or chosen.cli_version) != ""
    assert demand.labels <= chosen.labels
    assert demand.allowed_labels is None or demand.allowed_labels & chosen.labels
    assert demand.machine in (None, chosen.id, chosen.name)


@given(st.lists(machines, min_size=1, max_size=6), demands, st.randoms(use_true_random=False))
def test_the_order_in_which_machines_are_listed_changes_nothing(offered: list[Machine], demand: Demand, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(offered)
    random.shuffle(shuffled)
    fits = [machine for machine in offered if refusal(machine, demand) is None]
    if fits:
        assert choose(offered, demand) == choose(shuffled, demand)
    else:
        with pytest.raises(NoMachine):
            choose(shuffled, demand)


# -- the queue --------------------------------------------------------------------------------------------------------


def served(queue: FairQueue) -> list[str]:
    """Everything that waits, in the order in which a machine that is always free takes it."""
    order = []
    while (found := queue.next([ORDINARY])) is not None:
        order.append(found[0])
    return order


def test_a_principal_with_one_session_does_not_wait_for_all_of_another_one() -> None:
    queue = FairQueue()
    assert [queue.add(f"a{number}", "alice", DEMAND) for number in range(4)] == [1, 2, 3, 4]
    assert queue.add("b0", "bob", DEMAND) == 2
    assert queue.position("a1") == 3
    assert served(queue) == ["a0", "b0", "a1", "a2", "a3"]


def test_who_was_served_waits_for_a_turn_of_every_other() -> None:
    queue = FairQueue()
    for ticket, principal in (("a0", "alice"), ("a1", "alice"), ("b0", "bob"), ("c0", "carol")):
        queue.add(ticket, principal, DEMAND)
    assert queue.next([ORDINARY]) == ("a0", ORDINARY)
    queue.add("b1", "bob", DEMAND)
    assert served(queue) == ["b0", "c0", "a1", "b1"]


def test_unplaceable_session_does_not_block_the_queue() -> None:
    queue = FairQueue()
    queue.add("a0", "alice", replace(DEMAND, labels=frozenset({"gpu"})))
    queue.add("b0", "bob", DEMAND)
    assert served(queue) == ["b0"]
    assert queue.position("a0") == 1
    assert queue.next([replace(ORDINARY, labels=frozenset({"gpu"}))]) is not None
    assert len(queue) == 0


def test_a_full_queue_and_a_second_place_are_refused() -> None:
    queue = FairQueue(longest=1)
    queue.add("a0", "alice", DEMAND)
    with pytest.raises(LimitReached):
        queue.add("a1", "alice", DEMAND)
    with pytest.raises(InvalidArgument):
        queue.add("a0", "bob", DEMAND)
    with pytest.raises(InvalidArgument):
        queue.position("b0")


def test_whoever_asks_for_every_place_leaves_room_for_others() -> None:
    queue = FairQueue(longest=100)

    def always_free(principal: str) -> int:
        for number in range(101):
            try:
                queue.add(f"{principal}{number}", principal, DEMAND)
            except LimitReached:
                return number
        raise AssertionError("there is no limit")

    assert [always_free(principal) for principal in ("alice", "bob", "carol")] == [50, 25, 13]
    assert queue.add("d0", "dan", DEMAND) == 4


operations = st.lists(
    st.tuples(st.sampled_from(["add", "add", "serve", "remove"]), st.sampled_from("abc"), st.integers(0, 30)),
    max_size=60,
)


@given(operations)
def test_positions_are_the_order_in_which_all_are_served(steps: list[tuple[str, str, int]]) -> None:
    queue = FairQueue()
    waiting: dict[str, str] = {}
    for step, principal, number in steps:
        ticket = f"{principal}{number}"
        if step == "add" and ticket not in waiting:
            queue.add(ticket, principal, DEMAND)
            waiting[ticket] = principal
        elif step == "serve" and waiting:
            found = queue.next([ORDINARY])
            assert found is not None
            del waiting[found[0]]
        elif step == "remove":
            queue.remove(ticket)
            waiting.pop(ticket, None)
    positions = sorted(waiting, key=queue.position)
    assert [queue.position(ticket) for ticket in positions] == list(range(1, len(waiting) + 1))
    assert served(queue) == positions


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60))
def test_between_two_of_one_principal_each_other_that_waits_is_served_once(principals: list[str]) -> None:
    queue = FairQueue()
    for number, principal in enumerate(principals):
        queue.add(f"{principal}{number}", principal, DEMAND)
    remaining = {principal: principals.count(principal) for principal in principals}
    since: dict[str, set[str]] = {}
    for ticket in served(queue):
        principal = ticket[0]
        if principal in since:
            others = {name for name, count in remaining.items() if count and name != principal}
            assert others <= since[principal]
        for seen in since.values():
            seen.add(principal)
        since[principal] = set()
        remaining[principal] -= 1
