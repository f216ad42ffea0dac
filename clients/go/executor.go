package sidekeeper

import (
	"container/list"
	"context"
	"log/slog"
	"sync"
	"time"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	// deadlineSlack is how long after a deadline the client stops an execution by itself. The sidecar says so at the
	// deadline; this is for when it cannot.
	deadlineSlack = 100 * time.Millisecond
	// deadlineLookInterval is when it looks again if the sidecar has just been asked for a later one.
	deadlineLookInterval = time.Second
)

// openExecution is an execution that has not been answered yet.
type openExecution struct {
	execution *Execution
	// Called once, with the lock, when it is over.
	answer func(*openExecution, outcome)
	// Called once before that, with the lock, if it is left.
	leave func(*openExecution)
	// Whether this application never begins it, and gives no answer: the next instance executes the item.
	left bool
	// Cancels the handler's context. Nil: the handler has not begun.
	stop context.CancelCauseFunc
	// Where it waits to begin. Nil: it does not.
	waiting *list.Element
	// Stands in for a sidecar that cannot say that the deadline has passed. Nil: there is none.
	deadline *time.Timer
}

// hasBegun returns whether the handler has been called.
func (o *openExecution) hasBegun() bool { return o.stop != nil }

// executor runs the handler of one job, at most so many times at once, and in the order asked for.
//
// It outlives the job's attachments, because handlers do: one that does not return when its stream ends keeps its place
// among the job's concurrent executions, and its item is not executed a second time before it has ended. Its methods
// need the lock.
type executor struct {
	lock sync.Locker
	log  *slog.Logger
	base context.Context
	job  *registered
	// Called, with the lock, when a handler has ended. Nil: nothing is called.
	ended   func()
	waiting list.List // bounded by the total of items: an item has at most one open execution in each attachment
	running map[int]*openExecution
	paused  bool
	closed  bool
	idle    event
}

func newExecutor(lock sync.Locker, log *slog.Logger, base context.Context, job *registered) *executor {
	return &executor{lock: lock, log: log, base: base, job: job, running: map[int]*openExecution{}, idle: newEvent()}
}

// watchDeadline stops the execution by itself if the sidecar does not.
func (x *executor) watchDeadline(opened *openExecution) {
	deadline, limited := opened.execution.Deadline()
	if !limited {
		return
	}
	opened.deadline = time.AfterFunc(time.Until(deadline)+deadlineSlack, func() {
		x.lock.Lock()
		defer x.lock.Unlock()
		if opened.deadline == nil {
			return // it is over
		}
		if opened.execution.isExtending() {
			opened.deadline.Reset(deadlineLookInterval)
		} else {
			x.cancel(opened, CancelDeadline)
		}
	})
	opened.execution.mu.Lock()
	defer opened.execution.mu.Unlock()
	opened.execution.moveTimer = func(deadline time.Time) {
		x.lock.Lock()
		defer x.lock.Unlock()
		if opened.deadline != nil {
			opened.deadline.Reset(time.Until(deadline) + deadlineSlack)
		}
	}
}

// submit begins an execution as soon as there is room, and no other one of its item is running.
func (x *executor) submit(opened *openExecution) {
	if reason, cancelled := opened.execution.Cancelled(); cancelled {
		x.settle(opened, neverBegan(reason))
		return
	}
	if x.closed {
		x.leaveOpen(opened)
		return
	}
	opened.waiting = x.waiting.PushBack(opened)
	x.idle.clear()
	x.startWaiting()
}

// cancel cancels an execution; one that waits is answered at once.
func (x *executor) cancel(opened *openExecution, reason CancelReason) {
	if !opened.execution.cancel(reason) {
		return // cancelled before
	}
	switch {
	case opened.stop != nil:
		opened.stop(&CancelledError{Reason: reason})
	case opened.waiting != nil:
		x.leaveQueue(opened)
		x.settle(opened, neverBegan(reason))
		x.rest()
	case opened.left:
		x.settle(opened, neverBegan(reason))
	}
}

