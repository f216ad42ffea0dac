package sidekeeper

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	// The rest of the grace when handlers are cancelled, so that they have stopped when their items move: a fifth of the
	// grace, and this at most.
	graceMarginPart = 5
	graceMarginMax  = 2 * time.Second
)

// keptResult is a result that could not be reported any more.
type keptResult struct {
	execution *Execution
	outcome   outcome
}

// kept is the open executions of a detached job, which its next stream may resume (property "sidekeeper.grace").
//
// The sidecar keeps the instance for the reattach grace. Until then handlers continue. When a stream reattaches in time,
// the sidecar lists the executions that are still this application's, and they are reported there. All others are
// cancelled: then, or when the grace ends. Its methods need the lock.
type kept struct {
	lock     sync.Locker
	log      *slog.Logger
	executor *executor
	open     map[string]*openExecution
	results  map[string]keptResult
	onLapse  func()
	timer    *time.Timer
	// Counts the timers, so that one that has fired already knows that it is an old one.
	timers int
}

func newKept(lock sync.Locker, log *slog.Logger, executor *executor) *kept {
	return &kept{
		lock: lock, log: log, executor: executor,
		open: map[string]*openExecution{}, results: map[string]keptResult{},
	}
}

// keep lets executions continue for a grace, less a margin; then it calls onLapse, and they stop. If untilLease is known,
// they stop in any case when that has passed: the sidecar may have crashed, and its session may end.
func (k *kept) keep(opened map[string]*openExecution, grace, untilLease time.Duration, leaseKnown bool, onLapse func()) {
	wait := grace - min(grace/graceMarginPart, graceMarginMax)
	if leaseKnown {
		wait = min(wait, untilLease)
	}
	for id, one := range opened {
		one.answer, one.leave = k.ended, k.leaveOpen
		k.open[id] = one
	}
	k.onLapse = onLapse
	k.stopTimer()
	number := k.timers
	k.timer = time.AfterFunc(wait, func() {
		k.lock.Lock()
		defer k.lock.Unlock()
		if k.timers == number {
			k.lapse()
		}
	})
	if len(opened) > 0 {
		k.log.Info(fmt.Sprintf("%d executions continue for %v without a stream", len(opened), wait.Round(time.Millisecond)))
	}
}

// keepResult keeps a result that could not be reported any more.
func (k *kept) keepResult(execution *Execution, result outcome) {
	k.results[execution.ExecutionID] = keptResult{execution, result}
}

// openExecutions returns the executions to resume, for a sidecar that was restarted; none whose item may have another
// owner.
func (k *kept) openExecutions() []*sidekeeperv1.OpenExecution {
	var messages []*sidekeeperv1.OpenExecution
	add := func(execution *Execution) {
		reason, cancelled := execution.Cancelled()
		// The reasons after which another instance may execute the item.
		givenUp := cancelled && (reason == CancelLeaseLost || reason == CancelDetached || reason == CancelStopped)
		// This client cannot repeat the source of a newer sidecar's execution if it does not know that source.
		if !givenUp && execution.Source != SourceUnspecified {
			messages = append(messages, execution.toProto())
		}
	}
	for _, opened := range k.open {
		add(opened.execution)
	}
	for _, result := range k.results {
		add(result.execution)
	}
	return messages
}

// lapse: the grace has ended, and all executions are cancelled. One that is still resumed is reported with its result.
func (k *kept) lapse() {
	k.stopTimer()
	if onLapse := k.onLapse; onLapse != nil {
		k.onLapse = nil
		onLapse()
	}
	for _, opened := range k.all() {
		k.executor.cancel(opened, CancelDetached)
	}
}

// attached: a stream has these executions again. All others are cancelled, and their results
// dropped.
func (k *kept) attached(resumed []string) {
	k.stopTimer()
	k.onLapse = nil
	stays := make(map[string]bool, len(resumed))
	for _, id := range resumed {
		stays[id] = true
	}
	for _, opened := range k.all() {
		if id := opened.execution.ExecutionID; !stays[id] {
			k.executor.cancel(opened, CancelDetached)
			delete(k.open, id)
		}
	}
	for id, result := range k.results {
		if !stays[id] {
			delete(k.results, id)
			k.notReported(result.execution)
		}
	}
}

// takeOpen removes and returns a running execution. Nil: it is unknown.
func (k *kept) takeOpen(executionID string) *openExecution {
	opened := k.open[executionID]
	delete(k.open, executionID)
	return opened
}

// takeResult removes and returns a result. False: it is unknown.
func (k *kept) takeResult(executionID string) (keptResult, bool) {
	result, ok := k.results[executionID]
	delete(k.results, executionID)
	return result, ok
}

func (k *kept) ended(opened *openExecution, result outcome) {
	_, mine := k.open[opened.execution.ExecutionID]
	delete(k.open, opened.execution.ExecutionID)
	// One that has not begun has no result: if a stream has it again, it is executed.
	if mine && opened.hasBegun() {
		k.keepResult(opened.execution, result)
	} else {
		k.notReported(opened.execution)
	}
}

// leaveOpen: the application ends before a stream has the execution again.
func (k *kept) leaveOpen(opened *openExecution) { delete(k.open, opened.execution.ExecutionID) }

func (k *kept) notReported(execution *Execution) {
	k.log.LogAttrs(k.executor.base, slog.LevelInfo, "result not reported: its attachment has ended", about(execution))
}

// all returns the open executions, as a copy.
func (k *kept) all() []*openExecution {
	all := make([]*openExecution, 0, len(k.open))
	for _, opened := range k.open {
		all = append(all, opened)
	}
	return all
}

func (k *kept) stopTimer() {
	k.timers++
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
}
