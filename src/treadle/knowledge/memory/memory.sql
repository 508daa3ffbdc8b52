CREATE TABLE memory_meta(version INTEGER NOT NULL);
CREATE TABLE memory_spaces(
    id INTEGER PRIMARY KEY, persona TEXT NOT NULL, user TEXT NOT NULL, next INTEGER NOT NULL,
    UNIQUE(persona, user)
);
CREATE TABLE memory_entries(
    id INTEGER PRIMARY KEY, store TEXT NOT NULL, version INTEGER NOT NULL, created_at REAL NOT NULL,
    strength REAL NOT NULL, used_at REAL NOT NULL, merged INTEGER NOT NULL,
    text TEXT NOT NULL, author TEXT NOT NULL, written_at REAL NOT NULL, epistemic TEXT, metadata TEXT,
    reason TEXT, confidence REAL
);
CREATE INDEX memory_entries_by_store ON memory_entries(store, id);
CREATE TABLE memory_versions(
    entry INTEGER NOT NULL, version INTEGER NOT NULL,
    text TEXT NOT NULL, author TEXT NOT NULL, written_at REAL NOT NULL, epistemic TEXT, metadata TEXT,
    reason TEXT, confidence REAL,
    PRIMARY KEY(entry, version)
);
CREATE VIRTUAL TABLE memory_text USING fts5(
    stems, tokenize='unicode61 remove_diacritics 0', detail=none, columnsize=0
);
CREATE VIRTUAL TABLE memory_words USING fts5vocab(memory_text, 'row');
CREATE TABLE memory_audit(
    id INTEGER PRIMARY KEY AUTOINCREMENT, space INTEGER NOT NULL, at REAL NOT NULL, action TEXT NOT NULL,
    store TEXT NOT NULL, author TEXT NOT NULL, entry INTEGER, version INTEGER, key TEXT, run_id TEXT,
    turn INTEGER, reason TEXT
);
CREATE UNIQUE INDEX memory_audit_by_key ON memory_audit(space, key) WHERE key IS NOT NULL;
CREATE INDEX memory_audit_by_entry ON memory_audit(entry) WHERE entry IS NOT NULL;
CREATE TABLE memory_recalls(
    space INTEGER NOT NULL, turn_key TEXT NOT NULL, PRIMARY KEY(space, turn_key)
) WITHOUT ROWID;
CREATE TABLE memory_models(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, numbers INTEGER NOT NULL);
CREATE TABLE memory_vectors(
    id INTEGER PRIMARY KEY AUTOINCREMENT, entry INTEGER NOT NULL, model INTEGER NOT NULL,
    digest BLOB NOT NULL, vector BLOB NOT NULL, UNIQUE(entry, model)
);
CREATE INDEX memory_vectors_by_digest ON memory_vectors(digest);
CREATE TABLE memory_codes(
    id INTEGER PRIMARY KEY, entry INTEGER NOT NULL, model INTEGER NOT NULL, store TEXT NOT NULL,
    code BLOB NOT NULL
);
CREATE TABLE memory_marks(
    space INTEGER NOT NULL, model INTEGER NOT NULL, audit INTEGER NOT NULL, PRIMARY KEY(space, model)
) WITHOUT ROWID;
