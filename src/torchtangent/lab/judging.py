"""Which arrays of a run count, and what they say about the claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torchtangent.lab.claims import Finding, judge, not_run
from torchtangent.lab.provenance import digest, sources
from torchtangent.lab.results import Record, Run, elapsed
from torchtangent.lab.study import Entry, Scale, Study


@dataclass(frozen=True)
class Key:
    """What the arrays of a part depend on: its configuration and its code (None: any version counts)."""

    digest: str
    code: str | None


def part_keys(study: Study, config: Mapping[str, Mapping[str, Any]]) -> dict[str, Key]:
    """The key of every part. It includes the keys of the parts that it needs, but no code outside the lab."""
    keys = any_code(study, config)
    for part in study.parts:
        code = digest([sources(part.run), [keys[name].code for name in part.needs]])
        keys[part.name] = replace(keys[part.name], code=code)
    return keys


def any_code(study: Study, config: Mapping[str, Mapping[str, Any]]) -> dict[str, Key]:
    """The key of every part, for which any version of the code counts."""
    keys: dict[str, Key] = {}
    for part in study.parts:
        keys[part.name] = Key(digest([config[part.name], [keys[name].digest for name in part.needs]]), None)
    return keys


def counted(run: Run, part: str, keys: Mapping[str, Key]) -> Record | None:
    """The record of a part, if it is valid and has the right key."""
    return run.record(part, keys[part].digest, keys[part].code)


def rejudge(study: Study, run: Run) -> list[Finding]:
    """Judge the claims of a run from its arrays, made by any version of the code, and write the verdicts."""
    config = study.configuration(cast(Scale, run.scale))
    with run.alone():
        run.write_config(config)
        return settle(study, run, any_code(study, config))


def verdicts(study: Study, run: Run) -> list[Finding]:
    """The verdict on every claim by its current rule, from arrays made by any version of the code."""
    keys = any_code(study, study.configuration(cast(Scale, run.scale)))
    return [finding for entry in study.entries for finding in _judge_entry(study, entry, run, keys)]


def settle(study: Study, run: Run, keys: Mapping[str, Key]) -> list[Finding]:
    """Judge every entry whose parts are valid, then write the claims and, last, the manifest."""
    findings = [finding for entry in study.entries for finding in _judge_entry(study, entry, run, keys)]
    missing = [entry.id for entry in study.entries if any(counted(run, name, keys) is None for name in entry.parts)]
    run.write_claims(findings)
    run.write_manifest([entry.id for entry in study.entries if entry.id not in missing], missing)
    return findings


def _judge_entry(study: Study, entry: Entry, run: Run, keys: Mapping[str, Key]) -> list[Finding]:
    """The verdicts of an entry; if a part of it is missing or not valid, findings that say why."""
    claims, scale = study.claims_of(entry), cast(Scale, run.scale)
    records = {name: counted(run, name, keys) for name in entry.parts}
    left = [name for name, record in records.items() if record is None]
    if left:
        reason = _why_not(study, left, run, keys)
        return [not_run(claim, study=study.key, scale=scale, reason=reason) for claim in claims]
    seconds = round(elapsed(record for record in records.values() if record), 3)
    arrays = run.load(entry.parts)
    return [judge(claim, arrays, study=study.key, scale=scale, seconds=seconds) for claim in claims]


def _why_not(study: Study, left: Sequence[str], run: Run, keys: Mapping[str, Key]) -> str:
    """Why these parts do not count."""
    for part in study.closure(left):
        if run.failed(part.name).exists() and counted(run, part.name, keys) is None:
            return f"the part {part.name} failed"
    by_hand = {part.by_hand for part in study.closure(left) if run.said(part.name) is None} - {""}
    if by_hand:
        return f"needs {' and '.join(sorted(by_hand))}"
    if any(run.said(name) is None for name in left):
        return "not run"
    if broken := [name for name in left if run.record(name) is None]:
        return f"the arrays of {broken[0]} are damaged, or what they were made from has changed"
    same = all(run.record(name, keys[name].digest) for name in left)
    return f"made {'by another version of the code' if same else 'with another configuration'}"
