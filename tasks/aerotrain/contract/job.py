"""The description of one job: frozen, validated, versioned, and convertible to and from JSON."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Self

from aerotrain.contract.errors import SpecError, counted
from aerotrain.contract.layout import (
    DNS_LABEL,
    DNS_LABEL_LENGTH,
    RESULT,
    RUNS,
    is_path_segment,
    path_segment,
)
from aerotrain.contract.options import Section, option
from aerotrain.contract.replicas import ReplicaName, ReplicaSpec, Role, range_of
from aerotrain.contract.strategy import STRATEGIES, StrategyRules, rules_of
from aerotrain.contract.validation import CountOrZero, Limits, Seconds, Validated

VERSION = 4

_JobName = Annotated[
    str,
    Limits(
        pattern=rf"(?!.{{{DNS_LABEL_LENGTH + 1}}}){DNS_LABEL.pattern}",
        form=f"a DNS label: at most {DNS_LABEL_LENGTH} lower-case letters, digits and hyphens",
    ),
]
_StoreUrl = Annotated[
    str, Limits(pattern=".*://.*", form="a URL, such as s3://bucket/prefix or file:///folder")
]


def prefix_of(store: str, run: str, task: str) -> str:
    """The prefix of a job's output in the store of its pipeline."""
    return f"{store.rstrip('/')}/{RUNS}/{run}/{task}"


@dataclass(frozen=True, kw_only=True)
class Deadlines(Validated):
    """Deadlines of a job in seconds: until every replica runs, and for the whole job."""

    TITLE: ClassVar = "'deadlines'"

    start: Seconds = 600.0
    run: Seconds = 24 * 3600.0
    progress_timeout: float = option(
        60.0,
        title="Progress timeout (seconds)",
        help="Time without a heartbeat, or without the end of an execution of steps, after which a "
        "replica counts as unresponsive and is ended. Its launcher restarts it; a training by hand "
        "in one process ends.",
        section=Section.RECOVERY,
        minimum=5,
    )


@dataclass(frozen=True, kw_only=True)
class Restarts(Validated):
    """How often each replica may be restarted in its replica group, by failure kind.

    Each kind has its own budget, so that frequent preemptions do not use up the budget for bugs.
    With a budget of 0, Airflow's retries handle failures of that kind.
    """

    TITLE: ClassVar = "'restarts'"

    crashes: CountOrZero = 3
    preemptions: CountOrZero = 100
    memory: CountOrZero = 2
    hangs: CountOrZero = 3
    starts: CountOrZero = 3


