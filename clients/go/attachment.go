package sidekeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// firstEventTimeout is how long the sidecar may take to register the instance, or to send Waiting. Tests shorten
// it.
var firstEventTimeout = 60 * time.Second

// detachTimeout is how long the sidecar may take to answer that the application stops, or leaves.
const detachTimeout = 2 * time.Second

// answersTimeout is how long answers to reports may come after the end of the stream. Tests change it.
var answersTimeout = time.Second

// hasBroken returns whether a stream that ended so has broken, rather than been ended: the instance may still be there.
func hasBroken(code codes.Code) bool {
	switch code {
	case codes.Canceled, codes.Internal, codes.ResourceExhausted, codes.Unavailable, codes.Unknown:
		return true
	default:
		return false
	}
}

// attachment is one stream to the sidecar: this process as an instance of one job.
//
// The instance exists while the stream is open. When the stream ends, the instance leaves: its executions are
// cancelled, and their results are not reported. If the job has a reattach grace and the stream has broken, they
// continue, and the next attachment may take them over (see kept). Its methods need the worker's lock, but for run, read,
// drain and leave.
type attachment struct {
	worker *worker
	log    *slog.Logger

	instanceID   string
	grace        time.Duration
	open         map[string]*openExecution
	left         map[string]*openExecution // unanswered while the application ends; a Cancel is answered
	answered     event
	drained      event     // no execution follows on this stream
	silent       event     // the lease has ended, and no newer one has come
	reporter     *reporter // nil: the instance has not been registered
	acknowledger *acknowledger
	listener     *listenerReporter
	progress     *progressReporter
	renewer      *renewer // nil: there is nothing to ask for
	lease        *lease
	session      SessionState
	ended        bool
	heard        bool // whether the sidecar has sent anything; read when run has returned
	helpers      sync.WaitGroup
}

func newAttachment(worker *worker) *attachment {
	a := &attachment{
		worker: worker, log: worker.log,
		open: map[string]*openExecution{}, left: map[string]*openExecution{},
		answered: newEvent(), drained: newEvent(), silent: newEvent(), session: SessionConnected,
	}
	a.drained.clear()
	a.silent.clear()
	a.lease = newLease(&worker.lock, a.onSilence)
	return a
}

// run attaches, and reads the stream until it ends. No error: the sidecar has ended it in order.
func (a *attachment) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	err := a.read(ctx, cancel)
	broken := err != nil && ctx.Err() == nil && hasBroken(status.Code(err)) && !isProtocolError(err)
	if cause := context.Cause(ctx); isProtocolError(cause) {
		err = cause
	}
	a.end(broken, cancel)
	return err
}

func isProtocolError(err error) bool {
	var odd *protocolError
	return errors.As(err, &odd)
}

func (a *attachment) read(ctx context.Context, cancel context.CancelCauseFunc) error {
	timer := time.AfterFunc(firstEventTimeout, func() {
		cancel(protocolErrorf("no instance was registered within %v", firstEventTimeout))
	})
	defer timer.Stop()
	a.worker.lock.Lock()
	request := a.request()
	a.worker.lock.Unlock()
	stream, err := a.worker.client.Attach(ctx, request)
	if err != nil {
		return err
	}
	attached, err := a.first(stream, timer)
	if err != nil {
		return err
	}
	timer.Stop()
	if err := checkVersion(attached); err != nil {
		return err
	}
	a.onAttached(ctx, attached)
	for {
		select {
		case <-a.worker.dispatcher.room():
		case <-ctx.Done():
			return ctx.Err()
		}
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			a.takeAnswers(ctx)
			return nil
		}
		if err != nil {
			return err
		}
		a.worker.lock.Lock()
		err = a.receive(event)
		a.worker.lock.Unlock()
		if err != nil {
			return err
		}
	}
}

// takeAnswers: the sidecar has ended the stream in good order, and its answers to reports may come just behind that.
func (a *attachment) takeAnswers(ctx context.Context) {
	a.worker.lock.Lock()
	answered, reported := isDone(a.isAnswered()), a.isReported()
	a.worker.lock.Unlock()
	if !answered {
		return // another instance may have the item: its handler has to stop at once
	}
	timer := time.NewTimer(answersTimeout)
	defer timer.Stop()
	select {
	case <-reported:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// first reads until the instance is registered.
func (a *attachment) first(
	stream grpc.ServerStreamingClient[sidekeeperv1.AttachResponse], timer *time.Timer,
) (*sidekeeperv1.Attached, error) {
	w := a.worker
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, protocolErrorf("the stream ended before its first event")
		}
		if err != nil {
			return nil, err
		}
		a.heard = true
		w.presence.answers(w.log)
		switch event := response.GetEvent().(type) {
		case *sidekeeperv1.AttachResponse_Attached:
			return event.Attached, nil
		case *sidekeeperv1.AttachResponse_Waiting:
			timer.Stop() // it lives, and waits for as long as it takes
			w.lock.Lock()
			w.notices.waiting(w.job.Name, event.Waiting.GetReason())
			w.lock.Unlock()
		case nil: // of a newer sidecar
		default:
			return nil, protocolErrorf("the first event is %T instead of 'attached'", event)
		}
	}
}

