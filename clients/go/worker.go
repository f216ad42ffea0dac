package sidekeeper

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	// leaveGrace is how long cancelled handlers, and the reports after that, may take when the application
	// stops.
	leaveGrace = 5 * time.Second
	// atOnceGrace is how long handlers and callbacks may take after an immediate stop, before they are abandoned.
	atOnceGrace = 500 * time.Millisecond
)

// isFatal returns whether an attachment was refused in a way that trying again does not change.
func isFatal(code codes.Code) bool {
	switch code {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated,
		codes.Unimplemented:
		return true
	default:
		return false
	}
}

// worker keeps one job attached: attaches, attaches again when the stream ends, and leaves when it is stopped.
//
// One lock guards the state that its attachments, executions and timers share. No holder of the lock waits.
type worker struct {
	job           *registered
	applicationID string
	client        sidekeeperv1.ParticipantServiceClient
	log           *slog.Logger
	drainTimeout  time.Duration
	presence      *presence

	lock       sync.Mutex
	executor   *executor
	kept       *kept
	dispatcher *dispatcher
	ownership  *ownership
	notices    *notices
	stopping   chan struct{}
	stopped    bool
	forGood    bool // whether no item is kept for the instance's name
}

// newWorker makes a worker whose handlers run in contexts of the given one.
func newWorker(base context.Context, job *registered, applicationID string, client sidekeeperv1.ParticipantServiceClient,
	log *slog.Logger, drainTimeout time.Duration, presence *presence,
) *worker {
	w := &worker{
		job: job, applicationID: applicationID, client: client,
		log: log.With(jobField, job.Name), drainTimeout: drainTimeout, presence: presence,
		stopping: make(chan struct{}),
	}
	w.executor = newExecutor(&w.lock, w.log, base, job)
	w.kept = newKept(&w.lock, w.log, w.executor)
	w.dispatcher = newDispatcher(w.log)
	w.ownership = &ownership{job: &job.Job, dispatcher: w.dispatcher}
	w.notices = newNotices(w.log)
	return w
}

// stop lets the job end: run returns when the executions that were started here have ended and are reported. forGood: no
// item is kept for the instance's name.
func (w *worker) stop(forGood bool) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.forGood = w.forGood || forGood
	if !w.stopped {
		w.stopped = true
		close(w.stopping)
	}
}

