// Billing charges each account once for each month, whatever happens to the processes that do it.
package main

import (
	"context"
	"errors"
	"log"
	"os"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
)

func main() {
	ctx := context.Background()
	url := os.Getenv("BILLING_DATABASE")
	if url == "" {
		url = "billing.db"
	}
	store, err := OpenStore(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	app := &sidekeeper.Application{Jobs: []sidekeeper.Job{billing(store)}}
	if err := app.RunUntilSignal(ctx); err != nil {
		log.Fatal(err)
	}
}

// billing is the job: accounts are divided among four items, and items among processes.
func billing(store *Store) sidekeeper.Job {
	return sidekeeper.Job{
		Name: "billing",
		Configuration: &sidekeeper.JobConfiguration{
			ShardingTotalCount: 4,
			Cron:               "0 0 3 1 * ?", // at three in the morning on the first of each month
			Failover:           sidekeeper.Ptr(true),
			Props: map[string]string{
				"sidekeeper.execution-timeout":  "5m",
				"sidekeeper.retry-max-attempts": "3",
			},
		},
		Handler: func(ctx context.Context, execution *sidekeeper.Execution) error {
			fence := Fence{execution.JobName, execution.Item, execution.ShardingTotalCount, execution.FencingToken}
			charged, err := store.Charge(ctx, fence, execution.ScheduledTime.Format("2006-01"))
			if errors.Is(err, ErrStale) {
				// Somebody else executes the item by now, and has written. Trying again would not help.
				return sidekeeper.Reject(err.Error())
			}
			if err == nil {
				sidekeeper.Logger(ctx).Info("charged", "accounts", charged)
			}
			return err
		},
	}
}