// checkVersion refuses a sidecar that is too old. One that knows levels has refused the attachment itself; this is for
// those before.
func checkVersion(attached *sidekeeperv1.Attached) error {
	if level := attached.GetApiLevel(); level < sidecarAPILevelMin {
		told := status.Newf(codes.FailedPrecondition, "sidecar %s is too old for %s: it speaks API level %d, and the "+
			"client needs at least %d; upgrade the sidecar to %s or newer",
			attached.GetSidecarVersion(), clientName, level, sidecarAPILevelMin, Version)
		told, err := told.WithDetails(&errdetails.ErrorInfo{Domain: reasonDomain, Reason: reasonSidecarTooOld})
		if err != nil {
			return err
		}
		return told.Err()
	}
	return nil
}

// drain has the sidecar start nothing more here, and waits until the end for what it is starting. False: it may still
// start executions.
//
// A sidecar that falls silent is not waited for longer than the lease: what it sends later does not begin here.
func (a *attachment) drain(ctx context.Context, end time.Time) bool {
	a.worker.lock.Lock()
	reporter, ended, forGood := a.reporter, a.ended, a.worker.forGood
	drained := a.drained.done()
	a.worker.lock.Unlock()
	if reporter == nil || ended {
		return false
	}
	callCtx, cancel := context.WithTimeout(ctx, detachTimeout)
	defer cancel()
	request := &sidekeeperv1.DrainAttachmentRequest{AttachmentId: reporter.attachmentID, ForGood: forGood}
	if _, err := a.worker.client.DrainAttachment(callCtx, request); err != nil {
		level, code := slog.LevelWarn, status.Code(err)
		if code == codes.Unimplemented || ctx.Err() != nil {
			level = slog.LevelDebug // an older sidecar, or an immediate stop
		}
		a.log.Log(ctx, level, "the sidecar may start more executions here: "+codeName(code))
		return false
	}
	a.worker.lock.Lock()
	silent := a.silent.done()
	a.worker.lock.Unlock()
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-drained:
	case <-silent:
	case <-timer.C:
	case <-ctx.Done():
	}
	return isDone(drained)
}

// leave detaches for good, if the sidecar would wait for the application.
func (a *attachment) leave(ctx context.Context) {
	a.worker.lock.Lock()
	reporter, waitedFor, forGood := a.reporter, a.grace > 0 && !a.ended, a.worker.forGood
	a.worker.lock.Unlock()
	if reporter == nil || !waitedFor {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, detachTimeout)
	defer cancel()
	request := &sidekeeperv1.DetachRequest{AttachmentId: reporter.attachmentID, ForGood: forGood}
	if _, err := a.worker.client.Detach(ctx, request); err != nil {
		a.log.Warn("the sidecar did not answer that the job leaves: " + codeName(status.Code(err)))
	}
}

// attached returns whether the instance has been registered.
func (a *attachment) attached() bool {
	return a.reporter != nil
}

// isAnswered is closed once each execution of the stream has ended; isReported once the sidecar has its result, too.
func (a *attachment) isAnswered() <-chan struct{} { return a.answered.done() }

func (a *attachment) isReported() <-chan struct{} {
	if a.reporter == nil {
		return a.answered.done()
	}
	return a.reporter.flushed.done()
}

func (a *attachment) request() *sidekeeperv1.AttachRequest {
	job := a.worker.job
	return &sidekeeperv1.AttachRequest{
		JobName:            job.Name,
		Configuration:      job.configuration,
		ApplicationId:      a.worker.applicationID,
		Client:             clientName,
		ApiLevel:           proto.Uint32(apiLevel),
		SidecarApiLevelMin: sidecarAPILevelMin,
		Weight:             uint32(max(job.Weight, 1)),
		Labels:             job.Labels,
		InstanceName:       job.InstanceName,
		OpenExecutions:     a.worker.kept.openExecutions(),
	}
}

