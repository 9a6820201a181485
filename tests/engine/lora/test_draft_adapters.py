"""Draft adapters are checked as they are packed, and noted beside the adapters that they guess for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.draft_adapters import pack_drafter
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.draft_adapters import (
    MAX_AHEAD,
    Description,
    DraftAdapter,
    DraftAdapterChoice,
    DraftAdapterError,
    NotedDraftAdapters,
    read_note,
    remove_note,
    write_note,
)
from engine.protocol import AdapterRef
from tests.engine.lora.adapters import packed
from tests.engine.lora.test_loader import Rig
from tests.engine.lora.test_signatures import Site, signature
from tests.engine.runner.bases import VOCAB_SIZE, write_base, write_draft_adapter

ADAPTER, OTHER = "a" * 64, "b" * 64
DRAFT = DraftAdapter(AdapterRef("d" * 64, 6), 7, 4)


def test_a_packed_draft_adapter_is_an_artifact_with_its_description(tmp_path: Path) -> None:
    write_base(tmp_path / "base", num_hidden_layers=1)
    folder = write_draft_adapter(tmp_path / "base", tmp_path / "draft", 1, placeholder_id=9, ahead=3)
    found = pack_drafter(folder, tmp_path / "base", "0" * 64, tmp_path)
    assert (found.placeholder_id, found.num_ahead, found.ref.rank) == (9, 3, 6)
    artifact = PackedAdapter.read(artifact_path(tmp_path, found.ref.digest), found.ref.digest)
    assert artifact.manifest.base_digest == "0" * 64
    assert pack_drafter(folder, tmp_path / "base", "0" * 64, tmp_path) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "the file is missing"),
        ("{", "drafter.json"),
        ('{"placeholder_token_id": 3}', "num_ahead"),
        ('{"placeholder_token_id": "x", "num_ahead": 3}', "placeholder_token_id"),
        (f'{{"placeholder_token_id": {VOCAB_SIZE}, "num_ahead": 3}}', f"is {VOCAB_SIZE}: name one of"),
        ('{"placeholder_token_id": -1, "num_ahead": 3}', "is -1: name one of"),
        ('{"placeholder_token_id": 3, "num_ahead": 0}', "between 1 and 64"),
        (f'{{"placeholder_token_id": 3, "num_ahead": {MAX_AHEAD + 1}}}', "between 1 and 64"),
    ],
)
def test_a_wrong_description_is_refused_by_its_field(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "drafter.json").write_text(text)
    with pytest.raises(DraftAdapterError, match=says):
        Description.read(tmp_path, VOCAB_SIZE)


def test_a_draft_adapter_is_inspected_like_any_other(tmp_path: Path) -> None:
    write_base(tmp_path / "base", num_hidden_layers=1)
    folder = write_draft_adapter(tmp_path / "base", tmp_path / "draft", 1)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(ValueError, match="use_dora"):
        pack_drafter(folder, tmp_path / "base", "0" * 64, tmp_path)
    write_draft_adapter(tmp_path / "base", tmp_path / "infinite", 1, std=float("inf"))
    with pytest.raises(ValueError, match="not finite"):
        pack_drafter(tmp_path / "infinite", tmp_path / "base", "0" * 64, tmp_path)


def test_notes_name_the_draft_adapter_of_an_adapter(tmp_path: Path) -> None:
    assert read_note(tmp_path, ADAPTER, VOCAB_SIZE) is None
    write_note(tmp_path, ADAPTER, DRAFT)
    assert read_note(tmp_path, ADAPTER, VOCAB_SIZE) == DRAFT
    with pytest.raises(DraftAdapterError, match="no draft adapter of this base"):
        read_note(tmp_path, ADAPTER, 7)
    note = tmp_path / "aa" / f"{ADAPTER}.draft"
    for text in ("{}", "[", note.read_text().replace("d" * 64, "../../etc/passwd")):
        note.write_text(text)
        with pytest.raises(DraftAdapterError, match=ADAPTER):
            read_note(tmp_path, ADAPTER, VOCAB_SIZE)


def test_a_note_goes_with_its_adapter_and_a_draft_adapter_with_its_last_note(tmp_path: Path) -> None:
    write_note(tmp_path, ADAPTER, DRAFT)
    write_note(tmp_path, OTHER, DRAFT)
    assert remove_note(tmp_path, ADAPTER) is None, "another adapter needs it"
    assert remove_note(tmp_path, ADAPTER) is None
    assert remove_note(tmp_path, OTHER) == DRAFT.ref.digest
    assert not list(tmp_path.glob("*/*.draft"))


def test_an_adapters_own_comes_before_the_bases() -> None:
    base = DraftAdapter(AdapterRef("e" * 64, 4), 7, 4)
    choice = DraftAdapterChoice(base, {ADAPTER: DRAFT})
    assert [choice.find(digest) for digest in (ADAPTER, OTHER, None)] == [DRAFT, base, base]
    assert DraftAdapterChoice().find(OTHER) is None


@pytest.mark.parametrize("kind", ["host", "device"])
def test_the_loader_finds_the_note_of_what_it_loads(tmp_path: Path, kind: str) -> None:
    noted = NotedDraftAdapters(tmp_path, VOCAB_SIZE)
    rig = Rig(tmp_path, kind, draft_adapters=noted)
    refs = [rig.write(packed(seed=seed, q_proj=3)) for seed in range(3)]
    write_note(tmp_path, refs[0].digest, DRAFT)
    write_note(tmp_path, refs[1].digest, DRAFT)
    note = artifact_path(tmp_path, refs[1].digest).with_suffix(".draft")
    note.write_text("damaged")
    assert [rig.load(slot, ref)[2] for slot, ref in enumerate(refs)] == [None] * 3
    assert noted == {refs[0].digest: DRAFT}
    rig.loader.close()
    rig.pool.close()


def test_only_what_the_operator_configured_needs_no_signature(tmp_path: Path) -> None:
    site = Site(tmp_path, required=True)
    configured, noted, signed = (packed(seed=seed, q_proj=3) for seed in range(3))
    site.verifier.trust(configured.digest)
    assert site.load(site.write(configured, None)) is None
    assert site.load(site.write(signed, signature(signed))) is None
    error = site.load(site.write(noted, None))
    assert error is not None
    assert "signed adapters only" in error
    site.close()
