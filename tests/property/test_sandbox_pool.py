"""Property tests of the sandbox core: the account adds up, and nobody is killed too early."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from domain.ids import AttemptId, GroupId
from domain.sandbox import MemberKey, SandboxPurpose
from sandboxes.core.ladder import Pressed, Resident, Rung, Tools, climb, return_s
from sandboxes.core.names import MIB, TemplateId
from sandboxes.core.pages import NodePages, PageUse

TEMPLATES = (TemplateId("a"), TemplateId("b"))


def key(index: int) -> MemberKey:
    return MemberKey(AttemptId("att"), GroupId("g"), index, 1, SandboxPurpose.AGENT)


class Account(RuleBasedStateMachine):
    """A node beside plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = NodePages(1_000)
        self.uses: dict[int, tuple[TemplateId, PageUse]] = {}
        self.loaded: dict[TemplateId, int] = {}

    @rule(template=st.sampled_from(TEMPLATES), size=st.integers(0, 90))
    def load(self, template: TemplateId, size: int) -> None:
        self.pages.load(template, size)
        self.loaded[template] = size

    @rule(
        index=st.integers(0, 5), private=st.integers(0, 50), swapped=st.integers(0, 50),
        template=st.sampled_from(TEMPLATES),
    )  # fmt: skip
    def sample(self, index: int, private: int, swapped: int, template: TemplateId) -> None:
        use = PageUse(private, min(private, swapped), index)
        if index in self.uses:
            self.pages.measure(key(index), use)
            self.uses[index] = (self.uses[index][0], use)
        elif template in self.loaded:
            self.pages.admit(key(index), template, use)
            self.uses[index] = (template, use)

    @rule(index=st.integers(0, 5))
    def release(self, index: int) -> None:
        if index in self.uses:
            assert self.pages.release(key(index)) == self.uses.pop(index)[1]

    @rule()
    def unload(self) -> None:
        for template in self.pages.idle_templates():
            assert self.pages.unload(template) == self.loaded.pop(template)

    @invariant()
    def adds_up(self) -> None:
        uses = [use for _, use in self.uses.values()]
        resident = sum(use.resident_bytes for use in uses) + sum(self.loaded.values())
        assert self.pages.faults() == []
        assert self.pages.resident_bytes == resident
        assert self.pages.committed_bytes == resident + sum(use.swapped_bytes for use in uses)
        assert len(self.pages) == len(self.uses)


TestAccount = Account.TestCase
TestAccount.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

SIZES = st.integers(0, 60).map(lambda mib: mib * MIB)

RESIDENTS = st.lists(
    st.builds(
        lambda rank, critical, idle, gap, private, overhead, free: Resident(
            key(0), rank, critical, idle, gap, private, overhead, min(private, free)
        ),
        st.integers(0, 3), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.01, 9.0]),
        SIZES, SIZES, SIZES,
    ),
    max_size=6,
)  # fmt: skip

TOOLS = st.builds(Tools, st.booleans(), st.booleans(), st.booleans(), SIZES, SIZES)


class Replay:
    """What is left of each sandbox as actions are done, told anew from the actions alone."""

    def __init__(self, node: Pressed) -> None:
        self.tools = node.tools
        self.private = {one.key: one.private_bytes for one in node.residents}
        self.free = {one.key: one.free_bytes for one in node.residents}
        self.by_key = {one.key: one for one in node.residents}
        self.swap, self.disk = node.tools.swap_free_bytes, node.tools.disk_free_bytes

    def do(self, rung: Rung, who: MemberKey, freed: int) -> None:
        assert who in self.private, "nobody is acted on after having gone"
        match rung:
            case Rung.BALLOON:
                assert freed <= self.free[who]
                self.private[who] -= freed
                self.free[who] = 0
            case Rung.PAGE_OUT:
                self.private[who] -= freed
                self.swap -= freed
            case _:
                assert freed == self.private[who] + self.by_key[who].overhead_bytes
                self.disk -= self.private[who] if rung is Rung.EVICT else 0
                del self.private[who]
        assert min([0, self.swap, self.disk, *self.private.values()]) == 0

    def cheaper(self) -> list[tuple[Rung, int]]:
        """What a rung below the kill could still free, of a MiB and more."""
        found = []
        for who, private in self.private.items():
            one = self.by_key[who]
            if self.tools.can_balloon and one.is_in_generation:
                found.append((Rung.BALLOON, min(self.free[who], private)))
            out = min(private, self.swap)
            pays = one.gap_left_s > return_s(private, self.tools.swap_bytes_s)
            if self.tools.can_page_out and one.is_in_generation and pays:
                found.append((Rung.PAGE_OUT, out))
            if self.tools.can_evict and private <= self.disk:
                found.append((Rung.EVICT, private + one.overhead_bytes))
        return [(rung, freed) for rung, freed in found if freed >= MIB]


@settings(max_examples=300, deadline=None)
@given(RESIDENTS, TOOLS, st.integers(0, 300).map(lambda mib: mib * MIB), st.booleans())
def test_nobody_is_killed_while_a_cheaper_rung_is_left(
    drawn: list[Resident], tools: Tools, wanted: int, admitting: bool
) -> None:
    residents = tuple(
        Resident(
            key(i), o.rank, o.is_critical, o.is_in_generation, o.gap_left_s, o.private_bytes,
            o.overhead_bytes, o.free_bytes,
        )
        for i, o in enumerate(drawn)
    )  # fmt: skip
    node = Pressed(wanted, admitting, residents, tools)
    actions = climb(node)
    replay, freed = Replay(node), 0
    rungs = [action.rung for action in actions]
    assert rungs == sorted(rungs)
    for action in actions:
        if action.key is None:
            assert (action.rung, admitting) == (Rung.STOP_ADMISSION, True)
            continue
        assert freed < wanted, "the ladder ends when enough is expected"
        if action.rung is Rung.KILL:
            assert replay.cheaper() == []
        replay.do(action.rung, action.key, action.bytes_expected)
        freed += action.bytes_expected
    if freed < wanted:
        left = [replay.private[one] + replay.by_key[one].overhead_bytes for one in replay.private]
        assert sum(left) == 0, "everything was tried"