func (a *attachment) onAttached(ctx context.Context, attached *sidekeeperv1.Attached) {
	w, id := a.worker, attached.GetAttachmentId()
	w.lock.Lock()
	defer w.lock.Unlock()
	w.notices.attached()
	a.instanceID = attached.GetInstanceId()
	a.grace = attached.GetGrace().AsDuration()
	w.kept.attached(attached.GetResumedExecutionIds())
	a.reporter = newReporter(&w.lock, a.log, w.client, attached)
	a.acknowledger = &acknowledger{
		lock: &w.lock, log: a.log, client: w.client, attachmentID: id, isBusy: a.isBusyBeyond, wake: make(chan struct{}, 1),
	}
	a.listener = &listenerReporter{
		lock: &w.lock, log: a.log, client: w.client, attachmentID: id, wake: make(chan struct{}, 1),
	}
	a.progress = newProgressReporter(w.client, id)
	w.executor.ended = a.acknowledger.executionEnded
	helpers := []func(context.Context){a.reporter.run, a.acknowledger.run, a.listener.run}
	if interval := attached.GetLeaseRenewalInterval().AsDuration(); interval > 0 {
		a.renewer = &renewer{
			log: a.log, client: w.client, attachmentID: id, interval: max(interval, renewalIntervalMin),
			renewed: a.onLeaseRenewed, due: make(chan struct{}, 1),
		}
		helpers = append(helpers, a.renewer.run)
	}
	for _, run := range helpers {
		a.helpers.Add(1)
		go func() {
			defer a.helpers.Done()
			run(ctx)
		}()
	}
	a.log.Info(fmt.Sprintf("attached as instance %s (sidecar %s)", a.instanceID, attached.GetSidecarVersion()))
}

// isBusyBeyond returns whether anything is executed, or is to be, on an item that is not owned: also what handlers still
// do that have outlived an earlier stream.
func (a *attachment) isBusyBeyond(owned map[int]bool) bool {
	for _, opened := range a.open {
		if !owned[opened.execution.Item] {
			return true
		}
	}
	for item := range a.worker.executor.running {
		if !owned[item] {
			return true
		}
	}
	return false
}

func (a *attachment) receive(response *sidekeeperv1.AttachResponse) error {
	w, job := a.worker, a.worker.job
	switch event := response.GetEvent().(type) {
	case *sidekeeperv1.AttachResponse_Execute:
		return a.onExecute(event.Execute)
	case *sidekeeperv1.AttachResponse_Cancel:
		a.onCancel(event.Cancel)
	case *sidekeeperv1.AttachResponse_AssignmentChanged:
		a.onAssignment(assignmentFromProto(job.Name, a.instanceID, event.AssignmentChanged))
	case *sidekeeperv1.AttachResponse_LeadershipChanged:
		leadership := Leadership{job.Name, a.instanceID, event.LeadershipChanged.GetLeader(), event.LeadershipChanged.GetTerm()}
		a.log.Info(fmt.Sprintf("leader: %t", leadership.Leader))
		call(w.dispatcher, job.OnLeadership, leadership)
	case *sidekeeperv1.AttachResponse_SessionChanged:
		a.onSessionChanged(event.SessionChanged)
	case *sidekeeperv1.AttachResponse_JobChanged:
		change := jobChangeFromProto(job.Name, event.JobChanged)
		a.grace = event.JobChanged.GetGrace().AsDuration()
		w.notices.problems(change.Problems)
		call(w.dispatcher, job.OnJobChanged, change)
	case *sidekeeperv1.AttachResponse_BeforeFirst:
		m := event.BeforeFirst
		round := Round{job.Name, a.instanceID, m.GetScheduledTime().AsTime(), m.GetDeadline().AsTime()}
		a.onCall(m.GetCallId(), job.OnBeforeFirst, round)
	case *sidekeeperv1.AttachResponse_AfterLast:
		m := event.AfterLast
		round := Round{job.Name, a.instanceID, m.GetScheduledTime().AsTime(), m.GetDeadline().AsTime()}
		a.onCall(m.GetCallId(), job.OnAfterLast, round)
	case *sidekeeperv1.AttachResponse_Draining:
		a.drained.set()
		if event.Draining.GetDeadline() != nil {
			a.log.Info("the sidecar is stopping: it starts no more executions here")
		} else {
			a.log.Info("the sidecar starts no more executions here")
		}
	default:
		// Of a newer sidecar, and does not concern this client.
	}
	return nil
}

