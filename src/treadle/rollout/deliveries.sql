CREATE TABLE IF NOT EXISTS parcels (
    sink TEXT NOT NULL, key TEXT NOT NULL, place INTEGER NOT NULL, sent INTEGER, status TEXT NOT NULL,
    note TEXT NOT NULL, data BLOB, UNIQUE (sink, key));
CREATE INDEX IF NOT EXISTS parcels_in_order ON parcels (sink, status, place);
CREATE INDEX IF NOT EXISTS parcels_by_place ON parcels (place);
CREATE INDEX IF NOT EXISTS parcels_by_sent ON parcels (sent);
CREATE TABLE IF NOT EXISTS sink_notes (
    sink TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (sink, name)) WITHOUT ROWID;