// pause begins no execution for now: further ones wait. Running ones continue.
func (x *executor) pause() { x.paused = true }

// goOn begins the executions that have waited.
func (x *executor) goOn() {
	x.paused = false
	x.startWaiting()
}

// close begins no execution any more: waiting and further ones are left. Running ones continue.
func (x *executor) close() {
	x.closed = true
	for element := x.waiting.Front(); element != nil; element = x.waiting.Front() {
		opened := element.Value.(*openExecution)
		x.leaveQueue(opened)
		x.leaveOpen(opened)
	}
	x.rest()
}

func (x *executor) leaveOpen(opened *openExecution) {
	opened.left = true
	opened.stopDeadline()
	x.log.LogAttrs(x.base, slog.LevelDebug, "execution is left to the next instance", about(opened.execution))
	opened.leave(opened)
}

// cancelAll cancels all executions.
func (x *executor) cancelAll(reason CancelReason) {
	var all []*openExecution
	for element := x.waiting.Front(); element != nil; element = element.Next() {
		all = append(all, element.Value.(*openExecution))
	}
	for _, opened := range x.running {
		all = append(all, opened)
	}
	for _, opened := range all {
		x.cancel(opened, reason)
	}
}

func (x *executor) startWaiting() {
	for element := x.waiting.Front(); element != nil && !x.paused && len(x.running) < x.job.Concurrency; {
		opened := element.Value.(*openExecution)
		element = element.Next()
		if x.running[opened.execution.Item] == nil {
			x.leaveQueue(opened)
			x.start(opened)
		}
	}
}

func (x *executor) start(opened *openExecution) {
	ctx, stop := context.WithCancelCause(x.base)
	opened.stop = stop
	x.running[opened.execution.Item] = opened
	x.log.LogAttrs(ctx, slog.LevelDebug, "execution begins", about(opened.execution))
	go x.execute(&executionContext{ctx, opened.execution}, opened)
}

// execute is the goroutine of one execution.
func (x *executor) execute(ctx context.Context, opened *openExecution) {
	result := failed("the handler has ended its goroutine without returning")
	defer func() {
		if value := recover(); value != nil {
			result = outcomeOfPanic(value)
		}
		x.lock.Lock()
		defer x.lock.Unlock()
		x.over(opened, result)
	}()
	result = outcomeOf(opened.execution, x.job.Handler(ctx, opened.execution))
}

// over notes that a handler has ended.
func (x *executor) over(opened *openExecution, result outcome) {
	opened.stop(context.Canceled)
	delete(x.running, opened.execution.Item)
	reason, cancelled := opened.execution.Cancelled()
	if result.kind == sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_FAILURE && cancelled && reason.isInterruption() {
		result = interrupted(result.message)
	}
	if result.kind == sidekeeperv1.ExecutionOutcome_EXECUTION_OUTCOME_SUCCESS {
		x.log.LogAttrs(x.base, slog.LevelDebug, "execution ended", about(opened.execution))
	} else {
		x.log.LogAttrs(x.base, slog.LevelWarn, "execution did not succeed: "+result.message, about(opened.execution))
	}
	x.settle(opened, result)
	if x.ended != nil {
		x.ended()
	}
	x.startWaiting()
	x.rest()
}

// settle gives the answer.
func (x *executor) settle(opened *openExecution, result outcome) {
	opened.stopDeadline()
	opened.answer(opened, result)
}

func (o *openExecution) stopDeadline() {
	if o.deadline != nil {
		o.deadline.Stop()
		o.deadline = nil
	}
}

func (x *executor) leaveQueue(opened *openExecution) {
	x.waiting.Remove(opened.waiting)
	opened.waiting = nil
}

func (x *executor) rest() {
	if len(x.running) == 0 && x.waiting.Len() == 0 {
		x.idle.set()
	}
}
