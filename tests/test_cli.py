"""The command line: what it accepts, and each step by hand."""

import json
import signal
import sys
from pathlib import Path

import pytest
from benchmarks.fault_injection import processes_of

from aerotrain.cli import COMMANDS, job_of, main, parse
from aerotrain.contract.errors import ExitCode
from aerotrain.data.dataset import load_dataset
from support.training_fixtures import DIGITS, MODELS, read_until, start
from support.waiting import wait_for

AEROTRAIN = [sys.executable, "-m", "aerotrain"]
TRAIN = ["train", "--model", "m", "--data", "file:///data", "--store", "file:///store"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "--model", "m"], "the following arguments are required"),
        ([*TRAIN, "--epoch", "3"], "unrecognized arguments: --epoch 3"),
        ([*TRAIN, "--strategy", "none"], "invalid choice: 'none'"),
        ([*TRAIN, "--mesh", "{"], "argument --mesh: '{' is not JSON"),
        ([*TRAIN, "--workers", "two"], "argument --workers: 'two' is no integer; or give auto"),
        ([*TRAIN, "--checkpoint-interval", ""], "'' is no number; or give auto"),
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
        ([*TRAIN, "--workers", "2"], "asks for 2 workers but 'one_device' is one process"),
        ([*TRAIN, "--strategy", "parameter_server", "--ps", "0"], "ask for 1 ps or more"),
        ([*TRAIN, "--progress-timeout", "0"], "progress_timeout must be a number above 0"),
        ([*TRAIN[:-1], "bucket"], "the store 'bucket' has no scheme"),
        (["prepare", "digits", "--store", "file:///x", "--shards", "0"], "shards must be a whole"),
        ([*TRAIN, "--hparams", "3", "--learning-rate", "0.1"], "hparams of train must be an obj"),
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
    assert "the chief not counted. auto: the strategy's default." in words
    assert "Empty: the" not in words


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_describes_its_flags(command, capsys):
    with pytest.raises(SystemExit) as ended:
        parse([command, "--help"])
    assert ended.value.code == 0
    assert "--store" in capsys.readouterr().out


def aerotrain(folder: Path, *words: str) -> str:
    """The output of a successful command."""
    with start([*AEROTRAIN, *words], folder) as process:
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

    wanted = ["--model", model, "--thresholds", '{"accuracy": 0.2}']
    assert "accuracy=0." in aerotrain(tmp_path, "evaluate", *where, *wanted)
    assert "published as version 1" in aerotrain(tmp_path, "export", *where, "--model", model)


@pytest.mark.process
def test_the_failure_of_a_replica_ends_the_others_and_is_named(tmp_path, digits):
    where = ["--store", tmp_path.as_uri(), "--data", digits.data, "--code", str(MODELS)]
    words = ["--model", "nothing", "--strategy", "parameter_server", "--workers", "1"]
    with start([*AEROTRAIN, "train", *where, *words], tmp_path) as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == ExitCode.FINAL, said
    assert said.splitlines()[-1].startswith("error: chief exited with 65: there is no module")


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_replicas_end_with_the_command(tmp_path, digits, number):
    where = ["--store", digits.store, "--data", digits.data, "--code", str(MODELS)]
    words = ["--model", "small", "--epochs", "2000", "--strategy", "parameter_server"]
    environment = {"TMPDIR": str(tmp_path)}  # of the command's scratch folder
    with start([*AEROTRAIN, "train", *where, *words], tmp_path, environment) as process:
        read_until(process, "[chief] epoch 1 of")
        assert len(processes_of(f"{tmp_path}/")) >= 4
        process.send_signal(number)
        assert process.wait(60) == (ExitCode.TERMINATED if number is signal.SIGTERM else -number)
    wait_for("the replicas to end", lambda: not processes_of(f"{tmp_path}/"), 60)
