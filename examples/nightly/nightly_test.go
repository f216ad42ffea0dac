package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/sidekeepertest"
)

const patience = 20 * time.Second

// asProgram has the test program be the example.
const asProgram = "NIGHTLY_EXAMPLE"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// check expects a report to have each row once, in order.
func check(t *testing.T, folder, region string, rows int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, region+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for row := range rows {
		fmt.Fprintf(&want, "%s %d\n", region, row)
	}
	if string(text) != want.String() {
		t.Errorf("%s: the report has %d bytes instead of %d, or other ones", region, len(text), want.Len())
	}
}

func TestARetryGoesOnFromTheCheckpoint(t *testing.T) {
	folder := t.TempDir()
	batch := Batch{Folder: folder, Rows: 3*chunk + 7}
	sidecar := sidekeepertest.Run(t, &sidekeeper.Application{Jobs: []sidekeeper.Job{batch.Job()}})
	at := Checkpoint{Row: 2, Bytes: int64(len("north 0\nnorth 1\n"))}
	text, _ := json.Marshal(at)
	report := filepath.Join(folder, "north.txt")
	if err := os.WriteFile(report, []byte("north 0\nnorth 1\nnorth 2\nnor"), 0o644); err != nil { // torn by a crash
		t.Fatal(err)
	}
	result := sidecar.Execute(sidekeepertest.Execution{
		Job: "nightly", Item: 0, ItemParameter: "north", Attempt: 2, Checkpoint: text, Timeout: time.Minute,
	})
	if result.Outcome != sidekeepertest.Success {
		t.Fatalf("got %+v", result)
	}
	check(t, folder, "north", batch.Rows)
	if err := json.Unmarshal(result.Checkpoint, &at); err != nil || at.Row != batch.Rows {
		t.Errorf("the last checkpoint: %s, %v", result.Checkpoint, err)
	}
}

// process is the example in a process of its own, and what it has told.
type process struct {
	*exec.Cmd
	lines chan string
}

func start(t *testing.T, endpoint, folder string, rows int) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{lines: make(chan string, 10_000)}
	p.Cmd = exec.Command(program, "-folder", folder, "-rows", fmt.Sprint(rows), "-pause", "1ms")
	p.Env = append(os.Environ(), asProgram+"=1", sidekeeper.EndpointVariable+"="+endpoint)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-read
		_ = p.Wait()
	})
	return p
}

// told waits for lines that begin so, in any order, and returns the last one.
func (p *process) told(t *testing.T, beginnings ...string) string {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case line := <-p.lines:
			beginnings = slices.DeleteFunc(beginnings, func(one string) bool { return strings.HasPrefix(line, one) })
			if len(beginnings) == 0 {
				return line
			}
		case <-timer.C:
			t.Fatalf("not within %v: %q", patience, beginnings)
		}
	}
}

func TestABatchIsTakenOverAfterACrash(t *testing.T) {
	sidecar := sidekeepertest.StartProcess(t)
	folder, rows := t.TempDir(), 20*chunk
	doomed := start(t, sidecar.Endpoint, folder, rows)
	trigger := func() {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			_, err := sidekeeper.Trigger(context.Background(), "nightly", sidekeeper.WithEndpoint(sidecar.Endpoint))
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal(err) // it is not attached yet
			}
		}
	}
	trigger()
	doomed.told(t, "checkpoint north at row 100,", "checkpoint south at row 100,")
	heir := start(t, sidecar.Endpoint, folder, rows)
	time.Sleep(100 * time.Millisecond) // it may attach before the crash or after; both are well
	_ = doomed.Process.Kill()
	for range 2 {
		line := heir.told(t, "begun ")
		var region, source string
		var row, attempt int
		if _, err := fmt.Sscanf(line, "begun %s at row %d, %s attempt %d", &region, &row, &source, &attempt); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if row < 100 || row >= rows || source != "FAILOVER," {
			t.Errorf("taken over: %q", line)
		}
	}
	heir.told(t, "done north", "done south")
	check(t, folder, "north", rows)
	check(t, folder, "south", rows)
}
