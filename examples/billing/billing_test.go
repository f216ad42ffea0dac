package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/sidekeepertest"
)

// postgresVariable names a PostgreSQL database for the tests: postgres://user:password@host/database.
const postgresVariable = "SIDEKEEPER_TEST_POSTGRES"

// onEach runs a test on SQLite, and on PostgreSQL if one is named.
func onEach(t *testing.T, test func(t *testing.T, store *Store)) {
	urls := map[string]string{"sqlite": filepath.Join(t.TempDir(), "billing.db"), "postgres": os.Getenv(postgresVariable)}
	for name, url := range urls {
		t.Run(name, func(t *testing.T) {
			if url == "" {
				t.Skipf("%s names no database", postgresVariable)
			}
			ctx := context.Background()
			store, err := OpenStore(ctx, url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			for _, table := range []string{"charges", "accounts", "fences"} {
				if _, err := store.db.ExecContext(ctx, "DELETE FROM "+table); err != nil {
					t.Fatal(err)
				}
			}
			for id := range 8 {
				if _, err := store.db.ExecContext(ctx, "INSERT INTO accounts (id, fee_cents) VALUES ($1, $2)", id, 100+id); err != nil {
					t.Fatal(err)
				}
			}
			test(t, store)
		})
	}
}

// balances are those of all accounts, as text.
func balances(t *testing.T, store *Store) string {
	t.Helper()
	rows, err := store.db.Query("SELECT balance_cents FROM accounts ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var cents int
		if err := rows.Scan(&cents); err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(cents))
	}
	return strings.Join(all, " ")
}

func TestALateWriterIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, store *Store) {
		ctx := context.Background()
		late, current := Fence{"billing", 1, 4, 7}, Fence{"billing", 1, 4, 9}
		// The execution with token 7 stalls, its lease ends, the one with token 9 writes.
		if charged, err := store.Charge(ctx, current, "2026-10"); err != nil || charged != 2 {
			t.Fatalf("charged %d, %v", charged, err)
		}
		if _, err := store.Charge(ctx, late, "2026-11"); !errors.Is(err, ErrStale) {
			t.Fatalf("the late writer was let in: %v", err)
		}
		if got := balances(t, store); got != "0 -101 0 0 0 -105 0 0" {
			t.Errorf("balances: %s", got)
		}
		// The same token may write again, and charges nobody twice.
		if charged, err := store.Charge(ctx, current, "2026-10"); err != nil || charged != 0 {
			t.Fatalf("charged %d, %v", charged, err)
		}
		// Other items have fences of their own.
		if charged, err := store.Charge(ctx, Fence{"billing", 2, 4, 3}, "2026-11"); err != nil || charged != 2 {
			t.Fatalf("charged %d, %v", charged, err)
		}
	})
}

func TestTheJobChargesEachAccountOnce(t *testing.T) {
	onEach(t, func(t *testing.T, store *Store) {
		sidecar := sidekeepertest.Run(t, &sidekeeper.Application{Jobs: []sidekeeper.Job{billing(store)}})
		month := time.Date(2026, 10, 1, 3, 0, 0, 0, time.UTC)
		for item := range 4 {
			for range 2 { // the second time, because nobody knows whether the first was recorded
				result := sidecar.Execute(sidekeepertest.Execution{Job: "billing", Item: item, ScheduledTime: month})
				if result.Outcome != sidekeepertest.Success {
					t.Errorf("item %d: %+v", item, result)
				}
			}
		}
		if got := balances(t, store); got != "-100 -101 -102 -103 -104 -105 -106 -107" {
			t.Errorf("balances: %s", got)
		}
		stale := sidecar.Execute(sidekeepertest.Execution{Job: "billing", ScheduledTime: month, FencingToken: 1})
		if stale.Outcome != sidekeepertest.Rejected || !strings.Contains(stale.Message, "higher fencing token") {
			t.Errorf("with an old token: %+v", stale)
		}
	})
}
