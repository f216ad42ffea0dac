// Bench measures the dispatch round trip of the Go client beside a bare gRPC echo, and prints one JSON line:
//
//	go run ./bench --sidekeeper target/release/sidekeeper [--executions 1000000]
//
// The round trip is from the moment when the sidecar starts an execution (FireTime), over the handler, which does
// nothing, to the moment when the client has the answer that its completion is recorded; one execution at a time. The
// rate is that of a job of many items that is triggered again as soon as it is done. Both are with a real sidecar on its
// embedded registry. The echo is a unary call of the size of a report, from this process to a Go server in another one,
// with as many calls at once as the job executes items.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

const (
	// concurrency is how many items are executed at once, and echo calls made at once.
	concurrency = 32
	// manyItems is of how many items the job is whose rate is measured: how often it is triggered hardly counts then.
	manyItems = 2000
	// roundTrips is how many are timed one by one.
	roundTrips = 1000
	// warmUps is how many are made before.
	warmUps = 50
	// echoTime is for how long echo calls are made.
	echoTime = 3 * time.Second
	// warmUpPart is the part of the executions after which memory is looked at first.
	warmUpPart = 0.1
)

// measured is the line that is printed, with the fields of all languages.
type measured struct {
	Language      string  `json:"language"`
	Mode          string  `json:"mode"`
	P50           int64   `json:"p50_us"`
	P99           int64   `json:"p99_us"`
	PerSecond     int64   `json:"per_second"`
	Executions    int     `json:"executions"`
	MemoryKiB     int64   `json:"memory_kib"`
	MemoryGrowth  float64 `json:"memory_growth"`
	EchoP50       int64   `json:"echo_p50_us"`
	EchoPerSecond int64   `json:"echo_per_second"`
	Ratio         float64 `json:"ratio"`
}

func main() {
	binary := flag.String("sidekeeper", "", "the sidecar's `program`; a release build")
	executions := flag.Int("executions", 40_000, "how many are executed for the rate")
	echoAt := flag.String("serve-echo", "", "serve the echo at this socket; for the program itself")
	flag.Parse()
	if *echoAt != "" {
		log.Fatal(serveEcho(*echoAt))
	}
	if *binary == "" {
		log.Fatal("--sidekeeper is missing")
	}
	line, err := measure(*binary, *executions)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		log.Fatal(err)
	}
}

// measure measures the dispatch, and the echo before and after it.
func measure(binary string, executions int) (*measured, error) {
	folder, err := os.MkdirTemp("", "sk-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	line := &measured{Language: "go", Mode: "go"}
	before, alone, err := echoes(filepath.Join(folder, "before.sock"))
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(folder, "sidecar.sock")
	stop, err := start(socket, binary, "serve", "--listen", "unix:"+socket, "--log-level", "warn")
	if err != nil {
		return nil, err
	}
	err = dispatch("unix://"+socket, executions, line)
	stop()
	if err != nil {
		return nil, err
	}
	after, _, err := echoes(filepath.Join(folder, "after.sock"))
	if err != nil {
		return nil, err
	}
	rate := (before + after) / 2
	line.EchoP50 = percentile(alone, 0.5).Microseconds()
	line.EchoPerSecond = int64(rate)
	line.Ratio = rounded(float64(line.PerSecond)/rate, 100)
	return line, nil
}

// start starts a program, and returns when its socket exists. The returned function ends the program.
func start(socket string, program string, arguments ...string) (func(), error) {
	command := exec.Command(program, arguments...)
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait()
	}()
	for {
		if _, err := os.Stat(socket); err == nil {
			return func() {
				_ = command.Process.Signal(syscall.SIGTERM)
				<-ended
			}, nil
		}
		select {
		case <-ended:
			return nil, fmt.Errorf("%s has ended: %v", program, command.ProcessState)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// echoes returns how many echo calls are made a second, and how long one takes alone.
func echoes(socket string) (float64, []time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, nil, err
	}
	stop, err := start(socket, self, "--serve-echo", socket)
	if err != nil {
		return 0, nil, err
	}
	defer stop()
	return callEcho(context.Background(), socket)
}

// percentile returns a percentile of unsorted values.
func percentile(values []time.Duration, part float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*part))]
}

func rounded(value float64, unit float64) float64 {
	return float64(int64(value*unit+0.5)) / unit
}