// call has a callback called in its turn, if there is one.
func call[E any](dispatcher *dispatcher, callback func(context.Context, E), event E) {
	if callback != nil {
		dispatcher.put(func(ctx context.Context) error {
			callback(ctx, event)
			return nil
		})
	}
}

func (a *attachment) onSessionChanged(message *sidekeeperv1.SessionChanged) {
	remaining := remainingLease(message)
	asks := a.renewer != nil && remaining != nil && !sharesClock(message)
	lasts := a.lease.tell(remaining, !asks)
	if asks && (!lasts || !a.lease.proven) {
		a.renewer.ask() // the stream's lease counts only until there is an answer
	}
	if lasts {
		a.onWord(SessionChange{a.worker.job.Name, known(sessionStates, SessionState(message.GetState())), remaining})
	}
}

func (a *attachment) onLeaseRenewed(response *sidekeeperv1.RenewLeaseResponse, sent time.Duration) {
	a.worker.lock.Lock()
	defer a.worker.lock.Unlock()
	if a.ended {
		return
	}
	var remaining *time.Duration
	if response.GetRemainingLease() != nil {
		lasts := max(0, response.GetRemainingLease().AsDuration())
		remaining = &lasts
	}
	wasOver := a.lease.look()
	if a.lease.prove(remaining, sent) && wasOver {
		change := SessionChange{JobName: a.worker.job.Name, State: known(sessionStates, SessionState(response.GetState()))}
		if left, hasEnd := a.lease.left(); hasEnd {
			change.RemainingLease = &left
		}
		a.onWord(change)
	}
}

// onWord: the sidecar has sent the session's state, and the lease, if there is one, has not ended.
func (a *attachment) onWord(change SessionChange) {
	a.silent.clear()
	if change.State == SessionConnected {
		a.worker.ownership.stillThere()
		if a.worker.executor.paused {
			a.worker.dispatcher.put(a.goOn)
		}
	}
	a.onSession(change)
}

func (a *attachment) goOn(context.Context) error {
	a.worker.lock.Lock()
	defer a.worker.lock.Unlock()
	if !a.ended && !a.lease.look() {
		a.worker.executor.goOn()
	}
	return nil
}

func (a *attachment) onSession(change SessionChange) {
	if change.State == a.session {
		return // the lease was renewed, nothing else
	}
	a.session = change.State
	a.log.Info("session with the registry: " + change.State.String())
	call(a.worker.dispatcher, a.worker.job.OnSession, change)
}

// onSilence: the lease has ended, and the sidecar is silent; another instance may own the items now.
func (a *attachment) onSilence() {
	a.log.Warn("the lease has ended without a newer one: the sidecar may be suspended, or this process was")
	a.silent.set()
	// Executions that have not begun wait: a living sidecar soon sends a new lease, or cancels them.
	a.worker.executor.pause()
	for _, opened := range a.allOpen() {
		if opened.hasBegun() {
			a.worker.executor.cancel(opened, CancelLeaseLost)
		}
	}
	a.worker.ownership.lost(AssignmentSilent)
	a.onSession(SessionChange{JobName: a.worker.job.Name, State: SessionSilent})
}

func (a *attachment) cancelOpen(reason CancelReason) {
	for _, opened := range a.allOpen() {
		a.worker.executor.cancel(opened, reason)
	}
}

// allOpen returns the open executions, as a copy.
func (a *attachment) allOpen() []*openExecution {
	all := make([]*openExecution, 0, len(a.open))
	for _, opened := range a.open {
		all = append(all, opened)
	}
	return all
}

// onCall acts once for the whole job; without a callback the call has succeeded.
func (a *attachment) onCall(callID string, callback func(context.Context, Round) error, round Round) {
	a.worker.dispatcher.put(func(ctx context.Context) error {
		var err error
		if callback != nil {
			ctx, cancel := context.WithDeadline(ctx, round.Deadline)
			defer cancel()
			err = attempt(func() error { return callback(ctx, round) })
		}
		a.worker.lock.Lock()
		defer a.worker.lock.Unlock()
		if !a.ended {
			a.listener.add(callID, err)
		}
		return err
	})
}

func (a *attachment) onAssignment(assignment Assignment) {
	items := make([]int, len(assignment.Items))
	for index, item := range assignment.Items {
		items[index] = item.Item
	}
	a.log.Info(fmt.Sprintf("generation %d: items %v of %d (%v)", assignment.Generation, items,
		assignment.ShardingTotalCount, assignment.Reason))
	a.worker.ownership.changed(assignment, func() {
		a.worker.lock.Lock()
		defer a.worker.lock.Unlock()
		a.acknowledger.noted(&assignment)
	})
}