// run keeps the job attached until stop is called; when the context is done everything ends at once. Its error is
// that the sidecar refuses the job, and would refuse it again.
func (w *worker) run(ctx context.Context) error {
	dispatcherCtx, endDispatcher := context.WithCancel(ctx)
	dispatching := make(chan struct{})
	go func() {
		defer close(dispatching)
		w.dispatcher.run(dispatcherCtx)
	}()
	err := w.stayAttached(ctx)
	if ctx.Err() == nil {
		w.finish(ctx)
	}
	w.lock.Lock()
	w.executor.cancelAll(CancelStopped)
	idle := w.executor.idle.done()
	w.lock.Unlock()
	endDispatcher()
	timer := time.NewTimer(atOnceGrace)
	defer timer.Stop()
	for _, over := range []<-chan struct{}{dispatching, idle} {
		select {
		case <-over:
		case <-timer.C:
			timer.Reset(0) // for the other one, too
		}
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	for _, opened := range w.executor.running {
		w.log.LogAttrs(ctx, slog.LevelWarn, "handler is left behind", about(opened.execution))
	}
	return err
}

func (w *worker) stayAttached(ctx context.Context) error {
	defer func() {
		w.lock.Lock()
		defer w.lock.Unlock()
		w.executor.close()
		w.kept.lapse()
	}()
	waits := newBackoff()
	for !w.isStopping() && ctx.Err() == nil {
		attachment := newAttachment(w)
		began := time.Now()
		err := w.attach(ctx, attachment)
		if ctx.Err() != nil {
			return nil
		}
		if refusal := w.judge(attachment, err); refusal != nil {
			return refusal
		}
		if attachment.attached() && time.Since(began) > backoffCap {
			waits.reset() // it was a good one; one that ends at once does not count
		}
		timer := time.NewTimer(waits.next())
		select {
		case <-w.stopping:
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// attach runs an attachment to its end, which is in order if the worker is stopped. Its error is the stream's.
func (w *worker) attach(ctx context.Context, attachment *attachment) error {
	// After an immediate stop, handlers are cancelled with that reason before the stream's end cancels them.
	attachmentCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = attachment.run(attachmentCtx)
	}()
	select {
	case <-ended:
		return err
	case <-ctx.Done():
	case <-w.stopping:
		if w.drain(ctx, attachment, ended) {
			attachment.leave(ctx)
		}
	}
	if ctx.Err() != nil {
		w.endExecutions(CancelStopped)
	}
	end()
	<-ended
	return err
}

func (w *worker) isStopping() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}

// endExecutions leaves the executions that have not begun, and cancels the others.
func (w *worker) endExecutions(reason CancelReason) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.executor.close()
	w.executor.cancelAll(reason)
}

// drain lets executions end and be reported, and callbacks of revoked items return, for as long as the attachment lasts.
// Returns whether it still does.
//
// The sidecar hears of it first, so that it starts nothing more here. What it has started is executed. After the drain
// timeout, executions that have not begun are left to the next instance, and running ones are cancelled.
func (w *worker) drain(ctx context.Context, attachment *attachment, ended <-chan struct{}) bool {
	end := time.Now().Add(w.drainTimeout)
	drained := attachment.drain(ctx, end)
	w.lock.Lock()
	if !drained || w.executor.paused {
		w.executor.close() // for what the sidecar still starts, or what waits for a lease
	}
	w.ownership.leave()
	w.lock.Unlock()
	if !w.await(ctx, attachment, ended, time.Until(end)) {
		w.endExecutions(CancelDrainTimeout)
		w.await(ctx, attachment, ended, leaveGrace)
	}
	return !isDone(ended) && ctx.Err() == nil
}

// await waits until each execution has ended and is reported, and callbacks have returned, or there is nobody to report
// to. False: not in time.
func (w *worker) await(ctx context.Context, attachment *attachment, ended <-chan struct{}, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for _, over := range []func() <-chan struct{}{attachment.isAnswered, attachment.isReported, w.dispatcher.empty} {
		for {
			w.lock.Lock()
			channel := over()
			w.lock.Unlock()
			if isDone(channel) {
				break
			}
			select {
			case <-channel:
			case <-timer.C:
				return false
			case <-ctx.Done():
				return true
			case <-ended:
				return true
			}
		}
	}
	return true
}

func isDone(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// judge says why the attachment has ended. Its error is that it was refused for good.
func (w *worker) judge(attachment *attachment, err error) error {
	told := status.Convert(err)
	failed := err != nil && !attachment.heard && !isProtocolError(err) && told.Code() != codes.Canceled
	if failed && !nobodyAnswers(told) {
		w.presence.answers(w.log) // a refusal is an answer, too
	}
	switch {
	case w.isStopping() && (err == nil || attachment.attached() || told.Code() == codes.Canceled):
		w.log.Info("detached")
	case err == nil:
		w.log.Warn("the stream has ended; attaching again")
	case isProtocolError(err):
		w.log.Error("the stream has ended: " + err.Error() + "; attaching again")
	case attachment.attached() && isOperators(told):
		// An operator's decision, which attaching again would undo.
		w.log.Error("the job is stopped here: " + told.Message())
		w.stop(false)
	case isFatal(told.Code()) && (!attachment.attached() || told.Code() == codes.FailedPrecondition):
		return &AttachError{JobName: w.job.Name, Code: told.Code(), Details: told.Message(), Reason: reasonOf(told)}
	case failed && nobodyAnswers(told):
		w.presence.isMissing(w.log, codeName(told.Code())+": "+told.Message())
	case errors.Is(err, context.Canceled):
		w.log.Info("detached")
	default:
		w.log.Warn("the stream has ended: " + codeName(told.Code()) + ": " + told.Message() + "; attaching again")
	}
	return nil
}

// finish waits for handlers that outlived their stream, and for callbacks; all of them know that it has ended.
func (w *worker) finish(ctx context.Context) {
	w.lock.Lock()
	idle := w.executor.idle.done()
	w.lock.Unlock()
	timer := time.NewTimer(leaveGrace)
	defer timer.Stop()
	for _, over := range []<-chan struct{}{idle, w.dispatcher.empty()} {
		select {
		case <-over:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
