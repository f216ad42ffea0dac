package sidekeepertest

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BinaryVariable is the environment variable that names the sidecar's program for [StartProcess].
const BinaryVariable = "SIDEKEEPER_BINARY"

const (
	// dialInterval is how often a sidecar is tried that has just been started.
	dialInterval = 10 * time.Millisecond
	// logBytesMax is how much of its log is shown if the test fails.
	logBytesMax = 64 * 1024
)

// Process is a real sidecar, in a process of its own, for tests that want one.
type Process struct {
	// Endpoint is where it listens.
	Endpoint string

	arguments []string
	socket    string
	log       *tail
	command   *exec.Cmd
	ended     chan struct{}
}

// StartProcess starts a sidecar at a Unix socket, with further flags of "sidekeeper serve", which ends with the test. Its
// program is named by the environment variable SIDEKEEPER_BINARY, or is "sidekeeper" on the PATH; without one the test is
// skipped.
func StartProcess(t testing.TB, flags ...string) *Process {
	t.Helper()
	program := os.Getenv(BinaryVariable)
	if program == "" {
		found, err := exec.LookPath("sidekeeper")
		if err != nil {
			t.Skipf("no sidecar: %s names none, and there is none on the PATH", BinaryVariable)
		}
		program = found
	}
	// The path of a Unix socket has at most 107 bytes, which that of the test's own folder may exceed.
	folder, err := os.MkdirTemp("", "sk-")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(folder, "s.sock")
	p := &Process{
		Endpoint:  "unix://" + socket,
		arguments: append([]string{program, "serve", "--listen", "unix:" + socket, "--log-format", "text"}, flags...),
		socket:    socket,
		log:       &tail{},
	}
	t.Cleanup(func() {
		p.Kill()
		_ = os.RemoveAll(folder)
		if t.Failed() {
			t.Logf("the sidecar's log:\n%s", p.log)
		}
	})
	p.Restart(t)
	return p
}

// Restart starts it, after it was stopped or killed, and returns when it serves.
func (p *Process) Restart(t testing.TB) {
	t.Helper()
	p.Kill()
	_ = os.Remove(p.socket) // of one that was killed
	command := exec.Command(p.arguments[0], p.arguments[1:]...)
	command.Stdout, command.Stderr = p.log, p.log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	p.command, p.ended = command, make(chan struct{})
	go func(ended chan struct{}) {
		defer close(ended)
		_ = command.Wait()
	}(p.ended)
	for deadline := time.Now().Add(Patience); ; {
		connection, err := net.Dial("unix", p.socket)
		if err == nil {
			connection.Close()
			return
		}
		select {
		case <-p.ended:
			t.Fatalf("the sidecar has ended:\n%s", p.log)
		case <-time.After(dialInterval):
		}
		if time.Now().After(deadline) {
			t.Fatalf("the sidecar does not serve within %v:\n%s", Patience, p.log)
		}
	}
}

// Terminate has it drain and end, and waits for that.
func (p *Process) Terminate(t testing.TB) {
	t.Helper()
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(Patience):
		t.Fatalf("the sidecar has not ended within %v", Patience)
	}
}

// Kill ends it as a crash does.
func (p *Process) Kill() {
	if p.command != nil {
		_ = p.command.Process.Kill()
		<-p.ended
	}
}

// Pid is its process id.
func (p *Process) Pid() int {
	return p.command.Process.Pid
}

// tail keeps the end of the written text.
type tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *tail) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text.Len() > logBytesMax {
		l.text.Next(l.text.Len() - logBytesMax/2)
	}
	return l.text.Write(text)
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
