package sidekeeper_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/internal/script"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// stoppable has the test program be an application that signals are sent to.
const stoppable = "-stoppable"

// runStoppable is that application: its handler goes on when a line is read.
func runStoppable() {
	app := &sidekeeper.Application{
		Endpoint: os.Args[2],
		Logger:   slog.New(slog.NewTextHandler(onlyMessages{}, nil)),
		Jobs: []sidekeeper.Job{{
			Name: "orderSync", Concurrency: 1, Configuration: &sidekeeper.JobConfiguration{ShardingTotalCount: 6},
			Handler: func(_ context.Context, execution *sidekeeper.Execution) error {
				fmt.Println("begun", execution.Item)
				_, err := bufio.NewReader(os.Stdin).ReadString('\n')
				return err
			},
			OnRevoked: func(context.Context, sidekeeper.ItemsChange) error {
				fmt.Println("revoked")
				return nil
			},
		}},
	}
	fmt.Println("returned", app.RunUntilSignal(context.Background()))
}

// onlyMessages prints what is said of signals.
type onlyMessages struct{}

func (onlyMessages) Write(record []byte) (int, error) {
	if _, message, ok := strings.Cut(string(record), `msg="SIG`); ok {
		fmt.Println("SIG" + strings.TrimSuffix(strings.TrimSpace(message), `"`))
	}
	return len(record), nil
}

type process struct {
	*exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func start(t *testing.T, sidecar *script.Sidecar) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(program, stoppable, sidecar.Endpoint), lines: make(chan string, 16)}
	p.Stderr = os.Stderr
	p.in, _ = p.StdinPipe()
	out, _ := p.StdoutPipe()
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

// setAnswersTimeout is for tests that need another one.
func setAnswersTimeout(t *testing.T, timeout time.Duration) {
	before := sidekeeper.SetAnswersTimeout(timeout)
	t.Cleanup(func() { sidekeeper.SetAnswersTimeout(before) })
}

// succeed waits for so many results, which have to be of success.
func succeed(t *testing.T, sidecar *script.Sidecar, count int) {
	t.Helper()
	for count > 0 {
		for _, result := range sidecar.Report(t).GetResults() {
			equal(t, "outcome of "+result.GetExecutionId(), result.GetOutcome(), success)
			count--
		}
	}
}

func TestAfterSIGTERMEverythingIsExecutedThatTheSidecarHasStarted(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.HoldDrains()
	sidecar.TellGrace(time.Hour)
	p := start(t, sidecar)
	stream := sidecar.Stream(t)
	executions := []string{stream.Execute(0), stream.Execute(1)}
	expect(t, p.lines, "begun 0")
	_ = p.Process.Signal(syscall.SIGTERM)
	expect(t, p.lines, "SIGTERM: stopping")
	equal(t, "drained", script.Receive(t, "drain", sidecar.Drained).GetAttachmentId(), stream.AttachmentID)
	executions = append(executions, stream.Execute(2)) // it was about to start
	stream.Draining()
	expect(t, p.lines, "revoked")
	for number, id := range executions {
		if number > 0 {
			expect(t, p.lines, fmt.Sprint("begun ", number))
		}
		nothing(t, "it has left", stream.Closed)
		_, _ = io.WriteString(p.in, "go on\n")
		result := sidecar.Result(t)
		equal(t, "result", result.GetExecutionId(), id)
		equal(t, "outcome", result.GetOutcome(), success)
	}
	script.Receive(t, "it leaves", stream.Closed)
	equal(t, "detached", len(sidecar.Detached), 1)
	expect(t, p.lines, "returned <nil>")
}

func TestStopWaitsForWhatTheSidecarIsStarting(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.HoldDrains()
	job, told := owning()
	app, ended := serving(t, sidecar, job)
	stream := sidecar.Stream(t, 0)
	expect(t, told, "assigned 0:100 ATTACHED")
	app.Stop()
	script.Receive(t, "drain", sidecar.Drained)
	stream.Execute(0)
	succeed(t, sidecar, 1)
	nothing(t, "items are revoked", told)
	nothing(t, "it has returned", ended)
	stream.Draining()
	expect(t, told, "revoked 0:100 DETACHED")
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
}

func TestStopWaitsNoLongerForTheSidecarThanTheDrainTimeout(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.HoldDrains()
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, DrainTimeout: 200 * time.Millisecond, Jobs: []sidekeeper.Job{
		orderSync(ignore),
	}}
	ended := run(t, app)
	stream := sidecar.Stream(t)
	sidecar.Acknowledgement(t)
	app.Stop()
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
	script.Receive(t, "it leaves", stream.Closed)
	equal(t, "drained", len(sidecar.Drained), 1)
}

