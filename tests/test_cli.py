"""The command line: what it accepts, and each step by hand."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from benchmarks.fault_injection import processes_of

from aerotrain.contract.errors import ExitCode
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import Role
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.standalone import ATTEMPT
from aerotrain.standalone.cli import COMMANDS, job_of, main, parse
from support.training_fixtures import DIGITS, MODELS, Process, read_until, start, start_python
from support.waiting import wait_for

JOBS = Path(__file__).parent / "jobs"
AEROTRAIN = [sys.executable, "-m", "aerotrain"]
TRAIN = ["train", "--model", "m", "--data", "file:///data", "--store", "file:///store"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "--model", "m"], "the following arguments are required"),
        ([*TRAIN, "--epohcs", "3"], "arguments: --epohcs 3, did you mean '--epochs'?"),
        ([*TRAIN, "--strategy", "none"], "invalid choice: 'none'"),
        ([*TRAIN, "--mesh", "{"], "argument --mesh: '{' is not JSON"),
        ([*TRAIN, "--learning-rate", ""], "'' is no number; or give auto"),
        ([*TRAIN, "--hparams", "{"], "argument --hparams: '{' is not JSON"),
        (["trian"], "invalid choice: 'trian'"),
    ],
)
def test_words_that_cannot_be_parsed_are_refused_in_one_line(words, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert sentence in line
    assert "--help" in line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([*TRAIN, "--epochs", "0"], "epochs must be a whole number of 1 or more, got 0"),
        ([*TRAIN, "--workers", "two"], 'workers must be a whole number, or a range such as "2..8"'),
        ([*TRAIN, "--workers", "3..2"], "the range '3..2' of workers ends before it begins"),
        ([*TRAIN, "--workers", "2"], "asks for 2 workers but 'one_device' is one process"),
        ([*TRAIN, "--strategy", "parameter_server", "--ps", "0"], "ask for 1 ps or more"),
        ([*TRAIN, "--progress-timeout", "0"], "progress_timeout must be a number of 5 or"),
        ([*TRAIN[:-1], "bucket"], "store of a job must be a URL, such as s3:"),
        (["prepare", "digits", "--store", "file:///x", "--shards", "0"], "shards must be a whole"),
        ([*TRAIN, "--hparams", "3", "--learning-rate", "0.1"], "hparams must be an object, got 3"),
        ([*TRAIN, "--code", "/no/such"], "--code names no folder: /no/such; give the folder of"),
        (["prepare", "{}", "--store", "file:///x"], "the source names no kind"),
        (["prepare", "digits", "--store", "file:///x", "--processes", "0"], "processes must be"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_anything_starts(words, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == ExitCode.FINAL
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("error: ")
    assert sentence in line


def test_a_reader_that_ends_early_is_no_error(tmp_path):
    (tmp_path / "x.csv").write_text("a,label\n" + "".join(f"{n % 7},{n % 2}\n" for n in range(60)))
    command = [*AEROTRAIN, "new", "early", "--from", str(tmp_path / "x.csv"), "--to", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == ExitCode.OK


def test_code_is_a_folder_or_the_url_of_an_archive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    archive = "s3://bucket/digits/code/0f.tar.gz"
    assert job_of(parse([*TRAIN, "--code", archive])).code == archive
    assert job_of(parse([*TRAIN, "--code", "models"])).code == str(tmp_path / "models")
    assert job_of(parse(TRAIN)).code == str(tmp_path)


def test_the_help_names_the_word_for_null(capsys):
    with pytest.raises(SystemExit):
        parse(["train", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "and take others later. auto: 1 under multi_worker_mirrored, 2 under" in words
    assert "Empty: the" not in words


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_describes_its_flags(command, capsys):
    with pytest.raises(SystemExit) as ended:
        parse([command, "--help"])
    assert ended.value.code == 0
    assert "--store" in capsys.readouterr().out


def test_two_commands_are_different_runs_and_launches_for_the_lease() -> None:
    assert parse(TRAIN).run != parse(TRAIN).run
    words = [sys.executable, "-c", "from aerotrain.standalone import ATTEMPT; print(ATTEMPT)"]
    other = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert other.strip() != ATTEMPT


#: A source of 20 partitions; what ``read_part`` does first is the test's.
SOURCE = """
import os, signal, time
import numpy as np
def list_parts():
    return [{{"number": number}} for number in range(20)]
def read_part(part):
    {does}
    for row in range(3):
        yield f"{{part['number']}}-{{row}}", {{"x": np.float32(row), "label": row % 2}}
