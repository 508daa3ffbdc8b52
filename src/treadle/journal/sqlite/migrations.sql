-- version 1
CREATE TABLE owners(
    id INTEGER PRIMARY KEY AUTOINCREMENT, host TEXT NOT NULL, pid INTEGER NOT NULL,
    started TEXT NOT NULL, beat_at REAL NOT NULL
);
CREATE TABLE runs(
    id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, stop_reason TEXT,
    created_at REAL NOT NULL, owner INTEGER, token INTEGER NOT NULL
);
CREATE TABLE frames(
    id INTEGER PRIMARY KEY, previous INTEGER NOT NULL, run INTEGER NOT NULL, seq INTEGER NOT NULL,
    count INTEGER NOT NULL, at REAL NOT NULL, body BLOB NOT NULL
);
CREATE TABLE heads(run INTEGER PRIMARY KEY, frame INTEGER NOT NULL);
CREATE TABLE blobs(digest TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE meta(takeovers INTEGER NOT NULL);
INSERT INTO meta VALUES(0);

-- version 2
ALTER TABLE runs ADD COLUMN fault TEXT;
ALTER TABLE runs ADD COLUMN error TEXT;
ALTER TABLE runs ADD COLUMN model TEXT;
ALTER TABLE runs ADD COLUMN task_set TEXT;
ALTER TABLE runs ADD COLUMN task_id TEXT;
ALTER TABLE runs ADD COLUMN parent_run_id TEXT;
ALTER TABLE runs ADD COLUMN labels TEXT;
ALTER TABLE runs ADD COLUMN input TEXT;
ALTER TABLE runs ADD COLUMN is_session INTEGER;
ALTER TABLE runs ADD COLUMN is_turn_open INTEGER;
ALTER TABLE runs ADD COLUMN waiting TEXT;
ALTER TABLE runs ADD COLUMN turns INTEGER;
ALTER TABLE runs ADD COLUMN reward REAL;
ALTER TABLE runs ADD COLUMN has_failed INTEGER;
ALTER TABLE heads ADD COLUMN events INTEGER;
ALTER TABLE heads ADD COLUMN updated_at REAL;
ALTER TABLE heads ADD COLUMN steps INTEGER;
ALTER TABLE heads ADD COLUMN input_tokens INTEGER;
ALTER TABLE heads ADD COLUMN cached_input_tokens INTEGER;
ALTER TABLE heads ADD COLUMN output_tokens INTEGER;
ALTER TABLE heads ADD COLUMN cost_usd REAL;
ALTER TABLE heads ADD COLUMN context_chars INTEGER;
CREATE INDEX runs_by_status ON runs(status, stop_reason);
CREATE INDEX heads_without_facts ON heads(run) WHERE events IS NULL;

-- version 3
CREATE TABLE origin(id TEXT NOT NULL, seal TEXT NOT NULL);
CREATE TABLE trust(run INTEGER PRIMARY KEY, seal TEXT NOT NULL);

-- version 4
ALTER TABLE runs ADD COLUMN checksum INTEGER;
ALTER TABLE heads ADD COLUMN checksum INTEGER;
ALTER TABLE frames ADD COLUMN checksum INTEGER;

-- version 5
ALTER TABLE owners ADD COLUMN space TEXT NOT NULL DEFAULT '';
ALTER TABLE owners ADD COLUMN ticks REAL NOT NULL DEFAULT 0;
ALTER TABLE owners ADD COLUMN lease_seconds REAL;
ALTER TABLE meta ADD COLUMN level TEXT NOT NULL DEFAULT 'process';

-- version 6
ALTER TABLE runs ADD COLUMN queue TEXT;
CREATE INDEX runs_by_queue ON runs(queue, owner, id)
    WHERE queue IS NOT NULL AND is_turn_open = 1 AND waiting IS NULL;

-- version 7
CREATE TABLE inbox(
    id INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL,
    body BLOB, checksum INTEGER, nonce INTEGER, UNIQUE(run, number)
);

-- version 8
ALTER TABLE runs ADD COLUMN losses INTEGER NOT NULL DEFAULT 0;
DROP INDEX runs_by_queue;
CREATE INDEX runs_by_queue ON runs(queue, owner, losses, id)
    WHERE queue IS NOT NULL AND is_turn_open = 1 AND waiting IS NULL;

-- version 9
CREATE TABLE dictionaries(
    id INTEGER PRIMARY KEY AUTOINCREMENT, content BLOB NOT NULL, runs BLOB NOT NULL
);

-- version 10
ALTER TABLE runs ADD COLUMN ended_at REAL;
UPDATE heads SET events=NULL, checksum=NULL
    WHERE EXISTS(SELECT 1 FROM frames WHERE id = heads.frame AND count < 3)
    AND EXISTS(SELECT 1 FROM runs WHERE id = heads.run AND is_turn_open = 0);
