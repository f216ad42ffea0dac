CREATE TABLE IF NOT EXISTS fences (
    job TEXT NOT NULL,
    item INTEGER NOT NULL,
    token INTEGER NOT NULL,
    PRIMARY KEY (job, item)
);
CREATE TABLE IF NOT EXISTS accounts (
    id INTEGER PRIMARY KEY,
    fee_cents INTEGER NOT NULL,
    balance_cents INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS charges (
    account INTEGER NOT NULL REFERENCES accounts (id),
    period TEXT NOT NULL,
    cents INTEGER NOT NULL,
    token INTEGER NOT NULL,
    PRIMARY KEY (account, period)
);