@dataclass(frozen=True, kw_only=True)
class Job(Validated):
    """One job: the module that runs, in which replicas, and the place of its output.

    ``store`` is the prefix of the whole pipeline (``s3://bucket/digits``). ``run`` and ``task`` are
    the segments under it that belong to this job alone. ``code`` is the folder of the user's own
    modules. ``arguments`` is JSON for the module. ``made_from`` says for people what the job was
    started from, such as its image.

    Raises:
        SpecError: the description cannot run; the message says why and what to do.
    """

    TITLE: ClassVar = "a job"

    name: _JobName
    module: str
    store: _StoreUrl
    run: str
    task: str
    strategy: str = "one_device"
    replicas: tuple[ReplicaSpec, ...] = field(
        default_factory=lambda: (ReplicaSpec(role=Role.CHIEF),)
    )
    arguments: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    restarts: Restarts = field(default_factory=Restarts)
    made_from: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION

    def __post_init__(self) -> None:
        super().__post_init__()
        for segment in (self.run, *self.task.split("/")):
            if not is_path_segment(segment):
                raise SpecError(
                    f"{segment!r} cannot be part of a store's key; "
                    f"name it {path_segment(segment)!r}"
                )
        self._check_roles()

    def _check_roles(self) -> None:
        rules = self.rules
        roles = [replica.role for replica in self.replicas]
        for role in Role:
            if roles.count(role) > 1:
                raise SpecError(
                    f"job {self.name!r} describes the {role} more than once; merge them"
                )
        if Role.CHIEF not in roles:
            raise SpecError(f"job {self.name!r} has no chief; add one replica of role 'chief'")
        workers, ps = self.count(Role.WORKER), self.count(Role.PS)
        if ps and not rules.ps:
            raise SpecError(
                f"job {self.name!r} asks for {ps} ps but its strategy is {self.strategy!r}; "
                "use 'parameter_server', or drop the ps"
            )
        if rules.ps and not ps:
            raise SpecError(
                f"job {self.name!r} runs under {self.strategy!r}, which keeps its variables on "
                "ps, and asks for none; ask for 1 ps or more"
            )
        if workers and not rules.has_workers:
            raise SpecError(
                f"job {self.name!r} asks for {counted(workers, 'worker')} but {self.strategy!r} is "
                f"{rules.summary}; drop the workers or choose a strategy that has them"
            )
        if workers < rules.min_workers:
            raise SpecError(
                f"job {self.name!r} asks for {counted(workers, 'worker')} but "
                f"{self.strategy!r} needs at least {rules.min_workers}; ask for more workers"
            )
        self._check_input()
        for replica in self.replicas:
            is_elastic = replica.role is Role.WORKER and rules.elastic
            if replica.least is not None and not is_elastic:
                elastic = " and ".join(n for n, each in STRATEGIES.items() if each.elastic)
                raise SpecError(
                    f"job {self.name!r} asks for {replica.least} to {replica.count} "
                    f"{replica.role} under {self.strategy!r}, and only the number of workers of "
                    f"{elastic} can change; give one number"
                )
            if replica.least is not None and replica.least > replica.count:
                raise SpecError(
                    f"job {self.name!r} asks for at least {replica.least} of {replica.count} "
                    f"{replica.role}; give a range"
                )

    def _check_input(self) -> None:
        inputs = self.count(Role.INPUT)
        if inputs and not self.rules.input:
            raise SpecError(
                f"job {self.name!r} asks for {inputs} input but under {self.strategy!r} every "
                "process reads each batch; drop the input, or choose another strategy"
            )

    @property
    def rules(self) -> StrategyRules:
        """The rules of this job's strategy: which replicas it needs."""
        return rules_of(self.strategy)

    @property
    def reader(self) -> Role:
        """The role whose replicas read shards for graphs of the chief, if the job has any."""
        return Role.INPUT if self.count(Role.INPUT) else Role.WORKER

    def trains(self, role: Role) -> bool:
        """Whether that role computes what is trained; others serve, coordinate or evaluate."""
        return role is Role.WORKER or (role is Role.CHIEF and not self.count(Role.PS))

    @property
    def prefix(self) -> str:
        """The prefix in the store where only this job writes: ``store/runs/run/task``."""
        return prefix_of(self.store, self.run, self.task)

    @property
    def result_url(self) -> str:
        """The URL of the job's result, which the chief writes last."""
        return f"{self.prefix}/{RESULT}"

    def count(self, role: Role) -> int:
        """The number of replicas of that role."""
        return sum(replica.count for replica in self.replicas if replica.role is role)

    @property
    def sizes(self) -> range:
        """The numbers of workers that the job may have while it runs."""
        for each in self.replicas:
            if each.role is Role.WORKER:
                return range(each.least or each.count, each.count + 1)
        return range(1)

    def recipe(self) -> dict[str, Any]:
        """What of the job decides its result, as JSON for readers of its output.

        It leaves out environments and pod templates, which may hold secrets.
        """
        return {
            "module": self.module,
            "strategy": self.strategy,
            "replicas": [
                {
                    "role": each.role,
                    "count": each.count,
                    **({"least": each.least} if each.least else {}),
                    "resources": {"gpu": each.resources.gpu, "tpu": each.resources.tpu},
                }
                for each in self.replicas
            ],
            "arguments": self.arguments,
            "code": self.code,
            "made_from": self.made_from,
        }

    def record(self) -> bytes:
        """The content of ``job.json`` in its prefix, which is written before it starts.

        From it, retention learns what a running job reads, before the job has written anything.
        """
        document = {"version": 1, **self.recipe()}
        return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()

    def names(self) -> Iterator[ReplicaName]:
        """The names of all replicas, in the order of the description."""
        for replica in self.replicas:
            for index in range(replica.count):
                yield ReplicaName(replica.role, index)

    def replica(self, role: Role) -> ReplicaSpec:
        """The description of that role."""
        return next(replica for replica in self.replicas if replica.role is role)

    def to_json(self) -> str:
        """The description as JSON that ``from_json`` reads back equal."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read and validate what ``to_json`` wrote."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a job from plain values, as in a DAG or a JSON document.

        A replica whose count is null gets the strategy's default. A replica whose count is 0 is
        omitted, so that a form may name every role under every strategy. The count of workers may
        be a range, ``"2..8"``.
        """
        version = data.get("version", VERSION)
        if version != VERSION:
            raise SpecError(
                f"job {data.get('name')!r} is written in version {version} of the description, "
                f"this is version {VERSION}; use the same aerotrain in Airflow and the replicas"
            )
        if "replicas" in data:
            rules = rules_of(data.get("strategy", "one_device"))
            described = [_with_count(each, rules) for each in data["replicas"]]
            data = {**data, "replicas": [each for each in described if each.get("count") != 0]}
        return super().from_dict(data)


def _with_count(replica: Mapping[str, Any], rules: StrategyRules) -> Mapping[str, Any]:
    """The replica with a number as its count; null is replaced by the strategy's default."""
    count = replica.get("count", 1)
    if isinstance(count, str):
        least, most = range_of(count)
        return {**replica, "count": most, **({"least": least} if least < most else {})}
    if count is not None:
        return replica
    default = {Role.WORKER: rules.workers, Role.PS: rules.ps, Role.INPUT: 0}
    return {**replica, "count": default.get(replica.get("role", ""), 1)}