"""


def prepare_of(folder: Path, does: str) -> "subprocess.Popen[str]":
    """``aerotrain prepare`` of the source above, with ``folder/tmp`` for temporary files."""
    (folder / "tmp").mkdir()
    (folder / "parts.py").write_text(SOURCE.format(does=does))
    words = ["--code", str(folder), "--store", (folder / "store").as_uri(), "--run", "r"]
    words += ["--processes", "2"]
    return start([*AEROTRAIN, "prepare", "parts", *words], folder, {"TMPDIR": str(folder / "tmp")})


def assert_nothing_left(folder: Path) -> None:
    def is_left() -> bool:
        return bool(list((folder / "tmp").iterdir()) or processes_of(f"{folder}"))

    wait_for("the scratch folder and all processes to go", lambda: not is_left(), 30)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_prepare_and_leaves_nothing(tmp_path, number):
    does = "print('reads', flush=True); time.sleep(600)"
    with prepare_of(tmp_path, does) as process:
        read_until(process, "reads")
        process.send_signal(number)
        code = process.wait(30)
    assert code == (-number if number is signal.SIGKILL else ExitCode.TERMINATED)
    assert_nothing_left(tmp_path)


@pytest.mark.process
def test_prepare_ends_at_the_first_partition_that_fails(tmp_path):
    does = "assert part['number'] != 1, 'bad part'; print('reads', flush=True); time.sleep(1)"
    with prepare_of(tmp_path, does) as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == ExitCode.FINAL, said
    assert "AssertionError: bad part" in said
    assert said.count("reads") < 10
    assert_nothing_left(tmp_path)


@pytest.mark.process
def test_a_killed_process_of_prepare_is_a_temporary_failure_that_names_its_cause(tmp_path):
    with prepare_of(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)") as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == ExitCode.TEMPORARY, said
    assert said.splitlines()[-1].startswith("error: a process that wrote partitions was killed")
    assert_nothing_left(tmp_path)


@pytest.mark.process
def test_a_command_whose_output_nobody_reads_continues(tmp_path):
    with prepare_of(tmp_path, "pass") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(120) == ExitCode.OK
    assert_nothing_left(tmp_path)


#: Runs the replicas of the job in TESTED, as ``aerotrain train`` does.
REPLICAS = """
import os, sys
from pathlib import Path
from aerotrain.contract.job import Job
from aerotrain.standalone import remove_at_exit, run_replicas
scratch = Path.cwd() / "scratch"
scratch.mkdir()
remove_at_exit(scratch)
sys.exit(run_replicas(Job.from_json(os.environ["TESTED"]), scratch, os.environ))
"""


def replicas_of(folder: Path, **does: Any) -> "subprocess.Popen[str]":
    """The process that runs the replicas of a job; ``does`` says what each role does."""
    job = Job.from_dict(
        {
            "name": "small",
            "module": "small_jobs",
            "code": str(JOBS),
            "store": (folder / "store").as_uri(),
            "run": "r",
            "task": "small",
            "strategy": "parameter_server",
            "arguments": does,
            "replicas": [{"role": role} for role in does if role in list(Role)],
        }
    )
    return start([sys.executable, "-c", REPLICAS], folder, {"TESTED": job.to_json()})


@pytest.mark.process
@pytest.mark.parametrize(("does", "code"), [("crash", 65), ("fail_for_now", 75)])
def test_several_replicas_end_with_the_kind_of_the_failure(tmp_path, does, code):
    with replicas_of(tmp_path, chief="serve", worker=does, ps="serve") as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == code, said
    assert re.match(r"error: .* \(worker-0, exit code", said.splitlines()[-1])


@pytest.mark.process
def test_a_lost_evaluator_does_not_end_the_others_and_every_line_is_printed(tmp_path):
    roles = {"chief": "finish_late", "worker": "serve", "ps": "serve", "evaluator": "vanish_once"}
    with replicas_of(tmp_path, **roles) as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == ExitCode.OK, said
    assert "[chief] no line end at the end" in said


@pytest.mark.process
def test_a_lost_data_worker_is_restarted_by_hand_too(tmp_path):
    roles = {"chief": "await_return", "worker": "serve", "ps": "serve"}
    with replicas_of(tmp_path, **roles, input="vanish_once", awaited={"input-0": 2}) as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == ExitCode.OK, said
    assert "input-0 was ended by signal 9; it is restarted" in said


@pytest.mark.process
def test_the_chief_saves_while_the_ps_still_serve(tmp_path):
    with replicas_of(tmp_path, chief="save_late", worker="serve", ps="serve") as process:
        said = read_until(process, "[chief] promised")
        process.send_signal(signal.SIGTERM)
        said += process.communicate(timeout=240)[0]
    assert process.returncode == ExitCode.TERMINATED, said
    assert "[chief] saved, with 3 replicas" in said
    assert not processes_of(f"{tmp_path}/")


def test_the_learning_rate_is_an_option_by_hand_too() -> None:
    assert (
        "learning_rate" not in TrainArguments.from_dict(job_of(parse(TRAIN)).arguments).all_hparams
    )
    given = [*TRAIN, "--learning-rate", "0.1", "--hparams", '{"units": 8}']
    hparams = TrainArguments.from_dict(job_of(parse(given)).arguments).given_hparams
    assert hparams == {"learning_rate": 0.1, "units": 8}


def aerotrain(folder: Path, *words: str, forked: bool = False) -> str:
    """The output of a successful command, in a shell that names another backend of Keras."""
    if forked:
        started: Process = start_python(["-m", "aerotrain", *words], folder)
    else:
        started = start([*AEROTRAIN, *words], folder, {"KERAS_BACKEND": "jax"})
    with started as process:
        said: str = process.communicate(timeout=240)[0]
    assert process.returncode == ExitCode.OK, said
    return said


@pytest.mark.process
def test_a_model_is_prepared_trained_on_several_replicas_and_exported_by_hand(tmp_path):
    store = ["--store", tmp_path.as_uri(), "--run", "r"]
    said = aerotrain(
        tmp_path, "prepare", "digits", "--code", str(DIGITS), *store, "--processes", "2"
    )
    url = json.loads((tmp_path / "runs/r/prepare/result.json").read_text())["value"]
    assert f"finalized {url}" in said
    assert load_dataset(url).splits["train"].records == 1249

    where = [*store, "--code", str(MODELS), "--data", url]
    words = ["--model", "small", "--epochs", "2", "--strategy", "parameter_server"]
    said = aerotrain(tmp_path, "train", *where, *words, "--workers", "1")
    assert "[worker-0] worker-0 serves" in said
    model = f"{tmp_path.as_uri()}/runs/r/train/model.json"
    assert f"the trained model is {model}" in said

    folder = model.removesuffix("/model.json")
    wanted = ["--model", folder, "--thresholds", '{"accuracy": 0.2}']
    said = aerotrain(tmp_path, "evaluate", *where, *wanted)
    assert "accuracy=0." in said
    assert "rebuild TensorFlow" not in said
    said = aerotrain(tmp_path, "export", *where, "--model", model, forked=True)
    assert "published as version 1" in said
    words = ["--model", "serving", "--keep", '["label"]', "--code", str(DIGITS), *store]
    said = aerotrain(tmp_path, "predict", "digits", *words, forked=True)
    assert re.search(r"finalized file:.*/predictions/\w+: 1,797 predictions", said)


@pytest.mark.process
def test_the_replicas_end_with_a_killed_command(tmp_path):
    with replicas_of(tmp_path, chief="serve", worker="serve", ps="serve") as process:
        for _ in range(3):
            read_until(process, "hello from")
        assert len(processes_of(f"{tmp_path}/")) >= 3
        process.kill()
    wait_for("the replicas to end", lambda: not processes_of(f"{tmp_path}/"), 60)


@pytest.mark.process
def test_the_replicas_end_with_ctrl_c(tmp_path, digits):
    where = ["--store", digits.store, "--data", digits.data, "--code", str(MODELS)]
    words = ["--model", "small", "--epochs", "2000", "--strategy", "parameter_server"]
    environment = {"TMPDIR": str(tmp_path)}  # of the command's scratch folder
    with start([*AEROTRAIN, "train", *where, *words], tmp_path, environment) as process:
        read_until(process, "[chief] epoch 1 of")
        replicas = [psutil.Process(each) for each in processes_of(f"{tmp_path}/")]
        assert len(replicas) >= 4
        commands = {" ".join(each.cmdline()) for each in replicas}
        assert len(commands) == 1, "they are forked, so that TensorFlow is imported once"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == ExitCode.TERMINATED
    wait_for("the replicas to end", lambda: not processes_of(f"{tmp_path}/"), 60)


@pytest.mark.process
def test_the_command_ends_at_once_while_it_still_imports(tmp_path):
    words = ["--store", tmp_path.as_uri(), "--data", "file:///none", "--model", "small"]
    more = ["--strategy", "parameter_server", "--code", str(MODELS)]
    environment = {"TMPDIR": str(tmp_path)}
    with start([*AEROTRAIN, "train", *words, *more], tmp_path, environment) as process:
        read_until(process, "the output goes to")
        command = psutil.Process(process.pid)
        # One of them removes the scratch folder at the end, and the other is the supervisor.
        children = wait_for("two", lambda: each if len(each := command.children()) > 1 else [], 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == ExitCode.TERMINATED
    assert not psutil.wait_procs(children, 60)[1]


@pytest.mark.process
def test_ctrl_c_saves_a_training_in_one_process(tmp_path, digits):
    where = ["--store", tmp_path.as_uri(), "--data", digits.data, "--code", str(MODELS)]
    words = ["--model", "small", "--epochs", "2000", "--run", "r"]
    (tmp_path / "tmp").mkdir()
    environment = {"TMPDIR": str(tmp_path / "tmp")}
    with start([*AEROTRAIN, "train", *where, *words], tmp_path, environment) as process:
        read_until(process, "epoch 1 of")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=240)[0]
    assert process.returncode == ExitCode.TERMINATED, said
    assert "which is saved" in said
    assert_nothing_left(tmp_path)
