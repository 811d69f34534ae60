"""What of the replicas' output reaches a task's log."""

import logging

import pytest

from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.launch.backend import LogLine, log_line
from aerotrain.launch.driver import Listener

CHIEF, PS = ReplicaName(Role.CHIEF, 0), ReplicaName(Role.PS, 0)

#: What a server of TensorFlow prints when it gets its first client.
DUMP = """\
I0000 00:00:1795401164.090843    1586 eager_service_impl.cc:355] SessionOptions: goo.gle/debugproto
device_count {
  key: "CPU"
  value: 1
}
allow_soft_placement: true
experimental {
  collective_group_leader: "/job:worker/replica:0/task:0"
}
"""


class Log:
    """The lines that were forwarded, without noise."""

    def __init__(self):
        self.lines = []
        self.listener = Listener(self._take)

    def _take(self, line):
        if not line.is_noise:
            self.lines.append(str(line))

    def says(self, text, replica=CHIEF):
        for line in text.split("\n"):
            self.listener.emit(LogLine(replica, line))


@pytest.fixture
def log():
    return Log()


def test_an_error_is_in_the_log_once_unless_no_message_has_it(log):
    log.says("error: the label 7 is outside 0 to 3\nerror:   and so on")
    log.listener.reported("the label 7 is outside 0 to 3\n  and so on (chief, exit code 65)")
    log.says("error: of one\nmore of it")
    log.listener.reported("chief was ended by signal 9")
    log.says("error: at the end")
    log.listener.release()
    assert log.lines == ["[chief] error: of one", "[chief] more of it", "[chief] error: at the end"]


def test_the_options_that_a_server_prints_are_noise_up_to_their_end(log):
    first, rest = DUMP.split("\n", 1)
    log.says("ps-0 serves\n" + first, PS)
    log.says("loss: 3")
    log.says(rest + "\nkey: value\n\nend", PS)
    ends = ["[ps-0] key: value", "[ps-0] ", "[ps-0] end"]
    assert log.lines == ["[ps-0] ps-0 serves", "[chief] loss: 3", *ends]


@pytest.mark.parametrize(
    "line",
    [
        "I0000 00:00:1795401162.220990    1310 grpc_server_lib.cc:467] Started server",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    ],
)
def test_what_tensorflow_prints_at_every_log_level_is_noise(log, line):
    log.says(line)
    log.says("W0000 00:00:1795401162.220990    1310 cpu.cc:1] a warning")
    assert log.lines == ["[chief] W0000 00:00:1795401162.220990    1310 cpu.cc:1] a warning"]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (LogLine(CHIEF, "warning: values are rounded"), logging.WARNING),
        (LogLine(CHIEF, "W0000 00:00:1795401162.220990    1310 cpu.cc:1] slow"), logging.WARNING),
        (LogLine(CHIEF, "/models/digits.py:3: UserWarning: values are rounded"), logging.WARNING),
        (LogLine(CHIEF, "step 1 has no warning: it is well"), logging.INFO),
        (LogLine(CHIEF, "warning: of TensorFlow", is_noise=True), logging.DEBUG),
    ],
)
def test_a_warning_of_a_replica_is_one_in_the_log_of_its_task(caplog, line, level):
    with caplog.at_level(logging.DEBUG):
        log_line(logging.getLogger("task"), line)
    [found] = caplog.records
    said = str(line) if line.is_noise else str(line).replace("] warning: ", "] ")
    assert (found.levelno, found.getMessage()) == (level, said), "its level says warning"
