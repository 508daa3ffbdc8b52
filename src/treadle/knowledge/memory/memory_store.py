"""The memories of a namespace in SQLite: writing, versions, the audit trail and forgetting.

A write is one transaction with its audit record, which has the idempotency key. So a write that is repeated after a
crash finds its key, or finds nothing of the first attempt.
"""

import heapq
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import msgspec

from treadle.core.errors import ConfigError, MemoryRefusedError
from treadle.knowledge.memory import fulltext as f
from treadle.knowledge.memory import memory_tables as t
from treadle.knowledge.memory import vectors as v
from treadle.knowledge.memory.forgetting import decay, find_refusal, strengthened, weigh
from treadle.knowledge.memory.fulltext import to_first_person
from treadle.knowledge.memory.protocol import (
    AuditRecord,
    Author,
    Draft,
    Hit,
    MemoryEntry,
    Outcome,
    Store,
    Vector,
    Written,
)

_FOUND = 30
"""How many entries each way of searching finds before they are ranked together."""
_RANKS = 2
"""An entry so many places after the best one gets half as much for its place."""


class MemoryStore:
    """The memories of one namespace, in the database of a journal in an SQLite file or in memory.

    Every method blocks and may be called in any thread. Raises: `JournalError` if the database fails.
    """

    def __init__(self, database: t.Database, persona: str, user: str) -> None:
        self._database = database
        self._names = (persona, user)
        self._key = 0
        """The namespace's row; 0 as long as it has none."""
        self._frequencies = f.Frequencies()
        self._indexes: dict[int, v.VectorIndex] = {}

    def write(self, draft: Draft, at: float, replaces: str | None = None) -> Written:
        """Write a memory: a new one, or a new version of the entry `replaces`.

        Raises: `MemoryRefusedError` if the policy refuses; the audit trail has that too. `ConfigError` for a text
        that is empty or too long, and for an unknown entry.
        """
        text = t.check_text(draft.text)
        draft = msgspec.structs.replace(draft, text=text)
        refusal = find_refusal(draft)
        with self._database.writing() as db:
            space = self._space(db, is_made=True)
            if (before := self._find_write(db, space, draft)) is not None:
                action, row, reason = before
                if action != "refused":
                    return Written(Outcome.REPEATED, None if row is None else self._read(db, row))
                refusal = reason or "the policy refused it before"
            elif refusal is not None:
                self._record(db, draft, "refused", at, reason=refusal)
            elif replaces is not None:
                return self._replace(db, self._find_row(db, replaces, draft.store), draft, at)
            else:
                return self._add(db, draft, at)
        raise MemoryRefusedError(f"nothing was remembered: {refusal}")

    def get(self, entry_id: str) -> MemoryEntry | None:
        """Return the newest version of an entry; `None` if there is no such entry."""
        with self._database.reading() as db:
            row = self._row_of(db, entry_id)
            return None if row is None else self._read(db, row)

    def entries(
        self, stores: Collection[Store] = (), limit: int | None = None, *, newest_first: bool = False
    ) -> list[MemoryEntry]:
        """Return the entries of some stores, or of all, in order of their first version, or of when they were last
        said (`MemoryEntry.said_at`)."""
        condition = f"AND store IN ({','.join('?' * len(stores))})" if stores else ""
        with self._database.reading() as db:
            rows = db.execute(
                f"SELECT {t.ENTRY} FROM memory_entries WHERE id BETWEEN ? AND ? {condition} "
                f"ORDER BY {t.NEWEST_FIRST if newest_first else 'id'} LIMIT ?",
                (*self._space(db), *stores, -1 if limit is None else limit),
            ).fetchall()
        return [t.read_entry(row) for row in rows]

    def owners(self) -> list[tuple[str, str]]:
        """Return all personas and users that have memories in the journal, in the order in which they began."""
        return self._database.owners()

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        """Return all versions of an entry, the first one first; none if there is no such entry."""
        with self._database.reading() as db:
            row = self._row_of(db, entry_id)
            newest = None if row is None else self._read(db, row)
            if newest is None:
                return []
            older = db.execute(
                f"SELECT version, {t.CONTENT} FROM memory_versions WHERE entry=? ORDER BY version", (row,)
            ).fetchall()
        return [*[t.read_version(newest, version, content) for version, *content in older], newest]

    def rollback(self, entry_id: str, version: int, draft: Draft, at: float) -> MemoryEntry:
        """Write the content of an older version as the newest version.

        `draft` says who does it and why; its text is ignored. Raises: as `write`.
        """
        old = next((entry for entry in self.history(entry_id) if entry.version == version), None)
        if old is None:
            raise ConfigError(
                f"there is no version {version} of the memory {entry_id!r}; `history` lists them"
            )
        back = msgspec.structs.replace(
            draft, store=old.store, text=old.text, epistemic=old.epistemic, metadata=old.metadata
        )
        refusal = find_refusal(back)
        with self._database.writing() as db:
            row = self._find_row(db, entry_id, old.store)
            if refusal is None:
                made = self._replace(db, row, back, at, action="rolled_back").entry
                assert made is not None
                return made
            self._record(db, back, "refused", at, row=row, reason=refusal)
        raise MemoryRefusedError(f"nothing was changed: {refusal}")

    def forget(self, entry_id: str, author: Author, at: float) -> bool:
        """Delete an entry: its versions, its words in the index and its embeddings.

        Return False if there is no such entry. Raises: `MemoryRefusedError`.
        """
        with self._database.writing() as db:
            row = self._row_of(db, entry_id)
            entry = None if row is None else self._read(db, row)
            if entry is None or row is None:
                return False
            draft = Draft(store=entry.store, text="", author=author)
            is_refused = author is Author.PERSONA_SELF
            if is_refused:
                self._record(db, draft, "refused", at, row=row, reason="persona_self may not forget")
            else:
                self._delete(db, row)
                self._record(db, draft, "forgotten", at, row=row)
        if is_refused:
            raise MemoryRefusedError(f"the memory {entry_id!r} was kept: persona_self must not forget it")
        self._database.purge()
        return True

    def forget_runs(self, run_ids: Collection[str], at: float) -> int:
        """Delete the episodes that were written for runs and for no other, and return their number."""
        own = f"run_id IN ({','.join('?' * len(run_ids))})"
        with self._database.writing() as db:
            rows = db.execute(
                f"SELECT DISTINCT entry FROM memory_audit JOIN memory_entries ON memory_entries.id=entry "
                f"WHERE space=? AND memory_audit.store=? AND {own} AND NOT EXISTS (SELECT 1 FROM memory_audit AS "
                f"other WHERE other.entry=memory_audit.entry AND other.run_id IS NOT NULL AND NOT other.{own})",
                (self._space(db)[0] >> t.SPACE_BITS, Store.EPISODIC, *run_ids, *run_ids),
            ).fetchall()
            for (row,) in rows:
                self._delete(db, row)
                draft = Draft(store=Store.EPISODIC, text="", author=Author.USER)
                self._record(db, draft, "forgotten", at, row=row)
        if rows:
            self._database.purge()
        return len(rows)

    def replace_document(self, source: str, digest: str, pieces: Sequence[Draft], at: float) -> bool:
        """Store the pieces of a document in place of those of its earlier content.

        Return False if the pieces of this content, known by its `digest`, are stored already.
        """
        with self._database.writing() as db:
            space = self._space(db, is_made=True)
            sql = f"SELECT id, metadata FROM memory_entries WHERE {t.OF_SOURCE}=? AND id BETWEEN ? AND ?"
            own = [
                (row, msgspec.json.decode(metadata)) for row, metadata in db.execute(sql, (source, *space))
            ]
            if own and own[0][1].get("digest") == digest:
                return False
            for row, _ in own:
                self._delete(db, row)
                self._record(
                    db, Draft(store=Store.DOCUMENTS, text="", author=Author.FILE), "forgotten", at, row=row
                )
            for piece in pieces:
                metadata = piece.metadata | {"source": source, "digest": digest}
                self._add(db, msgspec.structs.replace(piece, metadata=metadata), at)
        if own:
            self._database.purge()
        return True

    def audit(self, entry_id: str | None = None, limit: int | None = None) -> Sequence[AuditRecord]:
        """Return the audit trail of an entry or of the namespace, the newest record first."""
        with self._database.reading() as db:
            low, _ = self._space(db)
            values: list[object] = [low >> t.SPACE_BITS]
            condition = "space=?"
            if entry_id is not None:
                condition, values = f"{condition} AND entry=?", [*values, t.read_id(entry_id, low)]
            rows = db.execute(
                f"SELECT {t.AUDIT} FROM memory_audit WHERE {condition} ORDER BY id DESC LIMIT ?",
                (*values, -1 if limit is None else limit),
            ).fetchall()
        return [t.read_audit(row) for row in rows]

    def search(
        self,
        text: str,
        at: float,
        *,
        stores: Collection[Store] = (),
        limit: int = 10,
        vector: Vector | None = None,
        sources: Collection[str] | None = None,
    ) -> Sequence[Hit]:
        """Return the entries that fit `text` best, by its words and by `vector`, the best first.

        The scores of both searches are added, each as a share of its best, and faded episodes count less. With a
        vector, the places in both count as much, because cosines differ less than scores by words. With `sources`,
        only pieces of these documents are found.
        """
        with self._database.reading() as db:
            space = self._space(db)
            among = None if sources is None else self._rows_of(db, space, sources)
            words, near = self._rank(db, space, text, stores, vector, max(_FOUND, limit), among)
            scores: defaultdict[int, float] = defaultdict(float)
            fits: defaultdict[int, float] = defaultdict(float)
            for found in ([(match.row, match.score, match.fit) for match in words], near):
                for place, (row, score, fit) in enumerate(found):
                    scores[row] += score / found[0][1] + (_RANKS / (_RANKS + place) if near else 0)
                    fits[row] = max(fits[row], fit)
            sql = f"SELECT id, store, strength, used_at FROM memory_entries WHERE id IN ({_list(scores)})"
            for row, store, strength, used_at in db.execute(sql):
                if store == Store.EPISODIC:
                    scores[row] = weigh(scores[row], decay(strength, at - used_at))
            for row, score in f.follow_names(db, space, text, stores, scores).items():
                scores[row] += score
            best = heapq.nlargest(limit, scores, key=scores.__getitem__)
            entries = dict(self._read_all(db, best))
        return [Hit(entries[row], scores[row], fits[row]) for row in best if row in entries]

    def to_first_person(self, text: str) -> str:
        """Return the form of a query of which an embedding is made: in the first person of those whom it names."""
        with self._database.reading() as db:
            return to_first_person(db, self._space(db), text)

    def _rank(
        self,
        db: sqlite3.Connection,
        space: tuple[int, int],
        text: str,
        stores: Collection[Store],
        vector: Vector | None,
        most: int,
        among: Collection[int] | None,
    ) -> tuple[list[f.Match], list[tuple[int, float, float]]]:
        """Return the best entries by words and, with a vector, by meaning, with the score and the cosine of each.
        Both rank what either finds. With `among`, only these rows are found."""
        model = None if vector is None else v.check_numbers(db, vector.model, len(vector.values))
        if vector is None or model is None:
            return f.search_words(db, self._frequencies, space, text, stores, most, among=among), []
        index = self._indexes.setdefault(model, v.VectorIndex(space, model))
        if among is None:
            near = index.search(db, vector.values, stores, most)
        else:
            near = sorted(index.compare(db, vector.values, among), key=lambda item: -item[1])[:most]
        rows = {row for row, _ in near}
        words = f.search_words(
            db, self._frequencies, space, text, stores, most + len(rows), rows, among=among
        )
        rows |= {match.row for match in words}
        cosines = dict(index.compare(db, vector.values, f.neighbours_of(rows)))
        lifted = f.lift_similar(db, text, rows, cosines)
        best = sorted(lifted, key=lambda row: (-lifted[row], -row))
        return words, [(row, lifted[row], cosines[row]) for row in best]

    def _rows_of(self, db: sqlite3.Connection, space: tuple[int, int], sources: Collection[str]) -> set[int]:
        """Return the rows of the pieces of documents."""
        sql = (
            f"SELECT id FROM memory_entries WHERE {t.OF_SOURCE} IN (SELECT value FROM json_each(?)) "
            "AND id BETWEEN ? AND ?"
        )
        return {row for (row,) in db.execute(sql, (msgspec.json.encode(list(sources)).decode(), *space))}

    def strengthen(self, entry_ids: Collection[str], turn_key: str, at: float) -> None:
        """Record that these episodes were recalled for a turn. A second call for the same turn does nothing."""
        episodes = [item for item in entry_ids if item.startswith(f"{Store.EPISODIC}-")]
        if not episodes:
            return
        with self._database.writing() as db:
            low = self._space(db)[0]
            put = "INSERT OR IGNORE INTO memory_recalls VALUES(?,?)"
            if not db.execute(put, (low >> t.SPACE_BITS, turn_key)).rowcount:
                return
            for row in [t.read_id(item, low) for item in episodes]:
                self._strengthen(db, row, at)

    def missing_vectors(self, model: str, limit: int) -> Sequence[tuple[str, str]]:
        """Return some entries without an embedding by `model`, each with the text to embed."""
        found: list[tuple[str, str]] = []
        with self._database.writing() as db:
            low, _ = self._space(db)
            key, mark = self._mark(db, model, low)
            while not found:
                rows = db.execute(
                    "SELECT id, entry FROM memory_audit WHERE id > ? AND space=? ORDER BY id LIMIT ?",
                    (mark, low >> t.SPACE_BITS, limit),
                ).fetchall()
                if not rows:
                    break
                for row, entry in self._read_all(db, {row for _, row in rows if row is not None}):
                    if not self._has_vector(db, row, entry, key):
                        found.append((entry.entry_id, f.drop_speaker(entry.text)))
                mark = rows[-1][0]
                if not found and key is not None:
                    put = "INSERT OR REPLACE INTO memory_marks VALUES(?,?,?)"
                    db.execute(put, (low >> t.SPACE_BITS, key, mark))
        return found

    def put_vectors(self, model: str, vectors: Mapping[str, Sequence[float]]) -> None:
        """Store the embeddings of entries by id. Raises: `ConfigError` if the stored ones have another length."""
        lengths = {len(values) for values in vectors.values()}
        if not lengths:
            return
        if len(lengths) > 1:
            raise ConfigError(f"the embeddings of {model!r} differ in length: {sorted(lengths)}")
        with self._database.writing() as db:
            low, _ = self._space(db)
            numbers = lengths.pop()
            key = v.check_numbers(db, model, numbers)
            if key is None:
                put = "INSERT INTO memory_models(name, numbers) VALUES(?,?)"
                key = db.execute(put, (model, numbers)).lastrowid
                assert key is not None
            for row, entry in self._read_all(db, [t.read_id(item, low) for item in vectors]):
                values = v.normalize(vectors[entry.entry_id])
                v.put_vector(
                    db,
                    row,
                    entry.store,
                    t.digest_of(entry.text),
                    key,
                    v.pack_vector(values),
                    v.pack_code(values),
                )

    def drop_vectors(self, model: str) -> None:
        """Delete all embeddings of a model, in every namespace of the database."""
        with self._database.writing() as db:
            row = db.execute("SELECT id FROM memory_models WHERE name=?", (model,)).fetchone()
            for table in ("memory_vectors", "memory_codes", "memory_marks"):
                db.execute(f"DELETE FROM {table} WHERE model=?", row or (0,))
            db.execute("DELETE FROM memory_models WHERE name=?", (model,))
        self._indexes.clear()

    def _add(self, db: sqlite3.Connection, draft: Draft, at: float) -> Written:
        space = self._space(db)
        if draft.store is not Store.DOCUMENTS:
            same = f.find_same(db, self._frequencies, space, draft.text, draft.store)
            kept = None if same is None else self._read(db, same)
            if same is not None and kept is not None and kept.epistemic == draft.epistemic:
                self._strengthen(db, same, at, merged=1)
                self._record(db, draft, "merged", at, row=same, version=kept.version)
                return Written(Outcome.MERGED, self._read(db, same))
        key = space[0] >> t.SPACE_BITS
        number = db.execute("SELECT next FROM memory_spaces WHERE id=?", (key,)).fetchone()[0]
        db.execute("UPDATE memory_spaces SET next=next+1 WHERE id=?", (key,))
        row = space[0] + number
        db.execute(
            f"INSERT INTO memory_entries({t.ENTRY}) VALUES(?,?,1,?,1.0,?,0,{t.PLACES})",
            (row, draft.store, at, at, *t.write_content(draft, at)),
        )
        db.execute("INSERT INTO memory_text(rowid, stems) VALUES(?,?)", (row, _index_form(draft)))
        self._record(db, draft, "added", at, row=row, version=1)
        return Written(Outcome.ADDED, self._read(db, row))

    def _replace(
        self,
        db: sqlite3.Connection,
        row: int,
        draft: Draft,
        at: float,
        action: str = "changed",
    ) -> Written:
        """Write the next version of an entry."""
        db.execute(
            f"INSERT INTO memory_versions(entry, version, {t.CONTENT}) "
            f"SELECT id, version, {t.CONTENT} FROM memory_entries WHERE id=?",
            (row,),
        )
        db.execute(
            f"UPDATE memory_entries SET version=version+1, used_at=?, ({t.CONTENT}) = ({t.PLACES}) WHERE id=?",
            (at, *t.write_content(draft, at), row),
        )
        db.execute("UPDATE memory_text SET stems=? WHERE rowid=?", (_index_form(draft), row))
        v.drop_vectors(db, row)
        made = self._read(db, row)
        assert made is not None
        self._record(db, draft, action, at, row=row, version=made.version)
        return Written(Outcome.CHANGED, made)

    def _delete(self, db: sqlite3.Connection, row: int) -> None:
        db.execute("DELETE FROM memory_entries WHERE id=?", (row,))
        db.execute("DELETE FROM memory_versions WHERE entry=?", (row,))
        db.execute("DELETE FROM memory_text WHERE rowid=?", (row,))
        v.drop_vectors(db, row)
        db.execute("UPDATE memory_audit SET reason=NULL WHERE entry=?", (row,))

    def _strengthen(self, db: sqlite3.Connection, row: int, at: float, merged: int = 0) -> None:
        found = db.execute("SELECT strength FROM memory_entries WHERE id=?", (row,)).fetchone()
        if found is not None:
            db.execute(
                "UPDATE memory_entries SET strength=?, used_at=max(used_at, ?), merged=merged+? WHERE id=?",
                (strengthened(found[0]), at, merged, row),
            )

    def _record(
        self,
        db: sqlite3.Connection,
        draft: Draft,
        action: str,
        at: float,
        *,
        row: int | None = None,
        version: int | None = None,
        reason: str | None = None,
    ) -> None:
        space = self._space(db)[0] >> t.SPACE_BITS
        place = (draft.store, draft.author, row, version, draft.key, draft.run_id, draft.turn)
        db.execute(
            f"INSERT INTO memory_audit(space, {t.AUDIT.removeprefix('id, ')}) VALUES({','.join('?' * 11)})",
            (space, at, action, *place, reason or draft.reason),
        )

    def _find_write(
        self, db: sqlite3.Connection, space: tuple[int, int], draft: Draft
    ) -> tuple[str, int | None, str | None] | None:
        """Return what an earlier write with the same key did; `None` if there was none."""
        if draft.key is None:
            return None
        sql = "SELECT action, entry, reason FROM memory_audit WHERE space=? AND key=?"
        row = db.execute(sql, (space[0] >> t.SPACE_BITS, draft.key)).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    def _space(self, db: sqlite3.Connection, *, is_made: bool = False) -> tuple[int, int]:
        """Return the first and the last number of the namespace's rows; of an empty range if it has none."""
        key = self._key or self._find_space(db)
        if is_made and not key:
            db.execute("INSERT INTO memory_spaces(persona, user, next) VALUES(?,?,1)", self._names)
            key = self._find_space(db)
        if not db.in_transaction:  # else it may be rolled back
            self._key = key
        low = key << t.SPACE_BITS
        return (low, low + (1 << t.SPACE_BITS) - 1) if key else (0, -1)

    def _find_space(self, db: sqlite3.Connection) -> int:
        row = db.execute("SELECT id FROM memory_spaces WHERE persona=? AND user=?", self._names).fetchone()
        return 0 if row is None else int(row[0])

    def _row_of(self, db: sqlite3.Connection, entry_id: str) -> int | None:
        row = t.read_id(entry_id, self._space(db)[0])
        sql = "SELECT 1 FROM memory_entries WHERE id=? AND store=?"
        found = db.execute(sql, (row, entry_id.rpartition("-")[0])).fetchone()
        return row if found else None

    def _find_row(self, db: sqlite3.Connection, entry_id: str, store: Store) -> int:
        row = self._row_of(db, entry_id)
        if row is None or entry_id.rpartition("-")[0] != store:
            raise ConfigError(
                f"there is no memory {entry_id!r} in the store {store.value!r} of this persona and user"
            )
        return row

    def _read(self, db: sqlite3.Connection, row: int) -> MemoryEntry | None:
        found = db.execute(f"SELECT {t.ENTRY} FROM memory_entries WHERE id=?", (row,)).fetchone()
        return None if found is None else t.read_entry(found)

    def _read_all(self, db: sqlite3.Connection, rows: Collection[int]) -> list[tuple[int, MemoryEntry]]:
        sql = f"SELECT {t.ENTRY} FROM memory_entries WHERE id IN ({_list(rows)})"
        return [(row[0], t.read_entry(row)) for row in db.execute(sql)]

    def _mark(self, db: sqlite3.Connection, model: str, low: int) -> tuple[int | None, int]:
        """Return the row of a model, and the last audit record that needs no embedding any more."""
        row = db.execute("SELECT id FROM memory_models WHERE name=?", (model,)).fetchone()
        if row is None:
            return None, 0
        sql = "SELECT audit FROM memory_marks WHERE space=? AND model=?"
        mark = db.execute(sql, (low >> t.SPACE_BITS, row[0])).fetchone()
        return row[0], 0 if mark is None else mark[0]

    def _has_vector(self, db: sqlite3.Connection, row: int, entry: MemoryEntry, key: int | None) -> bool:
        """Return whether an entry has an embedding. One of the same text is taken over."""
        if key is None:
            return False
        if db.execute("SELECT 1 FROM memory_vectors WHERE entry=? AND model=?", (row, key)).fetchone():
            return True
        same = db.execute(
            "SELECT vector, code FROM memory_vectors JOIN memory_codes USING(id) "
            "WHERE digest=? AND memory_vectors.model=? LIMIT 1",
            (t.digest_of(entry.text), key),
        ).fetchone()
        if same is not None:
            v.put_vector(db, row, entry.store, t.digest_of(entry.text), key, *same)
        return same is not None


def _index_form(draft: Draft) -> str:
    """Return what the index holds of a memory: its words and those of its title and place, if it has them."""
    return f.index_form(
        " ".join([draft.metadata.get("title", ""), draft.metadata.get("place", ""), draft.text])
    )


def _list(rows: Collection[int]) -> str:
    return ",".join(map(str, rows))
