package sidekeeper

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	// What is left of the grace when handlers are told to stop, so that they have stopped when the sidecar gives their
	// items away: a fifth of it, and this at most.
	graceMarginPart = 5
	graceMarginMax  = 2 * time.Second
)

// keptResult is a result that could not be reported any more.
type keptResult struct {
	execution *Execution
	outcome   outcome
}

// kept is what a job still executes when its stream has broken, and the next stream may take over (property
// "sidekeeper.grace").
//
// The sidecar lets the instance stay for the job's grace. Until then handlers go on; a stream that comes back in time
// says which executions are still this application's, and they are reported there. All others are told to stop: then,
// or when the grace is over. Its methods need the lock.
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

// keep lets executions go on in a grace, a margin less; then it calls onLapse, and they stop. If untilLease is known,
// they stop in any case when that is over: the sidecar may be gone, and its session with it.
func (k *kept) keep(opened map[string]*openExecution, grace, untilLease time.Duration, leaseKnown bool, onLapse func()) {
	wait := grace - min(grace/graceMarginPart, graceMarginMax)
	if leaseKnown {
		wait = min(wait, untilLease)
	}
	for id, one := range opened {
		one.answer = k.ended
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
		k.log.Info(fmt.Sprintf("%d executions go on for %v without a stream", len(opened), wait.Round(time.Millisecond)))
	}
}

// keepResult keeps a result that could not be reported any more.
func (k *kept) keepResult(execution *Execution, result outcome) {
	k.results[execution.ExecutionID] = keptResult{execution, result}
}

// openExecutions returns what is still to be taken over, for a sidecar that has forgotten it; nothing that was to stop
// without it.
func (k *kept) openExecutions() []*sidekeeperv1.OpenExecution {
	var messages []*sidekeeperv1.OpenExecution
	add := func(execution *Execution) {
		reason, cancelled := execution.Cancelled()
		// Why executions are stopped that are nobody's any more: another instance may execute their items.
		givenUp := cancelled && (reason == CancelLeaseLost || reason == CancelDetached || reason == CancelStopped)
		// What a newer sidecar has started for a reason that this client does not know it cannot repeat.
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

// lapse says that it is over: everything is to stop. What is taken over all the same is reported as what it became.
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

// attached says that there is a stream that these executions belong to. All others are told to stop, and their results
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

// takeOpen gives an execution away that runs. Nil: none of this name does.
func (k *kept) takeOpen(executionID string) *openExecution {
	opened := k.open[executionID]
	delete(k.open, executionID)
	return opened
}

// takeResult gives a result away. False: there is none of this name.
func (k *kept) takeResult(executionID string) (keptResult, bool) {
	result, ok := k.results[executionID]
	delete(k.results, executionID)
	return result, ok
}

func (k *kept) ended(opened *openExecution, result outcome) {
	if _, mine := k.open[opened.execution.ExecutionID]; mine {
		delete(k.open, opened.execution.ExecutionID)
		k.keepResult(opened.execution, result)
	} else {
		k.notReported(opened.execution)
	}
}

func (k *kept) notReported(execution *Execution) {
	k.log.LogAttrs(k.executor.base, slog.LevelInfo, "result not reported: its attachment has ended", about(execution))
}

// all returns what is open, so that it can be changed meanwhile.
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
