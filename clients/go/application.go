package sidekeeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// DefaultDrainTimeout is how long executions may take to end after the application is stopped; below the 30 s after which
// Kubernetes kills.
const DefaultDrainTimeout = 25 * time.Second

// Application is an application that is an instance of jobs, through the sidecar beside it. Its fields must not be
// changed while it runs.
type Application struct {
	// Jobs are the jobs of the application.
	Jobs []Job
	// Endpoint is where the sidecar listens: "http://127.0.0.1:7070" or "unix:///run/sidekeeper.sock"; also without
	// "http://" or "//". Empty: the environment variable SIDEKEEPER_ENDPOINT, else a sidecar of this user or of root: at
	// $XDG_RUNTIME_DIR/sidekeeper/api.sock, /run/sidekeeper/api.sock or [DefaultEndpoint].
	Endpoint string
	// Token is the sidecar's token. Empty: the environment variable SIDEKEEPER_TOKEN, else none.
	Token string
	// DrainTimeout is how long executions that the sidecar has started may take to end after the application is stopped.
	// Then handlers are cancelled, and what has not begun is left to the next instance. Zero: [DefaultDrainTimeout];
	// negative: no time.
	DrainTimeout time.Duration
	// Logger gets the library's records, with the fields job, item and execution_id. Nil: [slog.Default].
	Logger *slog.Logger
	// Middleware wraps the handlers of all jobs, the first one outermost.
	Middleware []Middleware
	// DialOptions are further settings of the connection to the sidecar.
	DialOptions []grpc.DialOption

	mu      sync.Mutex
	id      string
	running *serving
	pending stopRequest
}

// serving is one run of an application.
type serving struct {
	workers []*worker
	atOnce  context.CancelFunc
}

func (s *serving) stop(request stopRequest) {
	if !request.asked {
		return
	}
	for _, worker := range s.workers {
		worker.stop(request.forGood)
	}
	if request.immediately {
		s.atOnce()
	}
}

type stopRequest struct {
	asked, immediately, forGood bool
}

// StopOption changes how an application stops.
type StopOption func(*stopRequest)

// Immediately cancels running handlers now, rather than after the drain timeout.
func Immediately() StopOption {
	return func(request *stopRequest) { request.immediately = true }
}

// ForGood says that no instance of the jobs' instance names will return, so that their items move at once. Otherwise,
// and after a signal, they wait for the time of the job's property "sidekeeper.grace".
func ForGood() StopOption {
	return func(request *stopRequest) { request.forGood = true }
}

// Run runs the jobs until the context is done or Stop is called: then the sidecar starts no more executions here, those
// that it has started may end within the drain timeout, their results are reported, and it returns nil. The handlers'
// contexts have the values of the context.
//
// Its error says that the application's settings are wrong, or is an [*AttachError]: the sidecar refuses a job.
func (a *Application) Run(ctx context.Context) error {
	jobs, err := a.register()
	if err != nil {
		return err
	}
	to := placeOf(a.Endpoint)
	connection, err := openChannel(to, resolve(a.Token, TokenVariable, ""), a.DialOptions)
	if err != nil {
		return err
	}
	defer connection.Close()
	base, atOnce := context.WithCancel(context.WithoutCancel(ctx))
	defer atOnce()
	serving, err := a.begin(ctx, jobs, sidekeeperv1.NewParticipantServiceClient(connection), &presence{endpoint: to.endpoint}, atOnce)
	if err != nil {
		return err
	}
	defer a.end()
	unwatch := context.AfterFunc(ctx, func() { serving.stop(stopRequest{asked: true}) })
	defer unwatch()

	results := make(chan error, len(serving.workers))
	for _, worker := range serving.workers {
		go func() { results <- worker.run(base) }()
	}
	var errs []error
	for range serving.workers {
		if err := <-results; err != nil {
			errs = append(errs, err)
			serving.stop(stopRequest{asked: true}) // the others finish
		}
	}
	return errors.Join(errs...)
}

// RunUntilSignal is Run until SIGTERM or SIGINT, too. The first signal is a request to finish: executions that the sidecar
// has started may end within the drain timeout. The second one ends everything at once.
func (a *Application) RunUntilSignal(ctx context.Context) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	returned, watching := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watching)
		for again := false; ; again = true {
			select {
			case number := <-signals:
				a.onSignal(number, again)
			case <-returned:
				return
			}
		}
	}()
	defer func() {
		close(returned)
		<-watching
		a.mu.Lock()
		defer a.mu.Unlock()
		a.pending = stopRequest{} // of a signal that came too late
	}()
	return a.Run(ctx)
}

func (a *Application) onSignal(number os.Signal, again bool) {
	name, how := "SIGINT", ""
	if number == syscall.SIGTERM {
		name = "SIGTERM"
	}
	if again {
		how = " at once"
	}
	a.logger().Info(name + ": stopping" + how)
	if again {
		a.Stop(Immediately())
	} else {
		a.Stop()
	}
}

// Stop stops the application, from any goroutine, and also before it runs; it does not wait for Run to return.
func (a *Application) Stop(options ...StopOption) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pending.asked = true
	for _, option := range options {
		option(&a.pending)
	}
	if a.running != nil {
		a.running.stop(a.pending)
	}
}

func (a *Application) begin(ctx context.Context, jobs []*registered, client sidekeeperv1.ParticipantServiceClient,
	presence *presence, atOnce context.CancelFunc,
) (*serving, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running != nil {
		return nil, errRunning
	}
	if a.id == "" {
		id := make([]byte, 16)
		_, _ = rand.Read(id) // never fails
		a.id = hex.EncodeToString(id)
	}
	drainTimeout := a.DrainTimeout
	if drainTimeout == 0 {
		drainTimeout = DefaultDrainTimeout
	}
	begun := &serving{atOnce: atOnce}
	for _, job := range jobs {
		base := context.WithoutCancel(ctx)
		worker := newWorker(base, job, a.id, client, a.logger(), max(drainTimeout, 0), presence)
		begun.workers = append(begun.workers, worker)
	}
	begun.stop(a.pending)
	a.running = begun
	return begun, nil
}

func (a *Application) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running, a.pending = nil, stopRequest{}
}

// register complains of an application that cannot run.
func (a *Application) register() ([]*registered, error) {
	if len(a.Jobs) == 0 {
		return nil, errors.New("sidekeeper: the application has no job")
	}
	var errs []error
	names := map[string]bool{}
	jobs := make([]*registered, 0, len(a.Jobs))
	for _, job := range a.Jobs {
		if names[job.Name] {
			errs = append(errs, fmt.Errorf("job %q: it is registered twice", job.Name))
		}
		names[job.Name] = true
		checked, err := register(job, a.Middleware)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		jobs = append(jobs, checked)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("sidekeeper: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return jobs, nil
}

func (a *Application) logger() *slog.Logger {
	if a.Logger != nil {
		return a.Logger
	}
	return slog.Default()
}