func TestStopWaitsForASilentSidecarNoLongerThanTheLease(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.HoldDrains()
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, DrainTimeout: time.Hour, Jobs: []sidekeeper.Job{
		orderSync(ignore),
	}}
	ended := run(t, app)
	stream := sidecar.Stream(t)
	sidecar.Acknowledgement(t)
	app.Stop()
	script.Receive(t, "drain", sidecar.Drained)
	stream.Send(lease(200*time.Millisecond, sidekeeperv1.SessionState_SESSION_STATE_CONNECTED))
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
	script.Receive(t, "it leaves", stream.Closed)
}

func TestStopAtOnceDoesNotWaitForTheSidecar(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.HoldDrains()
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, DrainTimeout: time.Hour, Jobs: []sidekeeper.Job{
		orderSync(ignore),
	}}
	ended := run(t, app)
	stream := sidecar.Stream(t)
	sidecar.Acknowledgement(t)
	app.Stop()
	script.Receive(t, "drain", sidecar.Drained)
	stream.Execute(0)
	succeed(t, sidecar, 1)
	nothing(t, "it has returned", ended)
	app.Stop(sidekeeper.Immediately())
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
}

func TestStopDoesNotWaitForALease(t *testing.T) {
	sidecar := script.Start(t)
	job, told := owning()
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, DrainTimeout: time.Hour, Jobs: []sidekeeper.Job{job}}
	ended := run(t, app)
	stream := sidecar.Stream(t, 0)
	expect(t, told, "assigned 0:100 ATTACHED")
	stream.Send(lease(200*time.Millisecond, sidekeeperv1.SessionState_SESSION_STATE_CONNECTED))
	expect(t, told, "lost 0:100 SILENT")
	stream.Execute(0) // waits for a lease
	app.Stop()
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
	nothing(t, "it is reported", sidecar.Reports)
}

func TestAnAnswerBehindTheEndOfTheStreamCounts(t *testing.T) {
	setAnswersTimeout(t, script.Patience)
	sidecar := script.Start(t)
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{orderSync(ignore)}}
	kept := logging(t, app)
	run(t, app)
	stream := sidecar.Stream(t)
	sidecar.AnswerReports(func(ctx context.Context, _ *sidekeeperv1.ReportCompletionRequest) error {
		stream.End(codes.OK, "")
		<-stream.Closed
		select {
		case <-ctx.Done(): // the client does not wait for the answer
		case <-time.After(100 * time.Millisecond):
		}
		return ctx.Err()
	})
	stream.Execute(0)
	sidecar.Request(t)
	if log := kept.String(); !strings.Contains(log, "result recorded") || strings.Contains(log, "result dropped") {
		t.Error("the answer does not count")
	}
}

func TestAHandlerThatRunsAtTheEndOfTheStreamIsCancelledAtOnce(t *testing.T) {
	setAnswersTimeout(t, time.Hour)
	sidecar := script.Start(t)
	reporting := make(chan struct{}, 1)
	sidecar.AnswerReports(never(reporting))
	reasons := make(chan sidekeeper.CancelReason, 1)
	serving(t, sidecar, orderSync(func(ctx context.Context, execution *sidekeeper.Execution) error {
		if execution.Item == 0 {
			<-ctx.Done()
			reasons <- reasonOf(ctx)
		}
		return nil
	}))
	stream := sidecar.Stream(t)
	stream.Execute(0)
	stream.Execute(1)
	script.Receive(t, "a report", reporting)
	stream.End(codes.OK, "")
	equal(t, "reason", script.Receive(t, "the handler ends", reasons), sidekeeper.CancelDetached)
}

func TestWithAnOlderSidecarExecutionsThatHaveNotBegunAreLeft(t *testing.T) {
	sidecar := script.Start(t)
	sidecar.BeOlder()
	p := start(t, sidecar)
	stream := sidecar.Stream(t)
	began, waiting := stream.Execute(0), stream.Execute(1)
	expect(t, p.lines, "begun 0")
	_ = p.Process.Signal(syscall.SIGTERM)
	expect(t, p.lines, "SIGTERM: stopping", "revoked")
	stream.Execute(2)
	for _, id := range []string{waiting, stream.Execute(3)} {
		// A sidecar ends the stream of an application that does not answer a Cancel.
		stream.Cancel(id, sidekeeperv1.CancelReason_CANCEL_REASON_DEADLINE)
		result := sidecar.Result(t)
		equal(t, "cancelled", result.GetExecutionId(), id)
		equal(t, "outcome", result.GetOutcome(), rejects)
	}
	nothing(t, "it has left", stream.Closed)
	_, _ = io.WriteString(p.in, "go on\n")
	result := sidecar.Result(t)
	equal(t, "result", result.GetExecutionId(), began)
	equal(t, "outcome", result.GetOutcome(), success)
	script.Receive(t, "it leaves", stream.Closed)
	expect(t, p.lines, "returned <nil>")
	nothing(t, "an execution that has not begun is answered", sidecar.Reports)
}

