package main

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// count is what was recorded, as the client's calls show it.
type count struct {
	mu       sync.Mutex
	recorded int
	wanted   int
	reached  chan struct{}
	fired    time.Time
	taken    []time.Duration
}

// watch sees each report that is answered.
func (c *count) watch(ctx context.Context, method string, request, response any, connection *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	err := invoke(ctx, method, request, response, connection, options...)
	if answer, ok := response.(*sidekeeperv1.ReportCompletionResponse); ok && err == nil {
		now := time.Now()
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.fired.IsZero() {
			c.taken = append(c.taken, now.Sub(c.fired))
		}
		c.recorded += len(answer.GetRecords())
		if c.reached != nil && c.recorded >= c.wanted {
			close(c.reached)
			c.reached = nil
		}
	}
	return err
}

// handle is the handler of the job of one item, whose round trips are timed.
func (c *count) handle(_ context.Context, execution *sidekeeper.Execution) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fired = execution.FireTime
	return nil
}

// further returns what is closed when so many more were recorded.
func (c *count) further(executions int) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted, c.reached = c.recorded+executions, make(chan struct{})
	return c.reached
}

// dispatch runs an application beside the sidecar, and triggers its jobs.
func dispatch(endpoint string, executions int, line *measured) error {
	seen := &count{}
	owned := make(chan struct{}, 2)
	job := func(name string, items int, handler sidekeeper.Handler) sidekeeper.Job {
		return sidekeeper.Job{
			Name: name, Handler: handler, Concurrency: concurrency,
			Configuration: &sidekeeper.JobConfiguration{ShardingTotalCount: items},
			OnAssigned: func(_ context.Context, change sidekeeper.ItemsChange) error {
				if len(change.Items) == items {
					owned <- struct{}{}
				}
				return nil
			},
		}
	}
	nothing := func(context.Context, *sidekeeper.Execution) error { return nil }
	app := &sidekeeper.Application{
		Endpoint:    endpoint,
		Logger:      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(seen.watch)},
		Jobs:        []sidekeeper.Job{job("one", 1, seen.handle), job("many", manyItems, nothing)},
	}
	ended := make(chan error, 1)
	go func() { ended <- app.Run(context.Background()) }()
	for range app.Jobs {
		select {
		case <-owned:
		case err := <-ended:
			return err
		}
	}
	if err := fireAll(endpoint, seen, executions, line); err != nil {
		return err
	}
	app.Stop()
	return <-ended
}

func fireAll(endpoint string, seen *count, executions int, line *measured) error {
	connection, err := grpc.NewClient("unix:"+strings.TrimPrefix(endpoint, "unix://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	jobs := sidekeeperv1.NewJobServiceClient(connection)
	fire := func(job string, items int) error {
		done := seen.further(items)
		_, err := jobs.TriggerJob(context.Background(), &sidekeeperv1.TriggerJobRequest{JobName: job})
		if err == nil {
			<-done
		}
		return err
	}
	for range warmUps + roundTrips {
		if err := fire("one", 1); err != nil {
			return err
		}
	}
	seen.mu.Lock()
	taken := seen.taken[warmUps:]
	seen.fired, seen.taken = time.Time{}, nil
	seen.mu.Unlock()
	line.P50, line.P99 = percentile(taken, 0.5).Microseconds(), percentile(taken, 0.99).Microseconds()

	if err := fire("many", manyItems); err != nil {
		return err
	}
	rounds := max(1, executions/manyItems)
	first := max(1, int(float64(rounds)*warmUpPart))
	var memory int64
	began := time.Now()
	for number := range rounds {
		if number == first {
			memory = memoryKiB()
		}
		if err := fire("many", manyItems); err != nil {
			return err
		}
	}
	took := time.Since(began)
	line.Executions = rounds * manyItems
	line.PerSecond = int64(float64(line.Executions) / took.Seconds())
	line.MemoryKiB = memoryKiB()
	if memory > 0 {
		line.MemoryGrowth = rounded(float64(line.MemoryKiB)/float64(memory)-1, 1000)
	}
	return nil
}

// memoryKiB returns how much memory of this process is resident now, without what is garbage; where that cannot be read, what
// Go has of it.
func memoryKiB() int64 {
	debug.FreeOSMemory()
	runtime.GC()
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return kib
		}
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.Sys / 1024)
}
