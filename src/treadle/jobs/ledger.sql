CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
    number INTEGER PRIMARY KEY, status TEXT NOT NULL, label TEXT NOT NULL, share TEXT NOT NULL,
    spec BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS open_items ON items (number) WHERE status = 'open';
CREATE TABLE IF NOT EXISTS attempts (
    number INTEGER NOT NULL, attempt INTEGER NOT NULL, status TEXT NOT NULL, label TEXT NOT NULL,
    reason TEXT NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cost_usd REAL,
    file TEXT, end INTEGER, at REAL NOT NULL, outcome BLOB NOT NULL,
    PRIMARY KEY (number, attempt)) WITHOUT ROWID;
