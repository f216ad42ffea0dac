package main

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"
)

//go:embed sql
var statements embed.FS

// ErrStale says that another execution of the item, with a higher token, has been here: what this one wants to write is
// not to be written any more.
var ErrStale = errors.New("a higher fencing token has been here")

// Store keeps accounts and what they were charged, in SQLite or PostgreSQL. The statements are the same but for types.
type Store struct {
	db                            *sql.DB
	schema, claim, charge, settle string
}

// OpenStore opens a database: "postgres://..." or the path of a SQLite file.
func OpenStore(ctx context.Context, url string) (*Store, error) {
	driver, folder, name := "sqlite", "sqlite", "file:"+url+"?_pragma=busy_timeout(10000)&_txlock=immediate"
	if strings.HasPrefix(url, "postgres://") {
		driver, folder, name = "pgx", "postgres", url
	}
	s := &Store{}
	for file, text := range map[string]*string{
		"schema": &s.schema, "claim": &s.claim, "charge": &s.charge, "settle": &s.settle,
	} {
		read, err := statements.ReadFile("sql/" + folder + "/" + file + ".sql")
		if err != nil {
			return nil, err
		}
		*text = string(read)
	}
	db, err := sql.Open(driver, name)
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, s.schema); err != nil {
		return nil, errors.Join(fmt.Errorf("schema: %w", err), db.Close())
	}
	s.db = db
	return s, nil
}

// Close closes the database.
func (s *Store) Close() error {
	return s.db.Close()
}

// Fence is which item of which job writes, by which right.
type Fence struct {
	Job   string
	Item  int
	Total int
	Token int64
}

// Charge charges the accounts of one item for a period, each once, and returns how many it has charged. It is one
// transaction, which begins by raising the item's fence: a later execution with a lower token writes nothing, not even in
// untouched rows, and gets [ErrStale].
func (s *Store) Charge(ctx context.Context, fence Fence, period string) (int64, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() // nothing, once it is committed
	claimed, err := affected(tx.ExecContext(ctx, s.claim, fence.Job, fence.Item, fence.Token))
	if err != nil {
		return 0, fmt.Errorf("claim: %w", err)
	}
	if claimed == 0 {
		return 0, fmt.Errorf("item %d of %s with token %d: %w", fence.Item, fence.Job, fence.Token, ErrStale)
	}
	charged, err := affected(tx.ExecContext(ctx, s.charge, fence.Total, fence.Item, period, fence.Token))
	if err != nil {
		return 0, fmt.Errorf("charge: %w", err)
	}
	if _, err := tx.ExecContext(ctx, s.settle, fence.Total, fence.Item); err != nil {
		return 0, fmt.Errorf("settle: %w", err)
	}
	return charged, tx.Commit()
}

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
