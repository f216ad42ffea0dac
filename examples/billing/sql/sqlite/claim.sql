-- Raises the item's fence to the token ($1 job, $2 item, $3 token). No row changed: a higher one has been here.
INSERT INTO fences (job, item, token) VALUES ($1, $2, $3)
ON CONFLICT (job, item) DO UPDATE SET token = excluded.token WHERE fences.token <= excluded.token
