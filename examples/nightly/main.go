// Nightly is a batch that goes on where it was when the process that began it dies.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
)

// chunk is how many rows are written before they are noted in a checkpoint: what a crash costs is to write as many again.
const chunk = 50

func main() {
	folder := flag.String("folder", ".", "where the reports are written")
	rows := flag.Int("rows", 1000, "how many rows each region has")
	pause := flag.Duration("pause", 0, "how long a row takes")
	flag.Parse()
	batch := Batch{Folder: *folder, Rows: *rows, Pause: *pause}
	app := &sidekeeper.Application{Jobs: []sidekeeper.Job{batch.Job()}}
	if err := app.RunUntilSignal(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// Batch writes one report for each region.
type Batch struct {
	Folder string
	Rows   int
	Pause  time.Duration
}

// Checkpoint is from where another process can go on: in the application's own terms.
type Checkpoint struct {
	// Row is the next row to be written.
	Row int `json:"row"`
	// Bytes is its offset in the report. Text behind it was written after the checkpoint, and is cut off.
	Bytes int64 `json:"bytes"`
}

// Job is the batch as a job: an item for each region.
func (b Batch) Job() sidekeeper.Job {
	return sidekeeper.Job{
		Name:    "nightly",
		Handler: b.write,
		Configuration: &sidekeeper.JobConfiguration{
			ShardingTotalCount:     2,
			Cron:                   "0 30 1 * * ?",
			ShardingItemParameters: "0=north,1=south",
			Failover:               sidekeeper.Ptr(true), // what a dead process has executed others take over
			Props: map[string]string{
				"sidekeeper.execution-timeout":  "10m", // without progress; each checkpoint gives it ten more
				"sidekeeper.retry-max-attempts": "3",   // a failure goes on from the checkpoint, too
			},
		},
	}
}

// write writes the report of one region.
func (b Batch) write(ctx context.Context, execution *sidekeeper.Execution) error {
	region := execution.ItemParameter
	var at Checkpoint
	if execution.Checkpoint != nil {
		if err := json.Unmarshal(execution.Checkpoint, &at); err != nil {
			return fmt.Errorf("checkpoint %q: %w", execution.Checkpoint, err)
		}
	}
	tell("begun", region, at.Row, execution)
	report, err := os.OpenFile(filepath.Join(b.Folder, region+".txt"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer report.Close()
	if err := report.Truncate(at.Bytes); err != nil {
		return err
	}
	if _, err := report.Seek(at.Bytes, 0); err != nil {
		return err
	}
	for at.Row < b.Rows {
		end := min(at.Row+chunk, b.Rows)
		for row := at.Row; row < end; row++ {
			written, err := fmt.Fprintf(report, "%s %d\n", region, row)
			if err != nil {
				return err
			}
			at.Bytes += int64(written)
			select {
			case <-ctx.Done():
				// Somebody else may write the report from now on.
				return context.Cause(ctx)
			case <-time.After(b.Pause):
			}
		}
		at.Row = end
		// First the rows are safe, then the checkpoint says so.
		if err := report.Sync(); err != nil {
			return err
		}
		text, err := json.Marshal(at)
		if err != nil {
			return err
		}
		if _, err := execution.Progress(ctx, text); err != nil {
			return err
		}
		tell("checkpoint", region, at.Row, execution)
	}
	tell("done", region, at.Row, execution)
	return nil
}

// tell says on standard output how far it is.
func tell(what, region string, row int, execution *sidekeeper.Execution) {
	fmt.Printf("%s %s at row %d, %v, attempt %d\n", what, region, row, execution.Source, execution.Attempt)
}
