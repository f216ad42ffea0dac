-- Charges the item's accounts for a period, each once ($1 total, $2 item, $3 period, $4 token).
INSERT INTO charges (account, period, cents, token)
SELECT id, $3::text, fee_cents, $4::bigint FROM accounts WHERE id % $1::bigint = $2::bigint
ON CONFLICT (account, period) DO NOTHING
