package sidekeeper

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
)

// AttachError says that the sidecar refused to make this process an instance of a job, and would refuse again.
// [Application.Run] returns it after the executions of the other jobs have ended.
type AttachError struct {
	// JobName is the job.
	JobName string
	// Code is InvalidArgument (a field of the configuration is wrong), NotFound (a job without any configuration),
	// FailedPrecondition (the configuration or the job class conflicts with the one in use, or the API levels do not
	// match), Unauthenticated or PermissionDenied (the token is missing or wrong), or Unimplemented (the process at the
	// endpoint is not a sidecar).
	Code codes.Code
	// Details are the sidecar's own words.
	Details string
	// Reason is why, for programs: a value of the API's ErrorReason without its prefix, CONFIGURATION_CONFLICT for
	// example. Empty: the sidecar has given none.
	Reason string
}

func (e *AttachError) Error() string {
	return fmt.Sprintf("job %q: the sidecar refuses the attachment: %s: %s", e.JobName, codeName(e.Code), e.Details)
}

// LockError says that a lock was not got, or was lost.
type LockError struct {
	// Lock is the lock's name or path.
	Lock string
	// Code is DeadlineExceeded (not free in time, or the lease is over), Aborted (lost), FailedPrecondition (held already by the
	// same application, or in use by another kind of lock), InvalidArgument, Unavailable (no sidecar, or it is stopping) or
	// ResourceExhausted.
	Code codes.Code
	// Details are the sidecar's own words.
	Details string
	// Reason is as in [AttachError]: LOCK_NOT_FREE or LOCK_LOST, for example.
	Reason string
}

func (e *LockError) Error() string {
	return fmt.Sprintf("lock %q: %s: %s", e.Lock, codeName(e.Code), e.Details)
}

// ElectionError says that a campaign or an observation has failed, that a leadership was lost, or that a leader has not resigned.
type ElectionError struct {
	// Election is the election's name or path.
	Election string
	// Code is Aborted (the leadership is lost), DeadlineExceeded (its lease is over), FailedPrecondition (a second campaign of the
	// same application, or a successor that cannot lead next), NotFound (no such successor), InvalidArgument, PermissionDenied,
	// Unavailable (no sidecar, or it is stopping) or ResourceExhausted.
	Code codes.Code
	// Details are the sidecar's own words.
	Details string
	// Reason is as in [AttachError]: LOCK_LOST or CANDIDATE_IN_THE_WAY, for example.
	Reason string
}

func (e *ElectionError) Error() string {
	return fmt.Sprintf("election %q: %s: %s", e.Election, codeName(e.Code), e.Details)
}

// TriggerError says that a job was not triggered, or that the outcome is unknown.
type TriggerError struct {
	// JobName is the job.
	JobName string
	// Code is NotFound (the job has no configuration), FailedPrecondition (no instance is online), Aborted or
	// Unavailable (no instance was triggered; try again), Unknown, DeadlineExceeded or Canceled (it may have been triggered),
	// or InvalidArgument (the job's name is wrong).
	Code codes.Code
	// Details are the sidecar's own words, or that there is none.
	Details string
	// Reason is as in [AttachError]: NO_INSTANCES or ITEMS_DISABLED, for example.
	Reason string
}

func (e *TriggerError) Error() string {
	return fmt.Sprintf("job %q was not triggered: %s: %s", e.JobName, codeName(e.Code), e.Details)
}

// ProgressError says that the progress of an execution was not recorded, or that the outcome is unknown.
type ProgressError struct {
	// ExecutionID is the execution.
	ExecutionID string
	// Code is FailedPrecondition (the execution has ended: its lease was lost), Aborted or NotFound (the stream to the
	// sidecar has ended, and the instance with it), Unavailable or DeadlineExceeded (the registry or the sidecar does not
	// answer; it may be recorded), or Canceled (the given context is done).
	Code codes.Code
	// Details are the sidecar's own words.
	Details string
}

func (e *ProgressError) Error() string {
	return fmt.Sprintf("progress of execution %q: %s: %s", e.ExecutionID, codeName(e.Code), e.Details)
}

// RejectError is an answer rather than an error: the handler did not begin its item. See [Reject].
type RejectError struct {
	// Reason is reported to the sidecar.
	Reason string
}

func (e *RejectError) Error() string {
	return e.Reason
}

// Reject returns the error of a handler that did not begin its item, for example because it finds no disk to write to:
// the execution is reported as REJECTED with this text. It is not retried.
func Reject(reason string) error {
	return &RejectError{Reason: reason}
}

// CancelledError is the cause of an execution's context once the execution is to stop:
//
//	var cancelled *sidekeeper.CancelledError
//	if errors.As(context.Cause(ctx), &cancelled) && cancelled.Reason == sidekeeper.CancelLeaseLost { ... }
//
// It is [context.DeadlineExceeded] if its reason is [CancelDeadline], and [context.Canceled] otherwise.
type CancelledError struct {
	// Reason is why the execution is to stop.
	Reason CancelReason
}

func (e *CancelledError) Error() string {
	return "cancelled: " + e.Reason.String()
}

// Is makes the error equal to that of the context package.
func (e *CancelledError) Is(target error) bool {
	if e.Reason == CancelDeadline {
		return target == context.DeadlineExceeded
	}
	return target == context.Canceled
}

// protocolError says that the sidecar's stream is not as the protocol says.
type protocolError struct {
	what string
}

func (e *protocolError) Error() string {
	return "the sidecar does not follow the protocol: " + e.what
}

func protocolErrorf(format string, arguments ...any) error {
	return &protocolError{what: fmt.Sprintf(format, arguments...)}
}

// errRunning is what a second Run at the same time gets.
var errRunning = errors.New("sidekeeper: the application is running already")

// codeName returns a status as the protocol spells it, like the other clients: FAILED_PRECONDITION.
func codeName(code codes.Code) string {
	if name, ok := codeNames[code]; ok {
		return name
	}
	return code.String()
}

var codeNames = map[codes.Code]string{
	codes.OK:                 "OK",
	codes.Canceled:           "CANCELLED",
	codes.Unknown:            "UNKNOWN",
	codes.InvalidArgument:    "INVALID_ARGUMENT",
	codes.DeadlineExceeded:   "DEADLINE_EXCEEDED",
	codes.NotFound:           "NOT_FOUND",
	codes.AlreadyExists:      "ALREADY_EXISTS",
	codes.PermissionDenied:   "PERMISSION_DENIED",
	codes.ResourceExhausted:  "RESOURCE_EXHAUSTED",
	codes.FailedPrecondition: "FAILED_PRECONDITION",
	codes.Aborted:            "ABORTED",
	codes.OutOfRange:         "OUT_OF_RANGE",
	codes.Unimplemented:      "UNIMPLEMENTED",
	codes.Internal:           "INTERNAL",
	codes.Unavailable:        "UNAVAILABLE",
	codes.DataLoss:           "DATA_LOSS",
	codes.Unauthenticated:    "UNAUTHENTICATED",
}
