CREATE TABLE IF NOT EXISTS fences (
    job TEXT NOT NULL,
    item INTEGER NOT NULL,
    token BIGINT NOT NULL,
    PRIMARY KEY (job, item)
);
CREATE TABLE IF NOT EXISTS accounts (
    id BIGINT PRIMARY KEY,
    fee_cents BIGINT NOT NULL,
    balance_cents BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS charges (
    account BIGINT NOT NULL REFERENCES accounts (id),
    period TEXT NOT NULL,
    cents BIGINT NOT NULL,
    token BIGINT NOT NULL,
    PRIMARY KEY (account, period)
);
