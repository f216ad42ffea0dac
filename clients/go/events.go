package sidekeeper

import (
	"context"
	"fmt"
	"sync"
	"time"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// AssignmentReason is why an assignment has changed. Positive values are those of the protocol.
type AssignmentReason int

const (
	// AssignmentUnspecified is of a newer sidecar.
	AssignmentUnspecified AssignmentReason = 0
	// AssignmentAttached is the first assignment since the application attached; empty if the instance has just joined.
	AssignmentAttached AssignmentReason = 1
	// AssignmentResharded says that the leader has resharded the job.
	AssignmentResharded AssignmentReason = 2
	// AssignmentServerStatus says that the instance's server was enabled or disabled by an operator.
	AssignmentServerStatus AssignmentReason = 3
	// AssignmentItemChanged says that items were disabled or enabled, or their parameters changed; owners did not.
	AssignmentItemChanged AssignmentReason = 4
	// AssignmentSessionLost says that the session with the registry was lost, and all items with it.
	AssignmentSessionLost AssignmentReason = 5
	// AssignmentDraining says that the instance is leaving.
	AssignmentDraining AssignmentReason = 6
	// AssignmentRelayed says that the job's single item walks from instance to instance, and has moved on.
	AssignmentRelayed AssignmentReason = 7
	// AssignmentHandedOff says that items changed hands one by one, or had no owner: all instances are sidecars'.
	AssignmentHandedOff AssignmentReason = 8
	// AssignmentDetached says that the stream to the sidecar has ended, or is about to because the application stops:
	// this instance owns nothing until it is attached again.
	AssignmentDetached AssignmentReason = -1
	// AssignmentSilent says that the sidecar has not renewed the lease in time: it may be stopped, and others may own
	// the items.
	AssignmentSilent AssignmentReason = -2
)

var assignmentReasons = map[AssignmentReason]string{
	AssignmentUnspecified:  "UNSPECIFIED",
	AssignmentAttached:     "ATTACHED",
	AssignmentResharded:    "RESHARDED",
	AssignmentServerStatus: "SERVER_STATUS",
	AssignmentItemChanged:  "ITEM_CHANGED",
	AssignmentSessionLost:  "SESSION_LOST",
	AssignmentDraining:     "DRAINING",
	AssignmentRelayed:      "RELAYED",
	AssignmentHandedOff:    "HANDED_OFF",
	AssignmentDetached:     "DETACHED",
	AssignmentSilent:       "SILENT",
}

func (r AssignmentReason) String() string { return named(assignmentReasons, r) }

// AssignedItem is an item that this instance owns.
type AssignedItem struct {
	// Item is the item.
	Item int
	// ItemParameter is its parameter. Empty: it has none.
	ItemParameter string
	// FencingToken grows with each new owner of the item.
	FencingToken int64
	// Disabled is whether an operator has disabled it: it is owned, but not executed.
	Disabled bool
}

// Assignment is the items that this instance owns: always all of them.
type Assignment struct {
	// JobName is the job.
	JobName string
	// InstanceID is the instance in the registry: {ipv4}@-@{unique}.
	InstanceID string
	// Generation says which sharding of the job this is. It grows with each one that concerns this instance, not always
	// by one.
	Generation int64
	// ShardingTotalCount is into how many items the job is split.
	ShardingTotalCount int
	// Items are the items, ascending.
	Items []AssignedItem
	// Added are the items that were not in the last assignment.
	Added []int
	// Revoked are the items that were in the last assignment and are no more.
	Revoked []int
	// Leader is whether this instance leads the job.
	Leader bool
	// Reason is why it changed.
	Reason AssignmentReason
}

func assignmentFromProto(job, instance string, message *sidekeeperv1.AssignmentChanged) Assignment {
	told := message.GetAssignment()
	items := make([]AssignedItem, len(told.GetItems()))
	for index, item := range told.GetItems() {
		items[index] = AssignedItem{
			Item:          int(item.GetItem()),
			ItemParameter: item.GetItemParameter(),
			FencingToken:  item.GetFencingToken(),
			Disabled:      item.GetDisabled(),
		}
	}
	return Assignment{
		JobName:            job,
		InstanceID:         instance,
		Generation:         told.GetGeneration(),
		ShardingTotalCount: int(told.GetShardingTotalCount()),
		Items:              items,
		Added:              toInts(message.GetAddedItems()),
		Revoked:            toInts(message.GetRevokedItems()),
		Leader:             message.GetLeader(),
		Reason:             known(assignmentReasons, AssignmentReason(message.GetReason())),
	}
}

func toInts(items []uint32) []int {
	numbers := make([]int, len(items))
	for index, item := range items {
		numbers[index] = int(item)
	}
	return numbers
}

// detached returns the assignment after the end of the stream: an empty one.
func (a Assignment) detached() Assignment {
	a.Revoked = make([]int, len(a.Items))
	for index, item := range a.Items {
		a.Revoked[index] = item.Item
	}
	a.Items, a.Added, a.Leader, a.Reason = nil, nil, false, AssignmentDetached
	return a
}

// ItemsChange is some items of a job: those that were assigned, revoked or lost.
type ItemsChange struct {
	// JobName is the job.
	JobName string
	// InstanceID is the instance in the registry: {ipv4}@-@{unique}.
	InstanceID string
	// Generation says which sharding of the job this is. It grows with each one that concerns this instance, not always
	// by one.
	Generation int64
	// ShardingTotalCount is into how many items the job is split.
	ShardingTotalCount int
	// Items are those that this is about, ascending, as they are now or were last.
	Items []AssignedItem
	// Reason is why it happened.
	Reason AssignmentReason
}

// AssignmentEvent is an event of a job's channel: a whole assignment.
type AssignmentEvent struct {
	// Assignment is the assignment now.
	Assignment Assignment

	done *sync.Once
	over chan struct{}
}

func newAssignmentEvent(assignment Assignment) AssignmentEvent {
	return AssignmentEvent{assignment, new(sync.Once), make(chan struct{})}
}

// Done says that the application has acted on the event, as returning from a callback does. The job's next event, its
// new executions, and the acknowledgement of the assignment wait for it. May be called again, and from any goroutine.
func (e AssignmentEvent) Done() {
	e.done.Do(func() { close(e.over) })
}

// send gives the event to the channel, and waits until the application has acted on it.
func (e AssignmentEvent) send(ctx context.Context, channel chan<- AssignmentEvent) error {
	select {
	case channel <- e:
	case <-ctx.Done():
		return fmt.Errorf("the application did not take it from the channel: %w", ctx.Err())
	}
	select {
	case <-e.over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the application did not call Done: %w", ctx.Err())
	}
}

// Leadership says that this instance has begun or ceased to lead its job.
type Leadership struct {
	// JobName is the job.
	JobName string
	// InstanceID is the instance in the registry.
	InstanceID string
	// Leader is whether it leads now.
	Leader bool
	// Term is the term in which it leads, a fencing token: greater than that of each earlier leader. 0: it does not lead.
	Term int64
}

// SessionState is the state of the sidecar's session with the registry. Positive values are those of the protocol.
type SessionState int

const (
	// SessionUnspecified is of a newer sidecar.
	SessionUnspecified SessionState = 0
	// SessionConnected says that the session is alive.
	SessionConnected SessionState = 1
	// SessionSuspended says that the registry does not answer. Running executions continue, and no new one starts.
	SessionSuspended SessionState = 2
	// SessionLost says that the session has ended, and the instance has lost its items. The sidecar registers it again
	// as soon as it can.
	SessionLost SessionState = 3
	// SessionSilent says that the lease has ended, and the sidecar was silent: it may be suspended. Running executions
	// were cancelled. The sidecar's next message is in force again.
	SessionSilent SessionState = -1
)

var sessionStates = map[SessionState]string{
	SessionUnspecified: "UNSPECIFIED",
	SessionConnected:   "CONNECTED",
	SessionSuspended:   "SUSPENDED",
	SessionLost:        "LOST",
	SessionSilent:      "SILENT",
}

func (s SessionState) String() string { return named(sessionStates, s) }

// SessionChange says that the sidecar's session with the registry has changed.
type SessionChange struct {
	// JobName is the job.
	JobName string
	// State is the state now.
	State SessionState
	// RemainingLease is how long the session is surely alive without word from the registry, from when this was read.
	// Nil: not known.
	RemainingLease *time.Duration
}

// JobChange says that the job's configuration has changed, or problems came or went.
type JobChange struct {
	// JobName is the job.
	JobName string
	// Configuration is the one in force. Nil: the registry has none that can be read.
	Configuration *JobConfiguration
	// Problems are the job's problems now.
	Problems []Problem
}

func jobChangeFromProto(job string, message *sidekeeperv1.JobChanged) JobChange {
	problems := make([]Problem, len(message.GetProblems()))
	for index, problem := range message.GetProblems() {
		problems[index] = Problem{Path: problem.GetPath(), Message: problem.GetMessage(), Code: problem.GetCode()}
	}
	return JobChange{JobName: job, Configuration: configurationFromProto(message.GetConfiguration()), Problems: problems}
}

// Round is one fire of the whole job, before its first item is executed or after its last.
type Round struct {
	// JobName is the job.
	JobName string
	// InstanceID is the instance in the registry that acts for all of them.
	InstanceID string
	// ScheduledTime is for which instant of the schedule the fire is; for a trigger, when it was seen.
	ScheduledTime time.Time
	// Deadline is when the sidecar stops waiting; an answer that comes later counts for nothing.
	Deadline time.Time
}

// named returns the name of a value as the protocol spells it.
func named[T ~int](names map[T]string, value T) string {
	if name, ok := names[value]; ok {
		return name
	}
	return fmt.Sprintf("UNSPECIFIED(%d)", int(value))
}

// known returns a value if this client knows it, and zero, which is unspecified, for one of a newer sidecar.
func known[T ~int](names map[T]string, value T) T {
	if _, ok := names[value]; ok && value > 0 {
		return value
	}
	return 0
}
