from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.control import Member
from easyscale.core.plan import Plan
from easyscale.master.ranges import arrange, cover, heirs, names, stayers

splits = st.lists(st.integers(1, 5), min_size=1, max_size=8)


@given(splits, st.data())
def test_after_a_loss_all_ests_are_covered_and_nobody_living_loses_one(split: list[int], data: st.DataObject) -> None:
    base = arrange(split, range(len(split)))
    living = data.draw(st.sets(st.sampled_from(range(len(split))), min_size=1))
    plan = cover(base, living)
    assert [member.worker for member in plan] == sorted(living)
    assert [est for member in plan for est in member.ests] == list(range(sum(split)))
    for member in plan:
        assert set(base[member.worker].ests) <= set(member.ests)


@given(splits, splits, st.integers(1, 12))
def test_a_gap_is_cut_so_that_its_neighbours_come_out_even(left: list[int], right: list[int], gap: int) -> None:
    base = arrange([left[0], gap, right[0]], range(3))
    first, last = cover(base, {0, 2})
    loads = [abs((left[0] + given) - (right[0] + gap - given)) for given in range(gap + 1)]
    assert abs(first.count - last.count) == min(loads)


def test_with_nobody_left_there_is_no_plan() -> None:
    assert cover(arrange((2, 2), (0, 1)), set()) == ()


def test_ests_at_an_edge_go_to_the_one_neighbour() -> None:
    base = arrange((2, 2, 2), (4, 7, 9))
    assert cover(base, {7, 9}) == (Member(worker=7, first=0, count=4), Member(worker=9, first=4, count=2))


def test_the_earliest_stay_in_the_order_that_they_have() -> None:
    assert stayers([5, 1, 9, 3], 2) == [1, 3]
    assert stayers([5, 1], None) == [5, 1]
    assert stayers([5, 1], 4) == [5, 1]


def test_ests_and_their_heirs_are_named() -> None:
    plan = arrange(Plan((2, 2)).split, (3, 8))
    assert heirs(range(1, 3), plan) == [3, 8]
    assert (names(range(4, 5)), names(range(4, 6))) == ("EST 4", "ESTs 4-5")
