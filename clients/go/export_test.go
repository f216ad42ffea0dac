package sidekeeper

// What tests from outside need of the clock that processes share.
var (
	Boottime       = boottime
	BoottimeClock  = boottimeClock
	RemainingLease = remainingLease
)