func (a *attachment) onExecute(message *sidekeeperv1.Execute) error {
	a.lease.look()
	id := message.GetExecutionId()
	if message.GetResumed() && a.resume(id) {
		return nil
	}
	if a.open[id] != nil {
		return protocolErrorf("execution %q was sent twice", id)
	}
	execution, err := executionFromProto(message, a.instanceID, a.log, a.progress)
	if err != nil {
		return err
	}
	opened := &openExecution{execution: execution, answer: a.answer, leave: a.leaveOpen}
	a.open[id] = opened
	a.answered.clear()
	w := a.worker
	w.executor.watchDeadline(opened)
	w.dispatcher.put(func(context.Context) error {
		w.lock.Lock()
		defer w.lock.Unlock()
		a.lease.look()
		w.executor.submit(opened)
		return nil
	})
	return nil
}

// resume continues an execution of an earlier stream. False: it is unknown, so it is to be executed.
func (a *attachment) resume(id string) bool {
	if opened := a.worker.kept.takeOpen(id); opened != nil {
		opened.answer, opened.leave = a.answer, a.leaveOpen
		opened.execution.goesOn(a.progress)
		a.open[id] = opened
		a.answered.clear()
		a.log.LogAttrs(a.worker.executor.base, slog.LevelInfo, "execution continues with this stream", about(opened.execution))
		if a.lease.over && opened.hasBegun() {
			a.worker.executor.cancel(opened, CancelLeaseLost)
		}
		return true
	}
	if result, ok := a.worker.kept.takeResult(id); ok {
		a.reporter.add(result)
		return true
	}
	return false
}

func (a *attachment) onCancel(message *sidekeeperv1.Cancel) {
	opened := cmp.Or(a.open[message.GetExecutionId()], a.left[message.GetExecutionId()])
	if opened == nil {
		return // it ended meanwhile, and its result is on its way
	}
	reason := known(cancelReasons, CancelReason(message.GetReason()))
	a.log.LogAttrs(a.worker.executor.base, slog.LevelWarn, "execution is to stop: "+reason.String(), about(opened.execution))
	a.worker.executor.cancel(opened, reason)
}

func (a *attachment) answer(opened *openExecution, result outcome) {
	delete(a.left, opened.execution.ExecutionID)
	if a.isOver(opened) {
		a.worker.kept.notReported(opened.execution)
		return
	}
	a.reporter.add(keptResult{opened.execution, result})
	a.acknowledger.executionEnded()
}

// leaveOpen: the application ends, and does not begin the execution.
func (a *attachment) leaveOpen(opened *openExecution) {
	a.left[opened.execution.ExecutionID] = opened
	if !a.isOver(opened) {
		a.acknowledger.executionEnded()
	}
}

// isOver removes an execution that does not run or wait any more; it returns whether nothing can be reported any more.
func (a *attachment) isOver(opened *openExecution) bool {
	delete(a.open, opened.execution.ExecutionID)
	a.lease.look() // an execution that has waited for this process does not begin after the lease
	if len(a.open) == 0 {
		a.answered.set()
	}
	return a.ended || a.reporter == nil
}

// end: the instance has left, or is detached for its reattach grace.
func (a *attachment) end(broken bool, cancel context.CancelCauseFunc) {
	w := a.worker
	w.lock.Lock()
	a.ended = true
	a.drained.set()
	w.executor.ended = nil
	left, leaseKnown := a.lease.left()
	if a.lease.over {
		a.cancelOpen(CancelLeaseLost) // also those that wait
	}
	a.lease.close()
	w.executor.goOn()
	stays := broken && a.grace > 0
	if stays {
		w.kept.keep(a.open, a.grace, left, leaseKnown, func() {
			a.progress.end()
			w.ownership.ended()
		})
		clear(a.open)
		a.answered.set()
	} else {
		if a.progress != nil {
			a.progress.end()
		}
		a.cancelOpen(CancelDetached)
		if a.attached() { // otherwise a grace may run, of the stream before
			w.kept.lapse() // what this stream was still to take over
			w.ownership.ended()
		}
	}
	w.lock.Unlock()
	cancel(nil)
	a.helpers.Wait()
	w.lock.Lock()
	defer w.lock.Unlock()
	if a.reporter == nil {
		return
	}
	for _, one := range a.reporter.unreported() {
		if stays {
			w.kept.keepResult(one.execution, one.outcome)
		} else {
			a.log.LogAttrs(w.executor.base, slog.LevelWarn, "result dropped: the attachment has ended", about(one.execution))
		}
	}
}
