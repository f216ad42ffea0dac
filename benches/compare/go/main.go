// The application of the comparison in Go: reports the start and the end of each execution, a JSON object a line.
//
// Lines on its standard input are commands: after "hold" executions do not end until "release".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
)

type configuration struct {
	ShardingTotalCount int    `json:"sharding_total_count"`
	Cron               string `json:"cron"`
	Failover           bool   `json:"failover"`
	Misfire            bool   `json:"misfire"`
}

var (
	output sync.Mutex
	held   atomic.Bool
)

func report(event string, fields map[string]any) {
	fields["event"] = event
	line, err := json.Marshal(fields)
	if err != nil {
		log.Fatal(err)
	}
	output.Lock()
	defer output.Unlock()
	if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
		log.Fatal(err)
	}
}

func seconds(at time.Time) float64 { return float64(at.UnixMicro()) / 1e6 }

func handle(ctx context.Context, execution *sidekeeper.Execution) error {
	report("start", map[string]any{
		"item": execution.Item, "scheduled": seconds(execution.ScheduledTime), "time": seconds(time.Now()),
	})
	for held.Load() && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	report("end", map[string]any{"item": execution.Item, "time": seconds(time.Now())})
	return ctx.Err()
}

func reportAssignments(events <-chan sidekeeper.AssignmentEvent) {
	for event := range events {
		items := []int{}
		for _, item := range event.Assignment.Items {
			items = append(items, item.Item)
		}
		report("assignment", map[string]any{"instance": event.Assignment.InstanceID, "items": items})
		event.Done()
	}
}

func obey() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		held.Store(lines.Text() == "hold")
		report(lines.Text(), map[string]any{})
	}
}

func main() {
	var job configuration
	if err := json.Unmarshal([]byte(os.Getenv("COMPARE_CONFIGURATION")), &job); err != nil {
		log.Fatal(err)
	}
	go obey()
	assignments := make(chan sidekeeper.AssignmentEvent)
	go reportAssignments(assignments)
	app := sidekeeper.Application{Jobs: []sidekeeper.Job{{
		Name:        os.Getenv("COMPARE_JOB"),
		Handler:     handle,
		Concurrency: job.ShardingTotalCount,
		Assignments: assignments,
		Configuration: &sidekeeper.JobConfiguration{
			ShardingTotalCount: job.ShardingTotalCount, Cron: job.Cron, JobClass: os.Getenv("COMPARE_CLASS"),
			Failover: &job.Failover, Misfire: &job.Misfire,
		},
	}}}
	if err := app.RunUntilSignal(context.Background()); err != nil {
		log.Fatal(err)
	}
}
