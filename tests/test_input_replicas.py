"""Replicas that read and transform records for others, and failures of their start."""

import socket

import pytest

from aerotrain.contract.environment import cluster_of
from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.replicas import ReplicaName, ReplicaSpec, Role
from aerotrain.replica import Replica
from aerotrain.supervisor.ports import reserved_addresses
from aerotrain.training.servers import dispatcher, input_server, serve

pytestmark = pytest.mark.process

FED = tuple(ReplicaSpec(role=role) for role in (Role.CHIEF, Role.INPUT, Role.DISPATCHER))


@pytest.mark.parametrize("role", [Role.DISPATCHER, Role.INPUT])
def test_a_port_in_use_is_a_temporary_error(digits, role, tmp_path):
    job = digits.job("train", "taken", {"model": "small", "data": digits.data}, replicas=FED)
    with reserved_addresses(job) as (addresses, _):
        refuses_a_taken_port(job, role, addresses, tmp_path)


def refuses_a_taken_port(job, role, addresses, scratch):
    own = ReplicaName(role, 0)
    cluster = cluster_of(job, addresses)
    host, _, port = addresses[own].partition(":")
    others = [] if role is Role.DISPATCHER else [ReplicaName(Role.DISPATCHER, 0)]
    serving = [dispatcher(addresses[name]) for name in others]
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        with pytest.raises(TemporaryError, match=f"{own} could not serve at {host}:{port}.*taken"):
            serve(Replica(job=job, name=own, attempt="1", scratch=scratch, cluster=cluster))
    assert len(serving) == len(others)  # they served until here


def test_an_input_replica_waits_for_its_dispatcher_only_for_a_limited_time():
    with pytest.raises(
        TemporaryError, match=r"dispatcher at 127\.0\.0\.1:1 did not answer within 0\.3"
    ):
        input_server("127.0.0.1:2", "127.0.0.1:1", 0.3)
