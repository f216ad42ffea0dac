package sidekeeper

import "time"

// What tests from outside need of the clock that processes share.
var (
	Boottime       = boottime
	BoottimeClock  = boottimeClock
	RemainingLease = remainingLease
)

// SetFirstEventTimeout changes how long a sidecar may take to register an instance, and returns how long it was.
func SetFirstEventTimeout(timeout time.Duration) time.Duration {
	before := firstEventTimeout
	firstEventTimeout = timeout
	return before
}

// SetAnswersTimeout changes how long answers may come after the end of a stream, and returns how long it was.
func SetAnswersTimeout(timeout time.Duration) time.Duration {
	before := answersTimeout
	answersTimeout = timeout
	return before
}

// SetConnectionIdle changes how long a connection without users is kept, and returns how long it was.
func SetConnectionIdle(idle time.Duration) time.Duration {
	before := connectionIdle
	connectionIdle = idle
	return before
}
