"""Secrets in command lines are masked, and nothing else is."""

from __future__ import annotations

import pytest

from pytorch_memlab._common.text.secrets_in_arguments import masked

SECRET = [
    ("--password hunter2", "--password ***"),
    ("--password=hunter2", "--password=***"),
    ("-password hunter2", "-password ***"),
    ("--db_password hunter2 --lr 3", "--db_password *** --lr 3"),
    ("--passwd x --passphrase y --pwd z", "--passwd *** --passphrase *** --pwd ***"),
    ("--token hf_abc", "--token ***"),
    ("--hf-token=hf_abc", "--hf-token=***"),
    ("--hub_token hf_abc", "--hub_token ***"),
    ("--hubToken hf_abc", "--hubToken ***"),
    ("--auth.token abc", "--auth.token ***"),
    ("--api-key sk-1", "--api-key ***"),
    ("--apikey=sk-1", "--apikey=***"),
    ("--api_key=a=b", "--api_key=***"),
    ("--openai-key sk-1", "--openai-key ***"),
    ("--secret abc", "--secret ***"),
    ("--client-secret abc --secret-key abc", "--client-secret *** --secret-key ***"),
    ("--aws-secret-access-key abc", "--aws-secret-access-key ***"),
    ("--credentials abc", "--credentials ***"),
    ("WANDB_API_KEY=abc", "WANDB_API_KEY=***"),
    ("SOME_KEY=abc", "SOME_KEY=***"),
    ("HF_TOKEN=abc", "HF_TOKEN=***"),
    ("DB_PASSWORD=abc", "DB_PASSWORD=***"),
    ("model.hf_token=abc", "model.hf_token=***"),
    ("+logger.api_key=abc", "+logger.api_key=***"),
    ("https://me:pw@host/x", "https://***@host/x"),
    ("https://ghp_token@host/x.git", "https://***@host/x.git"),
    ("--url=postgres://me:p@ss@host:5432/db", "--url=postgres://***@host:5432/db"),
    ("--proxy http://me:pw@host", "--proxy http://***@host"),
    ("--password -- x", "--password -- x"),
    ("--password *** --token=***", "--password *** --token=***"),
]
PLAIN = [
    "",
    "--num-tokens 5",
    "--max-tokens=3",
    "--max_new_tokens 3",
    "--tokens abc",
    "--tokenizer gpt2",
    "--tokenizer=gpt2",
    "--token-dropout x",
    "--tokens-per-batch 5",
    "--pad-token 0",
    "--use-token true",
    "--key-size 5",
    "--key x",
    "--sort-key name",
    "--image-key pixels",
    "--keys a,b",
    "--keyword abc",
    "--monkey x",
    "--num-keys 3",
    "--passes 3",
    "--pass 2",
    "--compass north",
    "--password-file secrets.txt",
    "--password-length 5",
    "--secretary bob",
    "--author me",
    "--lr 1e-4 --epochs 3",
    "train.py a=b",
    "key=value",
    "https://host/x@y",
    "https://host:80/x?a=b@c",
    "me@host",
    "user@host:/path",
    "C:\\x\\y",
    "--attn-implementation flash",
]


@pytest.mark.parametrize(("line", "expected"), SECRET, ids=[line for line, _ in SECRET])
def test_a_secret_is_masked(line, expected):
    assert " ".join(masked(line.split(" "))) == expected


@pytest.mark.parametrize("line", PLAIN)
def test_what_is_no_secret_stays(line):
    assert " ".join(masked(line.split(" "))) == line


def test_masking_twice_changes_nothing():
    for line, expected in SECRET:
        assert masked(expected.split(" ")) == masked(line.split(" "))


def test_a_value_with_spaces_and_lines():
    assert masked(["--password", "a b\nc", "x"]) == ("--password", "***", "x")
    assert masked(["--password=a b\nc", "x"]) == ("--password=***", "x")
