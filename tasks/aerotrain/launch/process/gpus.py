"""The GPUs of this machine, divided among the replicas of a job, as CUDA_VISIBLE_DEVICES.

TensorFlow takes all GPUs that it sees, so without this only one process of a machine could train.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from aerotrain.contract.errors import SpecError, counted
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName

VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_of(environment: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """The GPUs of NVIDIA that a process with ``environment`` sees, by index or UUID."""
    if VISIBLE in environment:
        named = [each.strip() for each in environment[VISIBLE].split(",")]
        # CUDA ignores what follows an invalid one, such as -1.
        end = next((at for at, each in enumerate(named) if each in ("", "-1")), len(named))
        return named[:end]
    return [str(each) for each in range(len([*devices.glob("nvidia[0-9]*")]))]


def divided(job: Job, gpus: Sequence[str]) -> dict[ReplicaName, dict[str, str]]:
    """The variable of each replica that gets some of ``gpus``; no two get the same one.

    Each gets as many as its role asks for. If no role asks for any, replicas that train get equal
    shares. Without GPUs all compute on CPUs, whatever they ask for.

    Raises:
        SpecError: there are too few.
    """
    if not gpus:
        return {}
    counts = {name: job.replica(name.role).resources.gpu for name in job.names()}
    if not any(counts.values()):
        trainers = [name for name in job.names() if job.trains(name.role)]
        counts = dict.fromkeys(trainers, max(1, len(gpus) // len(trainers)))
    needed = sum(counts.values())
    if needed > len(gpus):
        raise SpecError(
            f"{job.task} needs {counted(needed, 'GPU')} for "
            f"{counted(sum(map(bool, counts.values())), 'replica')}, and this machine has "
            f"{len(gpus)}; ask for fewer workers, or set {VISIBLE}=-1 to train on CPUs"
        )
    free = iter(gpus)
    return {
        name: {VISIBLE: ",".join(next(free) for _ in range(count))}
        for name, count in counts.items()
        if count
    }
