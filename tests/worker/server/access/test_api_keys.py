"""API keys: what is kept of them, and the file that it is kept in."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.keys_command import main
from prefixcache_worker.server.access.api_keys import (
    KeyRing,
    StoredKey,
    keys_from_text,
    keys_to_text,
    make_key,
)
from prefixcache_worker.server.access.caller import Role
from prefixcache_worker.server.access.key_file import KeyFile

CREATED = "2025-06-01T12:00:00+00:00"


def new_key(tenant: str = "shop", role: Role = Role.USER, label: str = "") -> tuple[str, StoredKey]:
    return make_key(tenant=tenant, role=role, label=label, created=CREATED)


def test_a_key_has_256_random_bits_and_only_their_digest_is_kept():
    key, stored = new_key(label="till 3")
    prefix, key_id, secret = key.split("_")

    assert (prefix, key_id, len(bytes.fromhex(secret))) == ("pc", stored.id, 32)
    assert stored == StoredKey(
        id=key_id,
        tenant="shop",
        role=Role.USER,
        digest=hashlib.sha256(secret.encode()).hexdigest(),
        label="till 3",
        created=CREATED,
    )
    assert secret not in repr(stored)
    assert secret not in keys_to_text([stored])
    assert new_key()[0] != key


def test_only_the_key_itself_opens():
    key, stored = new_key()
    other, other_stored = new_key()
    ring = KeyRing([stored, other_stored])
    _, key_id, secret = key.split("_")

    assert ring.find(key) is stored
    assert ring.find(other) is other_stored
    unknown = f"pc_{'0' * 12}_{secret}"
    another_secret = f"pc_{key_id}_{other.split('_')[2]}"
    for wrong in (unknown, another_secret, key[:-1], key + "0", key.upper(), f" {key}", "", stored.digest):
        assert ring.find(wrong) is None, wrong


def test_an_unknown_id_and_a_wrong_secret_cost_the_same(monkeypatch: pytest.MonkeyPatch):
    """Each is hashed once and compared once, over all of the digest."""
    key, stored = new_key()
    done: list[tuple[str, int]] = []
    monkeypatch.setattr(
        "prefixcache_worker.server.access.api_keys.hmac.compare_digest",
        lambda a, b: done.append((a, len(b))) or False,
    )
    secret = key.split("_")[2]
    assert KeyRing([stored]).find(key) is None
    assert KeyRing().find(key) is None
    assert done == [(hashlib.sha256(secret.encode()).hexdigest(), 64)] * 2


printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128)


@given(st.lists(st.tuples(printable, st.sampled_from(Role), printable), max_size=5))
def test_what_is_written_is_read_again(rows: list[tuple[str, Role, str]]):
    keys = [new_key(tenant, role, label)[1] for tenant, role, label in rows]
    assert list(keys_from_text(keys_to_text(keys))) == keys


def row(**changes: object) -> dict[str, object]:
    [good] = json.loads(keys_to_text([new_key()[1]]))["keys"]
    return good | changes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not valid JSON: line 1"),
        ("[]", "not a file of keys"),
        ('{"keys": {}}', "not a file of keys"),
        (json.dumps({"keys": [1]}), "each key has exactly created, id, label, role, secret_sha256, tenant"),
        (json.dumps({"keys": [row(extra=1)]}), "each key has exactly"),
        (json.dumps({"keys": [row(role="root")]}), "'root' is no role"),
        (json.dumps({"keys": [row(role=3)]}), "3 is no role"),
        (json.dumps({"keys": [row(role=["user"])]}), "is no role"),
        (json.dumps({"keys": [row(id="x")]}), "an id is not 12 hexadecimal digits"),
        (json.dumps({"keys": [row(id="ab" * 6, tenant="")]}), "the tenant of abababababab is not"),
        (json.dumps({"keys": [row(id="ab" * 6, tenant=None)]}), "the tenant of abababababab is not"),
        (json.dumps({"keys": [row(id="ab" * 6, secret_sha256="12")]}), "the secret_sha256 of abababababab"),
        (json.dumps({"keys": [row(id="ab" * 6, label="a\nb")]}), "the label of abababababab is not"),
        (json.dumps({"keys": [row(id="ab" * 6, created=1)]}), "created is not a text"),
        (json.dumps({"keys": [row(id="ab" * 6), row(id="ab" * 6)]}), "two keys have the id abababababab"),
    ],
)
def test_a_broken_file_is_told_what_is_wrong(text: str, problem: str):
    with pytest.raises(ValueError, match=problem):
        keys_from_text(text)


def test_only_its_owner_may_read_the_file_and_a_change_is_whole(tmp_path: Path):
    path = tmp_path / "keys.json"
    file = KeyFile(path)
    _, first = new_key("one")
    _, second = new_key("two")
    file.add(first)
    os.chmod(path, 0o644)
    file.add(second)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file.read() == [first, second]
    assert file.revoke(first.id) == first
    assert file.read() == [second]
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"], "nothing is left behind"


def test_a_failed_change_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "keys.json"
    KeyFile(path).add(new_key()[1])
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prefixcache_worker.server.access.key_file.os.fsync", full)
    with pytest.raises(ConfigError, match=r"cannot write .*keys\.json: No space left on device"):
        KeyFile(path).add(new_key()[1])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]


def test_a_broken_file_is_not_overwritten(tmp_path: Path):
    path = tmp_path / "keys.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"keys\.json: it is not valid JSON"):
        KeyFile(path).add(new_key()[1])
    assert path.read_text() == "{"


def test_a_link_stays_a_link(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "keys.json")
    KeyFile(tmp_path / "link").add(new_key()[1])
    assert (tmp_path / "link").is_symlink()
    assert len(KeyFile(tmp_path / "keys.json").read()) == 1


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path):
    path = tmp_path / "keys.json"
    keys = [new_key(f"t{i}")[1] for i in range(24)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: KeyFile(path).add(key), keys))
    assert sorted(key.id for key in KeyFile(path).read()) == sorted(key.id for key in keys)


def test_the_command_adds_lists_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = str(tmp_path / "keys.json")
    added = main(["add", "--tenant", "shop", "--role", "publisher", "--label", "till 3", "--file", path])
    shown = capsys.readouterr()
    [stored] = KeyFile(Path(path)).read()
    key = shown.out.strip()

    assert added == 0
    assert KeyRing([stored]).find(key) == stored
    assert (stored.tenant, stored.role, stored.label) == ("shop", Role.PUBLISHER, "till 3")
    assert "the only time that the key is shown" in shown.err
    assert key not in shown.err

    assert main(["list", "--file", path]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "TENANT", "ROLE", "CREATED", "LABEL"]
    assert line.split() == [stored.id, "shop", "publisher", stored.created, "till", "3"]

    assert main(["revoke", stored.id, "--file", path]) == 0
    assert f"{stored.id} of tenant shop is revoked" in capsys.readouterr().out
    assert KeyFile(Path(path)).read() == []
    assert main(["revoke", stored.id, "--file", path]) == 1
    assert f"has no key '{stored.id}'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["list"], ["revoke", "ab"]])
def test_the_command_needs_a_file_that_is_there(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*arguments, "--file", "/no/such/keys.json"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line == "prefixcache keys: cannot read /no/such/keys.json: No such file or directory" or (
        line == "prefixcache keys: cannot write /no/such/keys.json: No such file or directory"
    )


@pytest.mark.parametrize("change", [["--tenant", ""], ["--tenant", "a\nb"], ["--label", "x" * 257]])
def test_the_command_refuses_what_cannot_be_kept(
    change: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "keys.json"
    with pytest.raises(SystemExit) as caught:
        main(["add", "--tenant", "shop", "--file", str(path), *change])
    assert caught.value.code == 2
    assert f"argument {change[0]}: must be " in capsys.readouterr().err
    assert not path.exists()


def test_the_command_without_a_file_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("PREFIXCACHE_KEYS", raising=False)
    with pytest.raises(SystemExit) as caught:
        main(["list"])
    assert caught.value.code == 2
    assert "--file or PREFIXCACHE_KEYS" in capsys.readouterr().err