func TestASecondSignalEndsItAtOnce(t *testing.T) {
	sidecar := script.Start(t)
	p := start(t, sidecar)
	stream := sidecar.Stream(t)
	stream.Execute(0)
	expect(t, p.lines, "begun 0")
	_ = p.Process.Signal(syscall.SIGINT)
	expect(t, p.lines, "SIGINT: stopping", "revoked")
	_ = p.Process.Signal(syscall.SIGTERM)
	expect(t, p.lines, "SIGTERM: stopping at once", "returned <nil>")
	script.Receive(t, "it leaves", stream.Closed)
	nothing(t, "reported", sidecar.Reports)
}

func TestAfterTheDrainTimeoutHandlersAreCancelledAndOthersAreLeft(t *testing.T) {
	for _, timeout := range []time.Duration{200 * time.Millisecond, -1} {
		sidecar := script.Start(t)
		begun := make(chan struct{}, 2)
		job := orderSync(func(ctx context.Context, _ *sidekeeper.Execution) error {
			begun <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		})
		job.Concurrency = 1
		app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, DrainTimeout: timeout, Jobs: []sidekeeper.Job{job}}
		ended := run(t, app)
		stream := sidecar.Stream(t)
		running := stream.Execute(0)
		stream.Execute(1) // waits
		script.Receive(t, "the handler begins", begun)
		app.Stop()
		result := sidecar.Result(t)
		equal(t, "result", result.GetExecutionId(), running)
		equal(t, "message", result.GetFailureMessage(), "cancelled: DRAIN_TIMEOUT")
		equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
		script.Receive(t, "it leaves", stream.Closed)
		nothing(t, "the other one begins", begun)
		nothing(t, "the other one is reported", sidecar.Reports)
	}
}

func TestStopWaitsForTheReport(t *testing.T) {
	sidecar := script.Start(t)
	reporting, gate := make(chan struct{}), make(chan struct{})
	sidecar.AnswerReports(func(context.Context, *sidekeeperv1.ReportCompletionRequest) error {
		close(reporting)
		<-gate
		return nil
	})
	var app *sidekeeper.Application
	app, ended := serving(t, sidecar, orderSync(func(context.Context, *sidekeeper.Execution) error {
		app.Stop()
		return nil
	}))
	stream := sidecar.Stream(t)
	stream.Execute(0)
	script.Receive(t, "a report", reporting)
	nothing(t, "it has left", stream.Closed)
	nothing(t, "it has returned", ended)
	close(gate)
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
	equal(t, "outcome", sidecar.Result(t).GetOutcome(), success)
}

func TestStopAtOnceCancelsHandlers(t *testing.T) {
	sidecar := script.Start(t)
	begun, reasons := make(chan struct{}), make(chan sidekeeper.CancelReason, 1)
	app, ended := serving(t, sidecar, orderSync(func(ctx context.Context, _ *sidekeeper.Execution) error {
		close(begun)
		<-ctx.Done()
		reasons <- reasonOf(ctx)
		return ctx.Err()
	}))
	sidecar.Stream(t).Execute(0)
	script.Receive(t, "the handler begins", begun)
	app.Stop(sidekeeper.Immediately())
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
	equal(t, "reason", script.Receive(t, "the handler ends", reasons), sidekeeper.CancelStopped)
}

func TestAHandlerThatDoesNotStopIsLeftBehind(t *testing.T) {
	sidecar := script.Start(t)
	begun, gate := make(chan struct{}), make(chan struct{})
	app := &sidekeeper.Application{Endpoint: sidecar.Endpoint, Jobs: []sidekeeper.Job{
		orderSync(func(context.Context, *sidekeeper.Execution) error {
			close(begun)
			<-gate
			return nil
		}),
	}}
	kept := logging(t, app)
	ended := run(t, app)
	sidecar.Stream(t).Execute(0)
	script.Receive(t, "the handler begins", begun)
	app.Stop(sidekeeper.Immediately())
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
	close(gate)
	if !strings.Contains(kept.String(), `msg="handler is left behind" job=orderSync item=0`) {
		t.Error("nothing is said of it")
	}
}

func TestStopWithoutASidecarAndBeforeTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nobody.sock")
	app := &sidekeeper.Application{Endpoint: "unix://" + path, Jobs: []sidekeeper.Job{orderSync(ignore)}}
	logging(t, app)
	app.Stop()
	if err := app.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	ended := run(t, app)
	time.Sleep(150 * time.Millisecond) // it tries
	nothing(t, "it has returned", ended)
	app.Stop()
	equal(t, "Run", script.Receive(t, "Run returns", ended), error(nil))
}

func TestAnApplicationRunsOnceAtATime(t *testing.T) {
	sidecar := script.Start(t)
	app, _ := serving(t, sidecar, orderSync(ignore))
	sidecar.Stream(t)
	if err := app.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "running already") {
		t.Errorf("error: %v", err)
	}
}
