-- Brings the item's balances up to date with what was charged ($1 total, $2 item).
UPDATE accounts
SET balance_cents = -(SELECT COALESCE(SUM(cents), 0) FROM charges WHERE charges.account = accounts.id)
WHERE id % $1::bigint = $2::bigint
